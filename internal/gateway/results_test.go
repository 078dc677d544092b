package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// printed is a result with fields.
func printed() (*tool.Result, error) {
	return &tool.Result{Content: []tool.Content{tool.Text("42")}, Summary: "session_id: s",
		Fields: &struct {
			Output string `json:"output"`
		}{"42"}}, nil
}

// postTo posts a request to an address of the gateway.
func postTo(g *Gateway, address, session, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", address, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		r.Header.Set("Mcp-Session-Id", session)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r.WithContext(auth.NewContext(r.Context(), auth.Local)))
	return w
}

// connectAs begins a session of a client with a name.
func connectAs(t *testing.T, g *Gateway, address, name string) (session string) {
	t.Helper()
	w := postTo(g, address, "", fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",`+
		`"capabilities":{},"clientInfo":{"name":%q,"version":"1"}}}`, name))
	session = w.Header().Get("Mcp-Session-Id")
	postTo(g, address, session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return session
}

// answerOf returns the result in an answer, which may be an event.
func answerOf(t *testing.T, w *httptest.ResponseRecorder) (r struct {
	IsError           bool
	StructuredContent json.RawMessage
	Content           []struct{ Type, Text string }
	Meta              json.RawMessage `json:"_meta"`
}) {
	t.Helper()
	body := w.Body.String()
	if _, data, ok := strings.Cut(body, "data: "); ok {
		body = data
	}
	var m struct{ Result, Error json.RawMessage }
	if err := json.Unmarshal([]byte(body), &m); err != nil || m.Result == nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if err := json.Unmarshal(m.Result, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

const callOwn = `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"own","arguments":{}}}`

// TestFormOfResults: a client gets the form that it asks for, or that is known to be best for it.
func TestFormOfResults(t *testing.T) {
	g := newGateway(fakeBuiltin{call: printed}, &fakeExternal{})
	const nl = "\n"
	for _, tt := range []struct {
		address, client, header string
		content                 []string
		data                    bool
	}{
		{"/mcp", "mystery", "", []string{"42", nl + "session_id: s"}, true},
		{"/mcp", "codex-mcp-client", "", []string{"42" + nl + "session_id: s"}, false},
		{"/mcp", "@cline/core", "", []string{"42" + nl + "session_id: s"}, false},
		{"/mcp", "Cline", "", []string{"42" + nl + "session_id: s"}, false},
		{"/mcp?results=both", "codex-mcp-client", "", []string{"42", nl + "session_id: s"}, true},
		{"/mcp?results=text", "mystery", "", []string{"42" + nl + "session_id: s"}, false},
		{"/mcp?results=data", "mystery", "", []string{"session_id: s"}, true},
		{"/mcp", "mystery", "text", []string{"42" + nl + "session_id: s"}, false},
		{"/mcp?results=both", "mystery", "text", []string{"42", nl + "session_id: s"}, true},
	} {
		session := connectAs(t, g, tt.address, tt.client)
		stateless := fmt.Sprintf(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"own","arguments":{},"_meta":{`+
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},`+
			`"io.modelcontextprotocol/clientInfo":{"name":%q,"version":"1"}}}}`, tt.client)
		for i := range 6 { // the SDK answers the first of each protocol, the fast path the others
			header := []string{"Sandlot-Results", tt.header}
			w := &httptest.ResponseRecorder{}
			if i%2 == 0 {
				w = postTo(g, tt.address, session, callOwn, header...)
			} else {
				w = postTo(g, tt.address, "", stateless, append(header, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call",
					"Mcp-Name", "own")...)
			}
			r := answerOf(t, w)
			var texts []string
			for _, c := range r.Content {
				texts = append(texts, c.Text)
			}
			if strings.Join(texts, "|") != strings.Join(tt.content, "|") || (r.StructuredContent != nil) != tt.data {
				t.Errorf("%+v, %d: %q, %s", tt, i, texts, r.StructuredContent)
			}
		}
	}
	if w := postTo(g, "/mcp?results=html", "", callOwn); w.Code != http.StatusBadRequest ||
		!strings.Contains(w.Body.String(), "text, data, both") {
		t.Errorf("a form that is none: %d %s", w.Code, w.Body)
	}
}

// fakeCaller is a source of Sandlot's own with a tool that calls a third-party one.
type fakeCaller struct{}

func (fakeCaller) Tools(context.Context, auth.Principal) []tool.Tool {
	return []tool.Tool{{Name: "caller", Elicits: true, Operation: policy.ToolFind}}
}

func (fakeCaller) Find(_ auth.Principal, name string) (tool.Callable, bool) {
	return tool.Callable{Operation: policy.ToolFind, Resolve: func(_ context.Context, c tool.Call) (tool.Call, error) {
		c.Name = "ext_t"
		return c, nil
	}}, name == "caller"
}

// TestThirdPartyResultsByClient: Gemini CLI gets a text that is JSON and no object as data, too, as it would refuse the
// result; other clients get what the server has sent. Nobody gets an empty text. So it is by each road to the tool.
func TestThirdPartyResultsByClient(t *testing.T) {
	text := ""
	g := newGateway(fakeCaller{}, &fakeExternal{tools: []tool.Tool{externalTool("ext_t", `{"type":"object"}`)},
		call: func(context.Context, tool.Call) (*tool.Result, error) {
			return &tool.Result{Raw: json.RawMessage(fmt.Sprintf(
				`{"content":[{"type":"text","text":""},{"type":"text","text":%q}]}`, text))}, nil
		}})
	defer g.Close()
	for client, wraps := range map[string]bool{"gemini-cli-mcp-client": true, "mystery": false, "claude-code": false} {
		for _, address := range []string{"/mcp", "/mcp?results=both"} {
			session := connectAs(t, g, address, client)
			for _, name := range []string{"ext_t", "caller"} {
				for i, value := range []string{"42", "42", `"x"`, "[1]", "null", "true", "{}", "plain"} {
					text = value
					r := answerOf(t, postTo(g, address, session, strings.Replace(callOwn, `"own"`, `"`+name+`"`, 1)))
					want := ""
					if wraps && i < 6 {
						want = `{"result":` + value + `}`
					}
					if string(r.StructuredContent) != want || len(r.Content) != 1 || r.Content[0].Text != value {
						t.Errorf("%s at %s, %s of %q: %+v", client, address, name, value, r)
					}
				}
			}
		}
	}
}

// TestFailedCallsAreResults: what a model can mend is a result, by each road; what it cannot is an error.
func TestFailedCallsAreResults(t *testing.T) {
	var failed error
	g := newGateway(fakeBuiltin{call: func() (*tool.Result, error) { return nil, failed }},
		&fakeExternal{tools: []tool.Tool{externalTool("ext_t", `{"type":"object"}`)},
			call: func(context.Context, tool.Call) (*tool.Result, error) { return nil, failed }})
	session := connectAs(t, g, "/mcp", "mystery")
	for _, name := range []string{"own", "ext_t"} {
		call := strings.Replace(callOwn, `"own"`, `"`+name+`"`, 1)
		for _, tt := range []struct {
			err    error
			result bool
			text   string
		}{
			{fault.New(fault.NotFound, "File not found in sandbox: x"), true, "File not found in sandbox: x\n- Check the name"},
			{fault.Argument("cod", `no argument "cod"`), true, "Invalid parameters: no argument \"cod\"\n- Correct"},
			{fault.New(fault.SessionNotFound, "x"), true, "Session not found: x\n- "},
			{fault.Limit("sessions", 1, 1, "too many"), true, "Resource limit exceeded: too many\n- "},
			{fault.New(fault.Forbidden, "no").Advise("do this"), true, "Not allowed: no\n- do this"},
			{fault.New(fault.Connection, "gone"), true, "Connection error: gone\n- "},
			{fault.New(fault.Internal, "a bug"), false, ""},
			{&tool.ExternalError{Code: -32602, Message: "wrong argument"}, true, "wrong argument"},
			{&tool.ExternalError{Code: -32602, Message: " "}, true, "the server's error has no text"},
			{&tool.ExternalError{Code: -32042, Message: "open this"}, false, ""},
		} {
			failed = tt.err
			for range 3 {
				w := postTo(g, "/mcp", session, call)
				if !tt.result {
					if !strings.Contains(w.Body.String(), `"error":{`) || strings.Contains(w.Body.String(), `"isError"`) {
						t.Errorf("%s: %v: %s", name, tt.err, w.Body)
					}
					continue
				}
				r := answerOf(t, w)
				if !r.IsError || !strings.HasPrefix(r.Content[0].Text, tt.text) || !strings.Contains(string(r.Meta), `"sandlot/error":{"code":-32`) {
					t.Errorf("%s: %v: %+v", name, tt.err, r)
				}
				if _, isFault := tt.err.(*fault.Error); (r.StructuredContent != nil) != (name == "own" && isFault) {
					t.Errorf("%s: %v: structuredContent %s", name, tt.err, r.StructuredContent)
				}
			}
		}
	}
	if w := postTo(g, "/mcp", session, strings.Replace(callOwn, `"own"`, `"none"`, 1)); !strings.Contains(w.Body.String(), `"error":{`) {
		t.Errorf("an unknown tool: %s", w.Body)
	}
}

// TestFieldsKeepTheirOrderStateless: a client of the stateless protocol gets the fields of a form in their order, too.
func TestFieldsKeepTheirOrderStateless(t *testing.T) {
	const form = `{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"string"},"m":{"type":"string"}}}`
	g := newGateway(fakeElicitor{func(ctx context.Context, c tool.Call) (*tool.Result, error) {
		_, err := c.Client.Ask(ctx, "elicitation/create", json.RawMessage(`{"message":"m","requestedSchema":`+form+`}`))
		return &tool.Result{Summary: "done"}, err
	}}, &fakeExternal{})
	defer g.Close()
	w := postTo(g, "/mcp", "", `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"careful","arguments":{},"_meta":{`+
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},`+
		`"io.modelcontextprotocol/clientInfo":{"name":"mystery","version":"1"}}}}`, "Mcp-Protocol-Version", "2026-07-28",
		"Mcp-Method", "tools/call", "Mcp-Name", "careful")
	if !strings.Contains(w.Body.String(), `"requestedSchema":`+form) {
		t.Errorf("asked for %s", w.Body)
	}
}

// TestDiscoverByClient: a client that loses its server with the stateless protocol is told that there is none, and
// connects with the stateful one. Others have both.
func TestDiscoverByClient(t *testing.T) {
	g := newGateway(fakeBuiltin{call: printed}, &fakeExternal{})
	discover := func(name string) *httptest.ResponseRecorder {
		return postTo(g, "/mcp", "", fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{"_meta":{`+
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},`+
			`"io.modelcontextprotocol/clientInfo":{"name":%q,"version":"1"}}}}`, name),
			"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "server/discover")
	}
	for name, want := range map[string]int{"copilot-cli": 404, "GitHub-Copilot-developer": 404, "mystery": 200, "": 200} {
		w := discover(name)
		if w.Code != want || strings.Contains(w.Body.String(), "2026-07-28") != (want == 200) ||
			strings.Contains(w.Body.String(), "-32601") != (want == 404) {
			t.Errorf("%q: %d %s", name, w.Code, w.Body)
		}
	}
	session := connectAs(t, g, "/mcp", "copilot-cli")
	if r := answerOf(t, postTo(g, "/mcp", session, callOwn)); len(r.Content) == 0 || !strings.HasPrefix(r.Content[0].Text, "42") {
		t.Errorf("%+v", r)
	}
}
