package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/console"
	"sandlot/internal/event"
	"sandlot/internal/policy"
)

// ofConsolePage are the headers of a request that the console's page sends.
var ofConsolePage = []string{console.Header, "1", "Sec-Fetch-Site", "same-origin", "Content-Type", "application/json"}

// login is the log-in of a browser: its cookie as a request has it, and its key.
type login struct{ cookie, key string }

// page are the headers of a request that the console's page sends in that browser.
func (l login) page() []string {
	return []string{console.Header, l.key, "Sec-Fetch-Site", "same-origin", "Content-Type", "application/json",
		"Cookie", l.cookie}
}

// socket are the headers of a WebSocket's handshake that a page of an origin sends, with the browser's cookie and a key.
func (l login) socket(origin, key string) []string {
	return []string{"Upgrade", "websocket", "Origin", origin, "Sec-WebSocket-Protocol",
		"sandlot.live, " + console.KeyProtocol + key, "Cookie", l.cookie}
}

// loginOf returns the log-in of an answer.
func loginOf(a answer) login {
	key, _ := a.json()["key"].(string)
	if a.StatusCode != 200 || len(a.Cookies()) != 1 || key == "" {
		return login{}
	}
	return login{a.Cookies()[0].Name + "=" + a.Cookies()[0].Value, key}
}

// logIn logs a browser in with a token.
func (e *edge) logIn(token string, headers ...string) login {
	e.t.Helper()
	body, _ := json.Marshal(map[string]string{"token": strings.TrimPrefix(token, "Bearer ")})
	a := do(e.Handler(), "POST", "/console/login", string(body), with(ofConsolePage, headers...)...)
	l := loginOf(a)
	if l.key == "" {
		e.t.Fatalf("log-in: %d %s %v", a.StatusCode, a.body, a.Header)
	}
	c := a.Cookies()[0]
	if c.Name != console.PlainCookie || !c.HttpOnly || c.Secure || c.Path != "/" || c.Domain != "" || c.MaxAge != 0 ||
		c.SameSite != http.SameSiteStrictMode || a.Header.Get("Cache-Control") != "no-store" {
		e.t.Errorf("the cookie is %v", a.Header)
	}
	if strings.Contains(l.cookie, l.key) {
		e.t.Error("the key is in the cookie")
	}
	return l
}

func with(headers []string, more ...string) []string {
	return append(append([]string{}, headers...), more...)
}

// The cookie counts for requests of the console's page alone. What the pages of others can make a browser send is
// refused, or is as without a cookie.
func TestConsoleCookieCountsForItsPage(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	ann, bob := e.logIn(e.token("ann")), e.logIn(e.token("bob"))
	who := func(headers ...string) answer {
		return do(e.Handler(), "GET", "/v1/principal", "", headers...)
	}
	a := who(ann.page()...)
	if m := a.json(); a.StatusCode != 200 || m["principal"] != "user:ann" || m["login"] != true ||
		a.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	if a := who(console.Header, ann.key, "Cookie", ann.cookie); a.StatusCode != 200 { // of a browser that marks nothing, as without TLS
		t.Errorf("without marks: %d %s", a.StatusCode, a.body)
	}
	for name, attack := range map[string][]string{
		"an image, a link, a form: no header of its choice": {},
		"the same, marked":                                      {"Sec-Fetch-Site", "same-origin"},
		"a page of the same site":                               {console.Header, "1", "Sec-Fetch-Site", "same-site"},
		"a page of another site":                                {console.Header, "1", "Sec-Fetch-Site", "cross-site"},
		"an address that somebody typed":                        {console.Header, "1", "Sec-Fetch-Site", "none"},
		"another value of the header":                           {console.Header, "true"},
		"a sandboxed page":                                      {console.Header, "1", "Origin", "null"},
		"a page of an exposed port":                             {console.Header, "1", "Origin", "http://80-x.localhost:8000"},
		"a server on another port, which gets the cookie":       {console.Header, "1", "Sec-Fetch-Site", "same-origin"},
		"the same, with a key of its own":                       {console.Header, bob.key},
		"the same, with a part of the key":                      {console.Header, ann.key[:25]},
		"the same, with an empty key":                           {console.Header, ""},
		"a WebSocket of another origin":                         {"Upgrade", "websocket", "Origin", "http://localhost:3000"},
		"a WebSocket of another scheme":                         {"Upgrade", "websocket", "Origin", "https://localhost:8000"},
		"a WebSocket without an origin":                         {"Upgrade", "websocket"},
		"a WebSocket of a sandboxed page":                       {"Upgrade", "websocket", "Origin", "null"},
		"a WebSocket with two origins":                          {"Upgrade", "websocket", "Origin", "http://localhost:8000", "Origin", "http://localhost:3000"},
		"a WebSocket without an origin, with the page's header": {"Upgrade", "websocket", console.Header, "1"},
		"a WebSocket of another page, with that header":         {"Upgrade", "WebSocket", console.Header, "1", "Origin", "http://localhost:3000"},
	} {
		if a := who(with(attack, "Cookie", ann.cookie)...); a.StatusCode != 401 && a.StatusCode != 403 {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
	for name, attack := range map[string][]string{
		"a page of another site":                  {console.Header, ann.key, "Sec-Fetch-Site", "cross-site", "Cookie", ann.cookie},
		"the key, without the cookie":             {console.Header, ann.key},
		"the key with another log-in's cookie":    {console.Header, ann.key, "Cookie", bob.cookie},
		"a WebSocket of another origin":           ann.socket("http://localhost:3000", ann.key),
		"a WebSocket of another scheme":           ann.socket("https://localhost:8000", ann.key),
		"a WebSocket of a sandboxed page":         ann.socket("null", ann.key),
		"the page's WebSocket, without the key":   {"Upgrade", "websocket", "Origin", "http://localhost:8000", "Cookie", ann.cookie},
		"the page's WebSocket, with another key":  ann.socket("http://localhost:8000", bob.key),
		"the page's WebSocket, with an empty key": ann.socket("http://localhost:8000", ""),
		"the page's WebSocket, with the header":   {"Upgrade", "websocket", "Origin", "http://localhost:8000", "Cookie", ann.cookie, console.Header, ann.key},
	} {
		if a := who(attack...); a.StatusCode != 401 && a.StatusCode != 403 {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
	if a := who(ann.socket("http://localhost:8000", ann.key)...); a.StatusCode != 200 {
		t.Errorf("the page's own WebSocket: %d %s", a.StatusCode, a.body)
	}
	// A token in the request decides alone.
	if a := who(with(ann.page(), "Authorization", "Bearer slt_wrong")...); a.StatusCode != 401 {
		t.Errorf("with a wrong token: %d %s", a.StatusCode, a.body)
	}
}

// Pages of other origins cannot ask whether they may send the header.
func TestConsoleHeaderIsAllowedToNobody(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true, CORS: true, Origins: []string{"https://a.example"}})
	a := do(e.Handler(), "OPTIONS", "/v1/principal", "", "Origin", "https://a.example",
		"Access-Control-Request-Method", "GET", "Access-Control-Request-Headers", "sandlot-console")
	if strings.Contains(strings.ToLower(a.Header.Get("Access-Control-Allow-Headers")), "sandlot-console") {
		t.Errorf("a listed origin may send it: %v", a.Header)
	}
	ann := e.logIn(e.token("ann"))
	if a := do(e.Handler(), "GET", "/v1/principal", "", console.Header, ann.key, "Sec-Fetch-Site", "cross-site", "Origin",
		"https://a.example", "Cookie", ann.cookie); a.StatusCode != 401 {
		t.Errorf("a listed origin acts with the cookie: %d %s", a.StatusCode, a.body)
	}
}

// A log-in ends with its token, at log-out, and with what is open.
func TestConsoleLoginEnds(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	first, second := e.token("ann"), e.token("ann")
	one, two, three := e.logIn(first), e.logIn(second), e.logIn(second)
	status := func(l login) int {
		return do(e.Handler(), "GET", "/v1/principal", "", l.page()...).StatusCode
	}
	all, _ := e.tokens.Tokens(t.Context())
	if err := e.tokens.RemoveToken(t.Context(), all[0].ID); err != nil {
		t.Fatal(err)
	}
	if one, two := status(one), status(two); one != 401 || two != 200 {
		t.Errorf("after one token was revoked: %d, %d", one, two)
	}
	ended := make(chan struct{})
	began := make(chan struct{})
	e.Server.mux.Handle("GET /v1/open", e.identify(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		if context.Cause(r.Context()) == auth.ErrEnded {
			close(ended)
		}
	})))
	go do(e.Handler(), "GET", "/v1/open", "", two.page()...)
	<-began
	if a := do(e.Handler(), "POST", "/console/logout", "", two.page()...); a.StatusCode != 200 {
		t.Errorf("log-out: %d %s", a.StatusCode, a.body)
	}
	<-ended
	if two, three := status(two), status(three); two != 401 || three != 200 {
		t.Errorf("after the log-out: %d, %d", two, three)
	}
	if a := do(e.Handler(), "POST", "/console/logout", "", "Cookie", three.cookie); a.StatusCode != 401 {
		t.Errorf("log-out by another page: %d %s", a.StatusCode, a.body)
	}
}

// A browser has one log-in: a new one ends the one before, with what is open.
func TestConsoleLoginEndsTheOneBefore(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	ann, other := e.logIn(e.token("ann")), e.logIn(e.token("ann"))
	ended, began := make(chan error, 1), make(chan struct{})
	e.Server.mux.Handle("GET /v1/open", e.identify(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	})))
	go do(e.Handler(), "GET", "/v1/open", "", ann.page()...)
	<-began
	if a := do(e.Handler(), "POST", "/console/login", `{"token": "slt_wrong"}`, ann.page()...); a.StatusCode != 401 {
		t.Errorf("a wrong token: %d %s", a.StatusCode, a.body)
	}
	status := func(l login) int {
		return do(e.Handler(), "GET", "/v1/principal", "", l.page()...).StatusCode
	}
	if got := status(ann); got != 200 {
		t.Errorf("after an attempt that failed: %d", got)
	}
	bob := e.logIn(e.token("bob"), "Cookie", ann.cookie)
	if err := <-ended; err != auth.ErrEnded {
		t.Errorf("what was open ended with %v", err)
	}
	if got := []int{status(ann), status(bob), status(other)}; !slices.Equal(got, []int{401, 200, 200}) {
		t.Errorf("the one before, the new one, and another browser's: %v", got)
	}
}

var codeOf = regexp.MustCompile(`^http://console\.localhost:8000/console/#code=([a-z2-7]{26})$`)

// A link logs in once, as the one who made it; and never with more than that one may now.
func TestConsoleLinks(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	e.Listens("http://localhost:8000/mcp")
	link := func(h http.Handler, headers ...string) string {
		t.Helper()
		a := do(h, "POST", "/v1/console/codes", "", headers...)
		url, _ := a.json()["url"].(string)
		m := codeOf.FindStringSubmatch(url)
		if m == nil {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
		return m[1]
	}
	use := func(code string, headers ...string) answer {
		return do(e.Handler(), "POST", "/console/login", `{"code": "`+code+`"}`, with(headers, "Host",
			"console.localhost:8000")...)
	}
	token := e.token("ann")
	for name, c := range map[string]struct {
		code, principal, roles string
	}{
		"a user":                {link(e.Handler(), "Authorization", token), "user:ann", "[]"},
		"the socket's owner":    {link(e.SocketHandler()), "local", `["operator","metrics","logs"]`},
		"a token on the socket": {link(e.SocketHandler(), "Authorization", token), "user:ann", "[]"},
	} {
		if a := use(c.code); a.StatusCode != 401 { // the page of another server has sent it
			t.Errorf("%s: without the header %d %s", name, a.StatusCode, a.body)
		}
		a := use(c.code, ofConsolePage...)
		if a.StatusCode != 200 {
			t.Fatalf("%s: %d %s", name, a.StatusCode, a.body)
		}
		var me struct {
			Principal string
			Roles     json.RawMessage
		}
		got := do(e.Handler(), "GET", "/v1/principal", "", loginOf(a).page()...)
		if err := json.Unmarshal([]byte(got.body), &me); err != nil || me.Principal != c.principal ||
			string(me.Roles) != c.roles {
			t.Errorf("%s: %s", name, got.body)
		}
		if a := use(c.code, ofConsolePage...); a.StatusCode != 401 || !strings.Contains(a.body, "used before") ||
			len(a.Cookies()) > 0 {
			t.Errorf("%s: the second use: %d %s", name, a.StatusCode, a.body)
		}
	}
	late := link(e.Handler(), "Authorization", token)
	all, _ := e.tokens.Tokens(t.Context())
	_ = e.tokens.RemoveToken(t.Context(), all[0].ID)
	events := e.Hub.Events.Subscribe(event.Filter{}, 0)
	defer events.Close()
	if a := use(late, ofConsolePage...); a.StatusCode != 401 || len(a.Cookies()) > 0 {
		t.Errorf("the link of a revoked token: %d %s", a.StatusCode, a.body)
	}
	seen, _, _ := events.Read()
	if last := seen[len(seen)-1]; last.Operation != string(policy.ConsoleLogin) || last.Principal != "user:ann" ||
		last.Outcome == event.OK {
		t.Errorf("the event is %+v", last)
	}
	if _, _, err := e.Logins.TakeCode(t.Context(), late); err == nil {
		t.Error("it counts later")
	}
}

// Attempts to log in that fail are few for each address; what is right passes all the same, and what other pages send
// counts for nothing.
func TestConsoleAttempts(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	token := strings.TrimPrefix(e.token("ann"), "Bearer ")
	try := func(token string) int {
		return do(e.Handler(), "POST", "/console/login", `{"token": "`+token+`"}`, ofConsolePage...).StatusCode
	}
	for range 30 {
		do(e.Handler(), "POST", "/console/login", `{"token": "x"}`)
		if got := try(token); got != 200 {
			t.Fatalf("a right token: %d", got)
		}
	}
	failed := 0
	for try("slt_wrong") == 401 {
		if failed++; failed > 100 {
			t.Fatal("a hundred attempts")
		}
	}
	if failed < 5 || failed > 20 {
		t.Errorf("%d attempts", failed)
	}
	if got := try("slt_wrong"); got != 429 {
		t.Errorf("the next one: %d, want 429", got)
	}
	if got := try(token); got != 200 {
		t.Errorf("then a right token: %d", got)
	}
	e.Listens("http://localhost:8000/mcp")
	link, _ := do(e.Handler(), "POST", "/v1/console/codes", "", "Authorization", "Bearer "+token).json()["url"].(string)
	_, code, _ := strings.Cut(link, "#code=")
	if a := do(e.Handler(), "POST", "/console/login", `{"code": "`+code+`"}`, ofConsolePage...); a.StatusCode != 200 {
		t.Errorf("then a right code: %d %s", a.StatusCode, a.body)
	}
}

// Rules decide who may log in, and each attempt of somebody known is an event.
func TestConsoleLoginPassesPolicy(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	token := e.token("ann")
	events := e.Hub.Events.Subscribe(event.Filter{}, 0)
	defer events.Close()
	e.logIn(token)
	seen, _, _ := events.Read()
	if len(seen) != 1 || seen[0].Operation != string(policy.ConsoleLogin) || seen[0].Principal != "user:ann" ||
		seen[0].Outcome != event.OK {
		t.Errorf("%+v", seen)
	}
	e.Hub.Decide = func(q policy.Question) policy.Decision {
		if q.Operation == policy.ConsoleLogin && q.Principal.ID == "user:ann" {
			return policy.Decision{}
		}
		return policy.Decide(q)
	}
	a := do(e.Handler(), "POST", "/console/login", `{"token": "`+strings.TrimPrefix(token, "Bearer ")+`"}`, ofConsolePage...)
	if a.StatusCode != 403 || len(a.Cookies()) > 0 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

// Over TLS the cookie is bound to its host, and no other one counts there.
func TestConsoleCookieOverTLS(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{})
	token := strings.TrimPrefix(e.token("ann"), "Bearer ")
	s := httptest.NewTLSServer(e.Handler())
	defer s.Close()
	ask := func(method, path, body string, headers ...string) answer {
		t.Helper()
		r, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer{resp, string(text)}
	}
	in := ask("POST", "/console/login", `{"token": "`+token+`"}`, ofConsolePage...)
	c, key := in.Cookies(), loginOf(in).key
	if len(c) != 1 || c[0].Name != "__Host-sandlot_console" || !c[0].Secure || c[0].Path != "/" || c[0].Domain != "" {
		t.Fatalf("%v", c)
	}
	if got := ask("GET", "/v1/principal", "", loginOf(in).page()...); got.StatusCode != 200 {
		t.Errorf("the cookie: %s", got.Status)
	}
	if got := ask("GET", "/v1/principal", "", login{console.PlainCookie + "=" + c[0].Value, key}.page()...); got.StatusCode != 401 {
		t.Errorf("a cookie that a page of the same site may have set: %s", got.Status)
	}
}

// Behind a proxy that is not trusted the operator's public_url says the scheme of the server's own host, and of no other.
func TestConsoleBehindAProxyThatIsNotTrusted(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{})
	e.PublicURL = "https://sandlot.example.test"
	body := `{"token": "` + strings.TrimPrefix(e.token("ann"), "Bearer ") + `"}`
	for host, name := range map[string]string{"sandlot.example.test": console.SecureCookie, "localhost:8000": console.PlainCookie} {
		l := loginOf(do(e.Handler(), "POST", "/console/login", body, with(ofConsolePage, "Host", host)...))
		if !strings.HasPrefix(l.cookie, name+"=") {
			t.Errorf("%s: the cookie is %q", host, l.cookie)
		}
		for scheme, want := range map[string]int{"https": 401, "http": 401} {
			if (scheme == "https") == (name == console.SecureCookie) {
				want = 200
			}
			a := do(e.Handler(), "GET", "/v1/principal", "", with(l.socket(scheme+"://"+host, l.key), "Host", host)...)
			if a.StatusCode != want {
				t.Errorf("a WebSocket of %s://%s: %d %s, want %d", scheme, host, a.StatusCode, a.body, want)
			}
		}
	}
}

// Without TLS nobody logs in where pages of sandboxes are on the same site.
func TestConsoleBesidePortsOfTheSameSite(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{})
	e.Logins = console.NewLogins(e.Authenticator, "ports.example.test")
	token := strings.TrimPrefix(e.token("ann"), "Bearer ")
	for host, want := range map[string]int{"console.example.test": 403, "example.test:8000": 403, "localhost:8000": 200,
		"console.other.test": 200} {
		a := do(e.Handler(), "POST", "/console/login", `{"token": "`+token+`"}`, with(ofConsolePage, "Host", host)...)
		if a.StatusCode != want || (want == 403) != (len(a.Cookies()) == 0) {
			t.Errorf("%s: %d %s, want %d", host, a.StatusCode, a.body, want)
		}
	}
}

// The port proxy gives the console's cookie to no program, and no program sets it.
func TestPortsDoNotGetTheConsoleCookie(t *testing.T) {
	const theirs = "theirs=1"
	names := []string{console.PlainCookie, console.SecureCookie, strings.ToUpper(console.PlainCookie),
		console.PlainAttempt, console.SecureAttempt}
	got := make(chan string, 1)
	x := expose(t, OriginCheck{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, n := range names {
			w.Header().Add("Set-Cookie", n+"=attack; Path=/")
		}
		w.Header().Add("Set-Cookie", "mine=1")
		got <- strings.Join(r.Header.Values("Cookie"), "; ")
	}))
	for _, target := range []string{"/", x.path + "/"} {
		a := x.ask("GET", target, "Sandlot-Port-Token", x.token, "Cookie", names[0]+"=secret; "+theirs+"; "+names[1]+
			"=secret; sandlot_in_"+theirs, "Cookie", names[2]+"=secret; "+names[3]+"=secret; "+names[4]+"=secret")
		if cookies := <-got; strings.Contains(cookies, "secret") || !strings.Contains(cookies, theirs) {
			t.Errorf("%s: a program gets %q", target, cookies)
		}
		for _, c := range a.Cookies() {
			if strings.Contains(strings.ToLower(c.Name), "console") && !strings.HasPrefix(c.Name, "sandlot_in_") {
				t.Errorf("%s: a program sets %v", target, c)
			}
		}
		if len(a.Cookies()) == 0 {
			t.Errorf("%s: its own cookie is lost", target)
		}
	}
}

// The page and what it loads have the policy, and only they; everything else of the path is unknown.
func TestConsoleFiles(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	page := do(e.Handler(), "GET", console.Path, "")
	h := page.Header
	if page.StatusCode != 200 || h.Get("Content-Security-Policy") != console.Policy || h.Get("X-Frame-Options") != "DENY" ||
		h.Get("Cross-Origin-Opener-Policy") != "same-origin" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" ||
		h.Get("Referrer-Policy") != "no-referrer" || h.Get("X-Content-Type-Options") != "nosniff" ||
		h.Get("Cache-Control") != "no-cache" || h.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("%d %v", page.StatusCode, h)
	}
	for _, word := range []string{"unsafe", "data:", "*"} {
		if strings.Contains(console.Policy, word) {
			t.Errorf("the policy has %s", word)
		}
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(page.body, -1) {
		packed := do(e.Handler(), "GET", console.Path+m[1], "", "Accept-Encoding", "gzip")
		plain := do(e.Handler(), "GET", console.Path+m[1], "")
		if packed.StatusCode != 200 || plain.StatusCode != 200 || packed.Header.Get("Content-Encoding") != "gzip" ||
			plain.Header.Get("Content-Encoding") != "" || len(packed.body) >= len(plain.body)+64 ||
			!strings.Contains(plain.Header.Get("Cache-Control"), "immutable") || plain.Header.Get("Content-Type") == "" ||
			plain.Header.Get("Content-Security-Policy") != console.Policy ||
			strings.HasSuffix(m[1], ".js") && plain.Header.Get("Content-Type") != "text/javascript; charset=utf-8" {
			t.Errorf("%s: %d %v, %d %v", m[1], packed.StatusCode, packed.Header, plain.StatusCode, plain.Header)
		}
	}
	for _, path := range []string{"nothing", "index.html.gz", "../console.go", "..%2fconsole.go", "dist/index.html", "x/y"} {
		if got := do(e.Handler(), "GET", console.Path+path, ""); got.StatusCode != 404 && got.StatusCode/100 != 3 {
			t.Errorf("%s: %d", path, got.StatusCode)
		}
	}
}

// The server's root stays the health for programs, and leads browsers to the console.
func TestRootLeadsBrowsersToTheConsole(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	const browser = "text/html,application/xhtml+xml,*/*;q=0.8"
	if a := do(e.Handler(), "GET", "/", "", "Accept", browser); a.StatusCode != 302 || a.Header.Get("Location") != "console/" ||
		a.Header.Get("Vary") != "Accept" {
		t.Errorf("%d %v", a.StatusCode, a.Header)
	}
	for _, accept := range []string{"", "*/*", "application/json"} {
		if a := do(e.Handler(), "GET", "/", "", "Accept", accept); a.StatusCode != 200 || a.json()["status"] != "healthy" {
			t.Errorf("%q: %d %s", accept, a.StatusCode, a.body)
		}
	}
	if a := do(e.Handler(), "GET", "/console", ""); a.StatusCode/100 != 3 || a.Header.Get("Location") != "/console/" {
		t.Errorf("without its slash: %d %v", a.StatusCode, a.Header)
	}
}

// A server without the console has nothing of it.
func TestConsoleTurnedOff(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true})
	c := e.Server.Config
	c.Logins = nil
	off := New(c)
	token := e.token("ann")
	ann := e.logIn(token)
	for _, target := range []string{"GET /console/", "GET /console", "GET /console/index.html", "POST /console/login",
		"POST /console/logout", "POST /v1/console/codes"} {
		method, path, _ := strings.Cut(target, " ")
		if a := do(off.Handler(), method, path, "{}", with(ofConsolePage, "Authorization", token)...); a.StatusCode != 404 {
			t.Errorf("%s: %d %s", target, a.StatusCode, a.body)
		}
	}
	if a := do(off.Handler(), "GET", "/", "", "Accept", "text/html"); a.StatusCode != 200 || a.json()["status"] != "healthy" {
		t.Errorf("the root: %d %s", a.StatusCode, a.body)
	}
	if a := do(off.Handler(), "GET", "/v1/principal", "", ann.page()...); a.StatusCode != 401 {
		t.Errorf("a cookie: %d %s", a.StatusCode, a.body)
	}
}
