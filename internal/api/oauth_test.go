package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

const issuerURL = "https://login.example.com"

// withIssuer makes the edge accept the tokens of an issuer.
func (e *edge) withIssuer(public string, proxies ...string) *edge {
	e.Resource = Resource{Issuers: []string{issuerURL}, Scopes: []string{"openid", "sandlot"}}
	e.PublicURL = public
	for _, text := range proxies {
		e.Proxies = append(e.Proxies, netip.MustParsePrefix(text))
	}
	return e
}

// A client finds out where its user logs in; pages of any origin may read it.
func TestProtectedResource(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{}).withIssuer("https://sandlot.example.com")
	for path, resource := range map[string]string{"": "https://sandlot.example.com",
		"/mcp": "https://sandlot.example.com/mcp"} {
		a := do(e.Handler(), "GET", resourceMetadata+path, "", "Origin", "https://page.example.org")
		m := a.json()
		servers, _ := m["authorization_servers"].([]any)
		methods, _ := m["bearer_methods_supported"].([]any)
		if a.StatusCode != 200 || m["resource"] != resource || len(servers) != 1 || servers[0] != issuerURL ||
			len(methods) != 1 || methods[0] != "header" || a.Header.Get("Access-Control-Allow-Origin") != "*" ||
			a.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: %d %v %s", path, a.StatusCode, a.Header, a.body)
		}
		a = do(e.Handler(), "OPTIONS", resourceMetadata+path, "", "Origin", "https://page.example.org",
			"Access-Control-Request-Method", "GET", "Access-Control-Request-Headers", "mcp-protocol-version")
		if a.StatusCode != 204 ||
			!strings.Contains(a.Header.Get("Access-Control-Allow-Headers"), "Mcp-Protocol-Version") {
			t.Errorf("%q: the preflight: %d %v", path, a.StatusCode, a.Header)
		}
	}
	for _, path := range []string{"/v1", "/x", "/mcp/", "/"} {
		if a := do(e.Handler(), "GET", resourceMetadata+path, ""); a.StatusCode != 404 {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.body)
		}
	}
	plain := newEdge(t, auth.Required, OriginCheck{})
	isProblem(t, do(plain.Handler(), "GET", resourceMetadata, ""), 404, "NOT_FOUND")
	a := do(plain.Handler(), "GET", "/v1/sessions", "")
	if got := a.Header.Get("WWW-Authenticate"); got != `Bearer realm="sandlot"` {
		t.Errorf("without issuers: %s", got)
	}
	rebound := newEdge(t, auth.Required, OriginCheck{Loopback: true}).withIssuer("")
	w := httptest.NewRecorder()
	rebound.Handler().ServeHTTP(w, httptest.NewRequest("GET", "http://evil.example"+resourceMetadata, nil))
	if w.Code != 403 {
		t.Errorf("another Host: %d %s", w.Code, w.Body)
	}
}

func TestChallenge(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{}).withIssuer("https://sandlot.example.com")
	const metadata = `resource_metadata="https://sandlot.example.com/.well-known/oauth-protected-resource`
	for _, c := range []struct {
		method, path, token string
		want                []string
	}{
		{"POST", "/mcp", "", []string{metadata + `/mcp"`, `scope="openid sandlot"`}},
		{"POST", "/mcp", "Bearer a.b.c", []string{metadata + `/mcp"`, `error="invalid_token"`}},
		{"GET", "/v1/sessions", "", []string{metadata + `"`}},
		{"GET", "/metrics", "Bearer slt_x", []string{metadata + `"`, `error="invalid_token"`}},
	} {
		var header []string
		if c.token != "" {
			header = []string{"Authorization", c.token}
		}
		a := do(e.Handler(), c.method, c.path, "{}", header...)
		got := a.Header.Get("WWW-Authenticate")
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s with %q: %q lacks %s", c.path, c.token, got, want)
			}
		}
		if a.StatusCode != 401 || !strings.HasPrefix(got, "Bearer ") ||
			c.token == "" && strings.Contains(got, "error=") {
			t.Errorf("%s with %q: %d %s", c.path, c.token, a.StatusCode, got)
		}
	}
}

// A token in the query string or in the body is not read.
func TestTokensOutsideOfTheHeader(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{}).withIssuer("https://sandlot.example.com")
	token := strings.TrimPrefix(e.token("ann"), "Bearer ")
	for _, path := range []string{"/v1/sessions", "/mcp"} {
		for _, name := range []string{"access_token", "token", "authorization", "Authorization", "bearer_token"} {
			a := do(e.Handler(), "POST", path+"?"+name+"="+token, name+"="+token, "Content-Type",
				"application/x-www-form-urlencoded")
			if a.StatusCode != 401 {
				t.Errorf("%s in %s: %d %s", name, path, a.StatusCode, a.body)
			}
		}
	}
	if a := do(e.Handler(), "GET", "/v1/sessions", "", "Cookie", "access_token="+token); a.StatusCode != 401 {
		t.Errorf("in a cookie: %d %s", a.StatusCode, a.body)
	}
}

// down are Issuers whose keys are not available.
type down struct{}

func (down) Verify(context.Context, string) (auth.Claims, error) {
	return auth.Claims{}, fault.New(fault.Connection, "the keys of the issuer cannot be fetched")
}

func (down) IsForServer(string) bool { return true }

// A client of an issuer that is down gets 503, and not 401, with which it would log its user in again.
func TestIssuerDown(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{}).withIssuer("https://sandlot.example.com")
	var err error
	if e.Authenticator, err = auth.NewAuthenticator(t.Context(), auth.Auto, "localhost", e.tokens, down{}); err != nil {
		t.Fatal(err)
	}
	a := do(e.Handler(), "POST", "/mcp", "{}", "Authorization", "Bearer a.b.c")
	isProblem(t, a, 503, "CONNECTION_ERROR")
	if a.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("%v", a.Header)
	}
	if a := do(e.Handler(), "GET", "/v1/sessions", "", "Authorization", e.token("ann")); a.StatusCode != 200 {
		t.Errorf("a stored token: %d %s", a.StatusCode, a.body)
	}
}

// X-Forwarded-… headers count from trusted proxies only, and never for the checks of Host and Origin.
func TestForwardedHeaders(t *testing.T) {
	e := newEdge(t, auth.Required, OriginCheck{Loopback: true}).withIssuer("", "10.0.0.0/8", "192.0.2.7/32",
		"2001:db8::/32")
	for name, c := range map[string]struct {
		peer, forFor, proto, host string
		url, client               string
	}{
		"nobody's proxy": {"203.0.113.5:1", "1.2.3.4", "https", "evil.example", "http://localhost", "203.0.113.5:1"},
		"a proxy":        {"10.1.2.3:1", "203.0.113.9", "https", "x.example", "https://x.example", "203.0.113.9:0"},
		"one of IPv6": {"[2001:db8::1]:1", "2001:db9::2", "https", "x.example:8443", "https://x.example:8443",
			"[2001:db9::2]:0"},
		"mapped": {"[::ffff:10.1.2.3]:1", "203.0.113.9", "", "", "http://localhost", "203.0.113.9:0"},
		"an invented first": {"10.1.2.3:1", "1.2.3.4, 203.0.113.9", "http, https", "evil.example, x.example",
			"https://x.example", "203.0.113.9:0"},
		"a chain": {"10.1.2.3:1", "1.2.3.4, 203.0.113.9, 192.0.2.7, 10.0.0.1", "https", "x.example",
			"https://x.example", "203.0.113.9:0"},
		"nonsense": {"10.1.2.3:1", "203.0.113.9, <script>", "gopher", `x"y`, "http://localhost", "10.1.2.3:0"},
		"with ports": {"10.1.2.3:1", "203.0.113.9:4711", "https", "[::1]:80", "https://[::1]:80",
			"203.0.113.9:0"},
		"says nothing": {"192.0.2.7:1", "", "", "", "http://localhost", "192.0.2.7:0"},
	} {
		t.Run(name, func(t *testing.T) {
			var client, left string
			seen := e.Proxies.forwarded(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				client = r.RemoteAddr
				for _, h := range forwardedHeaders {
					left += r.Header.Get(h)
				}
			}))
			request := func(path string) *http.Request {
				r := httptest.NewRequest("GET", "http://localhost"+path, nil)
				r.RemoteAddr = c.peer
				for h, v := range map[string]string{"X-Forwarded-For": c.forFor, "X-Forwarded-Proto": c.proto,
					"X-Forwarded-Host": c.host, "Forwarded": "for=1.2.3.4;host=evil.example", "X-Real-Ip": "1.2.3.4"} {
					if v != "" {
						r.Header.Set(h, v)
					}
				}
				return r
			}
			seen.ServeHTTP(httptest.NewRecorder(), request("/"))
			if client != c.client || left != "" && left != "https" {
				t.Errorf("the client is %s, and the headers %q are left", client, left)
			}
			w := httptest.NewRecorder()
			e.Handler().ServeHTTP(w, request("/v1/sessions"))
			want := `resource_metadata="` + c.url + resourceMetadata + `"`
			if got := w.Header().Get("WWW-Authenticate"); w.Code != 401 || !strings.Contains(got, want) {
				t.Errorf("%d %s, want %s", w.Code, got, want)
			}
		})
	}
	// A page on the proxy's machine, by DNS rebinding.
	for header, value := range map[string]string{"X-Forwarded-Host": "localhost", "Origin": "http://evil.example"} {
		r := httptest.NewRequest("GET", "http://evil.example/v1/sessions", nil)
		r.RemoteAddr = "10.1.2.3:1"
		r.Header.Set(header, value)
		w := httptest.NewRecorder()
		if e.Handler().ServeHTTP(w, r); w.Code != 403 {
			t.Errorf("%s: %d %s", header, w.Code, w.Body)
		}
	}
}
