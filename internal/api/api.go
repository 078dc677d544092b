// Package api serves HTTP: MCP, the HTTP API, health and metrics. It checks the origin,
// the token and the limits of each request before any handler runs.
package api

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/api/forward"
	"sandlot/internal/api/live"
	"sandlot/internal/api/metric"
	"sandlot/internal/api/page"
	"sandlot/internal/api/preview"
	"sandlot/internal/auth"
	"sandlot/internal/console"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/gateway"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/once"
	"sandlot/internal/policy"
)

// Config has the collaborators and settings of a Server.
type Config struct {
	Authenticator *auth.Authenticator
	// Forward sends requests to the server that acts for their principal; nil: this server acts for all.
	Forward *forward.Forwarder
	// TokenWatch ends the open requests of a token when the token ends.
	TokenWatch *auth.TokenWatch
	// Limits bounds the requests, streams and memory of each principal; nil: the default.
	Limits  *limit.Limiter
	Gateway *gateway.Gateway
	Hub     *hub.Hub
	Metrics *metric.Metrics
	// CheckRuntime returns an error when the runtime does not work.
	CheckRuntime func(ctx context.Context) error
	Version      string
	// PublicURL is the URL at which clients reach this server, without a slash at its
	// end; empty: the address of their requests.
	PublicURL string
	// Resource has the OIDC issuers whose tokens are accepted.
	Resource Resource
	// Logins has the log-ins of browsers; nil: there is no web console.
	Logins *console.Logins
	// Proxies are those whose X-Forwarded-… headers count.
	Proxies Proxies
	Origins OriginCheck
	Log     *slog.Logger
}

// Server serves the API.
type Server struct {
	Config
	mux      *http.ServeMux
	unlisted map[string]bool // see unlisted
	previews *preview.Server
	live     *live.Server
	tunnels  *tunnels
	document storedDocument
	began    time.Time // when the server started
	replies  *once.Replies[*storedAnswer]
	cursors  page.Cursors

	address atomic.Pointer[string] // see Listens

	mu        sync.Mutex // guards the result of the latest check of the runtime
	checkedAt time.Time
	checkErr  error
}

// New returns a server; Handler and SocketHandler return its handlers.
func New(c Config) *Server {
	if c.Limits == nil {
		c.Limits = limit.New(limit.Default)
	}
	c.Origins.IsPortHost = c.Hub.IsPortHost
	s := &Server{Config: c, mux: http.NewServeMux(), replies: newReplies(c.TokenWatch), cursors: page.NewCursors(),
		began: time.Now(),
		previews: preview.New(preview.Config{Hub: c.Hub, Limits: c.Limits, CheckHost: c.Origins.checkHost,
			IsToken: c.Authenticator.IsToken, Log: c.Log}),
		live:    &live.Server{Hub: c.Hub, EventQuery: eventQuery, Log: c.Log},
		tunnels: newTunnels()}
	s.mux.Handle("/", s.notFound("MCP is at /mcp, the API at /v1"))
	s.mux.Handle("/v1/", s.identify(s.notFound("see docs/guide/api.md")))
	s.mux.Handle("/mcp", s.mcp()) // the gateway names the operation of each MCP method
	routes := s.routes()
	s.unlisted = unlisted(routes)
	for pattern := range s.unlisted {
		s.mux.Handle(pattern, s.identify(s.notFound("see docs/guide/api.md")))
	}
	for _, route := range routes {
		if s.Logins == nil && ofConsole(route.pattern) {
			continue
		}
		if retryable(route.pattern) {
			route.handle = s.onlyOnce(route.handle)
		}
		switch route.audience {
		case everyone:
			s.mux.HandleFunc(route.pattern, route.handle)
		case principals:
			s.mux.Handle(route.pattern, s.identify(route.handle))
		}
	}
	return s
}

// unlisted are methods that a path does not have, and that http.ServeMux would redirect to the paths below it, as those
// have the method: DELETE /v1/images, beside GET /v1/images and DELETE /v1/images/{name...}.
func unlisted(routes []route) map[string]bool {
	has, found := map[string]bool{}, map[string]bool{}
	for _, r := range routes {
		method, path, _ := strings.Cut(r.pattern, " ")
		has[r.pattern], has[path] = true, true
		if strings.HasSuffix(path, "...}") {
			found[method+" "+path[:strings.LastIndex(path, "/{")]] = true
		}
	}
	maps.DeleteFunc(found, func(pattern string, _ bool) bool {
		_, path, _ := strings.Cut(pattern, " ")
		return has[pattern] || !has[path]
	})
	return found
}

// notFound serves requests for paths that do not exist.
func (s *Server) notFound(hint string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if allowed := s.allowedMethods(r); allowed != "" {
			w.Header().Set("Allow", allowed)
			s.problem(w, r, wrongRequest(http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED",
				"%s is not possible here; possible are: %s", fault.Clip(r.Method), allowed))
			return
		}
		s.problem(w, r, fault.New(fault.NotFound, "there is no %s %s; %s", r.Method, fault.Printable(r.URL.Path, 200),
			hint))
	}
}

// allowedMethods returns the methods for which the path of a request has a route, separated by commas.
func (s *Server) allowedMethods(r *http.Request) string {
	var allowed []string
	for method := range strings.SplitSeq(apiMethods, ", ") {
		_, pattern := s.mux.Handler(&http.Request{Method: method, URL: r.URL, Host: r.Host})
		isOne := strings.Contains(pattern, " ") // else it is for all methods, where this handler is
		if isOne && !s.unlisted[pattern] {
			allowed = append(allowed, method)
		}
	}
	return strings.Join(allowed, ", ")
}

// apiMethods are the methods of all routes, separated by commas.
const apiMethods = "GET, HEAD, POST, PUT, PATCH, DELETE"

// Handler returns the handler for listeners that anyone on the network, or on this machine,
// can reach.
func (s *Server) Handler() http.Handler {
	return s.Proxies.forwarded(count(s.Metrics, s.Log, s.previews.Middleware(s.Origins.protect(withoutSlash(s.mux)))))
}

// SocketHandler returns the handler for the Unix socket in the state folder. Only the user who runs the
// server can open it, so a client there needs no token. If it sends one, it has the rights of the token.
func (s *Server) SocketHandler() http.Handler {
	return count(s.Metrics, s.Log, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			r = r.WithContext(auth.NewContext(r.Context(), auth.SocketOwner()))
		}
		withoutSlash(s.mux).ServeHTTP(w, r)
	}))
}

// withoutSlash takes /mcp/ for /mcp: some clients and people write the address so, and a redirection would lose the body
// of a POST in others.
func withoutSlash(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/mcp/" {
			address := *r.URL
			address.Path, address.RawPath = "/mcp", ""
			same := *r
			same.URL = &address
			r = &same
		}
		next.ServeHTTP(w, r)
	})
}

// withOrigin gives the context of a request its origin, for events.
func withOrigin(r *http.Request) *http.Request {
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		address = event.Socket
	}
	return r.WithContext(event.NewContext(r.Context(), address, r.Header.Get("Traceparent")))
}

// identify authenticates a request and passes it on to next, within the principal's limits.
func (s *Server) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		socketOwner, onSocket := auth.FromContext(r.Context())
		p, sentOn := forward.Principal(r.Context())
		var err error
		switch {
		case sentOn: // by the server that has authenticated it
		case onSocket:
			p, err = socketOwner.ActFor(r.Header.Values(auth.UserHeader))
		default:
			var release func()
			r, p, release, err = s.authenticate(w, r)
			defer release()
			if err == nil {
				p, err = p.ActFor(r.Header.Values(auth.UserHeader))
			}
		}
		if err != nil {
			if fault.Is(err, fault.Unauthorized) {
				w.Header().Set("WWW-Authenticate", s.challenge(r))
			}
			s.problem(w, r, err)
			return
		}
		at := s.atOwner(next, p, sentOn)
		if onSocket {
			at.ServeHTTP(w, r)
			return
		}
		s.withinLimits(at, w, r, p)
	})
}

// forEveryone serves requests for an operation that need no principal.
func (s *Server) forEveryone(o policy.Operation, handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.ifAllowed(w, r, hub.Request{Operation: o}, handle)
	}
}

// ifAllowed calls handle when the policy allows the request.
func (s *Server) ifAllowed(w http.ResponseWriter, r *http.Request, request hub.Request, handle http.HandlerFunc) {
	_, err := hub.Do(r.Context(), s.Hub, request, func(context.Context) (struct{}, error) {
		handle(w, r)
		return struct{}{}, nil
	})
	if err != nil {
		s.problem(w, r, err)
	}
}

// mcp passes requests on to the gateway. A GET that does not ask for an event stream gets the server's
// health: clients of the Microsandbox server check that with this request.
func (s *Server) mcp() http.Handler {
	authenticated, health := s.identify(s.Gateway), s.forEveryone(policy.HealthRead, s.health)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := r.Header
		events := strings.Contains(h.Get("Accept"), "text/event-stream") || h.Get("Mcp-Session-Id") != ""
		if r.Method == http.MethodGet && !events {
			health(w, r)
			return
		}
		authenticated.ServeHTTP(w, r)
	})
}
