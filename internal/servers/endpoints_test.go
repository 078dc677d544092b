package servers

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// rogue is an MCP server, and the authorization server that it names, which do
// whatever a test has them do.
type rogue struct {
	*httptest.Server
	mux *http.ServeMux

	mu     sync.Mutex
	good   map[string]bool                 // access tokens
	meta   map[string]any                  // takes the place of what the metadata have
	answer func(url.Values) map[string]any // of the token endpoint; with an access token, or an error
	got    []url.Values                    // by the token endpoint
	hold   map[string]chan struct{}        // paths that answer when theirs is closed
}

func newRogue(t *testing.T) *rogue {
	r := &rogue{mux: http.NewServeMux(), good: map[string]bool{}, hold: map[string]chan struct{}{}}
	tokens := 0
	r.answer = func(url.Values) map[string]any {
		tokens++
		return map[string]any{"access_token": fmt.Sprint("access", tokens),
			"refresh_token": fmt.Sprint("refresh", tokens), "token_type": "Bearer"}
	}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		hold := r.hold[q.URL.Path]
		r.mu.Unlock()
		if hold != nil {
			<-hold
		}
		r.mux.ServeHTTP(w, q)
	}))
	t.Cleanup(r.Close)
	js := func(w http.ResponseWriter, status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	r.mux.HandleFunc("/mcp", func(w http.ResponseWriter, q *http.Request) {
		token, _ := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer ")
		r.mu.Lock()
		good := r.good[token]
		r.mu.Unlock()
		if !good {
			w.Header().Set("WWW-Authenticate",
				`Bearer resource_metadata="`+r.URL+`/.well-known/oauth-protected-resource/mcp"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if q.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		var m struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.NewDecoder(q.Body).Decode(&m)
		switch m.Method {
		case "initialize":
			js(w, 200, map[string]any{"jsonrpc": "2.0", "id": m.ID,
				"result": map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{},
					"serverInfo": map[string]any{"name": "x", "version": "1"}}})
		case "server/discover":
			js(w, 200, map[string]any{"jsonrpc": "2.0", "id": m.ID,
				"error": map[string]any{"code": -32601, "message": "no"}})
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})
	r.mux.HandleFunc("/.well-known/oauth-protected-resource/mcp", func(w http.ResponseWriter, _ *http.Request) {
		js(w, 200, map[string]any{"resource": r.URL + "/mcp", "authorization_servers": []string{r.URL}})
	})
	r.mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		m := map[string]any{"issuer": r.URL, "authorization_endpoint": r.URL + "/authorize",
			"token_endpoint": r.URL + "/token", "registration_endpoint": r.URL + "/register",
			"code_challenge_methods_supported":      []string{"S256"},
			"token_endpoint_auth_methods_supported": []string{"client_secret_post"}}
		r.mu.Lock()
		maps.Copy(m, r.meta)
		r.mu.Unlock()
		js(w, 200, m)
	})
	r.mux.HandleFunc("/register", func(w http.ResponseWriter, _ *http.Request) {
		js(w, 201, map[string]any{"client_id": "c", "redirect_uris": []string{"http://localhost:1/oauth/callback"},
			"token_endpoint_auth_method": "none"})
	})
	r.mux.HandleFunc("/token", func(w http.ResponseWriter, q *http.Request) {
		_ = q.ParseForm()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, q.Form)
		m := r.answer(q.Form)
		if token, ok := m["access_token"].(string); ok {
			r.good = map[string]bool{token: true}
			js(w, 200, m)
			return
		}
		js(w, 400, m)
	})
	return r
}

// says has the metadata say something else.
func (r *rogue) says(meta map[string]any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meta = meta
}

// expire ends the access tokens.
func (r *rogue) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.good = nil
}

// answers has the token endpoint answer so, and returns how it did before.
func (r *rogue) answers(next func(url.Values) map[string]any) (before func(url.Values) map[string]any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, r.answer = r.answer, next
	return before
}

// refuse is an answer of an error.
func refuse(code string) func(url.Values) map[string]any {
	return func(url.Values) map[string]any { return map[string]any{"error": code} }
}

// blocks has a path answer when the test says so.
func (r *rogue) blocks(path string) (open func()) {
	gate := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold[path] = gate
	return sync.OnceFunc(func() {
		r.mu.Lock()
		delete(r.hold, path)
		r.mu.Unlock()
		close(gate)
	})
}

func (r *rogue) tokenRequests() []url.Values {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]url.Values(nil), r.got...)
}

// invited is the page of a link.
func invited(t *testing.T, servers *Servers, link string) (string, oauth.ConsentPage) {
	t.Helper()
	_, id, ok := strings.Cut(link, "/oauth/start/")
	if !ok {
		t.Fatalf("the link is %q", link)
	}
	i, err := servers.Logins.ConsentPage(id, nil)
	if err != nil {
		t.Fatal(err)
	}
	return id, i
}

// comes goes on from the page of a link, and comes back with a code, whatever the
// authorization server would say.
func comes(t *testing.T, servers *Servers, link string) {
	t.Helper()
	id, i := invited(t, servers, link)
	to, err := servers.Logins.Redirect(id, []string{i.Browser}, i.Proof)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	q := url.Values{"state": {u.Query().Get("state")}, "code": {"the-code"}}
	if _, err := servers.Logins.HandleCallback(q, func(string) []string { return []string{i.Browser} }); err != nil {
		t.Fatal(err)
	}
}

func connected(t *testing.T, servers *Servers, name string) {
	t.Helper()
	until(t, "connected", func() bool {
		i, _, err := servers.Info(P, name)
		return err == nil && i.State == state.Connected
	})
}

func linkOf(t *testing.T, servers *Servers, name, address string) string {
	t.Helper()
	i, err := servers.Connect(t.Context(), P, spec.ConnectRequest{Name: name, URL: address})
	if err != nil || i.State != state.NeedsAuth || i.AuthURL == "" {
		t.Fatalf("%s, %q, %v", i.State, i.AuthURL, err)
	}
	return i.AuthURL
}

// An MCP server that names itself as the authorization server gets nothing of the
// operator's client there; the one that the settings name gets it.
func TestClientSecretHasOneIssuer(t *testing.T) {
	for _, c := range []struct {
		name, issuer string // empty: the server itself
		asks         bool
	}{
		{"another", "https://accounts.example.com", false}, {"none", "none", false}, {"itself", "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			evil := newRogue(t)
			evil.says(map[string]any{"authorization_endpoint": "https://accounts.example.com/authorize"})
			o := spec.OAuth{ClientID: "operators-client", ClientSecret: "operators-secret", Issuer: c.issuer}
			if c.issuer == "" {
				o.Issuer = evil.URL
			} else if c.issuer == "none" {
				o.Issuer = ""
			}
			l := newLasting(t)
			b := l.server(spec.Configured{Name: "crm", Kind: spec.HTTP, URL: evil.URL + "/mcp", OAuth: o})
			if _, _, err := b.Info(P, "crm"); err != nil {
				t.Fatal(err)
			}
			err := get(b, P, "crm").ready(t.Context())
			i, _, _ := b.Info(P, "crm")
			if err == nil || (i.AuthURL != "") != c.asks {
				t.Fatalf("%s, %q, %v", i.State, i.AuthURL, err)
			}
			if !c.asks && !strings.Contains(l.log.String(), "oauth_issuer") {
				t.Errorf("the log does not say why: %v\n%s", err, l.log)
			}
			if !c.asks {
				if got := evil.tokenRequests(); len(got) > 0 {
					t.Errorf("it got %v", got)
				}
				return
			}
			// Then the page names who gets what the account lets Sandlot do.
			_, page := invited(t, b, i.AuthURL)
			receivers := []string{strings.TrimPrefix(evil.URL, "http://")}
			if page.Host != "accounts.example.com" || !slices.Equal(page.Receivers, receivers) {
				t.Errorf("the page says %q and %q", page.Host, page.Receivers)
			}
			comes(t, b, i.AuthURL)
			until(t, "the code was exchanged", func() bool { return len(evil.tokenRequests()) > 0 })
			if got := evil.tokenRequests()[0]; got.Get("client_secret") != "operators-secret" {
				t.Errorf("the issuer got %v", got)
			}
		})
	}
}

// A stored log-in of before the settings named an issuer is not renewed with the
// client's secret.
func TestStoredLoginHasItsIssuer(t *testing.T) {
	r := newRogue(t)
	l := newLasting(t)
	c := spec.Configured{Name: "crm", Kind: spec.HTTP, URL: r.URL + "/mcp", OAuth: spec.OAuth{ClientID: "c"}}
	b := l.server(c)
	if _, _, err := b.Info(P, "crm"); err != nil {
		t.Fatal(err)
	}
	_ = get(b, P, "crm").ready(t.Context())
	i, _, _ := b.Info(P, "crm")
	comes(t, b, i.AuthURL)
	connected(t, b, "crm")
	b.Close()
	r.expire()
	n := len(r.tokenRequests())
	c.OAuth.ClientSecret, c.OAuth.Issuer = "operators-secret", "https://accounts.example.com"
	b = l.server(c)
	if _, _, err := b.Info(P, "crm"); err != nil {
		t.Fatal(err)
	}
	if err := get(b, P, "crm").ready(t.Context()); err == nil || len(r.tokenRequests()) != n {
		t.Errorf("%v; it got %v", err, r.tokenRequests()[n:])
	}
}

// Neither a code nor the registration of a client follows a redirect.
func TestLoginFollowsNoRedirect(t *testing.T) {
	for _, what := range []string{"token", "registration"} {
		for _, status := range []int{301, 302, 303, 307, 308} {
			r, evil := newRogue(t), newRogue(t)
			reached := 0
			evil.mux.HandleFunc("/caught", func(w http.ResponseWriter, _ *http.Request) {
				evil.mu.Lock()
				defer evil.mu.Unlock()
				reached++
				w.WriteHeader(500)
			})
			r.mux.HandleFunc("/moved", func(w http.ResponseWriter, q *http.Request) {
				http.Redirect(w, q,
					evil.URL+"/caught", status)
			})
			r.says(map[string]any{what + "_endpoint": r.URL + "/moved"})
			b := newLasting(t).server()
			i, err := b.Connect(t.Context(), P, spec.ConnectRequest{Name: "bank", URL: r.URL + "/mcp"})
			if what == "registration" {
				if err == nil || !strings.Contains(err.Error(), "redirects") {
					t.Errorf("%s, %v", i.State, err)
				}
			} else {
				comes(t, b, i.AuthURL)
				until(t, "it failed", func() bool {
					i, _, _ := b.Info(P, "bank")
					return i.AuthURL == "" && strings.Contains(i.LastError, "redirects")
				})
			}
			evil.mu.Lock()
			if reached > 0 {
				t.Errorf("%s, %d: it was followed", what, status)
			}
			evil.mu.Unlock()
			b.Close()
		}
	}
}

// Endpoints that choose parameters of OAuth, or cannot be shown, are not used.
func TestOddEndpoints(t *testing.T) {
	r := newRogue(t)
	long := func(c string) string {
		return "https://accounts.example.com" + strings.Repeat(c, 300) + ".evil.test/authorize"
	}
	for _, c := range []struct{ key, value string }{
		{"authorization_endpoint", "https://a.example/authorize?state=chosen"},
		{"authorization_endpoint", "https://a.example/authorize?STATE=chosen"},
		{"authorization_endpoint", "https://a.example/authorize?client_id=evil&redirect_uri=https://evil.test/"},
		{"authorization_endpoint", "https://a.example/authorize?scope[]=all"},
		{"authorization_endpoint", "https://a.example/authorize?request_uri=https://evil.test/"},
		{"authorization_endpoint", "https://a.example/authorize?a=b;c"},
		{"authorization_endpoint", "https://a.example/authorize#fragment"},
		{"authorization_endpoint", "https://a.example@evil.test/authorize"},
		{"authorization_endpoint", "https:///authorize"},
		{"authorization_endpoint", "https://a.example/" + strings.Repeat("a", 8<<10)},
		{"authorization_endpoint", long("\ufe0f" + "a")},
		{"authorization_endpoint", long("a.")},
		{"authorization_endpoint", "https://accounts.example.com\u202e.evil/authorize"},
		{"token_endpoint", r.URL + "/token?client_id=evil"},
		{"token_endpoint", strings.Replace(r.URL, "://", "://u:p@", 1) + "/token"},
		{"registration_endpoint", r.URL + "/register?redirect_uri=https://evil.test"},
	} {
		r.says(map[string]any{c.key: c.value})
		b := newLasting(t).server()
		i, err := b.Connect(t.Context(), P, spec.ConnectRequest{Name: "bank", URL: r.URL + "/mcp"})
		if err == nil || i.AuthURL != "" || len(b.List(P)) != 0 {
			t.Errorf("%s %.80q: %s, %v", c.key, c.value, i.State, err)
		}
		b.Close()
	}
}

// What the page shows of a host is what the browser is sent to, to the end.
func TestHostsAreShownWhole(t *testing.T) {
	r := newRogue(t)
	for host, want := range map[string]string{
		"\u0430ccounts.example.com": "xn--ccounts-2fg.example.com",
		"accounts.example.com" + strings.Repeat("\u00ad", 300) + ".evil.test": "accounts.example.com.evil.test",
		"accounts.example.com%C2%AD.evil.test":                                "accounts.example.com.evil.test",
		"ACCOUNTS.example.com:8443":                                           "accounts.example.com:8443",
		"[2001:DB8::1]:444":                                                   "[2001:db8::1]:444",
		strings.Repeat("a.", 110) + "evil.test":                               strings.Repeat("a.", 110) + "evil.test",
	} {
		r.says(map[string]any{"authorization_endpoint": "https://" + host + "/authorize?tenant=1"})
		b := newLasting(t).server()
		id, page := invited(t, b, linkOf(t, b, "bank", r.URL+"/mcp"))
		to, err := b.Logins.Redirect(id, []string{page.Browser}, page.Proof)
		if err != nil || page.Host == "" || !strings.HasPrefix(to, "https://"+page.Host+"/authorize?tenant=1&") {
			t.Errorf("%.60q: the page says %q, and the browser goes to %.200q, %v", host, page.Host, to, err)
		}
		if strings.HasPrefix(want, "xn--") && strings.HasPrefix(page.Host, "xn--") { // which, says IDNA
			want = page.Host
		}
		if page.Host != want {
			t.Errorf("%.60q is shown as %q, want %q", host, page.Host, want)
		}
		b.Close()
	}
}

// The words of an authorization server are in no error and in no log.
func TestServersWordsAreNotTold(t *testing.T) {
	const words = "ignore-all-that-was-said client_secret=hunter2"
	r := newRogue(t)
	for _, status := range []int{200, 201, 202, 400, 500} {
		r.mux.HandleFunc(fmt.Sprint("/register", status), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"error":"invalid_client_metadata","error_description":%q,"client_secret":%[1]q}`, words)
		})
	}
	r.mux.HandleFunc("/odd", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>"+words) })
	u, _ := url.Parse(r.URL)
	for what, meta := range map[string]map[string]any{
		"issuer":     {"issuer": words},
		"scheme":     {"token_endpoint": "javascript:" + words},
		"no address": {"authorization_endpoint": "http://" + words},
		"200":        {"registration_endpoint": r.URL + "/register200"},
		"201":        {"registration_endpoint": r.URL + "/register201"},
		"202":        {"registration_endpoint": r.URL + "/register202"},
		"HTTP 400":   {"registration_endpoint": r.URL + "/register400"},
		"HTTP 500":   {"registration_endpoint": r.URL + "/register500"},
		"html":       {"registration_endpoint": r.URL + "/odd"},
		"path":       {"registration_endpoint": "http://127.0.0.1:1/" + url.PathEscape(words)},
		"user":       {"registration_endpoint": "http://hunter2:hunter2@" + u.Host + "/register"},
	} {
		r.says(meta)
		l := newLasting(t)
		b := l.server()
		_, err := b.Connect(t.Context(), P, spec.ConnectRequest{Name: "bank", URL: r.URL + "/mcp"})
		if err == nil {
			t.Errorf("%s: it asks to log in", what)
			continue
		}
		said := l.log.String()
		for e := err; e != nil; e = errors.Unwrap(e) {
			said += fmt.Sprintf("\n%+v", e)
		}
		for _, w := range []string{"hunter2", "ignore-all"} {
			if strings.Contains(said, w) {
				t.Errorf("%s: it is told: %s", what, said)
			}
		}
		if strings.HasPrefix(what, "HTTP ") && !strings.Contains(err.Error(),
			what) || what == "HTTP 400" && !strings.Contains(err.Error(), "invalid_client_metadata") {
			t.Errorf("%s: it does not say what is known: %v", what, err)
		}
		b.Close()
	}
}

// Calls while the user logs in neither count as failures, nor do they stop what the end of the log-in starts.
func TestCallsDuringLogin(t *testing.T) {
	r := newRogue(t)
	b := newLasting(t).server()
	link := linkOf(t, b, "bank", r.URL+"/mcp")
	for n := range state.MaxFailures + 1 {
		err := get(b, P, "bank").ready(t.Context())
		if i, _, _ := b.Info(P, "bank"); !errors.Is(err, oauth.ErrLoginNeeded) || i.State != state.NeedsAuth ||
			i.AuthURL != link {
			t.Fatalf("call %d: %v; %s, %q", n, err, i.State, i.AuthURL)
		}
	}
	comes(t, b, link)
	connected(t, b, "bank")
}

// One principal cannot take all places of log-ins.
func TestOwnLogins(t *testing.T) {
	r := newRogue(t)
	b := newLasting(t).server()
	for n := range oauth.MaxPerPrincipal {
		linkOf(t, b, fmt.Sprint("bank", n), r.URL+"/mcp")
	}
	if i, err := b.Connect(t.Context(), P,
		spec.ConnectRequest{Name: "more", URL: r.URL + "/mcp"}); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("%s, %v", i.State, err)
	}
	if i, err := b.Connect(t.Context(), auth.User("bob", false),
		spec.ConnectRequest{Name: "bank", URL: r.URL + "/mcp"}); err != nil || i.State != state.NeedsAuth {
		t.Errorf("another: %s, %v", i.State, err)
	}
}

// A log-in of what a connection was does not speak for what it became.
func TestOldLoginIsStill(t *testing.T) {
	old, next := newRogue(t), newRogue(t)
	b := newLasting(t).server()
	comes(t, b, linkOf(t, b, "bank", old.URL+"/mcp"))
	connected(t, b, "bank")
	s := get(b, P, "bank")
	old.expire()
	old.mu.Lock()
	old.answer = func(url.Values) map[string]any { return map[string]any{"error": "invalid_grant"} }
	old.mu.Unlock()
	metadata, goOn := old.blocks("/.well-known/oauth-authorization-server"), next.blocks("/mcp")
	defer goOn()
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { _, _ = b.Restart(t.Context(), P, "bank", nil, nil, nil) })
	until(t, "the old one asks", func() bool {
		l := s.account.Current()
		return l != nil && l.InProgress()
	})
	var got Info
	var err error
	done := make(chan struct{})
	all.Go(func() {
		defer close(done)
		got, err = b.Connect(t.Context(), P, spec.ConnectRequest{Name: "bank", URL: next.URL + "/mcp"})
	})
	until(t, "the next one starts", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.Settings.URL == next.URL+"/mcp" && s.start != nil
	})
	metadata()
	for range 20 {
		if i, _, _ := b.Info(P, "bank"); i.AuthURL != "" || i.State == state.NeedsAuth {
			t.Fatalf("the old one asks to log in for the next: %s, %s", i.State, i.AuthURL)
		}
		time.Sleep(10 * time.Millisecond)
	}
	goOn()
	<-done
	if err != nil || got.State != state.NeedsAuth {
		t.Fatalf("%s, %v", got.State, err)
	}
	if _, page := invited(t, b, got.AuthURL); page.Address != next.URL+"/mcp" || "http://"+page.Host != next.URL {
		t.Errorf("the page says %+v", page)
	}
}

// A connection that is replaced by one that fails is what it was, though its user
// was to log in there; the link that they had leads nowhere.
func TestReplacedWhileItsUserLogsIn(t *testing.T) {
	bank := newRogue(t)
	dead := httptest.NewServer(http.NotFoundHandler())
	defer dead.Close()
	b := newLasting(t).server()
	link := linkOf(t, b, "bank", bank.URL+"/mcp")
	_, id, _ := strings.Cut(link, "/oauth/start/")
	if i, err := b.Connect(t.Context(), P, spec.ConnectRequest{Name: "bank", URL: dead.URL + "/mcp"}); err == nil {
		t.Fatalf("it connects: %+v", i)
	}
	until(t, "the link is over", func() bool {
		_, err := b.Logins.ConsentPage(id, nil)
		return errors.Is(err, oauth.ErrNotWaiting)
	})
	i, _, err := b.Info(P, "bank")
	if err != nil || i.URL != bank.URL+"/mcp" || i.AuthURL != "" || i.State == state.NeedsAuth {
		t.Errorf("%+v, %v", i, err)
	}
	works(t, b, P, "bank", false)
	i, _, _ = b.Info(P, "bank")
	comes(t, b, i.AuthURL)
	connected(t, b, "bank")
}

// A Connect that takes over a connection whose first Connect is still on its way
// has it, or nobody has.
func TestConnectTakesOver(t *testing.T) {
	for _, good := range []bool{true, false} {
		first, second := newRogue(t), newRogue(t)
		open := first.blocks("/mcp")
		defer open()
		b := newLasting(t).server()
		done := make(chan error)
		go func() {
			_, err := b.Connect(t.Context(), P, spec.ConnectRequest{Name: "bank", URL: first.URL + "/mcp"})
			done <- err
		}()
		until(t, "the first starts", func() bool { l := b.List(P); return len(l) == 1 && l[0].State == state.Starting })
		address := second.URL + "/mcp"
		if !good {
			address = second.URL + "/nothing"
		}
		i, err := b.Connect(t.Context(), P, spec.ConnectRequest{Name: "bank", URL: address})
		if first := <-done; first == nil {
			t.Error("the first is there, though the second took it over")
		}
		list := b.List(P)
		switch {
		case !good && (err == nil || len(list) != 0):
			t.Errorf("%v, and there is %+v", err, list)
		case good && (err != nil || i.State != state.NeedsAuth || len(list) != 1 || list[0].URL != address):
			t.Errorf("%+v, %v, and there is %+v", i, err, list)
		}
		open()
	}
}

// A renewed token that cannot be stored does not leave the used one stored.
func TestUsedTokenIsNotStored(t *testing.T) {
	r := newRogue(t)
	n, reused := 0, 0
	used := map[string]bool{}
	r.answer = func(v url.Values) map[string]any {
		n++
		pad := ""
		if old := v.Get("refresh_token"); old != "" {
			if used[old] {
				reused++
			}
			used[old] = true
			pad = strings.Repeat("x", 70<<10)
		}
		return map[string]any{"access_token": fmt.Sprint("access", n, pad), "refresh_token": fmt.Sprint("refresh", n),
			"token_type": "Bearer"}
	}
	l := newLasting(t)
	b := l.server()
	comes(t, b, linkOf(t, b, "bank", r.URL+"/mcp"))
	connected(t, b, "bank")
	if l.rows.rows() != 1 {
		t.Fatalf("%d are stored", l.rows.rows())
	}
	r.expire()
	if i, err := b.Restart(t.Context(), P, "bank", nil, nil, nil); err != nil || i.State != state.Connected {
		t.Fatalf("%s, %v", i.State, err)
	}
	if l.rows.rows() != 0 {
		t.Error("the used one is still stored")
	}
	b.Close()
	r.expire()
	works(t, l.server(), P, "bank", false)
	if reused > 0 {
		t.Errorf("a refresh token came %d times again", reused)
	}
}

// A log-in that cannot be renewed for long, without a word that it is over, is
// given up when its user restarts the connection, and not before.
func TestStuckRenewal(t *testing.T) {
	r := newRogue(t)
	b := newLasting(t).server()
	b.Logins.Limits.StuckAfter = time.Hour
	comes(t, b, linkOf(t, b, "bank", r.URL+"/mcp"))
	connected(t, b, "bank")
	r.expire()
	answer := r.answers(refuse("temporarily_unavailable"))
	for range 2 {
		if i, err := b.Restart(t.Context(), P, "bank", nil, nil,
			nil); err == nil || i.State == state.NeedsAuth || !strings.Contains(err.Error(), "ten minutes") {
			t.Errorf("%s, %v", i.State, err)
		}
	}
	b.Logins.Limits.StuckAfter = 1
	source := func() oauth2.TokenSource {
		k, err := get(b, P, "bank").account.Current().TokenSource(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := source()
	if _, err := get(b, P, "bank").account.Current().Renew(); err == nil || source() != k {
		t.Errorf("without a restart: %v", err)
	}
	// What works by then is kept.
	odd := r.answers(answer)
	i, err := b.Restart(t.Context(), P, "bank", nil, nil, nil)
	if err != nil || i.State != state.Connected || source() != k {
		t.Errorf("it can be renewed: %s, %v", i.State, err)
	}
	r.expire()
	r.answers(odd)
	i, err = b.Restart(t.Context(), P, "bank", nil, nil, nil) // the first that fails again
	if err == nil || i.State == state.NeedsAuth {
		t.Errorf("%s, %v", i.State, err)
	}
	i, err = b.Restart(t.Context(), P, "bank", nil, nil, nil)
	if err == nil || i.State != state.NeedsAuth || i.AuthURL == "" {
		t.Fatalf("%s, %v", i.State, err)
	}
	r.answers(answer)
	comes(t, b, i.AuthURL)
	connected(t, b, "bank")
}

// A renewal that takes long loses nothing, and asks nobody to log in.
func TestSlowRenewal(t *testing.T) {
	r := newRogue(t)
	b := newLasting(t).server()
	b.Logins.Limits.WaitTimeout = 200 * time.Millisecond
	comes(t, b, linkOf(t, b, "bank", r.URL+"/mcp"))
	connected(t, b, "bank")
	r.expire()
	open := r.blocks("/token")
	defer open()
	for range 2 {
		i, err := b.Restart(t.Context(), P, "bank", nil, nil, nil)
		if err == nil || i.State == state.NeedsAuth || i.AuthURL != "" ||
			!strings.Contains(err.Error(), "try again later") {
			t.Errorf("%s, %v", i.State, err)
		}
	}
	open()
	k, _ := get(b, P, "bank").account.Current().TokenSource(t.Context())
	until(t, "renewed", func() bool { _, err := k.Token(); return err == nil })
	if i, err := b.Restart(t.Context(), P, "bank", nil, nil, nil); err != nil || i.State != state.Connected {
		t.Errorf("%s, %v", i.State, err)
	}
	if got := r.tokenRequests(); len(got) != 2 {
		t.Errorf("%d requests for a token", len(got))
	}
	// Nor does an authorization server that is out of order.
	r.expire()
	answer := r.answers(refuse("temporarily_unavailable"))
	if i, err := b.Restart(t.Context(), P, "bank", nil, nil,
		nil); err == nil || i.State == state.NeedsAuth || !fault.Is(err, fault.Connection) {
		t.Errorf("%s, %v", i.State, err)
	}
	r.answers(answer)
	if i, err := b.Restart(t.Context(), P, "bank", nil, nil, nil); err != nil || i.State != state.Connected {
		t.Errorf("%s, %v", i.State, err)
	}
	// A refusal for good is the user's to mend.
	r.expire()
	r.answers(refuse("invalid_request"))
	if i, err := b.Restart(t.Context(), P, "bank", nil, nil,
		nil); err == nil || i.State != state.NeedsAuth || i.AuthURL == "" {
		t.Errorf("%s, %v", i.State, err)
	}
}

// When what is stored cannot even be removed that is tried again, until what is
// stored is good.
func TestStoredWhenItCanBe(t *testing.T) {
	r := newRogue(t)
	l := newLasting(t)
	b := l.server()
	b.Logins.Limits.StoreRetry = 100 * time.Millisecond
	comes(t, b, linkOf(t, b, "bank", r.URL+"/mcp"))
	connected(t, b, "bank")
	r.expire()
	l.rows.fill(true)
	if i, err := b.Restart(t.Context(), P, "bank", nil, nil, nil); err != nil || i.State != state.Connected {
		t.Fatalf("%s, %v", i.State, err)
	}
	if said := l.log.String(); !strings.Contains(said, "could not store a log-in") || !strings.Contains(said,
		"could not remove a stored log-in") {
		t.Errorf("the log does not say so: %s", said)
	}
	l.rows.mu.Lock()
	n := l.rows.puts
	l.rows.mu.Unlock()
	l.rows.fill(false)
	until(t, "it is stored", func() bool { l.rows.mu.Lock(); defer l.rows.mu.Unlock(); return l.rows.puts > n })
	b.Close()
	r.expire()
	before := len(r.tokenRequests())
	b = l.server()
	works(t, b, P, "bank", true)
	if got := r.tokenRequests()[before:]; len(got) != 1 || got[0].Get("refresh_token") != "refresh2" {
		t.Errorf("it is renewed with %v", got)
	}
}

// A log-in that was given up asks nobody, however far it had come.
func TestAskAfterItsEnd(t *testing.T) {
	r := newRogue(t)
	b := newLasting(t).server()
	linkOf(t, b, "bank", r.URL+"/mcp")
	s := get(b, P, "bank")
	l := s.account.Current()
	s.beginReplace()
	if s.LoginNeeded(t.Context(), l, "http://localhost:1/oauth/start/x") || s.info().AuthURL != "" {
		t.Errorf("its link is %q", s.info().AuthURL)
	}
}

// A log-in that fails says how far it came, as its own requests show.
func TestLoginsSayWhereTheyFail(t *testing.T) {
	const other = "http://127.0.0.1:1"
	for want, c := range map[string]struct {
		meta  map[string]any
		oauth spec.OAuth
		logs  bool // its user logs in, and it fails then
	}{
		"metadata cannot be used":        {meta: map[string]any{"issuer": other}},
		"registers no clients by itself": {meta: map[string]any{"registration_endpoint": ""}},
		"does not register Sandlot":      {meta: map[string]any{"registration_endpoint": other + "/register"}},
		"another authorization server than": {oauth: spec.OAuth{ClientID: "c",
			Issuer: "https://accounts.example.com"}},
		"did not say that it was it": {
			meta: map[string]any{"authorization_response_iss_parameter_supported": true}, logs: true},
		"no token (HTTP 400): invalid_grant": {logs: true},
	} {
		r := newRogue(t)
		r.says(c.meta)
		r.answers(refuse("invalid_grant"))
		l := newLasting(t)
		b := l.server(spec.Configured{Name: "bank", Kind: spec.HTTP, URL: r.URL + "/mcp", OAuth: c.oauth})
		if _, _, err := b.Info(P, "bank"); err != nil {
			t.Fatal(err)
		}
		err := get(b, P, "bank").ready(t.Context())
		i, _, _ := b.Info(P, "bank")
		said := fmt.Sprint(err, l.log)
		if c.logs && i.AuthURL != "" {
			comes(t, b, i.AuthURL)
			until(t, "the log-in failed", func() bool {
				i, _,
					_ = b.Info(P, "bank")
				return i.LastError != "" && i.State != state.NeedsAuth
			})
			said = i.LastError
		}
		if !strings.Contains(said, want) {
			t.Errorf("it says %s, want %q", said, want)
		}
		b.Close()
	}
}
