package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// fakeBuiltin is a source of Sandlot's own, with one tool and one resource.
type fakeBuiltin struct {
	call        func() (*tool.Result, error)
	description *atomic.Value // of its tool, a string; nil: it has none
}

func (f fakeBuiltin) Tools(context.Context, auth.Principal) []tool.Tool {
	if f.description == nil {
		return []tool.Tool{{Name: "own", Operation: policy.ShellExecute}}
	}
	return []tool.Tool{{Name: "own", Operation: policy.ShellExecute, Description: f.description.Load().(string)}}
}

func (f fakeBuiltin) Find(_ auth.Principal, name string) (tool.Callable, bool) {
	call := func(context.Context, tool.Call) (*tool.Result, error) { return f.call() }
	return tool.Callable{Operation: policy.ShellExecute, Call: call}, name == "own"
}

const ownTemplate = "sandlot://sessions/{session_id}/files/{+path}"

func (fakeBuiltin) File(string) (session, path string, ok bool) { return "", "", false }

func (fakeBuiltin) ResourceTemplates() []tool.Link {
	return []tool.Link{{URI: ownTemplate, Name: "session file"}}
}

func (fakeBuiltin) Read(_ context.Context, _ auth.Principal, uri string, _ int) (tool.Blob, int64, error) {
	if !strings.HasPrefix(uri, "sandlot://") {
		return tool.Blob{}, 0, fault.New(fault.NotFound, "no %s", uri)
	}
	return tool.Blob{MIME: "text/plain", Data: []byte("our file")}, 8, nil
}

// fakeExternal is a source of third-party servers that offers and does what a test sets.
type fakeExternal struct {
	tools                         []tool.Tool
	prompts, resources, templates []tool.Item
	call                          func(context.Context, tool.Call) (*tool.Result, error)
	proxy                         func(context.Context, tool.Request) (json.RawMessage, error)
	list                          func() // called by Tools
	subscribed                    []string
	gone                          chan string
}

func (f *fakeExternal) Tools(context.Context, auth.Principal) []tool.Tool {
	if f.list != nil {
		f.list()
	}
	return f.tools
}

func (f *fakeExternal) Find(_ auth.Principal, name string) (tool.Callable, bool) {
	return tool.Callable{Operation: policy.MCPCall, Call: f.call}, strings.HasPrefix(name, "ext_")
}

func (f *fakeExternal) WaitReady(context.Context, auth.Principal) bool { return false }
func (f *fakeExternal) Prompts(auth.Principal) []tool.Item             { return f.prompts }
func (f *fakeExternal) Resources(auth.Principal) []tool.Item           { return f.resources }
func (f *fakeExternal) Templates(auth.Principal) []tool.Item           { return f.templates }

func (f *fakeExternal) Detail(tool.Request) tool.Detail { return tool.Detail{} }

func (f *fakeExternal) Proxy(ctx context.Context, r tool.Request) (json.RawMessage, error) {
	return f.proxy(ctx, r)
}

func (f *fakeExternal) Subscribe(_ context.Context, _ auth.Principal, _, uri string) error {
	f.subscribed = append(f.subscribed, uri)
	return nil
}

func (f *fakeExternal) Unsubscribe(context.Context, auth.Principal, string, string) error { return nil }
func (f *fakeExternal) SetLevel(context.Context, auth.Principal, string, string)          {}
func (f *fakeExternal) ClientGone(_ auth.Principal, client string) {
	if f.gone != nil {
		f.gone <- client
	}
}

func externalTool(name, schema string) tool.Tool {
	return tool.Tool{Name: name, Raw: json.RawMessage(fmt.Sprintf(`{"name":%q,"inputSchema":%s}`, name, schema))}
}

func newGateway(sources ...tool.Source) *Gateway {
	return New(Config{Hub: hub.New(hub.Config{Sources: sources}), Log: slog.New(slog.DiscardHandler)})
}

// ask sends a request of the stateless protocol and returns the answer, without the framing of
// events.
func ask(g *Gateway, method, name, params string) string {
	return askAs(g, auth.Local, method, name, params)
}

func askAs(g *Gateway, p auth.Principal, method, name, params string) string {
	if params != "" {
		params += ","
	}
	body := request("1", method, params+statelessMeta(`{"elicitation":{}}`, ""))
	r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
	for k, v := range map[string]string{
		"Content-Type":         "application/json",
		"Accept":               "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28",
		"Mcp-Method":           method,
		"Mcp-Name":             name,
	} {
		if v != "" {
			r.Header.Set(k, v)
		}
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r.WithContext(auth.NewContext(r.Context(), p)))
	b, _ := io.ReadAll(w.Result().Body)
	_, data, events := strings.Cut(string(b), "data: ")
	if !events {
		return string(b)
	}
	return strings.TrimSpace(data)
}

// request returns a JSON-RPC request; id is JSON, and params are the members of an object.
func request(id, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s}}`, id, method, params)
}

// callOf returns a call of a tool.
func callOf(id, name, arguments string) string {
	return request(id, "tools/call", fmt.Sprintf(`"name":%q,"arguments":%s`, name, arguments))
}

// initParams returns the parameters of initialize.
func initParams(revision, capabilities string) string {
	return fmt.Sprintf(`"protocolVersion":%q,"capabilities":%s,%s`, revision, capabilities, clientInfo)
}

const clientInfo = `"clientInfo":{"name":"t","version":"1"}`

// initialize returns the request that begins a session of the stateful protocol.
func initialize(id string) string { return request(id, "initialize", initParams("2025-11-25", "{}")) }

// statelessMeta returns the _meta of a request of the stateless protocol; more is empty or
// begins with a comma.
func statelessMeta(capabilities, more string) string {
	return `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":` + capabilities + more + `}`
}

// asksInput returns a result of the stateless protocol that asks for input.
func asksInput(name, state string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"resultType":"input_required","requestState":%q,`+
		`"inputRequests":{%q:{"method":"elicitation/create","params":{}}}}`, state, name))
}

// askBare sends a request without MCP headers.
func askBare(g *Gateway, body string) string {
	r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r.WithContext(auth.NewContext(r.Context(), auth.Local)))
	return w.Body.String()
}

// fakeElicitor is a source of Sandlot's own, with a tool that asks the client's user.
type fakeElicitor struct {
	call func(context.Context, tool.Call) (*tool.Result, error)
}

func (fakeElicitor) Tools(context.Context, auth.Principal) []tool.Tool {
	return []tool.Tool{{Name: "careful", Elicits: true, Operation: policy.MCPConnect},
		{Name: "careless", Operation: policy.MCPConnect}}
}

func (f fakeElicitor) Find(_ auth.Principal, name string) (tool.Callable, bool) {
	return tool.Callable{Operation: policy.MCPConnect, Call: f.call}, strings.HasPrefix(name, "care")
}

// stdioPipe serves p over stdio: the gateway reads what is written to in, and out has its
// messages, one on each line.
func stdioPipe(g *Gateway, p auth.Principal) (in io.WriteCloser, out *bufio.Scanner) {
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	go func() {
		_ = g.Serve(context.Background(), p, Asked{}, inRead, outWrite)
		outWrite.Close()
		inRead.Close()
	}()
	lines := bufio.NewScanner(outRead)
	return inWrite, lines
}
