package api

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/agent/command"
	"sandlot/internal/api/client"
	"sandlot/internal/api/preview"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

const forbids = "this test lets nobody do it"

// asked remembers what a policy was asked, and refuses all of it.
type asked struct {
	mu  sync.Mutex
	ops []policy.Operation
}

func (a *asked) decide(q policy.Question) policy.Decision {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ops = append(a.ops, q.Operation)
	return policy.Decision{Reason: fault.New(fault.Forbidden, forbids)}
}

// take returns what was asked since the last take.
func (a *asked) take() []policy.Operation {
	a.mu.Lock()
	defer a.mu.Unlock()
	ops := a.ops
	a.ops = nil
	return ops
}

// refusing gives an edge a policy that refuses everything.
func (e *edge) refusing() *asked {
	a := &asked{}
	e.Hub.Decide = a.decide
	return a
}

// concrete is a path that a route's pattern matches.
func concrete(pattern string) (method, path string) {
	method, path, _ = strings.Cut(pattern, " ")
	path = strings.NewReplacer("{$}", "", "{path...}", "f", "{port}", "80", "{client}", "cursor").Replace(path)
	path = strings.Replace(path, "/tools/{name}", "/tools/get_sessions", 1)
	return method, regexp.MustCompile(`{\w+}`).ReplaceAllString(path, "home")
}

// Every route names an operation that policy knows, and asks for that one before it
// does anything. A refusal says why, over the network and over the owner's socket.
func TestRoutesGoThroughTheDoor(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}).withSecrets()
	a := e.refusing()
	token := e.token("ann")
	routes := e.routes()
	if len(routes) < 30 {
		t.Fatalf("only %d routes were found", len(routes))
	}
	for _, r := range routes {
		want := r.operation
		if want == "" {
			want = policy.SessionList // of the tool in the path
		}
		if !want.Known() {
			t.Errorf("%s asks for %q, which policy does not know", r.pattern, want)
		}
		method, path := concrete(r.pattern)
		for name, h := range map[string]http.Handler{"network": e.Handler(), "socket": e.SocketHandler()} {
			headers := []string{"Upgrade", "sandlot-exec", "Content-Type", "application/json"}
			if name == "network" {
				headers = append(headers, "Authorization", token)
			}
			got := do(h, method, path, "{}", headers...)
			if got.StatusCode != 403 || !strings.Contains(got.body, forbids) {
				t.Errorf("%s over the %s: %d %.300s", r.pattern, name, got.StatusCode, got.body)
			}
			if ops := a.take(); len(ops) != 1 || ops[0] != want {
				t.Errorf("%s over the %s asks for %v, want %s", r.pattern, name, ops, want)
			}
		}
	}
	if live, err := e.Hub.Sessions.List(t.Context(), auth.User("ann", false), ""); err != nil || len(live) > 0 {
		t.Errorf("there are sessions: %v, %v", live, err)
	}
	if all, err := e.Hub.Vault.List(t.Context(), "user:ann"); err != nil || len(all) > 0 {
		t.Errorf("there are secrets: %v, %v", all, err)
	}
}

// What is not in the table of routes does nothing by itself.
func TestOtherPaths(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	a := e.refusing()
	token := e.token("ann")
	for _, path := range []string{"/nothing", "/v1/nothing", "/v1/sessions/x/y/z"} {
		if got := do(e.Handler(), "POST", path, "{}", "Authorization", token); got.StatusCode != 404 {
			t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
		}
	}
	isProblem(t, do(e.Handler(), "GET", "/mcp", ""), 403, "FORBIDDEN")
	if ops := a.take(); len(ops) != 1 || ops[0] != policy.HealthRead {
		t.Errorf("asked for %v", ops)
	}
	// MCP's own methods are in gateway's tests; here is that /mcp has this door.
	got := do(e.Handler(), "POST", "/mcp",
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_sessions"}}`, "Authorization", token)
	if !strings.Contains(got.body, forbids) || got.StatusCode != 200 {
		t.Errorf("a bare call: %d %s", got.StatusCode, got.body)
	}
}

// Who has a link to a port is refused too, in a page that says why.
func TestLinksGoThroughTheDoor(t *testing.T) {
	reached := false
	x := expose(t, OriginCheck{Loopback: true},
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	a := x.refusing()
	for _, by := range []string{"a browser", "a program"} {
		headers, path := []string{"Host", x.name}, "/?sandlot_token="+x.token
		if by == "a program" {
			headers, path = append(headers, preview.TokenHeader, x.token), "/"
		}
		got := do(x.Handler(), "GET", path, "", headers...)
		if got.StatusCode != 403 || !strings.Contains(got.body, forbids) {
			t.Errorf("%s: %d %s", by, got.StatusCode, got.body)
		}
		if ops := a.take(); len(ops) != 1 || ops[0] != policy.PortVisit {
			t.Errorf("%s asks for %v", by, ops)
		}
	}
	if reached {
		t.Error("the server inside was reached")
	}
}

// The commands speak to the owner's socket by the client: each way of it is refused,
// and says why.
func TestCommandsGoThroughTheDoor(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}).withSecrets()
	e.refusing()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(e.SocketHandler())
	server.Listener.Close()
	server.Listener = l
	server.Start()
	defer server.Close()
	c, err := client.New(socket, "", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for name, try := range map[string]func() error{
		"a session": func() error { _, err := c.NewSession(ctx, protocol.SessionRequest{}); return err },
		"a tool":    func() error { return c.JSON(ctx, "POST", "/v1/tools/get_sessions", map[string]any{}, nil) },
		"a secret":  func() error { _, err := c.SetSecret(ctx, "GH", nil, "x"); return err },
		"download":  func() error { _, err := c.Download(ctx, "home", "f", io.Discard); return err },
		"upload":    func() error { return c.Upload(ctx, "home", "f", strings.NewReader("x"), 1) },
		"events":    func() error { return c.Events(ctx, nil, nil) },
		"a port":    func() error { _, err := c.Dial(ctx, "home", 80); return err },
		"stdio": func() error {
			s := &client.Stdio{Connect: func(context.Context, <-chan struct{}) (*client.Client, error) { return c, nil }}
			return s.Open(ctx)
		},
		"exec": func() error {
			_, err := c.Exec(ctx, "home", command.Command{Args: []string{"true"}},
				client.Terminal{Stdin: strings.NewReader("")})
			return err
		},
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), forbids) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
