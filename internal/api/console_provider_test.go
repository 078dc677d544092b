package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/auth/oidc"
	"sandlot/internal/auth/oidc/oidctest"
	"sandlot/internal/console"
	"sandlot/internal/event"
	"sandlot/internal/policy"
)

const sandlotAudience = "https://sandlot.example.com/mcp"

// providerEdge is an edge whose browsers log in at providers.
type providerEdge struct {
	*edge
	log *syncBuffer
	// verifier is that of the edge.
	verifier *oidc.Verifier
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// issuerOf returns the settings of a provider, whose client may be sent back to this server.
func issuerOf(p *oidctest.Provider) oidc.Issuer {
	for _, host := range []string{"localhost:8000", "console.localhost:8000"} {
		p.Redirects = append(p.Redirects, "http://"+host+"/console/oidc/"+auth.IssuerID(p.URL))
		p.Back = append(p.Back, "http://"+host+"/console/")
	}
	return oidc.Issuer{URL: p.URL, Audiences: []string{sandlotAudience}, Algorithms: []string{"ES256"},
		NameClaim: "preferred_username", Client: oidc.Client{ID: "console", Scopes: []string{"profile"}}}
}

func newProviderEdge(t *testing.T, issuers ...oidc.Issuer) *providerEdge {
	t.Helper()
	e := &providerEdge{edge: newEdge(t, auth.Required, OriginCheck{Loopback: true}), log: &syncBuffer{}}
	log := slog.New(slog.NewTextHandler(e.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	e.verifier = oidc.New(issuers, log)
	t.Cleanup(func() { e.verifier.Close() })
	door, err := auth.NewAuthenticator(t.Context(), auth.Required, "localhost", e.tokens, e.verifier)
	if err != nil {
		t.Fatal(err)
	}
	e.Authenticator, e.Server.Log = door, log
	e.Logins = console.NewLogins(door, "")
	e.Logins.UseProviders(e.verifier, log)
	t.Cleanup(func() { e.Logins.Close() })
	return e
}

// attempt is a log-in that a browser has begun.
type attempt struct{ cookie, key, url, provider string }

// begin begins a log-in at a provider.
func (e *providerEdge) begin(p *oidctest.Provider) attempt {
	e.t.Helper()
	id := auth.IssuerID(p.URL)
	a := do(e.Handler(), "POST", "/console/begin", `{"provider": "`+id+`"}`, ofConsolePage...)
	m := a.json()
	x := attempt{key: fmt.Sprint(m["key"]), url: fmt.Sprint(m["url"]), provider: id}
	if a.StatusCode != 200 || len(a.Cookies()) != 1 {
		e.t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	c := a.Cookies()[0]
	if c.Name != console.PlainAttempt || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" ||
		c.Domain != "" || c.MaxAge != 600 || a.Header.Get("Cache-Control") != "no-store" {
		e.t.Errorf("the cookie is %v", a.Header)
	}
	x.cookie = c.Name + "=" + c.Value
	return x
}

// response is a provider's response, as the page sends it.
type response map[string]string

func (x attempt) response(q url.Values) response {
	r := response{"provider": x.provider, "key": x.key}
	for name := range q {
		r[name] = q.Get(name)
	}
	return r
}

func (r response) with(name, value string) response {
	c := response{}
	for k, v := range r {
		c[k] = v
	}
	if c[name] = value; value == "" {
		delete(c, name)
	}
	return c
}

// finish makes the request of a log-in with a response.
func (e *providerEdge) finish(r response, headers ...string) answer {
	body, _ := json.Marshal(map[string]any{"response": r})
	return do(e.Handler(), "POST", "/console/login", string(body), headers...)
}

// visit logs a user in at the provider.
func (e *providerEdge) visit(p *oidctest.Provider, x attempt, user string) response {
	e.t.Helper()
	q, err := p.Visit(x.url, user)
	if err != nil {
		e.t.Fatal(err)
	}
	return x.response(q)
}

// logInAt logs a user in at a provider, and returns the answer to the log-in.
func (e *providerEdge) logInAt(p *oidctest.Provider, user string) (attempt, response, answer) {
	e.t.Helper()
	x := e.begin(p)
	r := e.visit(p, x, user)
	return x, r, e.finish(r, with(ofConsolePage, "Cookie", x.cookie)...)
}

// in returns the log-in of an answer, which has two cookies: its own, and the removal of the attempt's.
func in(a answer) login {
	for _, c := range a.Cookies() {
		if c.Name == console.PlainCookie {
			return login{c.Name + "=" + c.Value, fmt.Sprint(a.json()["key"])}
		}
	}
	return login{}
}

func (e *providerEdge) who(l login) (string, int) {
	a := do(e.Handler(), "GET", "/v1/principal", "", l.page()...)
	name, _ := a.json()["principal"].(string)
	return name, a.StatusCode
}

// Who logs in at a provider is who the provider's bearer tokens are for. Log-out ends the log-in, and leads to the provider
// without a token in the address.
func TestConsoleProviderLogin(t *testing.T) {
	p := oidctest.New(t)
	p.ClientSecret = "the client's secret"
	issuer := issuerOf(p)
	issuer.Client.Secret = "the client's secret"
	e := newProviderEdge(t, issuer)
	events := e.Hub.Events.Subscribe(event.Filter{}, 0)
	defer events.Close()
	list := do(e.Handler(), "GET", "/console/providers", "").json()["providers"]
	if got := fmt.Sprint(list); !strings.Contains(got, p.URL) || !strings.Contains(got, auth.IssuerID(p.URL)) {
		t.Errorf("the providers are %s", got)
	}
	x, r, a := e.logInAt(p, "ann")
	l := in(a)
	who, status := e.who(l)
	bearer := do(e.Handler(), "GET", "/v1/principal", "", "Authorization", "Bearer "+p.Sign(map[string]any{"iss": p.URL,
		"sub": "ann", "aud": sandlotAudience, "exp": time.Now().Add(time.Hour).Unix()})).json()["principal"]
	if a.StatusCode != 200 || status != 200 || who == "" || who != bearer {
		t.Errorf("%d %s; by the console %q, by a bearer token %q", a.StatusCode, a.body, who, bearer)
	}
	if l.cookie == x.cookie || l.key == x.key || strings.Contains(a.Header.Get("Set-Cookie"), "id_token") {
		t.Errorf("what the browser had before has become the log-in: %v", a.Header)
	}
	removed := slices.ContainsFunc(a.Cookies(), func(c *http.Cookie) bool {
		return c.Name == console.PlainAttempt && c.MaxAge < 0
	})
	if !removed {
		t.Errorf("the attempt's cookie stays: %v", a.Header)
	}
	if got := do(e.Handler(), "GET", "/v1/principal", "", console.Header, "1", "Cookie", l.cookie).StatusCode; got != 401 {
		t.Errorf("the cookie without the key: %d", got)
	}
	planted := e.logIn(e.token("mallory")) // in ann's browser, before she logs in
	again := e.begin(p)
	fixed := in(e.finish(e.visit(p, again, "ann"), with(ofConsolePage, "Cookie", again.cookie+"; "+planted.cookie)...))
	if _, status := e.who(login{fixed.cookie, planted.key}); status != 401 || fixed.cookie == planted.cookie ||
		fixed.key == planted.key || fixed.key == "" {
		t.Errorf("who has planted a log-in has hers: %d", status)
	}
	if _, status := e.who(planted); status != 401 {
		t.Errorf("the planted log-in: %d", status)
	}
	out := do(e.Handler(), "POST", "/console/logout", "", l.page()...)
	to, _ := url.Parse(fmt.Sprint(out.json()["url"]))
	if out.StatusCode != 200 || !strings.HasPrefix(to.String(), p.URL+"/logout?") || len(to.Query()) != 2 ||
		to.Query().Get("post_logout_redirect_uri") != "http://localhost:8000/console/" {
		t.Errorf("log-out: %d %s", out.StatusCode, out.body)
	}
	if _, status := e.who(l); status != 401 {
		t.Errorf("after the log-out: %d", status)
	}
	token := p.Requests("/token")
	if len(token) != 2 || token[0].Form.Get("client_secret") != "" && token[0].Form.Get("code") == "" {
		t.Errorf("%v", token)
	}
	seen, _, _ := events.Read()
	said := e.log.String() + fmt.Sprintf("%+v", seen)
	if !strings.Contains(said, "/console/login") {
		t.Fatalf("nothing was logged: %s", said)
	}
	for what, text := range map[string]string{"code": r["code"], "state": r["state"], "key of the attempt": x.key,
		"attempt": x.cookie, "verifier": token[0].Form.Get("code_verifier"), "key": l.key, "cookie": l.cookie,
		"client's secret": p.ClientSecret} {
		if text == "" || strings.Contains(said, text) {
			t.Errorf("the log or an event has the %s %q", what, text)
		}
	}
}

// What does not belong together logs nobody in, and a code is sent to its own provider alone, once.
func TestConsoleProviderAttacks(t *testing.T) {
	p, other := oidctest.New(t), oidctest.New(t)
	e := newProviderEdge(t, issuerOf(p), issuerOf(other))
	// Attempts that fail are few for each address: each attack has its own.
	n := 0
	attack := func(r response, headers ...string) answer {
		n++
		body, _ := json.Marshal(map[string]any{"response": r})
		q := httptest.NewRequest("POST", "/console/login", bytes.NewReader(body))
		q.Host, q.RemoteAddr = "localhost:8000", fmt.Sprintf("10.0.0.%d:1", n)
		for i := 0; i < len(headers); i += 2 {
			q.Header.Add(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		e.Handler().ServeHTTP(w, q)
		return answer{w.Result(), w.Body.String()}
	}
	mallory := e.begin(p)
	stolen := e.visit(p, mallory, "mallory")
	victim := e.begin(p)
	page := with(ofConsolePage, "Cookie", victim.cookie)
	own := e.visit(p, victim, "ann")
	for name, c := range map[string]struct {
		r       response
		headers []string
	}{
		"the response of another browser":               {stolen.with("key", victim.key), page},
		"the same, in a browser that has begun nothing": {stolen.with("key", ""), ofConsolePage},
		"the same, with the other's cookie planted":     {stolen.with("key", victim.key), with(ofConsolePage, "Cookie", mallory.cookie)},
		"the same, without a key":                       {stolen.with("key", ""), with(ofConsolePage, "Cookie", mallory.cookie)},
		"another code, with the own state":              {own.with("state", stolen["state"]), page},
		"no state":                                      {own.with("state", ""), page},
		"no key":                                        {own.with("key", ""), page},
		"no cookie":                                     {own, ofConsolePage},
		"a cookie that was changed":                     {own, with(ofConsolePage, "Cookie", victim.cookie+"A")},
		"without the header":                            {own, []string{"Cookie", victim.cookie}},
		"from another site":                             {own, []string{console.Header, "1", "Sec-Fetch-Site", "cross-site", "Cookie", victim.cookie}},
		"from another origin":                           {own, []string{console.Header, "1", "Origin", "http://localhost:3000", "Cookie", victim.cookie}},
	} {
		if a := attack(c.r, c.headers...); a.StatusCode != 401 && a.StatusCode != 403 || in(a).cookie != "" {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
	if got := len(p.Requests("/token")); got != 0 {
		t.Errorf("%d codes were sent to the provider", got)
	}
	// Each of these uses up its attempt.
	for name, change := range map[string]func(response) response{
		"the address of the other provider":   func(r response) response { return r.with("provider", auth.IssuerID(other.URL)) },
		"the name of the other provider":      func(r response) response { return r.with("iss", other.URL) },
		"no name, though the provider has it": func(r response) response { return r.with("iss", "") },
		"no code":                             func(r response) response { return r.with("code", "") },
	} {
		x := e.begin(p)
		r := e.visit(p, x, "ann")
		if a := attack(change(r), with(ofConsolePage, "Cookie", x.cookie)...); a.StatusCode != 401 || in(a).cookie != "" {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
		if a := attack(r, with(ofConsolePage, "Cookie", x.cookie)...); a.StatusCode != 401 {
			t.Errorf("%s, and then what is right: %d %s", name, a.StatusCode, a.body)
		}
	}
	if got := len(p.Requests("/token")) + len(other.Requests("/token")); got != 0 {
		t.Errorf("%d codes were sent to a provider", got)
	}
	a := attack(own, page...)
	if who, _ := e.who(in(a)); a.StatusCode != 200 || !strings.HasSuffix(who, "/ann") {
		t.Fatalf("what is right: %d %s", a.StatusCode, a.body)
	}
	for range 3 {
		if a := attack(own, page...); a.StatusCode != 401 || in(a).cookie != "" {
			t.Errorf("again: %d %s", a.StatusCode, a.body)
		}
	}
	if got := len(p.Requests("/token")); got != 1 {
		t.Errorf("the code was sent %d times", got)
	}
}

// A provider that lies logs nobody in.
func TestConsoleProviderLies(t *testing.T) {
	p, other := oidctest.New(t), oidctest.New(t)
	issuer := issuerOf(p)
	issuer.Required = map[string]string{"groups": "agents"}
	e := newProviderEdge(t, issuer, issuerOf(other))
	honest := func(c map[string]any) { c["groups"] = []string{"agents", "all"} }
	try := func(change func(map[string]any)) answer {
		p.Set(func() { p.Change = func(c map[string]any) { honest(c); change(c) } })
		_, _, a := e.logInAt(p, "ann")
		return a
	}
	if a := try(func(map[string]any) {}); in(a).cookie == "" {
		t.Fatalf("the truth: %d %s", a.StatusCode, a.body)
	}
	now := time.Now()
	for name, c := range map[string]struct {
		change func(map[string]any)
		status int
		says   string
	}{
		"another nonce":        {func(c map[string]any) { c["nonce"] = "x" }, 401, "nonce"},
		"no nonce":             {func(c map[string]any) { delete(c, "nonce") }, 401, "nonce"},
		"another audience":     {func(c map[string]any) { c["aud"] = sandlotAudience }, 401, "another client"},
		"several audiences":    {func(c map[string]any) { c["aud"] = []string{"console", "x"} }, 401, "another client"},
		"another party":        {func(c map[string]any) { c["azp"] = "x" }, 401, "another client"},
		"another issuer":       {func(c map[string]any) { c["iss"] = other.URL }, 401, "signature"},
		"an unknown issuer":    {func(c map[string]any) { c["iss"] = "https://x.example" }, 401, "none of this server"},
		"no subject":           {func(c map[string]any) { delete(c, "sub") }, 401, "subject"},
		"no end":               {func(c map[string]any) { delete(c, "exp") }, 401, "no exp"},
		"a slow clock":         {func(c map[string]any) { c["exp"], c["iat"] = now.Add(-time.Hour).Unix(), now.Add(-2*time.Hour).Unix() }, 401, "clock"},
		"a fast clock":         {func(c map[string]any) { c["iat"] = now.Add(time.Hour).Unix() }, 401, "clock"},
		"no rights":            {func(c map[string]any) { c["groups"] = []string{"all"} }, 403, "has no rights here: it needs groups="},
		"rights of other type": {func(c map[string]any) { c["groups"] = map[string]any{"agents": true} }, 403, "has no rights here"},
	} {
		e.Logins = console.NewLogins(e.Authenticator, "") // with all its attempts
		e.Logins.UseProviders(e.verifier, slog.New(slog.DiscardHandler))
		if a := try(c.change); a.StatusCode != c.status || in(a).cookie != "" || !strings.Contains(a.body, c.says) {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
	p.Set(func() { p.Key.Key, p.Change = other.Key.Key, honest })
	x := e.begin(p)
	r := e.visit(p, x, "ann")
	p.Set(func() { // the keys are known already: it signs with another one of the same name
		p.Instead["/keys"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }
	})
	if a := e.finish(r, with(ofConsolePage, "Cookie", x.cookie)...); a.StatusCode != 401 || in(a).cookie != "" {
		t.Errorf("another key: %d %s", a.StatusCode, a.body)
	}
}

// A provider that is down, hangs or floods takes no memory and no time from others, and the browser learns what to do.
func TestConsoleProviderDown(t *testing.T) {
	flood := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"issuer": "`))
		for range 10 << 4 {
			_, _ = w.Write(bytes.Repeat([]byte("x"), 64<<10))
		}
		_, _ = w.Write([]byte(`"}`))
	}
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	hangs := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-hang:
		}
	}
	fails := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "the secret cause", http.StatusBadGateway) }
	elsewhere := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://localhost:1/")
		w.WriteHeader(307)
	}
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(body))
		}
	}
	const metadata = "/.well-known/openid-configuration"
	for name, c := range map[string]struct {
		path   string
		answer http.HandlerFunc
	}{
		"metadata that flood":         {metadata, flood},
		"metadata that hang":          {metadata, hangs},
		"metadata that fail":          {metadata, fails},
		"metadata that are elsewhere": {metadata, elsewhere},
		"metadata that are no JSON":   {metadata, text("<html>")},
		"a token that floods":         {"/token", flood},
		"a token that hangs":          {"/token", hangs},
		"a token that fails":          {"/token", fails},
		"a token that is elsewhere":   {"/token", elsewhere},
		"a token that is no JSON":     {"/token", text("<html>")},
		"a token without a token":     {"/token", text("{}")},
		"no ID token":                 {"/token", text(`{"access_token": "opaque", "token_type": "Bearer"}`)},
		"an ID token that is long":    {"/token", text(`{"access_token": "o", "id_token": "` + strings.Repeat("a.", 20<<10) + `"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			p := oidctest.New(t)
			e := newProviderEdge(t, issuerOf(p))
			p.Instead[c.path] = c.answer
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // of a browser that does not wait
			defer cancel()
			send := func(path, body string, headers ...string) answer {
				q := httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(body))
				q.Host = "localhost:8000"
				for i := 0; i < len(headers); i += 2 {
					q.Header.Add(headers[i], headers[i+1])
				}
				w := httptest.NewRecorder()
				e.Handler().ServeHTTP(w, q)
				return answer{w.Result(), w.Body.String()}
			}
			var a answer
			if c.path == metadata {
				a = send("/console/begin", `{"provider": "`+auth.IssuerID(p.URL)+`"}`, ofConsolePage...)
			} else {
				x := e.begin(p)
				body, _ := json.Marshal(map[string]any{"response": e.visit(p, x, "ann")})
				a = send("/console/login", string(body), with(ofConsolePage, "Cookie", x.cookie)...)
			}
			if a.StatusCode < 400 || len(a.Cookies()) > 0 || strings.Contains(a.body, "secret cause") {
				t.Errorf("%d %s", a.StatusCode, a.body)
			}
			if ctx.Err() == nil && (!strings.Contains(a.body, p.URL) || a.StatusCode == 500) {
				t.Errorf("%d %s", a.StatusCode, a.body)
			}
			if token := e.logIn(e.token("bob")); token.key == "" { // by other ways
				t.Error("nobody logs in")
			}
		})
	}
}

// Only a screen of the console is gone back to, whatever the address says, and nothing of a response leaves the fragment.
func TestConsoleProviderCallback(t *testing.T) {
	p := oidctest.New(t)
	e := newProviderEdge(t, issuerOf(p))
	const evil = "https://evil.example"
	for _, query := range []string{"code=c&state=s&iss=i&return_to=" + evil, "code=c&state=s&redirect_uri=" + evil, "error=x&error_description=" + evil,
		"code=" + url.QueryEscape("c#"+evil) + "&state=s", "code=c&code=d&state=" + url.QueryEscape("\r\nSet-Cookie: a=b"), ""} {
		for _, id := range []string{auth.IssuerID(p.URL), "x", "%2f%2fevil.example", "..%2f..", "%0d%0aX-Evil:1"} {
			a := do(e.Handler(), "GET", "/console/oidc/"+id+"?"+query, "", "Sec-Fetch-Site", "cross-site")
			to, err := url.Parse(a.Header.Get("Location"))
			if a.StatusCode != 302 || err != nil || to.Host != "" || to.Scheme != "" || to.Path != "../" || to.RawQuery != "" ||
				!strings.HasPrefix(to.Fragment, "login?") || a.Header.Get("Referrer-Policy") != "no-referrer" ||
				a.Header.Get("Cache-Control") != "no-store" || len(a.Cookies()) > 0 || a.Header.Get("X-Evil") != "" ||
				len(a.body) > 0 || strings.Contains(to.Fragment, "description") || strings.Contains(to.Fragment, "return_to") {
				t.Errorf("%s?%s: %d %v %v", id, query, a.StatusCode, a.Header, err)
			}
		}
	}
	e.PublicURL = "https://sandlot.example.test"
	body := `{"provider": "` + auth.IssuerID(p.URL) + `"}`
	if a := do(e.Handler(), "POST", "/console/begin", body, ofConsolePage...); a.StatusCode != 403 ||
		!strings.Contains(a.body, "https://sandlot.example.test/console/") {
		t.Errorf("at another address than the public one: %d %s", a.StatusCode, a.body)
	}
	e.PublicURL, e.Origins.Loopback = "", false
	if a := do(e.Handler(), "POST", "/console/begin", body, with(ofConsolePage, "Host", "evil.example")...); a.StatusCode != 500 ||
		!strings.Contains(a.body, "public_url") {
		t.Errorf("who chooses the host chooses the address: %d %s", a.StatusCode, a.body)
	}
	e.Origins.Loopback = true
	for name, headers := range map[string][]string{"without the header": nil, "another value of the site": {console.Header, "1",
		"Sec-Fetch-Site", "same-site"}, "another origin": {console.Header, "1", "Origin", "http://localhost:3000"}} {
		if a := do(e.Handler(), "POST", "/console/begin", body, headers...); a.StatusCode != 401 && a.StatusCode != 403 ||
			len(a.Cookies()) > 0 {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
	if a := do(e.Handler(), "POST", "/console/begin", `{"provider": "x"}`, ofConsolePage...); a.StatusCode != 404 {
		t.Errorf("an unknown provider: %d %s", a.StatusCode, a.body)
	}
}

// Log-ins that fail are few for each address, and no more reach the provider; rules decide about the others.
func TestConsoleProviderLimits(t *testing.T) {
	p := oidctest.New(t)
	e := newProviderEdge(t, issuerOf(p))
	for range 12 { // what succeeds counts for nothing
		if _, _, a := e.logInAt(p, "ann"); a.StatusCode != 200 {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
	}
	x := e.begin(p)
	if a := e.finish(e.visit(p, x, ""), with(ofConsolePage, "Cookie", x.cookie)...); a.StatusCode != 401 ||
		!strings.Contains(a.body, "cancelled") {
		t.Errorf("cancelled: %d %s", a.StatusCode, a.body)
	}
	e.Hub.Decide = func(q policy.Question) policy.Decision {
		if q.Operation == policy.ConsoleLogin && strings.HasSuffix(q.Principal.ID, "/eve") {
			return policy.Decision{}
		}
		return policy.Decide(q)
	}
	if _, _, a := e.logInAt(p, "eve"); a.StatusCode != 403 || in(a).cookie != "" {
		t.Errorf("against a rule: %d %s", a.StatusCode, a.body)
	}
	before := len(p.Requests("/token"))
	status := 0
	for range 30 {
		x := e.begin(p)
		r := x.response(url.Values{"state": {stateOf(x)}, "code": {"guess"}, "iss": {p.URL}})
		if status = e.finish(r, with(ofConsolePage, "Cookie", x.cookie)...).StatusCode; status != 401 {
			break
		}
	}
	if got := len(p.Requests("/token")) - before; status != 429 || got > 12 {
		t.Errorf("%d guesses reached the provider, and then came %d", got, status)
	}
	if _, _, a := e.logInAt(p, "ann"); a.StatusCode != 200 {
		t.Errorf("what is right, after the guesses: %d %s", a.StatusCode, a.body)
	}
}

func stateOf(x attempt) string {
	u, _ := url.Parse(x.url)
	return u.Query().Get("state")
}
