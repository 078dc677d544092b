package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/install"
	"sandlot/internal/servers/serverstest"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
	"sandlot/internal/tool"
)

// A user has a hundred connections, however fast they come; the operator's do
// not count, and a used name is no further one.
func TestHundredConnections(t *testing.T) {
	url := serverstest.Empty(t, nil)
	servers := newServers(t, &memStore{}, func(c *Config) { c.Dial = serverstest.Dial })
	servers.SetConfigured([]spec.Configured{{Name: "operators", Kind: spec.HTTP, URL: url}})
	servers.List(P)
	for n := range maxConnections - 1 {
		own(servers, P, fmt.Sprintf("c%d", n), fmt.Sprintf("id%04d", n),
			spec.Configured{Name: fmt.Sprintf("c%d", n), Kind: spec.HTTP, URL: url})
	}
	mine := func() (n int) {
		for _, i := range servers.List(P) {
			if !i.Configured {
				n++
			}
		}
		return n
	}
	var all sync.WaitGroup
	var made, full atomic.Int32
	for n := range 10 {
		all.Go(func() {
			switch _, err := servers.Connect(t.Context(), P,
				spec.ConnectRequest{Name: fmt.Sprintf("new%d", n), URL: url}); {
			case err == nil:
				made.Add(1)
			case fault.Is(err, fault.ResourceLimit):
				full.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 || full.Load() != 9 || mine() != maxConnections {
		t.Errorf("%d of 10 were made and %d refused; there are %d", made.Load(), full.Load(), mine())
	}
	_, err := servers.Connect(t.Context(), P, spec.ConnectRequest{Name: "more", URL: url,
		Consent: func(context.Context, spec.Change) error { t.Error("asked, for nothing"); return nil }})
	if f := fault.From(err); f.Kind != fault.ResourceLimit || f.Context["limit"] != maxConnections ||
		f.Context["current_usage"] != maxConnections {
		t.Errorf("said %v %v", err, f.Context)
	}
	// Without Sessions an installation that begins would panic.
	if _, err := servers.Install(t.Context(), P, install.Request{ConnectRequest: spec.ConnectRequest{Name: "more"},
		Type: "npm",
		Spec: "a"}); !fault.Is(err, fault.ResourceLimit) {
		t.Errorf("installing: %v", err)
	}
	if _, err := servers.Connect(t.Context(), P, spec.ConnectRequest{Name: "c7", URL: url + "/other"}); err != nil {
		t.Errorf("a used name: %v", err)
	}
	if _, err := servers.Connect(t.Context(), auth.User("bob", false),
		spec.ConnectRequest{Name: "first", URL: url}); err != nil {
		t.Errorf("another user: %v", err)
	}
	if _, err := servers.Disconnect(t.Context(), P, "c8", true); err != nil {
		t.Fatal(err)
	}
	if _, err := servers.Connect(t.Context(), P,
		spec.ConnectRequest{Name: "more", URL: url}); err != nil || mine() != maxConnections {
		t.Errorf("when one is gone: %v; there are %d", err, mine())
	}
}

// A server that announces changes without end is asked ever less often, and
// holds up nobody.
func TestFloodOfChanges(t *testing.T) {
	asked := filepath.Join(t.TempDir(), "asked")
	flood := script(t, `
import threading
lock=threading.Lock()
def send(m):
    with lock: sys.stdout.write(json.dumps(m)+"\n"); sys.stdout.flush()
n=0
def forever():
    while True:
        with lock: sys.stdout.write('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'*100)
while True:
    m=readmsg()
    if m.get("method")=="tools/list":
        n+=1
        open(os.environ["ASKED"],"a").write("x")
        ok(m["id"],{"tools":[{"name":"t"+str(n),"inputSchema":{"type":"object"}}]})
        if n==1: threading.Thread(target=forever,daemon=True).start()
        continue
    if base(m): continue
    ok(m["id"],{"content":[{"type":"text","text":"hi"}]})
`)
	var told atomic.Int32
	servers := newServers(t, &memStore{}, func(c *Config) { c.OnChange = func(string) { told.Add(1) } })
	Q := auth.User("bob", false)
	f := own(servers, P, "flood", "aaaaaa", onhost("flood", flood, map[string]string{"ASKED": asked}))
	mine := own(servers, P, "mine", "bbbbbb", onhost("mine", script(t, pyLoop), nil))
	theirs := own(servers, Q, "theirs", "cccccc", onhost("theirs", script(t, pyLoop), nil))
	for _, s := range []*server{mine, theirs, f} {
		if err := s.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	var slowest time.Duration
	calls := 0
	for time.Since(began) < 3*time.Second {
		for p, name := range map[auth.Principal]string{P: "ext_bbbbbb_t", Q: "ext_cccccc_t"} {
			at := time.Now()
			if _, err := callTool(servers, t.Context(), tool.Call{Principal: p, Name: name}); err != nil {
				t.Fatal(err)
			}
			slowest = max(slowest, time.Since(at))
			calls++
		}
		time.Sleep(10 * time.Millisecond)
	}
	text, err := os.ReadFile(asked)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("asked %d times, told %d times; %d calls of others, the slowest took %s", len(text), told.Load(), calls,
		slowest)
	if n := len(text); n < 2 || n > 12 { // at 0, 0.1, 0.3, 0.7, 1.5, 3.1 s
		t.Errorf("it was asked %d times in 3 seconds", n)
	}
	if told.Load() > 20 {
		t.Errorf("clients were told %d times in 3 seconds", told.Load())
	}
	if slowest > 2*time.Second || calls < 20 {
		t.Errorf("%d calls of others, the slowest took %s", calls, slowest)
	}
	f.mu.Lock()
	alive := f.instance != nil
	f.mu.Unlock()
	if !alive {
		t.Error("it ended, so that nothing is proved")
	}
}

// What a configured server leads to, such as the place to log in, is reached
// under the same rules for all, and not as the server itself.
func TestWhereALoginLeads(t *testing.T) {
	var led atomic.Int32
	var elsewhere *httptest.Server
	elsewhere = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		led.Add(1)
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.Contains(r.URL.Path, "protected-resource"):
			fmt.Fprintf(w, `{"resource":%q,"authorization_servers":[%q]}`, r.URL.Query().Get("for"), elsewhere.URL)
		case strings.Contains(r.URL.Path, "authorization-server"):
			fmt.Fprintf(w,
				`{"issuer":%q,"authorization_endpoint":%q,"token_endpoint":%q,"registration_endpoint":%q,"response_types_supported":["code"],"grant_types_supported":["authorization_code"],"code_challenge_methods_supported":["S256"],"token_endpoint_auth_methods_supported":["none"]}`,
				elsewhere.URL, elsewhere.URL+"/authorize", elsewhere.URL+"/token", elsewhere.URL+"/register")
		case r.URL.Path == "/register":
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w,
				`{"client_id":"c","redirect_uris":["http://localhost:1/cb"],"token_endpoint_auth_method":"none"}`)
		}
	}))
	defer elsewhere.Close()
	var came atomic.Int32
	named := httptest.NewUnstartedServer(nil)
	named.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		came.Add(1)
		w.Header().Set("WWW-Authenticate",
			fmt.Sprintf(`Bearer resource_metadata="%s/.well-known/oauth-protected-resource?for=%s/mcp"`, elsewhere.URL,
				"http://"+r.Host))
		w.WriteHeader(http.StatusUnauthorized)
	})
	named.Start()
	defer named.Close()

	type dial struct {
		operator bool
		addr     string
	}
	for _, tt := range []struct {
		name    string
		allowed bool // where it leads to
		want    state.State
	}{{"what is not allowed", false, state.Backoff}, {"what is", true, state.NeedsAuth}} {
		t.Run(tt.name, func(t *testing.T) {
			led.Store(0)
			came.Store(0)
			var mu sync.Mutex
			var dials []dial
			servers := newServers(t, &memStore{}, func(c *Config) {
				c.Callback = "http://localhost:1/cb"
				c.Dial = func(ctx context.Context, p auth.Principal, operator bool, network, addr string) (net.Conn,
					error) {
					mu.Lock()
					dials = append(dials, dial{operator, addr})
					mu.Unlock()
					if !tt.allowed {
						return nil, errors.New("may not be reached")
					}
					return new(net.Dialer).DialContext(ctx, network, addr)
				}
			})
			servers.SetConfigured([]spec.Configured{{Name: "bank", Kind: spec.HTTP, URL: named.URL + "/mcp"}})
			until(t, "it is "+string(tt.want), func() bool { return servers.List(P)[0].State == tt.want })
			mu.Lock()
			defer mu.Unlock()
			if came.Load() == 0 || len(dials) == 0 {
				t.Fatalf("%d requests to it, dialed %v: nothing is proved", came.Load(), dials)
			}
			for _, d := range dials {
				if !d.operator || d.addr != elsewhere.Listener.Addr().String() {
					t.Errorf("dialed %+v", d) // the server itself is not asked for
				}
			}
			if (led.Load() > 0) != tt.allowed {
				t.Errorf("%d requests to where it leads", led.Load())
			}
		})
	}
}

// Each client follows what it wants and hears as much as it wants, and a server
// is told when the last of them is gone.
func TestClientsLeave(t *testing.T) {
	heard := filepath.Join(t.TempDir(), "heard")
	servers := newServers(t, &memStore{}, nil)
	s := own(servers, P, "x", "aaaaaa", onhost("x", script(t, `
while True:
    m=readmsg()
    if m.get("method") in ("resources/subscribe","resources/unsubscribe","logging/setLevel"):
        open(os.environ["HEARD"],"a").write(m["method"].split("/")[1]+" "+str(m["params"].get("uri") or m["params"].get("level"))+"\n")
    base(m)
`), map[string]string{"HEARD": heard}))
	if err := s.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	for _, uri := range []string{"a://1", "a://2"} {
		s.rec.Catalog.Resources = append(s.rec.Catalog.Resources,
			catalog.Definition{Remote: uri, Exposed: uri, Raw: json.RawMessage(`{}`)})
	}
	s.mu.Unlock()
	servers.rebuildOf(P.ID)
	told := ""
	// hears waits for what the server is told next, in any order.
	hears := func(what string, lines ...string) {
		t.Helper()
		time.Sleep(100 * time.Millisecond) // and no more than that
		until(t, what, func() bool {
			text, _ := os.ReadFile(heard)
			return len(strings.Split(string(text), "\n")) > strings.Count(told, "\n")+len(lines)
		})
		text, err := os.ReadFile(heard)
		if err != nil && len(lines) > 0 {
			t.Fatal(err)
		}
		now := strings.TrimPrefix(string(text), told)
		for _, l := range lines {
			if !strings.Contains(now, l+"\n") {
				t.Errorf("%s: it heard %q, not %q", what, now, l)
			}
		}
		if strings.Count(now, "\n") != len(lines) {
			t.Errorf("%s: it heard %q", what, now)
		}
		told = string(text)
	}
	follow := func(client, uri string) {
		t.Helper()
		if err := servers.Subscribe(t.Context(), P, client, uri); err != nil {
			t.Fatal(err)
		}
	}
	follow("one", "a://1")
	follow("one", "a://2")
	hears("two resources", "subscribe a://1", "subscribe a://2")
	follow("two", "a://1")
	follow("two", "a://1")
	hears("a second client")
	if err := servers.Unsubscribe(t.Context(), P, "three", "a://1"); err != nil {
		t.Fatal(err)
	}
	servers.ClientGone(P, "three")
	hears("one that followed nothing")
	servers.ClientGone(P, "one")
	hears("the first is gone", "unsubscribe a://2")
	gone, cancel := context.WithCancel(t.Context())
	cancel() // as a request of the newer era that is over
	if err := servers.Unsubscribe(gone, P, "two", "a://1"); err != nil {
		t.Fatal(err)
	}
	hears("the last one", "unsubscribe a://1")

	servers.SetLevel(t.Context(), P, "one", "warning")
	hears("a level", "setLevel warning")
	servers.SetLevel(t.Context(), P, "two", "debug")
	hears("a more curious client", "setLevel debug")
	servers.SetLevel(t.Context(), P, "one", "error")
	hears("one that wants less")
	servers.ClientGone(P, "two")
	hears("the curious one is gone", "setLevel error")
	servers.ClientGone(P, "one")
	hears("nobody is left")
	servers.SetLevel(t.Context(), auth.User("bob", false), "one", "debug")
	hears("another user")
	servers.SetLevel(t.Context(), P, "four", "info")
	hears("a new one", "setLevel info")
	if _, err := servers.Restart(t.Context(), P, "x", nil, nil, nil); err != nil {
		t.Fatal(err)
	}
	hears("when it starts again", "setLevel info")
}
