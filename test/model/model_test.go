package model

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// picture is as much of an image as the model looks at.
const picture = "iVBORw0KGgo="

// provider is an API, as one of its clients speaks it.
type provider struct {
	path string // of a stream: the one with a stream has stream in it
	// offer and result are the bodies of two requests: with a tool, and with the result of its call.
	offer, result string
}

var providers = map[string]provider{
	"anthropic": {"/v1/messages?beta=true",
		`{"stream": STREAM, "system": [{"type": "text", "text": "be kind"}], "tools": [{"name": "mcp__sandlot__run-it"}],
			"messages": [{"role": "user", "content": "go"}]}`,
		`{"stream": STREAM, "system": "be kind", "tools": [{"name": "mcp__sandlot__run-it"}], "messages": [
			{"role": "user", "content": "go"},
			{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "mcp__sandlot__run-it", "input": {}}]},
			{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "42"},
				{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "PICTURE"}}]}]}]}`},
	"chat": {"/v1/chat/completions",
		`{"stream": STREAM, "tools": [{"type": "function", "function": {"name": "sandlot_run_it"}}],
			"messages": [{"role": "developer", "content": "be kind"}, {"role": "user", "content": "go"}]}`,
		`{"stream": STREAM, "tools": [{"type": "function", "function": {"name": "sandlot_run_it"}}], "messages": [
			{"role": "system", "content": [{"type": "text", "text": "be kind"}]}, {"role": "user", "content": "go"},
			{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "sandlot_run_it", "arguments": "{}"}}]},
			{"role": "tool", "tool_call_id": "a", "content": "42"}, {"role": "user", "content": [
				{"type": "image_url", "image_url": {"url": "data:image/png;base64,PICTURE"}}]}]}`},
	"responses": {"/v1/responses",
		`{"stream": STREAM, "instructions": "be kind", "tools": [{"type": "function", "name": "shell"},
			{"type": "namespace", "name": "mcp__sandlot", "tools": [{"type": "function", "name": "run_it"}]}],
			"input": [{"role": "user", "content": [{"type": "input_text", "text": "go"}]}]}`,
		`{"stream": STREAM, "instructions": "be kind", "tools": [{"type": "namespace", "name": "mcp__sandlot",
			"tools": [{"type": "function", "name": "run_it"}]}], "input": [{"role": "user", "content": "go"},
			{"type": "function_call", "call_id": "a", "name": "run_it", "arguments": "{}"},
			{"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "42"},
				{"type": "input_image", "image_url": "data:image/png;base64,PICTURE"}]}]}`},
	"gemini": {"/v1beta/models/m:GENERATE?alt=sse",
		`{"systemInstruction": {"parts": [{"text": "be kind"}]}, "tools": [{"functionDeclarations": [
			{"name": "mcp_sandlot_run_it"}]}], "contents": [{"role": "user", "parts": [{"text": "go"}]}]}`,
		`{"systemInstruction": {"parts": [{"text": "be kind"}]}, "tools": [{"functionDeclarations": [
			{"name": "mcp_sandlot_run_it"}]}], "contents": [{"role": "user", "parts": [{"text": "go"}]},
			{"role": "model", "parts": [{"functionCall": {"name": "mcp_sandlot_run_it", "args": {}}}]},
			{"role": "user", "parts": [{"functionResponse": {"name": "mcp_sandlot_run_it", "response": {"output": "42"}}},
				{"inlineData": {"mimeType": "image/png", "data": "PICTURE"}}]}]}`},
}

// post sends a request, and returns the answer's text without the escapes of JSON inside JSON.
func (p provider) post(t *testing.T, m *Model, stream bool, body string) string {
	t.Helper()
	verb := map[bool]string{false: "generateContent", true: "streamGenerateContent"}[stream]
	body = strings.NewReplacer("STREAM", fmt.Sprint(stream), "PICTURE", picture).Replace(body)
	if !json.Valid([]byte(body)) {
		t.Fatal(body)
	}
	r, err := http.Post(m.URL+strings.Replace(p.path, "GENERATE", verb, 1), "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != 200 {
		t.Fatalf("%v, %d %s", err, r.StatusCode, text)
	}
	if kind := r.Header.Get("Content-Type"); (kind == "text/event-stream") != stream {
		t.Errorf("the answer is of type %s", kind)
	}
	return strings.ReplaceAll(string(text), `\"`, `"`)
}

// TestProviders: over each API the model calls the tool of its script by the client's name for it, is shown the result
// with its image, and ends.
func TestProviders(t *testing.T) {
	for name, p := range providers {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stream %t", name, stream), func(t *testing.T) {
				prepared := 0
				m := Start(t, []Step{{Tool: "run_it", Args: map[string]any{"n": 6}, Before: func() { prepared++ }}})
				m.Run(func() {
					for range 2 { // a client asks again when an answer is lost
						said := p.post(t, m, stream, p.offer)
						if !strings.Contains(said, "run") || !strings.Contains(said, `{"n":6}`) {
							t.Errorf("the model says %s", said)
						}
						if name == "responses" && !strings.Contains(said, `"namespace":"mcp__sandlot"`) {
							t.Errorf("a call without the namespace of its tool: %s", said)
						}
					}
					if m.Ended() || len(m.Results()) != 0 {
						t.Error("it has ended before it was shown a result")
					}
					if said := p.post(t, m, stream, p.result); !strings.Contains(said, End) {
						t.Errorf("at the end the model says %s", said)
					}
				})
				shown := m.Results()
				if len(shown) != 1 || shown[0].Text != "42" || shown[0].Images != 1 || !strings.Contains(shown[0].Tool, "run") {
					t.Errorf("it was shown %+v", shown)
				}
				if !m.Ended() || prepared != 1 || !strings.Contains(m.System(), "be kind") {
					t.Errorf("ended: %t, prepared %d times, was told %q", m.Ended(), prepared, m.System())
				}
			})
		}
	}
}

// TestWhatIsMissing: a tool that the client does not offer ends the script, and is named; so is a request of another API.
func TestWhatIsMissing(t *testing.T) {
	m := Start(t, []Step{{Tool: "it"}})
	chat := providers["chat"]
	if said := chat.post(t, m, false, strings.ReplaceAll(chat.offer, "run_it", "runit")); !strings.Contains(said,
		"There is no tool it") {
		t.Errorf("the model says %s", said)
	}
	if r, err := http.Get(m.URL + "/v1/elsewhere"); err != nil || r.StatusCode != 404 {
		t.Error(r, err)
	}
	if said := m.Problems(); !strings.Contains(said, `["it"] of ["sandlot_runit"]`) || !strings.Contains(said,
		"GET /v1/elsewhere") || m.Ended() {
		t.Error(said)
	}
}

// TestSearched: where a client names a tool and lets the model look for it, the model does so, and the search is no step.
func TestSearched(t *testing.T) {
	m := Start(t, []Step{{Tool: "run_it"}})
	chat := providers["chat"]
	ask := func(tools, more string) string {
		return chat.post(t, m, false, `{"tools": [{"function": {"name": "tool_search"}}`+tools+`], "messages": [
			{"role": "user", "content": "there is mcp__sandlot__run_it"}`+more+`]}`)
	}
	if said := ask("", ""); !strings.Contains(said, `select:mcp__sandlot__run_it`) {
		t.Errorf("the model says %s", said)
	}
	found := `, {"role": "assistant", "tool_calls": [{"id": "s", "function": {"name": "tool_search"}}]},
		{"role": "tool", "tool_call_id": "s", "content": "found"}`
	if said := ask(`, {"function": {"name": "mcp__sandlot__run_it"}}`, found); !strings.Contains(said,
		`"name":"mcp__sandlot__run_it"`) {
		t.Errorf("the model says %s", said)
	}
	if said := ask("", found); !strings.Contains(said, "There is no tool") {
		t.Errorf("it searches for ever: %s", said)
	}
	if len(m.Results()) != 0 {
		t.Errorf("%+v", m.Results())
	}
}

// TestWait: while a client does not offer a tool the model waits with another one, for some time, and counts no step.
func TestWait(t *testing.T) {
	m := Start(t, []Step{{Tool: "run_it"}})
	m.Wait = Step{Tool: "bash", Args: map[string]any{"command": "sleep 2"}}
	chat := providers["chat"]
	messages := `{"role": "user", "content": "go"}`
	ask := func(tools, want string) {
		t.Helper()
		said := chat.post(t, m, false, `{"tools": [{"function": {"name": "bash"}}`+tools+`], "messages": [`+messages+`]}`)
		if !strings.Contains(said, want) {
			t.Errorf("the model says %s, want %s", said, want)
		}
	}
	result := func(id, name, text string) {
		messages += fmt.Sprintf(`, {"role": "assistant", "tool_calls": [{"id": %q, "function": {"name": %q}}]},
			{"role": "tool", "tool_call_id": %[1]q, "content": %[3]q}`, id, name, text)
	}
	offered := `, {"function": {"name": "run_it"}}`
	begun := messages
	for i := range patience {
		ask("", `"name":"bash"`)
		result(fmt.Sprint(10+i), "bash", "")
	}
	ask("", "There is no tool run_it")
	messages = begun
	ask("", `"name":"bash"`)
	result("2", "bash", "")
	ask(offered, `"name":"run_it"`)
	result("3", "run_it", "42")
	ask(offered, End)
	if shown := m.Results(); len(shown) != 1 || shown[0].Text != "42" {
		t.Errorf("%+v", shown)
	}
}

// TestSays: a text is found behind any number of layers of JSON.
func TestSays(t *testing.T) {
	text := "no argument \"cod\";\ndid you mean \"code\"?"
	r := Result{Text: text}
	for range 3 {
		if !r.Says(text) || r.Says("codex") {
			t.Errorf("%s", r.Text)
		}
		b, err := json.Marshal(map[string]string{"text": r.Text})
		if err != nil {
			t.Fatal(err)
		}
		r.Text = string(b)
	}
}
