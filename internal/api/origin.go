package api

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/console"
	"sandlot/internal/fault"
)

// OriginCheck refuses requests that a malicious page makes a browser send: with a Host that
// is not this server (DNS rebinding), or with an Origin that is not allowed.
type OriginCheck struct {
	Loopback bool     // the server listens on loopback only
	CORS     bool     // send CORS headers
	Origins  []string // allowed ones; empty with CORS: any, without credentials, while a token is required
	// LocalPages allows the origins http://localhost:* and http://127.0.0.1:* with CORS while no token is required. It is
	// for servers that listen on loopback only, and have no Origins.
	LocalPages bool
	// TokenRequired returns whether every request needs a token now. If not, or if TokenRequired is
	// nil, CORS allows listed origins only: any page could act as the user otherwise,
	// without credentials.
	TokenRequired func(context.Context) bool
	// IsPortHost returns whether a host name is that of an exposed port. Pages of exposed
	// ports are never allowed, whatever CORS allows.
	IsPortHost func(host string) bool
}

func (c OriginCheck) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !c.checkHost(w, r) {
			return
		}
		if isResourceMetadata(r.URL.Path) {
			if !allowAnyOrigin(w, r) {
				next.ServeHTTP(w, r)
			}
			return
		}
		origin := r.Header.Get("Origin")
		if origin != "" && !c.allowed(r, origin) {
			forbid(w, "Origin "+strconv.Quote(fault.Clip(origin))+
				" is not allowed; the operator can list it in cors.origins")
			return
		}
		if origin == "" && fromAnotherPage(r) && (changes(r) || isAPI(r.URL.Path)) {
			forbid(w, "a page of another site sent this request; open the address yourself, or list the page's "+
				"origin in cors.origins and send the request with fetch")
			return
		}
		if c.CORS && origin != "" && c.setCORS(w, r, origin) {
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fromAnotherPage reports whether a browser says that a page of another origin sent the request: that of another site, or
// that of another port of this machine. What is no browser says nothing.
func fromAnotherPage(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return false
	}
	return true
}

func changes(r *http.Request) bool { return r.Method != http.MethodGet && r.Method != http.MethodHead }

// isAPI reports whether a path is for programs alone. No page of another origin has to embed it or to link to it, and
// reading may do something: it wakes sessions, and is in the events. People follow links to other paths, such as those
// of log-ins.
func isAPI(path string) bool {
	for _, root := range []string{"/v1", "/mcp", "/metrics"} {
		if path == root || strings.HasPrefix(path, root+"/") {
			return true
		}
	}
	return false
}

// checkHost reports whether the Host of a request is this server. If not, it sends the error.
func (c OriginCheck) checkHost(w http.ResponseWriter, r *http.Request) bool {
	ok := !c.Loopback || isLoopback(r.Host)
	if !ok {
		forbid(w, "Host "+strconv.Quote(fault.Clip(r.Host))+" is not this server; use localhost or 127.0.0.1")
	}
	return ok
}

func forbid(w http.ResponseWriter, why string) {
	writeProblem(w, protocol.NewProblem(fault.New(fault.Forbidden, "%s", why)))
}

func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil { // without a port
		host = hostport
	}
	return auth.Loopback(host) || strings.EqualFold(host, console.LocalHost)
}

// allowed reports whether a page of that origin may send the request. The origin "null"
// is never allowed: any page can send it, from a sandboxed frame.
func (c OriginCheck) allowed(r *http.Request, origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false
	}
	if c.IsPortHost != nil && c.IsPortHost(u.Host) {
		return false
	}
	if strings.EqualFold(u.Host, r.Host) || slices.Contains(c.Origins, origin) {
		return true
	}
	return c.CORS && len(c.Origins) == 0 && (c.allowsAny(r) || c.LocalPages && c.Loopback && isLocalPage(u, origin))
}

// allowsAny reports whether a page of any origin may send the request, as far as its host is not that of a port.
func (c OriginCheck) allowsAny(r *http.Request) bool {
	return len(c.Origins) == 0 && c.TokenRequired != nil && c.TokenRequired(r.Context())
}

// isLocalPage reports whether an origin, which u is, is http://localhost or http://127.0.0.1, with any port. Names below
// localhost are not: pages of exposed ports have such.
func isLocalPage(u *url.URL, origin string) bool {
	host := u.Hostname()
	return (host == "localhost" || host == "127.0.0.1") && origin == "http://"+u.Host
}

const (
	corsMethods = apiMethods + ", OPTIONS"
	corsHeaders = "Authorization, Content-Type, Accept, Last-Event-ID, Mcp-Session-Id, Mcp-Protocol-Version, " +
		"Idempotency-Age, Idempotency-Key, Mcp-Method, Mcp-Name"
	// headerParam is the prefix of headers that repeat an argument of a tool.
	headerParam = "Mcp-Param-"
	// maxParams bounds how many of them one preflight response allows.
	maxParams  = 64
	corsExpose = "Idempotency-Replayed, Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, X-Request-Id"
)

// setCORS sets the CORS headers. It returns true when the request is a preflight, which it answers.
func (c OriginCheck) setCORS(w http.ResponseWriter, r *http.Request, origin string) bool {
	h := w.Header()
	if c.allowsAny(r) {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Add("Vary", "Origin")
		if len(c.Origins) > 0 {
			h.Set("Access-Control-Allow-Credentials", "true")
		}
	}
	h.Set("Access-Control-Expose-Headers", corsExpose)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", corsMethods)
	h.Set("Access-Control-Allow-Headers", corsHeaders+paramHeaders(r))
	h.Add("Vary", "Access-Control-Request-Headers")
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// paramHeaders returns the Mcp-Param-… headers that a preflight asks for. Each must be allowed by
// name, since "*" does not apply to requests with credentials.
func paramHeaders(r *http.Request) string {
	var all []string
	for line := range slices.Values(r.Header.Values("Access-Control-Request-Headers")) {
		for name := range strings.SplitSeq(line, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			valid := strings.HasPrefix(name, headerParam) && httpguts.ValidHeaderFieldName(name)
			if valid && len(all) < maxParams && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	return ", " + strings.Join(all, ", ")
}
