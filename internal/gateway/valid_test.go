package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/revision"
	"sandlot/internal/revision/schematest"
	"sandlot/internal/tool"
)

// richResult is the result of a third-party tool that has what the catalog lets through for the latest revision.
const richResult = `{"content":[{"type":"text","text":"t","annotations":{"audience":["user"],"priority":0.5}},
	{"type":"image","data":"QUFB","mimeType":"image/png"},{"type":"audio","data":"QUFB","mimeType":"audio/wav"},
	{"type":"resource_link","uri":"file:///x","name":"n","size":3,"icons":[{"src":"data:,"}]},
	{"type":"resource","resource":{"uri":"mem://a","blob":"AAEC","mimeType":"a/b"}},{"type":"text","text":""}],
	"structuredContent":[1,"a"],"_meta":{"m":1}}`

// richResults are results of third-party servers, by method.
var richResults = map[string]string{
	"prompts/get": `{"description":"d","messages":[{"role":"user","content":{"type":"audio","data":"QUFB","mimeType":"audio/wav"}},
		{"role":"assistant","content":{"type":"resource_link","uri":"file:///x","name":"n"}},
		{"role":"user","content":{"type":"resource","resource":{"uri":"mem://b","text":"t"}}}]}`,
	"resources/read":      `{"contents":[{"uri":"mem://b","text":"t","_meta":{"k":1}},{"uri":"mem://c","blob":"AAEC"}]}`,
	"completion/complete": `{"completion":{"values":["a","b"],"total":2,"hasMore":false}}`,
}

// rich returns a source of third-party servers with one of each kind, whose tool answers as called says.
func rich(called func() (*tool.Result, error)) *fakeExternal {
	item := func(key, raw string) []tool.Item { return []tool.Item{{Key: key, Raw: json.RawMessage(raw)}} }
	return &fakeExternal{
		tools: []tool.Tool{externalTool("ext_t", `{"type":"object","properties":{"a":{"type":["string","null"]}}},
			"outputSchema":{"type":"array","items":{}},"title":"T","annotations":{"readOnlyHint":true},
			"icons":[{"src":"data:,"}],"_meta":{"k":1}`)},
		prompts: item("ext_p", `{"name":"ext_p","title":"P","arguments":[{"name":"a","required":true}],"icons":[{"src":"data:,"}]}`),
		resources: item("mem://b", `{"uri":"mem://b","name":"b","size":12,"mimeType":"a/b","annotations":{"audience":["user"],
			"lastModified":"2026-01-01T00:00:00Z"}}`),
		templates: item("mem://{a}", `{"uriTemplate":"mem://{a}","name":"r","annotations":{"priority":1}}`),
		call:      func(context.Context, tool.Call) (*tool.Result, error) { return called() },
		proxy: func(_ context.Context, r tool.Request) (json.RawMessage, error) {
			if bytes.Contains(r.Params["name"], []byte("none")) || bytes.Contains(r.Params["uri"], []byte("none")) {
				return nil, &tool.ExternalError{Code: -32602, Message: "no such thing", Data: json.RawMessage(`[1]`)}
			}
			return json.RawMessage(richResults[r.Method]), nil
		},
	}
}

// TestAnswersAreValid: what clients of each revision get as the answer to each request, by the SDK and by the fast path,
// is valid by the published schema of that revision: lists, results of Sandlot's own tools and of third-party servers,
// what has failed, and errors.
func TestAnswersAreValid(t *testing.T) {
	var failed error
	picture := &tool.Result{Content: []tool.Content{tool.Text("42"), {Image: &tool.Blob{MIME: "image/png", Data: []byte("x")}},
		{Resource: &tool.Resource{URI: "sandlot://output/0", MIME: "text/html", Text: "<b>"}},
		{Link: &tool.Link{URI: "sandlot://f", Name: "f"}}}, Fields: map[string]any{"n": 1}, Summary: "session_id: s", Notice: "n"}
	g := newGateway(fakeBuiltin{call: func() (*tool.Result, error) { return picture, failed }},
		rich(func() (*tool.Result, error) { return &tool.Result{Raw: json.RawMessage(richResult)}, failed }))
	defer g.Close()
	for _, version := range schematest.Revisions {
		send := statefulSender(t, g, version)
		if revision.IsStateless(version) {
			send = func(method, name, params string) string { return ask(g, method, name, params) }
		}
		check := func(definition, method, name, params string) {
			t.Helper()
			for range 3 {
				checkAnswer(t, version, definition, send(method, name, params))
			}
		}
		check("ListToolsResult", "tools/list", "", "")
		check("ListPromptsResult", "prompts/list", "", "")
		check("ListResourcesResult", "resources/list", "", "")
		check("ListResourceTemplatesResult", "resources/templates/list", "", "")
		check("GetPromptResult", "prompts/get", "ext_p", `"name":"ext_p","arguments":{"a":"x"}`)
		for _, uri := range []string{"mem://b", "mem://other", "sandlot://sessions/abc/files/workspace/x"} {
			check("ReadResourceResult", "resources/read", uri, `"uri":"`+uri+`"`)
		}
		check("CompleteResult", "completion/complete", "", `"ref":{"type":"ref/prompt","name":"ext_p"},"argument":{"name":"a","value":"x"}`)
		if !revision.IsStateless(version) {
			check("EmptyResult", "ping", "", "")
			check("EmptyResult", "logging/setLevel", "", `"level":"info"`)
			check("EmptyResult", "resources/subscribe", "", `"uri":"mem://b"`)
		}
		for _, name := range []string{"own", "ext_t"} {
			for _, failed = range []error{nil, fault.New(fault.NotFound, "File not found in sandbox: x"),
				fault.Argument("cod", `no argument "cod"`), fault.New(fault.SessionNotFound, "x"),
				fault.Limit("sessions", 1, 1, "too many"), fault.New(fault.Forbidden, "no").Advise("do this"),
				&tool.ExternalError{Code: -32602, Message: "wrong", Data: json.RawMessage(`null`)}} {
				check("CallToolResult", "tools/call", name, `"name":"`+name+`","arguments":{}`)
			}
			for _, failed = range []error{fault.New(fault.Internal, "a bug"), errors.New("another bug"),
				&tool.ExternalError{Code: -32042, Message: "open this", Data: json.RawMessage(`{"elicitations":[]}`)}} {
				check("", "tools/call", name, `"name":"`+name+`","arguments":{}`)
			}
			failed = nil
		}
		check("", "tools/call", "none", `"name":"none","arguments":{}`)
		check("", "prompts/get", "ext_none", `"name":"ext_none"`)
		check("", "resources/read", "mem://none", `"uri":"mem://none"`)
		check("", "tools/list", "", `"cursor":"nonsense"`)
		check("", "no/method", "", "")
	}
}

// statefulSender begins a session of a revision, whose answer has to be valid, and returns what sends requests in it.
func statefulSender(t *testing.T, g *Gateway, version string) func(method, name, params string) string {
	t.Helper()
	if revision.IsStateless(version) {
		return nil
	}
	w := postTo(g, "/mcp", "", request("0", "initialize", initParams(version, "{}")))
	checkAnswer(t, version, "InitializeResult", w.Body.String())
	session := w.Header().Get("Mcp-Session-Id")
	postTo(g, "/mcp", session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return func(method, _, params string) string {
		return postTo(g, "/mcp", session, request("1", method, params), "Mcp-Protocol-Version", version).Body.String()
	}
}

// checkAnswer fails the test if an answer, which may be an event, is not valid: its result by a definition, or as an error
// if the definition is empty.
func checkAnswer(t *testing.T, version, definition, answer string) {
	t.Helper()
	if _, data, isEvent := strings.Cut(answer, "data: "); isEvent {
		answer = data
	}
	var m struct{ Result, Error json.RawMessage }
	if err := json.Unmarshal([]byte(answer), &m); err != nil {
		t.Fatalf("%s, %s: %q: %v", version, definition, answer, err)
	}
	raw := m.Result
	if definition == "" {
		raw, definition = json.RawMessage(answer), "JSONRPCErrorResponse"
		if version < "2025-11-25" {
			definition = "JSONRPCError"
		}
	}
	if len(raw) == 0 || (m.Error != nil) != (m.Result == nil) {
		t.Fatalf("%s, %s: %s", version, definition, answer)
	}
	if err := schematest.Validate(version, definition, raw); err != nil {
		t.Errorf("%s: %s\n%v", version, answer, err)
	}
}

// TestRefusedRequestsAreValid: what is refused before any protocol is spoken is still an error of JSON-RPC.
func TestRefusedRequestsAreValid(t *testing.T) {
	g := newGateway(fakeBuiltin{}, &fakeExternal{})
	defer g.Close()
	for _, body := range []string{`nonsense`, `{"jsonrpc":"2.0","id":1}`, `{"jsonrpc":"1.0","id":1,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}`, `{"jsonrpc":"2.0","id":"a","method":"nothing"}`} {
		checkAnswer(t, "2025-06-18", "", strings.Replace(askBare(g, body), `"id":null`, `"id":0`, 1)) // null is JSON-RPC's
	}
	w := postTo(g, "/mcp", "UNKNOWN", request("1", "tools/list", ""))
	if w.Code != http.StatusNotFound {
		t.Errorf("an unknown session: %d %s", w.Code, w.Body)
	}
}
