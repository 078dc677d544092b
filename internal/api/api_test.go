package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/api/metric"
	"sandlot/internal/auth"
	"sandlot/internal/console"
	"sandlot/internal/egress"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/gateway"
	"sandlot/internal/hub"
	"sandlot/internal/image"
	"sandlot/internal/policy"
	"sandlot/internal/pool"
	"sandlot/internal/port"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/session"
	"sandlot/internal/template"
	"sandlot/internal/tool"
	"sandlot/internal/workspace"
)

// tokens is an auth.Store in memory.
type tokens struct {
	mu  sync.Mutex
	all []auth.Token
}

func (s *tokens) AddToken(_ context.Context, t auth.Token) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, t)
	return nil
}

func (s *tokens) Tokens(context.Context) ([]auth.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all), nil
}

func (s *tokens) HasTokens(context.Context) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all) > 0, nil
}

func (s *tokens) PutTokenUses(context.Context, map[string]time.Time) error { return nil }

func (s *tokens) RemoveToken(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.all)
	if s.all = slices.DeleteFunc(s.all, func(t auth.Token) bool { return t.ID == id }); len(s.all) == n {
		return auth.ErrNoToken
	}
	return nil
}

func (s *tokens) TokenByHash(_ context.Context, hash string) (auth.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.all, func(t auth.Token) bool { return t.Hash == hash }); i >= 0 {
		return s.all[i], nil
	}
	return auth.Token{}, auth.ErrNoToken
}

// records is a session.Store in memory.
type records struct {
	mu  sync.Mutex
	all map[string]session.Record
}

func (m *records) PutSession(_ context.Context, r session.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[r.ID] = r
	return nil
}

func (m *records) PutCounts(context.Context, session.Counts) error { return nil }

func (m *records) Days(context.Context, int64) (map[string]egress.Day, error) { return nil, nil }

func (m *records) RemoveDays(context.Context, int64) error { return nil }

func (m *records) Sessions(context.Context) ([]session.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.all)), nil
}

func (m *records) RemoveSession(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, id)
	return nil
}

// exposed is a port.Store that keeps nothing.
type exposed struct{}

func (exposed) PutPort(context.Context, port.Record) error    { return nil }
func (exposed) Ports(context.Context) ([]port.Record, error)  { return nil, nil }
func (exposed) RemovePort(context.Context, string, int) error { return nil }

// noBackups makes none.
type noBackups struct{}

func (noBackups) MakeBackup(context.Context) (hub.Backup, error) {
	return hub.Backup{File: "/b.db"}, nil
}
func (noBackups) ListBackups(context.Context) ([]hub.Backup, error) {
	return []hub.Backup{{File: "/b.db"}}, nil
}

// who is a source whose one tool says who called it, and with what.
type who struct{}

func (who) Tools(context.Context, auth.Principal) []tool.Tool {
	all := []tool.Tool{{Name: "get_sessions"}, {Name: "old_name", Alias: "get_sessions"}, {Name: "fails"}}
	for name := range operationsOf {
		all = append(all, tool.Tool{Name: name, Alias: "get_sessions"})
	}
	return all
}

// operationsOf are the operations of further tools that routes call.
var operationsOf = map[string]policy.Operation{"list_external_mcp": policy.MCPList, "fork_session": policy.SessionFork,
	"list_processes": policy.ProcessList, "snapshot_session": policy.SnapshotCreate, "list_snapshots": policy.SnapshotList,
	"restore_snapshot": policy.SnapshotRestore, "remove_snapshot": policy.SnapshotRemove}

func (w who) Find(p auth.Principal, name string) (tool.Callable, bool) {
	f := tool.Callable{Operation: policy.SessionList, Call: w.call}
	if o, ok := operationsOf[name]; ok {
		f.Operation = o
	}
	return f, slices.ContainsFunc(w.Tools(context.Background(), p), func(t tool.Tool) bool { return t.Name == name })
}

func (who) call(_ context.Context, c tool.Call) (*tool.Result, error) {
	if c.Name == "fails" {
		return nil, fault.Wrap(fault.CommandExecution, errors.New("dial /secret/path"), "it broke")
	}
	return &tool.Result{Fields: map[string]any{"caller": c.Principal.ID, "args": string(c.Args)}}, nil
}

// edge is a server over a fake runtime.
type edge struct {
	*Server
	t      *testing.T
	tokens *tokens
	fake   *sandboxtest.Fake
	broken error
}

// newEdge returns an edge. What more changes is the hub's.
func newEdge(t *testing.T, mode auth.Mode, g OriginCheck, more ...func(*hub.Config)) *edge {
	t.Helper()
	e := &edge{t: t, tokens: &tokens{}, fake: &sandboxtest.Fake{}}
	log := slog.New(slog.DiscardHandler)
	workspaces, err := workspace.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	door, err := auth.NewAuthenticator(t.Context(), mode, "localhost", e.tokens, nil)
	if err != nil {
		t.Fatal(err)
	}
	templates := template.New(log, []*image.Template{{Name: "host",
		Languages: []image.Language{{Name: "python"}}}}, nil, false)
	p := pool.New(pool.Config{Runtime: e.fake, Workspaces: workspaces, BootTimeout: 10 * time.Second,
		Templates: templates.Ready,
		Flavor:    sandboxtest.Flavors[0], Log: log})
	book := session.New(session.Config{Pool: p, Store: &records{all: map[string]session.Record{}}, Log: log,
		HistoryStore: unstored{},
		Unexpected:   func(err error) { t.Error(err) },
		Rules: session.Rules{DefaultTemplate: "host", DefaultFlavor: "small", Templates: templates,
			Flavors: sandboxtest.Flavors, MaxSessions: 3,
			IdleTimeout: time.Hour, Retention: time.Hour, SweepInterval: time.Minute, AgentTimeout: time.Second}})
	t.Cleanup(func() {
		book.StopAll(context.Background())
		book.Close(context.Background())
	})
	links, err := port.NewLinks("http", "localhost", 8000, "")
	if err != nil {
		t.Fatal(err)
	}
	ports := port.New(port.Config{Store: exposed{}, SessionExists: book.Has, Links: links, Log: log})
	config := hub.Config{Sources: []tool.Source{who{}}, Sessions: book, Ports: ports, Events: event.New(), Tokens: e.tokens, Backups: noBackups{}, Log: log}
	for _, change := range more {
		change(&config)
	}
	h := hub.New(config)
	e.Server = New(Config{Authenticator: door, Logins: console.NewLogins(door, ""), Hub: h, Origins: g, Version: "v1.2.3", Log: log,
		Gateway: gateway.New(gateway.Config{Hub: h, NewSession: func(auth.Principal) bool { return false },
			Connected: func(auth.Principal) {}, MaxBody: 1 << 20, Log: log}),
		Metrics:      metric.New(book.Live, func() map[string]int { return nil }, nil),
		CheckRuntime: func(context.Context) error { return e.broken }})
	t.Cleanup(e.Server.Close)
	return e
}

func (e *edge) token(user string) string {
	e.t.Helper()
	_, v, err := auth.Issue(e.t.Context(), e.tokens, user, false, 0)
	if err != nil {
		e.t.Fatal(err)
	}
	return "Bearer " + v.Reveal()
}

// answer is a response with its body read.
type answer struct {
	*http.Response
	body string
}

func (a answer) json() map[string]any {
	m := map[string]any{}
	json.Unmarshal([]byte(a.body), &m)
	return m
}

func do(h http.Handler, method, path, body string, headers ...string) answer {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost:8000"
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		} else {
			r.Header.Add(headers[i], headers[i+1])
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	text, _ := io.ReadAll(w.Result().Body)
	return answer{w.Result(), string(text)}
}

// isProblem checks an answer with problem details.
func isProblem(t *testing.T, a answer, status int, code string) {
	t.Helper()
	m := a.json()
	if a.StatusCode != status || a.Header.Get("Content-Type") != "application/problem+json" || m["title"] != code ||
		m["error_code"] != code || m["status"] != float64(status) || m["detail"] == "" {
		t.Errorf("answer %d %s %.300s, want %d %s", a.StatusCode, a.Header.Get("Content-Type"), a.body, status, code)
	}
}

// reached says whether a request got past the guard.
func reached(g OriginCheck, method string, headers ...string) (bool, answer) {
	past := false
	a := do(g.protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { past = true })), method, "/v1/x", "",
		headers...)
	return past, a
}

func TestHost(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:8000": true, "LocalHost:8000": true, "127.0.0.1": true, "127.0.0.1:9": true,
		"127.1.2.3:80": true, "[::1]": true, "[::1]:8000": true,
		"": false, "evil.example": false, "evil.example:8000": false, "localhost.evil.example": false,
		"127.0.0.1.evil.example": false, "localhost@evil.example": false,
		"0.0.0.0": false, "[::]": false, "10.0.0.1": false, "169.254.169.254": false, "evil.example/localhost": false,
		"2130706433": false, "localhost.": false,
	} {
		past, a := reached(OriginCheck{Loopback: true}, "GET", "Host", host)
		if past != want {
			t.Errorf("Host %q reaches the server: %v", host, past)
		}
		if !want {
			isProblem(t, a, 403, "FORBIDDEN")
		}
		if past, _ := reached(OriginCheck{}, "GET", "Host", host); !past {
			t.Errorf("Host %q is refused by a server on the network", host)
		}
	}
	long := strings.Repeat("h", 10_000)
	if _, a := reached(OriginCheck{Loopback: true}, "GET", "Host", long); len(a.body) > 1000 {
		t.Errorf("an answer of %d bytes", len(a.body))
	}
}

func TestOrigin(t *testing.T) {
	listed := OriginCheck{CORS: true, Origins: []string{"https://app.example"}}
	offList := OriginCheck{Origins: []string{"https://app.example"}}
	yes := func(context.Context) bool { return true }
	no := func(context.Context) bool { return false }
	any := OriginCheck{CORS: true, TokenRequired: yes}
	local := OriginCheck{Loopback: true, CORS: true, LocalPages: true, TokenRequired: no,
		IsPortHost: func(host string) bool { return strings.HasPrefix(host, "8080-x.") }}
	localAndListed := local
	localAndListed.Origins = []string{"https://app.example"}
	elsewhere := local
	elsewhere.Loopback = false
	tests := []struct {
		name   string
		g      OriginCheck
		origin string
		want   bool
	}{
		{"a page of this machine", local, "http://localhost:3000", true},
		{"a page of this machine by address", local, "http://127.0.0.1:5173", true},
		{"a page of this machine at the port of http", local, "http://localhost", true},
		{"a page of another host", local, "http://evil.example:3000", false},
		{"a page of a name below localhost", local, "http://evil.localhost:3000", false},
		{"a page of an exposed port", local, "http://8080-x.localhost:8000", false},
		{"a name that begins as this machine's", local, "http://localhost.evil.example:3000", false},
		{"an address that begins as this machine's", local, "http://127.0.0.1.evil.example", false},
		{"this machine as a user", local, "http://localhost:3000@evil.example", false},
		{"this machine behind a user", local, "http://evil@localhost:3000", false},
		{"this machine in a path", local, "http://evil.example/http://localhost:3000", false},
		{"another scheme", local, "file://localhost:3000", false},
		{"https", local, "https://localhost:3000", false},
		{"null for pages of this machine", local, "null", false},
		{"a page of this machine, with a list without it", localAndListed, "http://localhost:3000", false},
		{"a page of this machine, at a server for others", elsewhere, "http://localhost:3000", false},
		{"none", OriginCheck{}, "", true},
		{"its own", OriginCheck{}, "http://localhost:8000", true},
		{"another port", OriginCheck{}, "http://localhost:3000", false},
		{"another name", OriginCheck{}, "http://127.0.0.1:8000", false},
		{"another", OriginCheck{}, "https://evil.example", false},
		{"null", OriginCheck{}, "null", false},
		{"nonsense", OriginCheck{}, "%%%", false},
		{"its own in a path", OriginCheck{}, "https://evil.example/localhost:8000", false},
		{"its own as a user", OriginCheck{}, "https://localhost:8000@evil.example", false},
		{"listed", listed, "https://app.example", true},
		{"listed without CORS", offList, "https://app.example", true},
		{"not listed", listed, "https://evil.example", false},
		{"listed with another scheme", listed, "http://app.example", false},
		{"listed with another port", listed, "https://app.example:444", false},
		{"longer than the listed", listed, "https://app.example.evil.example", false},
		{"null where some are listed", listed, "null", false},
		{"any", any, "https://evil.example", true},
		{"null where any may", any, "null", false},
		{"a file where any may", any, "file://", false},
		{"nonsense where any may", any, "%%%", false},
		{"any without a token", OriginCheck{CORS: true, TokenRequired: no}, "https://evil.example", false},
		{"any when nothing says that there is one", OriginCheck{CORS: true}, "https://evil.example", false},
		{"its own without a token", OriginCheck{CORS: true, TokenRequired: no}, "http://localhost:8000", true},
		{"listed without a token", OriginCheck{CORS: true, Origins: []string{"https://app.example"}, TokenRequired: no},
			"https://app.example", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			headers := []string{}
			if tt.origin != "" {
				headers = []string{"Origin", tt.origin}
			}
			for _, method := range []string{"GET", "POST", "DELETE", "OPTIONS"} {
				past, a := reached(tt.g, method, headers...)
				if past != tt.want {
					t.Errorf("%s reaches the server: %v", method, past)
				}
				if !tt.want && a.Header.Get("Access-Control-Allow-Origin") != "" {
					t.Errorf("%s: a refused origin is told that it is allowed", method)
				}
			}
		})
	}
}

// A browser that sends no origin says where the request comes from.
func TestFetchSite(t *testing.T) {
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"} {
		for _, path := range []string{"/v1/sessions/home/files/x", "/v1/sessions", "/v1", "/mcp", "/mcp/", "/metrics"} {
			for site, want := range map[string]bool{"cross-site": false, "same-site": false, "other": false,
				"same-origin": true, "none": true, "": true} {
				if past := fetched(method, path, site); past != want {
					t.Errorf("%s %s from %q reaches the server: %v", method, path, site, past)
				}
			}
		}
		for _, path := range []string{"/", "/healthz", "/oauth/callback", "/oauth/start/x", "/mcpx"} {
			if past, want := fetched(method, path, "cross-site"), method == "GET" || method == "HEAD"; past != want {
				t.Errorf("%s %s by a link reaches the server: %v", method, path, past)
			}
		}
	}
	listed := OriginCheck{CORS: true, Origins: []string{"https://app.example"}}
	if past, _ := reached(listed, "GET", "Sec-Fetch-Site", "cross-site", "Origin", "https://app.example"); !past {
		t.Error("a page that is listed is refused")
	}
}

// fetched reports whether a request without an Origin, as a browser sends it, gets past the guard.
func fetched(method, path, site string) (past bool) {
	do(OriginCheck{Loopback: true}.protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { past = true })),
		method, path, "", "Sec-Fetch-Site", site)
	return past
}

// Nothing makes a session to read, or to remove, what cannot be in it.
func TestReadingMakesNoSession(t *testing.T) {
	e := newEdge(t, auth.Off, OriginCheck{Loopback: true})
	for _, method := range []string{"GET", "HEAD", "DELETE"} {
		a := do(e.Handler(), method, "/v1/sessions/new/files/etc/passwd", "")
		if a.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d %s", method, a.StatusCode, a.body)
		}
		if all, err := e.Hub.Sessions.List(t.Context(), auth.Local, ""); err != nil || len(all) != 0 {
			t.Errorf("%s made %d sessions: %v", method, len(all), err)
		}
	}
}

func corsOf(h http.Header) (all []string) {
	for k := range h {
		if strings.HasPrefix(k, "Access-Control") {
			all = append(all, k)
		}
	}
	return all
}

func TestCORS(t *testing.T) {
	// Off: no header at all, whoever asks.
	for _, headers := range [][]string{nil, {"Origin", "http://localhost:8000"}, {"Origin", "https://evil.example"},
		{"Origin", "http://localhost:8000", "Access-Control-Request-Method", "POST"}} {
		for _, method := range []string{"GET", "OPTIONS"} {
			if _, a := reached(OriginCheck{}, method, headers...); len(corsOf(a.Header)) > 0 {
				t.Errorf("%s with %v: %v", method, headers, corsOf(a.Header))
			}
		}
	}
	// Any: without credentials.
	past, a := reached(OriginCheck{CORS: true, TokenRequired: func(context.Context) bool { return true }}, "GET",
		"Origin",
		"https://a.example")
	if !past || a.Header.Get("Access-Control-Allow-Origin") != "*" ||
		a.Header.Get("Access-Control-Allow-Credentials") != "" ||
		!strings.Contains(a.Header.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id") {
		t.Errorf("any: %v", a.Header)
	}
	// Pages of this machine: that one, without credentials; any while a token is required.
	required := false
	local := OriginCheck{Loopback: true, CORS: true, LocalPages: true,
		TokenRequired: func(context.Context) bool { return required }}
	for _, want := range []string{"http://localhost:3000", "*"} {
		past, a = reached(local, "GET", "Origin", "http://localhost:3000")
		if !past || a.Header.Get("Access-Control-Allow-Origin") != want ||
			a.Header.Get("Access-Control-Allow-Credentials") != "" || (a.Header.Get("Vary") == "Origin") == required {
			t.Errorf("a page of this machine, a token required: %v: %v %v", required, past, a.Header)
		}
		required = true
	}
	// Listed: that one, with credentials.
	listed := OriginCheck{CORS: true, Origins: []string{"https://a.example"}}
	past, a = reached(listed, "GET", "Origin", "https://a.example")
	if !past || a.Header.Get("Access-Control-Allow-Origin") != "https://a.example" ||
		a.Header.Get("Access-Control-Allow-Credentials") != "true" || a.Header.Get("Vary") != "Origin" {
		t.Errorf("listed: %v", a.Header)
	}
	// A preflight is answered, and goes no further.
	past, a = reached(listed, "OPTIONS", "Origin", "https://a.example", "Access-Control-Request-Method", "POST")
	if past || a.StatusCode != 204 || !strings.Contains(a.Header.Get("Access-Control-Allow-Methods"), "POST") ||
		!strings.Contains(a.Header.Get("Access-Control-Allow-Headers"), "Authorization") {
		t.Errorf("preflight: %d %v", a.StatusCode, a.Header)
	}
	// Headers that repeat a tool's arguments are allowed by the names that are asked for.
	_, a = reached(listed, "OPTIONS", "Origin", "https://a.example", "Access-Control-Request-Method", "POST",
		"Access-Control-Request-Headers", "content-type, mcp-param-region,Mcp-Param-B, x-evil, mcp-param-a\"b")
	if got := a.Header.Get("Access-Control-Allow-Headers"); !strings.HasSuffix(got,
		"Mcp-Name, Mcp-Param-Region, Mcp-Param-B") {
		t.Errorf("allowed headers: %s", got)
	}
	many := strings.Repeat("mcp-param-x"+strings.Repeat("y", 50)+",", 500)
	_, a = reached(listed, "OPTIONS", "Origin", "https://a.example", "Access-Control-Request-Method", "POST",
		"Access-Control-Request-Headers", many)
	if got := a.Header.Get("Access-Control-Allow-Headers"); len(got) > 6000 {
		t.Errorf("%d bytes of allowed headers", len(got))
	}
	if past, a := reached(listed, "GET"); !past || len(corsOf(a.Header)) > 0 {
		t.Errorf("without an origin: %v", corsOf(a.Header))
	}
}

// The guard stands before everything that is not the owner's.
func TestTheGuardStandsBeforeAll(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	for _, path := range []string{"/", "/mcp", "/healthz", "/readyz", "/metrics", "/v1/sessions",
		"/v1/tools/get_sessions", "/none"} {
		isProblem(t, do(e.Handler(), "POST", path, "{}", "Host", "evil.example"), 403, "FORBIDDEN")
		isProblem(t, do(e.Handler(), "POST", path, "{}", "Origin", "https://evil.example"), 403, "FORBIDDEN")
	}
}

var closed = []struct{ method, path string }{
	{"GET", "/metrics"}, {"POST", "/mcp"}, {"DELETE", "/mcp"}, {"GET", "/v1/sessions"}, {"POST", "/v1/sessions"},
	{"GET", "/v1/sessions/x"},
	{"DELETE", "/v1/sessions/x"}, {"GET", "/v1/sessions/x/files/f"}, {"HEAD", "/v1/sessions/x/files/f"},
	{"PUT", "/v1/sessions/x/files/f"},
	{"DELETE", "/v1/sessions/x/files/f"}, {"POST", "/v1/sessions/x/exec"}, {"POST", "/v1/sessions/x/ports/80"},
	{"POST", "/v1/tools/get_sessions"}, {"POST", "/v1/stdio"}, {"GET", "/v1/none"}, {"PATCH", "/v1/sessions"},
}

func TestTokens(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	good := e.token("ann")
	for _, c := range closed {
		for _, header := range []string{"", "Bearer slt_wrong", "Basic abc", "Bearer", good + "x"} {
			headers := []string{}
			if header != "" {
				headers = []string{"Authorization", header}
			}
			a := do(e.Handler(), c.method, c.path, "{}", headers...)
			if a.StatusCode != 401 || !strings.HasPrefix(a.Header.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("%s %s with %q: %d %.200s", c.method, c.path, header, a.StatusCode, a.body)
			}
		}
		if a := do(e.Handler(), c.method, c.path, "{}", "Authorization", good); a.StatusCode == 401 {
			t.Errorf("%s %s with a good token: 401", c.method, c.path)
		}
	}
	for _, path := range []string{"/", "/healthz", "/readyz", "/mcp"} {
		if a := do(e.Handler(), "GET", path, ""); a.StatusCode != 200 {
			t.Errorf("GET %s without a token: %d", path, a.StatusCode)
		}
	}
	// Only a GET that asks for no events is the health of /mcp.
	for _, headers := range [][]string{{"Accept", "text/event-stream"}, {"Mcp-Session-Id", "x"}} {
		if a := do(e.Handler(), "GET", "/mcp", "", headers...); a.StatusCode != 401 {
			t.Errorf("GET /mcp with %v: %d", headers, a.StatusCode)
		}
	}
	e.tokens.all = nil
	if a := do(e.Handler(), "GET", "/v1/sessions", "", "Authorization", good); a.StatusCode != 401 {
		t.Errorf("a revoked token: %d", a.StatusCode)
	}
}

func TestWhoCalls(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	caller := func(h http.Handler, headers ...string) any {
		return do(h, "POST", "/v1/tools/get_sessions", `{"a":1}`, headers...).json()["caller"]
	}
	if got := caller(e.Handler()); got != "local" {
		t.Errorf("without tokens the caller is %v", got)
	}
	ann := e.token("ann")
	if got := caller(e.Handler()); got != nil {
		t.Errorf("as soon as one token exists nobody is %v", got)
	}
	if got := caller(e.Handler(), "Authorization", ann); got != "user:ann" {
		t.Errorf("ann is %v", got)
	}
	// Who can open the owner's socket needs no token, but may have one.
	if got := caller(e.SocketHandler()); got != "local" {
		t.Errorf("the owner is %v", got)
	}
	if got := caller(e.SocketHandler(), "Authorization", ann); got != "user:ann" {
		t.Errorf("ann, by the owner's socket, is %v", got)
	}
	if got := caller(e.SocketHandler(), "Authorization", "Bearer slt_wrong"); got != nil {
		t.Errorf("a wrong token, by the owner's socket, is %v", got)
	}
}

func TestBodies(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	h := e.Handler()
	big := strings.Repeat("x", 17<<20)
	isProblem(t, do(h, "POST", "/v1/tools/get_sessions", `{"a":"`+big+`"}`), 400, "INVALID_PARAMETERS")
	isProblem(t, do(h, "POST", "/v1/tools/get_sessions", `{"a":`), 400, "INVALID_PARAMETERS")
	isProblem(t, do(h, "POST", "/v1/sessions", `{"template":"`+big[:100<<10]+`"}`), 400, "INVALID_PARAMETERS")
	isProblem(t, do(h, "POST", "/v1/sessions", `[`), 400, "INVALID_PARAMETERS")
	if a := do(h, "POST", "/mcp",
		`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"`+big[:2<<20]+`"}}`); a.StatusCode != 413 {
		t.Errorf("POST /mcp with 2 MiB of at most 1: %d %.100s", a.StatusCode, a.body)
	}
	for _, path := range []string{"/mcp/", "/mcp/?results=text"} { // some clients write the address so
		if a := do(h, "POST", path, `{"jsonrpc":"2.0","id":1,"method":"ping"}`); a.StatusCode != 200 ||
			!strings.Contains(a.body, `"result":{}`) {
			t.Errorf("POST %s: %d %.100s", path, a.StatusCode, a.body)
		}
	}
	if a := do(h, "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`); a.StatusCode != 200 ||
		!strings.Contains(a.body, `"result":{}`) {
		t.Errorf("a bare ping: %d %s", a.StatusCode, a.body)
	}
	r := httptest.NewRequest("PUT", "/v1/sessions/x/files/f", io.MultiReader(strings.NewReader("x")))
	r.Host = "localhost"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != 411 {
		t.Errorf("an upload of unknown length: %d", w.Code)
	}
}

func TestSessions(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	ann, bob := e.token("ann"), e.token("bob")
	a := do(e.Handler(), "POST", "/v1/sessions", `{"flavor":"medium"}`, "Authorization", ann)
	id, _ := a.json()["session_id"].(string)
	if a.StatusCode != 201 || len(id) != 26 || a.json()["flavor"] != "medium" || a.json()["template"] != "host" {
		t.Fatalf("created: %d %s", a.StatusCode, a.body)
	}
	isProblem(t, do(e.Handler(), "POST", "/v1/sessions", `{"template":"none"}`, "Authorization", ann), 400,
		"INVALID_PARAMETERS")
	// Another's session is one that is not there.
	for _, c := range []struct{ method, path string }{{"DELETE", ""}, {"GET", "/files/f"}, {"PUT", "/files/f"},
		{"DELETE", "/files/f"}, {"POST", "/exec"}} {
		isProblem(t, do(e.Handler(), c.method, "/v1/sessions/"+id+c.path, "x", "Authorization", bob), 404,
			"SESSION_NOT_FOUND")
	}
	if a := do(e.Handler(), "DELETE", "/v1/sessions/"+id, "", "Authorization", ann); a.StatusCode != 204 {
		t.Errorf("deleted: %d %s", a.StatusCode, a.body)
	}
	isProblem(t, do(e.Handler(), "DELETE", "/v1/sessions/"+id, "", "Authorization", ann), 404, "SESSION_NOT_FOUND")
	// To stop those of everybody is for the owner.
	if a := do(e.Handler(), "DELETE", "/v1/sessions", "", "Authorization", ann); a.StatusCode == 204 {
		t.Error("a user stopped everybody's sessions")
	}
	// An id of a session is passed to the tool as it is.
	if got := do(e.Handler(), "GET", "/v1/sessions/a%22b", "", "Authorization",
		ann).json()["args"]; got != `{"session_id":"a\"b"}` {
		t.Errorf("arguments %v", got)
	}
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
		for _, path := range []string{"/", "/mcp"} {
			m := do(e.Handler(), "GET", path, "").json()
			if m["status"] != "healthy" || m["server"] != "Sandlot" || m["version"] != "v1.2.3" ||
				m["wrapper_status"] != "connected" || m["tools_count"] != 2.0 {
				t.Errorf("GET %s: %v", path, m)
			}
		}
		e.broken = errors.New("open /secret: no")
		if a := do(e.Handler(), "GET", "/", ""); a.StatusCode != 200 {
			t.Errorf("the runtime is looked at for each request: %d", a.StatusCode)
		}
		time.Sleep(6 * time.Second)
		a := do(e.Handler(), "GET", "/", "")
		if m := a.json(); a.StatusCode != 503 || m["status"] != "unhealthy" || m["wrapper_status"] != "disconnected" {
			t.Errorf("broken: %d %v", a.StatusCode, m)
		}
		if a := do(e.Handler(), "GET", "/readyz", ""); a.StatusCode != 503 || strings.Contains(a.body, "secret") {
			t.Errorf("readyz: %d %s", a.StatusCode, a.body)
		}
		if a := do(e.Handler(), "GET", "/healthz", ""); a.StatusCode != 200 {
			t.Errorf("healthz: %d", a.StatusCode)
		}
	})
}

func TestProblems(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	slog.SetDefault(slog.New(slog.DiscardHandler))
	isProblem(t, do(e.Handler(), "GET", "/none", ""), 404, "NOT_FOUND")
	isProblem(t, do(e.Handler(), "GET", "/v1/none", ""), 404, "NOT_FOUND")
	isProblem(t, do(e.Handler(), "POST", "/v1/tools/none", "{}"), 404, "NOT_FOUND")
	a := do(e.Handler(), "POST", "/v1/tools/fails", "{}")
	isProblem(t, a, 500, "COMMAND_EXECUTION_ERROR")
	if strings.Contains(a.body, "/secret/path") || !strings.Contains(a.body, "it broke") {
		t.Errorf("the cause is shown: %s", a.body)
	}
}

func TestRequestsAreCounted(t *testing.T) {
	e := newEdge(t, auth.Auto, OriginCheck{Loopback: true})
	ids := map[string]bool{}
	for range 5 {
		ids[do(e.Handler(), "GET", "/healthz", "").Header.Get("X-Request-Id")] = true
	}
	if len(ids) != 5 || ids[""] {
		t.Errorf("request ids %v", ids)
	}
	do(e.Handler(), "MADEUP", "/healthz", "")
	do(e.Handler(), "GET", "/none", "")
	do(e.Handler(), "GET", "/", "", "Host", "evil.example")
	e.Metrics.Call("get_sessions", "ok", time.Millisecond)
	text := do(e.Handler(), "GET", "/metrics", "").body
	for _, want := range []string{`sandlot_http_requests_total{method="GET",status="200"} 5`,
		`{method="GET",status="404"} 1`, `{method="GET",status="403"} 1`, `method="other"`,
		`sandlot_tool_call_seconds_count{outcome="ok",tool="get_sessions"} 1`, "sandlot_sessions_live 0"} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if strings.Contains(text, "MADEUP") {
		t.Error("a made-up method is a label")
	}
}

func TestSpan(t *testing.T) {
	tests := []struct {
		header        string
		offset, limit uint64
		ok            bool
	}{
		{"bytes=0-", 0, 0, true}, {"bytes=5-", 5, 0, true}, {"bytes=0-0", 0, 1, true}, {"bytes=10-19", 10, 10, true},
		{"", 0, 0, false}, {"bytes=", 0, 0, false}, {"bytes=-5", 0, 0, false}, {"bytes=9-5", 0, 0, false},
		{"bytes=0-1,3-4", 0, 0, false},
		{"items=0-1", 0, 0, false}, {"bytes=a-b", 0, 0, false}, {"bytes=0x1-", 0, 0, false},
		{"bytes=99999999999999999999-", 0, 0, false}, {"bytes=0-18446744073709551615", 0, 0, false},
	}
	for _, tt := range tests {
		offset, limit, ok := parseRange(tt.header)
		if ok != tt.ok || ok && (offset != tt.offset || limit != tt.limit) {
			t.Errorf("span(%q) = %d, %d, %v", tt.header, offset, limit, ok)
		}
	}
}
