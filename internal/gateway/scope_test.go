package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// scopedTools is a source with a tool for each of some operations. It fails the test when a tool is called
// with a token whose scope does not have its operation.
type scopedTools struct {
	t     *testing.T
	tools map[string]policy.Operation
}

func (s scopedTools) Tools(context.Context, auth.Principal) []tool.Tool {
	var all []tool.Tool
	for _, name := range []string{"code", "read", "careful"} {
		all = append(all, tool.Tool{Name: name, Operation: s.tools[name], Elicits: name == "careful"})
	}
	return all
}

func (s scopedTools) Find(_ auth.Principal, name string) (tool.Callable, bool) {
	o, ok := s.tools[name]
	return tool.Callable{Operation: o, Call: s.call}, ok
}

func (s scopedTools) call(_ context.Context, c tool.Call) (*tool.Result, error) {
	if !c.Principal.Scope.Allows(string(s.tools[c.Name])) {
		s.t.Errorf("%s was called with the scope %q", c.Name, c.Principal.Scope)
	}
	raw := fmt.Sprintf(`{"content":[{"type":"text","text":"%s by %s"}]}`, c.Name, c.Principal.Token)
	if strings.HasPrefix(c.Name, "ext_") {
		return &tool.Result{Raw: json.RawMessage(raw)}, nil
	}
	return &tool.Result{Content: []tool.Content{tool.Text(c.Name + " by " + c.Principal.Token)}}, nil
}

// postBare sends a request without MCP headers.
func postBare(g *Gateway, p auth.Principal, body string) string {
	r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r.WithContext(auth.NewContext(r.Context(), p)))
	return w.Body.String()
}

// Tokens of one user with different scopes call everything at the same time, over all transports and
// protocols, by the SDK, the relay and the fast path: each gets what its scope allows, and a refusal that names
// the operation for the rest. Each list has what the token may use.
func TestScopesOfOneUser(t *testing.T) {
	tools := scopedTools{t, map[string]policy.Operation{"code": policy.CodeExecute, "read": policy.FileRead,
		"careful": policy.MCPConnect, "ext_t": policy.MCPCall}}
	external := &fakeExternal{tools: []tool.Tool{externalTool("ext_t", `{"type":"object"}`)},
		prompts:   []tool.Item{{Key: "ext_p", Raw: json.RawMessage(`{"name":"ext_p"}`)}},
		resources: []tool.Item{{Key: "file:///x", Raw: json.RawMessage(`{"uri":"file:///x","name":"x"}`)}},
		call:      tools.call,
		proxy: func(_ context.Context, r tool.Request) (json.RawMessage, error) {
			operation := map[string]string{"prompts/get": "prompt.get", "resources/read": "resource.read"}[r.Method]
			if !r.Principal.Scope.Allows(operation) {
				t.Errorf("%s was done with the scope %q", r.Method, r.Principal.Scope)
			}
			return json.RawMessage(`{"messages":[],"contents":[]}`), nil
		}}
	g := newGateway(scopedTools{t, map[string]policy.Operation{"code": policy.CodeExecute, "read": policy.FileRead,
		"careful": policy.MCPConnect}}, external, fakeFiles{})
	var all sync.WaitGroup
	for id, scope := range map[string]auth.Scope{"tok_1": "code.execute", "tok_2": "file.* resource.read",
		"tok_3": "mcp.* prompt.get", "tok_4": "", "tok_5": "secret.list",
		"tok_6": "resource.read"} {
		p := withToken("ann", id, false)
		p.Scope = scope
		all.Go(func() { tools.useAll(g, p) })
	}
	all.Wait()
}

// fakeFiles is a source without tools, and with Sandlot's own resources.
type fakeFiles struct{ fakeBuiltin }

func (fakeFiles) Tools(context.Context, auth.Principal) []tool.Tool         { return nil }
func (fakeFiles) Find(auth.Principal, string) (_ tool.Callable, found bool) { return }

func (fakeFiles) File(string) (session, path string, ok bool) { return "home", "/x", true }

// useAll calls everything over each transport.
func (s scopedTools) useAll(g *Gateway, p auth.Principal) {
	t := s.t
	session := begin(t, g, p)
	in, out := stdioPipe(g, p)
	defer in.Close()
	say := func(method, params string) string {
		if _, err := io.WriteString(in, request("7", method, params)+"\n"); err != nil {
			t.Error(err)
		}
		for out.Scan() {
			if strings.Contains(out.Text(), `"id":7`) {
				return out.Text()
			}
		}
		return "it ended"
	}
	if _, err := io.WriteString(in, initialize("0")+"\n"+`{"jsonrpc":"2.0","method":"notifications/initialized"}`+
		"\n"); err != nil {
		t.Error(err)
	}
	transports := map[string]func(method, name, params string) string{
		"stateless": func(method, name, params string) string { return askAs(g, p, method, name, params) },
		"stateful": func(method, _, params string) string {
			return post(g, p, session, request("7", method, params)).Body.String()
		},
		"stdio": func(method, _, params string) string { return say(method, params) },
		"bare":  func(method, _, params string) string { return postBare(g, p, request("7", method, params)) },
	}
	requests := []struct{ method, name, field, operation string }{
		{"tools/call", "code", "name", "code.execute"}, {"tools/call", "read", "name", "file.read"},
		{"tools/call", "careful", "name", "mcp.connect"}, {"tools/call", "ext_t", "name", "mcp.call"},
		{"prompts/get", "ext_p", "name", "prompt.get"}, {"resources/read", "file:///x", "uri", "resource.read"},
		{"resources/read", "sandlot://sessions/home/files/x", "uri", "resource.read"},
	}
	for name, send := range transports {
		for range 3 { // the SDK answers the first request, the fast path the others
			for _, r := range requests {
				if name == "bare" && r.method != "tools/call" {
					continue
				}
				answer := send(r.method, r.name, fmt.Sprintf("%q:%q", r.field, r.name))
				allowed := p.Scope.Allows(r.operation)
				if strings.HasPrefix(r.name, "sandlot:") && allowed {
					allowed = p.Scope.Allows("file.read")
				}
				failed := strings.Contains(answer, `"error"`) || strings.Contains(answer, `"isError":true`)
				refused := failed && strings.Contains(answer, "not in the scope") &&
					(strings.Contains(answer, r.operation) || strings.Contains(answer, "file.read"))
				if allowed == refused || allowed == failed {
					t.Errorf("%s: %s %s with the scope %q: %s", name, r.method, r.name, p.Scope, answer)
				}
			}
			list := send("tools/list", "", "")
			for tool, operation := range s.tools {
				if strings.Contains(list, fmt.Sprintf("%q", tool)) != p.Scope.Allows(string(operation)) {
					t.Errorf("%s: the tools with the scope %q: %s", name, p.Scope, list)
				}
			}
			if name == "bare" {
				continue
			}
			if list := send("prompts/list", "", ""); strings.Contains(list, "ext_p") != p.Scope.Allows("prompt.get") {
				t.Errorf("%s: the prompts with the scope %q: %s", name, p.Scope, list)
			}
			if list := send("resources/list", "", ""); strings.Contains(list, "file:///x") !=
				p.Scope.Allows("resource.read") {
				t.Errorf("%s: the resources with the scope %q: %s", name, p.Scope, list)
			}
		}
	}
}

// A call that waits for its user cannot be continued with another token of the user, and neither can the
// session of the stateful protocol, whatever the scope of that token.
func TestSuspendedCallsBelongToTheirScope(t *testing.T) {
	g := newAskingGateway()
	one, two := withToken("ann", "tok_1", false), withToken("ann", "tok_2", false)
	one.Scope, two.Scope = "mcp.*", "code.execute"
	_, state, _ := resultOf(t, askAs(g, one, "tools/call", "careful", callCareful))
	if state == "" {
		t.Fatal("the call does not wait")
	}
	answered := answeredCall(state, `{"action":"accept"}`)
	if a := askAs(g, two, "tools/call", "careful", answered); strings.Contains(a, "accept") ||
		!strings.Contains(a, "not in the scope") {
		t.Errorf("another scope: %s", a)
	}
	two.Scope = "mcp.*"
	if a := askAs(g, two, "tools/call", "careful", answered); !strings.Contains(a, "is over") {
		t.Errorf("another token with the same scope: %s", a)
	}
	if a := askAs(g, one, "tools/call", "careful", answered); !strings.Contains(a, "accept") {
		t.Errorf("its own token: %s", a)
	}
	session := begin(t, g, one)
	if w := post(g, two, session, request("7", "ping", "")); w.Code != http.StatusNotFound {
		t.Errorf("the session of another token: %d %s", w.Code, w.Body)
	}
}

// A service can name any number of users, and its endpoints stay bounded; a user whose endpoint was ended
// gets a new one.
func TestEndpointsOfAServiceAreBounded(t *testing.T) {
	tokens := &fakeTokens{}
	g := newGatewayWithTokens(tokens, reportCaller())
	user := func(n int) auth.Principal {
		p, err := auth.Principal{ID: "user:gitu", Token: "tok_1", ActsFor: true}.ActFor([]string{fmt.Sprint("u", n)})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	ann := withToken("ann", "tok_2", false)
	session := begin(t, g, ann)
	first := begin(t, g, user(0))
	for n := range maxServiceEndpoints + 20 {
		if a := askAs(g, user(n), "tools/list", "", ""); strings.Contains(a, "error") {
			t.Fatal(a)
		}
	}
	if n := g.numEndpoints(); n != maxServiceEndpoints+1 {
		t.Errorf("there are %d endpoints", n)
	}
	ping := request("7", "ping", "")
	if w := post(g, ann, session, ping); w.Code != http.StatusOK {
		t.Errorf("another user's session: %d", w.Code)
	}
	if w := post(g, user(0), first, ping); w.Code != http.StatusNotFound {
		t.Errorf("the session of the ended endpoint: %d", w.Code)
	}
	// Users of one service and one token cannot use each other's sessions.
	sessions := map[int]string{1: begin(t, g, user(1)), 2: begin(t, g, user(2))}
	for n, id := range sessions {
		for m := range 3 {
			want := http.StatusNotFound
			if m == n {
				want = http.StatusOK
			}
			if w := post(g, user(m), id, ping); w.Code != want {
				t.Errorf("u%d uses the session of u%d: %d", m, n, w.Code)
			}
		}
	}
	g.Close()
}

// A user gets an endpoint for each JWT, and they stay bounded.
func TestEndpointsOfAUserAreBounded(t *testing.T) {
	g := newGatewayWithTokens(&fakeTokens{}, reportCaller())
	jwt := func(n int) auth.Principal {
		return auth.Principal{ID: "oidc:issuer.test/ann", Authenticated: true, Token: fmt.Sprint("jwt", n),
			Expires: time.Now().Add(time.Hour)}
	}
	bob := withToken("bob", "tok_2", false)
	session, first := begin(t, g, bob), jwt(0)
	begin(t, g, first)
	for n := range maxUserEndpoints + 20 {
		if a := askAs(g, jwt(n+1), "tools/list", "", ""); strings.Contains(a, "error") {
			t.Fatal(a)
		}
	}
	if n := g.numEndpoints(); n != maxUserEndpoints+1 {
		t.Errorf("there are %d endpoints", n)
	}
	if w := post(g, bob, session, request("7", "ping", "")); w.Code != http.StatusOK {
		t.Errorf("another user's session: %d", w.Code)
	}
	if a := askAs(g, first, "tools/list", "", ""); strings.Contains(a, "error") {
		t.Errorf("the first JWT again: %s", a)
	}
}
