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
	"sandlot/internal/fault"
)

// OriginCheck refuses what a browser was tricked into sending: a Host that is not
// this server (DNS rebinding), an Origin that is not allowed.
type OriginCheck struct {
	Loopback bool     // the server listens on loopback alone
	CORS     bool     // send CORS headers
	Origins  []string // allowed ones; empty with CORS: any, without credentials
	// Closed says whether every request needs a token now. Where it does not, or
	// nothing says so, CORS allows no origin that is not listed: a page needs no
	// credentials then to do what the user can.
	Closed func(context.Context) bool
	// Apart says which hosts are those of servers in sandboxes: whatever CORS
	// allows, their pages are not.
	Apart func(host string) bool
}

func (c OriginCheck) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !c.known(w, r) {
			return
		}
		origin := r.Header.Get("Origin")
		if origin != "" && !c.allowed(r, origin) {
			refuse(w, "Origin "+strconv.Quote(fault.Clip(origin))+
				" is not allowed; the operator can list it in cors.origins")
			return
		}
		changes := r.Method != http.MethodGet && r.Method != http.MethodHead
		if changes && origin == "" && r.Header.Get("Sec-Fetch-Site") == "cross-site" {
			refuse(w, "a page of another site sent this request")
			return
		}
		if c.CORS && origin != "" && c.cors(w, r, origin) {
			return
		}
		next.ServeHTTP(w, r)
	})
}

// known says whether the request is for this server, and refuses it otherwise.
func (c OriginCheck) known(w http.ResponseWriter, r *http.Request) bool {
	ok := !c.Loopback || local(r.Host)
	if !ok {
		refuse(w, "Host "+strconv.Quote(fault.Clip(r.Host))+" is not this server; use localhost or 127.0.0.1")
	}
	return ok
}

func refuse(w http.ResponseWriter, why string) {
	data := fault.Data{ErrorCode: "FORBIDDEN", Category: "authentication", Severity: "medium",
		RecoverySuggestions: []string{}, Context: map[string]any{}}
	writeProblem(w, protocol.Problem{Title: "FORBIDDEN", Status: http.StatusForbidden, Detail: why, Data: data})
}

func local(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil { // without a port
		host = hostport
	}
	return auth.Loopback(host)
}

// allowed says whether a page of that origin may send the request. The origin
// "null" is anybody's, such as of a page in a frame without rights: it never may.
func (c OriginCheck) allowed(r *http.Request, origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false
	}
	if c.Apart != nil && c.Apart(u.Host) {
		return false
	}
	if strings.EqualFold(u.Host, r.Host) || slices.Contains(c.Origins, origin) {
		return true
	}
	return c.CORS && len(c.Origins) == 0 && c.Closed != nil && c.Closed(r.Context())
}

const (
	corsMethods = "GET, HEAD, POST, PUT, DELETE, OPTIONS"
	corsHeaders = "Authorization, Content-Type, Accept, Last-Event-ID, Mcp-Session-Id, Mcp-Protocol-Version, " +
		"Mcp-Method, Mcp-Name"
	// headerParam begins headers that repeat a tool's argument; tools name them.
	headerParam = "Mcp-Param-"
	// maxParams bounds how many of them are allowed by name.
	maxParams  = 64
	corsExpose = "Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, X-Request-Id"
)

// cors sets the headers; it answers a preflight and says that it did.
func (c OriginCheck) cors(w http.ResponseWriter, r *http.Request, origin string) bool {
	h := w.Header()
	if len(c.Origins) == 0 {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Add("Vary", "Origin")
	}
	h.Set("Access-Control-Expose-Headers", corsExpose)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", corsMethods)
	h.Set("Access-Control-Allow-Headers", corsHeaders+params(r))
	h.Add("Vary", "Access-Control-Request-Headers")
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// params returns those of the headers that a preflight asks for that repeat an
// argument of a tool. They have to be allowed by name, as a * does not hold for
// requests with credentials.
func params(r *http.Request) string {
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
