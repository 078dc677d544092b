package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/api/client"
	"sandlot/internal/api/conn"
	"sandlot/internal/api/preview"
	"sandlot/internal/auth"
	"sandlot/internal/port"
	"sandlot/internal/session"
)

// exposure is a server inside a session of ann's, and the link to it.
type exposure struct {
	*edge
	t       *testing.T
	front   *httptest.Server
	session string
	token   string
	name    string // its host
	path    string // /ports/SESSION/80
}

// expose puts inside on port 80 of a new session.
func expose(t *testing.T, g OriginCheck, inside http.Handler) *exposure {
	t.Helper()
	e := newEdge(t, auth.Auto, g)
	back := httptest.NewServer(inside)
	t.Cleanup(back.Close)
	e.fake.Dial = func(port uint32) (net.Conn, error) {
		if port != 80 {
			return nil, errors.New("nothing listens")
		}
		return net.Dial("tcp", back.Listener.Addr().String())
	}
	l, err := e.Hub.Sessions.Open(t.Context(), auth.User("ann", false), session.OpenRequest{ID: "new"})
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	x := &exposure{edge: e, t: t, front: httptest.NewServer(e.Handler()), session: l.ID(),
		name: "80-" + l.ID() + ".localhost:8000", path: "/ports/" + l.ID() + "/80"}
	t.Cleanup(x.front.Close)
	x.token = x.open(80, false)
	return x
}

func (x *exposure) open(number int, public bool) string {
	x.t.Helper()
	_, token, err := x.Hub.Ports.Expose(x.t.Context(), "user:ann", x.session, number, public, time.Hour)
	if err != nil {
		x.t.Fatal(err)
	}
	return token.Reveal()
}

// ask sends a request; the host is the name's when the target is a path of it.
func (x *exposure) ask(method, target string, header ...string) *answer {
	x.t.Helper()
	r, err := http.NewRequest(method, x.front.URL+target, nil)
	if err != nil {
		x.t.Fatal(err)
	}
	r.Host = x.name
	if strings.HasPrefix(target, port.PathPrefix) {
		r.Host = "localhost:8000"
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		x.t.Fatalf("%s %s: %v", method, target, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		x.t.Fatalf("%s %s: %v", method, target, err)
	}
	return &answer{resp, string(body)}
}

// mirror answers with the request that it got.
var mirror = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	json.NewEncoder(w).Encode(map[string]any{"method": r.Method, "uri": r.RequestURI, "host": r.Host,
		"header": r.Header, "body": string(body)})
})

type seen struct {
	Method, URI, Host, Body string
	Header                  http.Header
}

func (x *exposure) mirrored(a *answer) (s seen) {
	x.t.Helper()
	if a.StatusCode != 200 || json.Unmarshal([]byte(a.body), &s) != nil {
		x.t.Fatalf("status %d: %s", a.StatusCode, a.body)
	}
	return s
}

// both tells of each form of the link.
func (x *exposure) both() map[string]string { return map[string]string{"name": "", "path": x.path} }

func TestPortLink(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, mirror)
	for form, prefix := range x.both() {
		t.Run(form, func(t *testing.T) {
			x.t = t
			a := x.ask("GET", prefix+"/a%2Fb?x=1&sandlot_token="+x.token+"&y=;%zz")
			if a.StatusCode != 303 || a.Header.Get("Location") != prefix+"/a%2Fb?x=1&y=;%zz" ||
				a.Header.Get("Referrer-Policy") != "no-referrer" {
				t.Fatalf("%d %v", a.StatusCode, a.Header)
			}
			cookies := a.Cookies()
			if len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteLaxMode ||
				cookies[0].Domain != "" || cookies[0].Path != prefix+"/" || cookies[0].Secure {
				t.Fatalf("%v", a.Header["Set-Cookie"])
			}
			s := x.mirrored(x.ask("GET", a.Header.Get("Location"), "Cookie", cookies[0].Name+"="+cookies[0].Value))
			if s.URI != "/a%2Fb?x=1&y=;%zz" || len(s.Header["Cookie"]) > 0 {
				t.Errorf("inside: %+v", s)
			}
			// Programs bring it along.
			for _, got := range []seen{
				x.mirrored(x.ask("GET", prefix+"/p?q=1", preview.TokenHeader, x.token)),
				x.mirrored(x.ask("POST", prefix+"/p?sandlot_token="+x.token+"&q=1")),
			} {
				if text := fmt.Sprint(got); got.URI != "/p?q=1" || strings.Contains(text, x.token) {
					t.Errorf("inside: %s", text)
				}
			}
			if to := x.ask("GET", prefix+"//evil.example/?sandlot_token="+x.token).Header.Get(
				"Location"); strings.HasPrefix(to, "//") {
				t.Errorf("sends the browser to another host: %s", to)
			}
		})
	}
}

func TestPortIsPrivate(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, mirror)
	other := x.open(81, false)
	unknown := strings.Repeat("a", 26)
	for form, prefix := range x.both() {
		t.Run(form, func(t *testing.T) {
			x.t = t
			ask := func(session, target string, header ...string) *answer {
				if prefix == "" {
					return x.ask("GET", target, append(header, "Host", "80-"+session+".localhost:8000")...)
				}
				return x.ask("GET", port.PathPrefix+session+"/80"+target, header...)
			}
			// Who has no token gets the same answer, whatever there is.
			a, b := ask(x.session, "/"), ask(unknown, "/")
			if a.StatusCode != 401 || b.StatusCode != 401 || a.body != b.body {
				t.Errorf("%d %s\n%d %s", a.StatusCode, a.body, b.StatusCode, b.body)
			}
			for _, wrong := range []string{"slp_wrong", other, x.token[1:]} {
				a, b := ask(x.session, "/", preview.TokenHeader, wrong), ask(unknown, "/", preview.TokenHeader, wrong)
				if a.StatusCode != 404 || b.StatusCode != 404 || a.body != b.body {
					t.Errorf("%d %s\n%d %s", a.StatusCode, a.body, b.StatusCode, b.body)
				}
				if a := ask(x.session, "/?sandlot_token="+wrong); a.StatusCode != 404 || len(a.Cookies()) > 0 {
					t.Errorf("%d %v", a.StatusCode, a.Header)
				}
			}
			if a := ask(x.session, "/", "Accept", "text/html,*/*"); !strings.Contains(a.body,
				"<p>Open this address with its whole link") ||
				!strings.Contains(fmt.Sprint(a.Header["Content-Security-Policy"]), preview.PageCSP) {
				t.Errorf("for people: %v %s", a.Header, a.body)
			}
		})
	}
	// What means no port at all.
	for _, host := range []string{"80-x.localhost", "80-" + x.session + ".x.localhost",
		"0-" + x.session + ".localhost:8000"} {
		if a := x.ask("GET", "/healthz", "Host", host, preview.TokenHeader, x.token); a.StatusCode != 404 ||
			strings.Contains(a.body, `"ok"`) {
			t.Errorf("%s: %d %s", host, a.StatusCode, a.body)
		}
	}
	for _, path := range []string{"/ports/", "/ports/x/80/", "/ports/" + x.session + "/0/", "/ports/../healthz"} {
		if a := x.ask("GET", path, preview.TokenHeader, x.token); a.StatusCode != 404 ||
			a.Header.Get("Content-Security-Policy") == "" {
			t.Errorf("%s: %d %v", path, a.StatusCode, a.Header)
		}
	}
	if a := x.ask("GET", x.path+"/", "Host", "evil.example", preview.TokenHeader, x.token); a.StatusCode != 403 {
		t.Errorf("by a rebound name: %d", a.StatusCode)
	}
	if _, err := x.Hub.Ports.Close(t.Context(), "user:ann", x.session, 80); err != nil {
		t.Fatal(err)
	}
	if a := x.ask("GET", "/", preview.TokenHeader, x.token); a.StatusCode != 404 {
		t.Errorf("after it was closed: %d", a.StatusCode)
	}
}

func TestPortPublic(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, mirror)
	token := x.open(80, true)
	for _, prefix := range x.both() {
		x.mirrored(x.ask("GET", prefix+"/"))
		if a := x.ask("GET", prefix+"/?sandlot_token="+token+"x"); a.StatusCode != 303 || len(a.Cookies()) > 0 {
			t.Errorf("%d %v", a.StatusCode, a.Header)
		}
	}
}

// No path of a port's host reaches the server's own handlers.
func TestPortHostsAreApart(t *testing.T) {
	x := expose(t, OriginCheck{}, mirror)
	for _, path := range []string{"/", "/mcp", "/healthz", "/metrics", "/v1/sessions", "/v1/../mcp", "//mcp",
		"/ports/" + x.session + "/80/"} {
		for _, method := range []string{"GET", "POST"} {
			if s := x.mirrored(x.ask(method, path, "Host", x.name, preview.TokenHeader, x.token)); s.URI != path {
				t.Errorf("%s %s: %+v", method, path, s)
			}
			if a := x.ask(method, path, "Host", x.name); a.StatusCode != 401 {
				t.Errorf("%s %s without a token: %d", method, path, a.StatusCode)
			}
		}
	}
}

// Pages of ports are refused by the API, whatever CORS allows.
func TestPortPagesDoNotReachTheAPI(t *testing.T) {
	for name, g := range map[string]OriginCheck{"no CORS": {Loopback: true},
		"any": {Loopback: true, CORS: true, TokenRequired: func(context.Context) bool { return true }}} {
		t.Run(name, func(t *testing.T) {
			x := expose(t, g, mirror)
			for _, origin := range []string{"http://" + x.name, "https://" + strings.ToUpper(x.name),
				"http://80-x.localhost:8000", "http://80-" + x.session + ".localhost."} {
				for _, c := range []struct{ method, path string }{{"GET", "/mcp"}, {"POST", "/mcp"},
					{"OPTIONS", "/mcp"}, {"GET", "/v1/sessions"}, {"POST", "/v1/tools/get_sessions"}} {
					a := x.ask(c.method, c.path, "Host", "localhost:8000", "Origin", origin, "Connection", "Upgrade",
						"Upgrade", "websocket", "Access-Control-Request-Method", "POST")
					if a.StatusCode != 403 || a.Header.Get("Access-Control-Allow-Origin") != "" {
						t.Errorf("%s %s from %s: %d %v", c.method, c.path, origin, a.StatusCode, a.Header)
					}
				}
			}
		})
	}
	x := expose(t, OriginCheck{Loopback: true}, mirror)
	if a := x.ask("POST", "/mcp", "Host", "localhost:8000", "Origin", "null"); a.StatusCode != 403 { // a page by path
		t.Errorf("from an opaque origin: %d", a.StatusCode)
	}
	if a := x.ask("POST", "/mcp", "Host", "localhost:8000", "Sec-Fetch-Site", "cross-site"); a.StatusCode != 403 {
		t.Errorf("from another site: %d", a.StatusCode)
	}
}

func TestWhatTheInsideSees(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, mirror)
	withIssuers, err := auth.NewAuthenticator(t.Context(), auth.Auto, "localhost", x.tokens, down{})
	if err != nil {
		t.Fatal(err)
	}
	x.previews.IsToken = withIssuers.IsToken
	headers := []string{preview.TokenHeader, x.token, "X-Forwarded-For", "1.2.3.4", "X-Forwarded-Host", "evil.example",
		"Forwarded", "for=1.2.3.4", "X-Forwarded-Prefix", "/evil",
		"Authorization", "Bearer slt_abc", "Connection", "close, X-Hop", "X-Hop", "1", "Te", "gzip",
		"Proxy-Authorization", "x", "X-Own", "kept",
		"Referer", "http://" + x.name + "/?a=1&sandlot_token=" + x.token,
		"Cookie", "a=1; " + preview.Cookie + "=x; sandlot_in_b=2; __Host-sandlot_port=y", "Cookie",
		" SANDLOT_PORT = z;c=\"3\";;"}
	for form, prefix := range x.both() {
		t.Run(form, func(t *testing.T) {
			x.t = t
			s := x.mirrored(x.ask("GET", prefix+"/x", headers...))
			h := s.Header
			for _, gone := range []string{preview.TokenHeader, "Authorization", "Forwarded", "X-Hop", "Te",
				"Proxy-Authorization"} {
				if h[gone] != nil {
					t.Errorf("%s is %q", gone, h[gone])
				}
			}
			host, cookies, fp := x.name, `a=1; sandlot_in_b=2; c="3"`, ""
			if prefix != "" {
				host, cookies, fp = "localhost:8000", "b=2", prefix
			}
			if s.Host != host || h.Get("X-Forwarded-Host") != host || h.Get("X-Forwarded-Proto") != "http" ||
				h.Get("X-Forwarded-For") != "127.0.0.1" || h.Get("X-Forwarded-Prefix") != fp ||
				h.Get("X-Own") != "kept" {
				t.Errorf("%s: %v", s.Host, h)
			}
			if h.Get("Cookie") != cookies || len(h["Cookie"]) != 1 {
				t.Errorf("cookies %q, want %q", h["Cookie"], cookies)
			}
			if strings.Contains(fmt.Sprint(s), x.token) {
				t.Errorf("the token is passed in: %+v", s)
			}
		})
	}
	if s := x.mirrored(x.ask("GET", "/", preview.TokenHeader, x.token, "Authorization",
		"Basic dTpw")); s.Header.Get("Authorization") != "Basic dTpw" {
		t.Errorf("the application's own authorization: %v", s.Header)
	}
	for header, stays := range map[string]bool{"Bearer a.b.c": false, "bearer  a.b.c ": false, "Bearer a.b": true} {
		s := x.mirrored(x.ask("GET", "/", preview.TokenHeader, x.token, "Authorization", header))
		if (s.Header.Get("Authorization") != "") != stays {
			t.Errorf("%q: %v", header, s.Header)
		}
	}
	if c := x.ask("GET", "/?sandlot_token="+x.token, "X-Forwarded-Proto", "https").Cookies(); len(c) != 1 ||
		c[0].Secure {
		t.Errorf("not behind a proxy: %v", c)
	}
	x.Proxies = Proxies{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	x.front = httptest.NewServer(x.Handler())
	t.Cleanup(x.front.Close)
	a := x.ask("GET", "/?sandlot_token="+x.token, "X-Forwarded-Proto", "https") // behind a proxy
	if c := a.Cookies(); len(c) != 1 || c[0].Name != preview.SecureCookie || !c[0].Secure || c[0].Path != "/" {
		t.Fatalf("%v", a.Header)
	}
	if s := x.mirrored(x.ask("GET", "/", "X-Forwarded-Proto", "https", "Cookie",
		preview.SecureCookie+"="+x.token)); s.Header.Get("X-Forwarded-Proto") != "https" {
		t.Errorf("%v", s.Header)
	}
}

func TestWhatTheInsideMaySay(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for _, c := range []string{"a=1; Domain=localhost; Path=/", "b=2; path=/app; HttpOnly", "c=3",
			"sandlot_port=evil; Path=/", "__Host-Sandlot_Port=evil; Path=/; Secure", "=sandlot_port=evil", "nameless",
			"d=4; Path=/../../mcp; Path=/x"} {
			h.Add("Set-Cookie", c)
		}
		for _, name := range append(append([]string{"X-Kept"}, preview.RemovedHeaders...),
			preview.RemovedHeadersByPath...) {
			h.Set(name, "evil")
		}
		h.Set("Content-Security-Policy", "sandbox allow-same-origin allow-scripts")
		h.Set("X-Content-Type-Options", "sniff")
		h.Set("X-Accel-Buffering", "no")
		h.Set("Location", r.URL.Query().Get("to"))
		w.WriteHeader(302)
	}))
	a := x.ask("GET", "/", preview.TokenHeader, x.token)
	want := `["a=1; Path=/" "b=2; path=/app; HttpOnly" "c=3" "d=4; Path=/../../mcp; Path=/x"]`
	if got := fmt.Sprintf("%q", a.Header["Set-Cookie"]); got != want {
		t.Errorf("cookies\n%s, want\n%s", got, want)
	}
	if a.Header.Get("Service-Worker-Allowed") == "" || a.Header.Get("X-Kept") == "" ||
		a.Header.Get("X-Accel-Buffering") == "" ||
		a.Header.Get("Content-Security-Policy") != "sandbox allow-same-origin allow-scripts" {
		t.Errorf("%v", a.Header)
	}
	p := x.ask("GET", x.path+"/", preview.TokenHeader, x.token)
	want = `["sandlot_in_a=1; Path=P/" "sandlot_in_b=2; HttpOnly; Path=P/app" "sandlot_in_c=3; Path=P/" ` +
		`"sandlot_in_d=4; Path=P/x"]`
	if got := strings.ReplaceAll(fmt.Sprintf("%q", p.Header["Set-Cookie"]), x.path, "P"); got != want {
		t.Errorf("cookies by path\n%s, want\n%s", got, want)
	}
	if csp := p.Header["Content-Security-Policy"]; len(csp) != 2 || csp[1] != preview.PathCSP ||
		p.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("by path: %v", p.Header)
	}
	for _, name := range preview.RemovedHeaders {
		if a.Header[name] != nil || p.Header[name] != nil {
			t.Errorf("says %s", name)
		}
	}
	for _, name := range preview.RemovedHeadersByPath {
		if p.Header[name] != nil {
			t.Errorf("says %s by path", name)
		}
	}
	for to, want := range map[string]string{
		"/login?x=1#f": "P/login?x=1#f", "login": "login", "?y": "?y",
		"https://other.example/x":   "https://other.example/x",
		"http://localhost:8000/mcp": "P/mcp", "//localhost:8000/v1/": "P/v1/", "P/already": "P/already",
		"/a%2Fb": "P/a%2Fb",
	} {
		to := strings.Replace(to, "P", x.path, 1)
		if got := strings.Replace(x.ask("GET", x.path+"/?to="+url.QueryEscape(to), preview.TokenHeader,
			x.token).Header.Get("Location"), x.path, "P", 1); got != want {
			t.Errorf("a redirect to %s becomes %s, want %s", to, got, want)
		}
	}
}

// A page of another origin does not use the cookie, though browsers take all
// names of one domain for one site.
func TestPortCookieIsForItsOwnPages(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, mirror)
	for _, tt := range []struct {
		prefix string
		header []string
		want   int
	}{
		{"", nil, 200},
		{"", []string{"Origin", "http://" + x.name}, 200},
		{"", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Dest", "document"}, 200},
		{"", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document"}, 200},
		{"", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "script"}, 401},
		{"", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "iframe"}, 401},
		{"", []string{"Origin", "http://81-" + x.session + ".localhost:8000"}, 401},
		{"", []string{"Origin", "http://localhost:8000"}, 401},
		{"", []string{"Origin", "null"}, 401},
		{x.path, nil, 200},
		{x.path, []string{"Origin", "null"}, 200},
		{x.path, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "script"}, 200},
		{x.path, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "document"}, 200},
		{x.path, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "image"}, 401},
		{x.path, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "iframe"}, 401},
		{x.path, []string{"Origin", "http://localhost:8000"}, 401},
		{x.path, []string{"Origin", "https://evil.example"}, 401},
	} {
		if a := x.ask("GET", tt.prefix+"/", append(tt.header, "Cookie",
			preview.Cookie+"="+x.token)...); a.StatusCode != tt.want {
			t.Errorf("%s %v: %d, want %d", tt.prefix, tt.header, a.StatusCode, tt.want)
		}
	}
}

func TestServiceWorkers(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, mirror)
	if a := x.ask("GET", x.path+"/sw.js", preview.TokenHeader, x.token, "Service-Worker",
		"script"); a.StatusCode != 403 {
		t.Errorf("by path: %d", a.StatusCode)
	}
	x.mirrored(x.ask("GET", "/sw.js", preview.TokenHeader, x.token, "Service-Worker", "script"))
	a := x.ask("GET", x.path+"?sandlot_token="+x.token)
	if a.StatusCode != 308 || a.Header.Get("Location") != x.path+"/?sandlot_token="+x.token {
		t.Errorf("%d %v", a.StatusCode, a.Header)
	}
}

func TestNothingListens(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, mirror)
	token := x.open(81, false)
	a := x.ask("GET", "/", "Host", "81-"+x.session+".localhost", preview.TokenHeader, token)
	if a.StatusCode != 502 || !strings.Contains(a.body, "Nothing listens on port 81") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

// A server inside says things that are not HTTP.
func TestHostileServers(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, mirror)
	for name, says := range map[string]string{
		"nothing":        "",
		"noise":          "\x00\x01\x02\r\n\r\n",
		"endless header": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20),
		"many headers": "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: yyyyyyyyyyyyyyyyyyyyyyyyyy\r\n", 10_000) +
			"\r\n",
		"two lengths": "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"another protocol": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " +
			"evil\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"no protocol":        "HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"a header in a line": "HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: sandlot_port=x\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			x.t = t
			x.fake.Dial = func(uint32) (net.Conn, error) { return speaks(says), nil }
			if a := x.ask("GET", "/", preview.TokenHeader, x.token); a.StatusCode != 502 || len(a.Cookies()) > 0 {
				t.Errorf("%d %v %.100s", a.StatusCode, a.Header, a.body)
			}
		})
	}
	// What comes before the status is dropped, and takes nothing away.
	x.fake.Dial = func(uint32) (net.Conn, error) {
		return speaks("HTTP/1.1 103 Early Hints\r\nSet-Cookie: sandlot_port=evil\r\nLink: </x>\r\n\r\nHTTP/1.1 200 " +
			"OK\r\nContent-Length: 2\r\n\r\nhi"), nil
	}
	if a := x.ask("GET", x.path+"/", preview.TokenHeader, x.token); a.body != "hi" ||
		a.Header.Get("Content-Security-Policy") != preview.PathCSP || len(a.Cookies()) > 0 ||
		a.Header.Get("Link") != "" {
		t.Errorf("%v %q", a.Header, a.body)
	}
	// An answer that breaks off is not taken for the whole.
	x.fake.Dial = func(uint32) (net.Conn, error) {
		return speaks("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhi"), nil
	}
	r, _ := http.NewRequest("GET", x.front.URL+"/", nil)
	r.Host = x.name
	r.Header.Set(preview.TokenHeader, x.token)
	if resp, err := http.DefaultTransport.RoundTrip(r); err == nil {
		if b, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("%q was taken for the whole", b)
		}
		resp.Body.Close()
	}
}

// speaks is a server that reads one request, says that, and ends.
func speaks(text string) net.Conn {
	a, b := net.Pipe()
	go func() {
		defer b.Close()
		if _, err := http.ReadRequest(bufio.NewReader(b)); err == nil {
			io.WriteString(b, text)
		}
	}()
	return a
}

func TestEventsComeAtOnce(t *testing.T) {
	next := make(chan struct{})
	x := expose(t, OriginCheck{Loopback: true}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		for i := range 3 {
			fmt.Fprintf(w, "event %d\n", i)
			http.NewResponseController(w).Flush()
			<-next
		}
	}))
	r, _ := http.NewRequest("GET", x.front.URL+"/", nil)
	r.Host = x.name
	r.Header.Set(preview.TokenHeader, x.token)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for i := range 3 {
		if line, err := lines.ReadString('\n'); line != fmt.Sprintf("event %d\n", i) {
			t.Errorf("%q %v", line, err)
		}
		next <- struct{}{}
	}
}

// shouter upgrades, and says everything louder.
var shouter = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	fmt.Fprintf(rw,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nSet-Cookie: "+
			"sandlot_port=evil\r\n\r\n", r.Header.Get("Upgrade"))
	rw.Flush()
	for {
		line, err := rw.ReadString('\n')
		if err != nil {
			return
		}
		rw.WriteString(strings.ToUpper(line))
		rw.Flush()
	}
})

// upgrade opens a WebSocket's connection.
func (x *exposure) upgrade(target, host string, header ...string) (net.Conn, *bufio.Reader, *http.Response) {
	x.t.Helper()
	c, err := net.Dial("tcp", x.front.Listener.Addr().String())
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n", target, host)
	for i := 0; i+1 < len(header); i += 2 {
		fmt.Fprintf(c, "%s: %s\r\n", header[i], header[i+1])
	}
	io.WriteString(c, "\r\n")
	from := bufio.NewReader(c)
	resp, err := http.ReadResponse(from, nil)
	if err != nil {
		x.t.Fatal(err)
	}
	return c, from, resp
}

func TestUpgrade(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, shouter)
	for _, target := range []struct{ path, host string }{{"/ws?sandlot_token=" + x.token, x.name},
		{x.path + "/ws?sandlot_token=" + x.token, "localhost:8000"}} {
		c, from, resp := x.upgrade(target.path, target.host)
		if resp.StatusCode != 101 || len(resp.Cookies()) > 0 {
			t.Fatalf("%s: %d %v", target.path, resp.StatusCode, resp.Header)
		}
		for _, word := range []string{"hello\n", "again\n"} {
			io.WriteString(c, word)
			if got, err := from.ReadString('\n'); got != strings.ToUpper(word) {
				t.Errorf("%q %v", got, err)
			}
		}
		c.Close()
	}
	if _, _, resp := x.upgrade("/", x.name, "Cookie", preview.Cookie+"="+x.token, "Origin",
		"https://evil.example"); resp.StatusCode != 401 {
		t.Errorf("from another origin: %d", resp.StatusCode)
	}
	// Closing the port ends it.
	_, from, resp := x.upgrade("/", x.name, "Cookie", preview.Cookie+"="+x.token, "Origin", "http://"+x.name)
	if resp.StatusCode != 101 {
		t.Fatal(resp.StatusCode)
	}
	if ok, err := x.Hub.Ports.Close(t.Context(), "user:ann", x.session, 80); !ok {
		t.Fatal(err)
	}
	if _, err := from.ReadByte(); err == nil {
		t.Error("the connection goes on")
	}
}

// A session that is used is not idle, and one that was stopped comes back.
func TestUseWakes(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, shouter)
	ann := auth.User("ann", false)
	status := func() string {
		l, err := x.Hub.Sessions.List(t.Context(), ann, x.session)
		if err != nil {
			t.Fatal(err)
		}
		return l[0].Status
	}
	c, _, _ := x.upgrade("/", x.name, preview.TokenHeader, x.token)
	if s := status(); s != "processing" {
		t.Errorf("while it is used: %s", s)
	}
	c.Close()
	for i := 0; status() == "processing"; i++ {
		if time.Sleep(10 * time.Millisecond); i > 500 {
			t.Fatal("it is in use for ever")
		}
	}
	l, err := x.Hub.Sessions.Open(t.Context(), ann, session.OpenRequest{ID: x.session})
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	x.fake.Box(l.Booted.ID).Kill("killed")
	if _, _, resp := x.upgrade("/", x.name, preview.TokenHeader, x.token); resp.StatusCode != 101 {
		t.Errorf("after its sandbox died: %d", resp.StatusCode)
	}
	x.Hub.Sessions.Stop(t.Context(), ann, x.session)
	if a := x.ask("GET", "/", preview.TokenHeader, x.token); a.StatusCode != 404 {
		t.Errorf("after the session ended: %d", a.StatusCode)
	}
}

func TestTooManyConnections(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, mirror)
	for range port.MaxConns {
		leave, err := x.Hub.Ports.AcquireForOwner(x.session)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	if a := x.ask("GET", "/", preview.TokenHeader, x.token); a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", a.StatusCode, a.Header)
	}
	c := x.client()
	if _, err := c.Dial(t.Context(), x.session, 80); err == nil || !strings.Contains(err.Error(), "connections") {
		t.Errorf("%v", err)
	}
}

// client is ann's.
func (x *exposure) client() *client.Client {
	x.t.Helper()
	_, v, err := auth.Issue(x.t.Context(), x.tokens, "ann", false, 0)
	if err != nil {
		x.t.Fatal(err)
	}
	c, err := client.New("", x.front.URL, v)
	if err != nil {
		x.t.Fatal(err)
	}
	return c
}

func TestDial(t *testing.T) {
	x := expose(t, OriginCheck{Loopback: true}, mirror)
	inside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	x.fake.Dial = func(port uint32) (net.Conn, error) {
		if port != 7 {
			return nil, errors.New("nothing listens")
		}
		return net.Dial("tcp", inside.Addr().String())
	}
	c := x.client()
	dial := func() (client, server *net.TCPConn) {
		t.Helper()
		remote, err := c.Dial(t.Context(), x.session, 7)
		if err != nil {
			t.Fatal(err)
		}
		s, err := inside.Accept()
		if err != nil {
			t.Fatal(err)
		}
		// Through a local connection, as the command does it.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		mine, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go conn.Splice(theirs, remote)
		t.Cleanup(func() { mine.Close(); s.Close() })
		return mine.(*net.TCPConn), s.(*net.TCPConn)
	}
	binary := make([]byte, 5<<20)
	for i := range binary {
		binary[i] = byte(i * 7 >> 3)
	}
	talk := func(t *testing.T, first, second *net.TCPConn) {
		// The first says all it has and ends; then the second does.
		var wg sync.WaitGroup
		wg.Go(func() {
			first.Write(binary)
			first.CloseWrite()
		})
		if got, err := io.ReadAll(second); err != nil || string(got) != string(binary) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		wg.Wait()
		wg.Go(func() {
			second.Write(binary[:1<<20])
			second.CloseWrite()
		})
		if got, err := io.ReadAll(first); err != nil || string(got) != string(binary[:1<<20]) {
			t.Errorf("after its own end: %d bytes, %v", len(got), err)
		}
		wg.Wait()
	}
	t.Run("the client ends first", func(t *testing.T) {
		client, server := dial()
		talk(t, client, server)
	})
	t.Run("the server ends first", func(t *testing.T) {
		client, server := dial()
		talk(t, server, client)
	})
	for _, bad := range []struct {
		session string
		port    int
		text    string
	}{{x.session, 8, "nothing listens on port 8"}, {"nobodys", 7, "not found"}, {"new", 7, "not found"},
		{x.session, 0, "1 to 65535"}, {x.session, 70000, "1 to 65535"}} {
		if _, err := c.Dial(t.Context(), bad.session, bad.port); err == nil ||
			!strings.Contains(err.Error(), bad.text) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	_, v, _ := auth.Issue(t.Context(), x.tokens, "bob", false, 0)
	bob, _ := client.New("", x.front.URL, v)
	if _, err := bob.Dial(context.Background(), x.session, 7); err == nil ||
		!strings.Contains(err.Error(), "not found") {
		t.Errorf("another user: %v", err)
	}
}

// Who speaks to the programs of a session by a port, with a token of a scope, makes what they call have no wider one.
func TestDialNarrows(t *testing.T) {
	x := expose(t, OriginCheck{}, http.NotFoundHandler())
	narrow := auth.User("ann", false)
	narrow.Scope = "port.dial"
	conn, err := x.Hub.DialPort(t.Context(), narrow, x.session, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.End()
	if scope := x.Hub.Sessions.ScopeOf(x.session); scope == "" || scope.Allows("mcp.call") {
		t.Errorf("its programs have the scope %q", scope)
	}
}
