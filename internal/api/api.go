// Package api is the HTTP edge: health, metrics, sessions, files and streams of
// processes, in front of which stand the checks that every request passes. It
// holds the client of that API too.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/gateway"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/policy"
	"sandlot/internal/tool"
)

// Config is what the edge needs.
type Config struct {
	Door *auth.Door
	// Watch ends what a token holds open with the token.
	Watch *auth.Watch
	// Limits bounds what each principal holds; nil: the default.
	Limits  *limit.Limiter
	Gateway *gateway.Gateway
	Hub     *hub.Hub
	Metrics *Metrics
	// Check says whether the runtime works.
	Check   func(ctx context.Context) error
	Version string
	// PublicURL is where clients reach this server, without a slash at its end;
	// empty: where their requests come to.
	PublicURL string
	Guard     Guard
	Log       *slog.Logger
}

// Server serves the API.
type Server struct {
	Config
	mux    *http.ServeMux
	inside *http.Transport // to servers in sandboxes

	mu      sync.Mutex
	checked time.Time
	broken  error
}

// New returns the edge.
func New(c Config) *Server {
	if c.Limits == nil {
		c.Limits = limit.New(limit.Default)
	}
	s := &Server{Config: c, mux: http.NewServeMux(), inside: newInside()}
	s.Guard.Apart = c.Hub.Links().Claims
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		problem(w, r, fault.New(fault.NotFound, "there is no %s %s; MCP is at /mcp, the API at /v1", r.Method, fault.Printable(r.URL.Path, 200)))
	})
	s.mux.Handle("/v1/", s.identify(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		problem(w, r, fault.New(fault.NotFound, "there is no %s %s; see docs/guide/api.md", r.Method, r.URL.Path))
	})))
	s.mux.Handle("/mcp", s.mcp()) // names the operations of its own methods
	for _, route := range s.routes() {
		switch route.to {
		case everyone:
			s.mux.HandleFunc(route.pattern, route.handle)
		case principals:
			s.mux.Handle(route.pattern, s.identify(route.handle))
		}
	}
	return s
}

// Handler is for listeners that anyone on the network, or on this machine, can reach.
func (s *Server) Handler() http.Handler {
	return s.Metrics.count(s.Log, s.apart(s.Guard.protect(s.mux)))
}

// Owner is for the socket in the state folder: who can open it owns the server,
// and needs no token. Who brings one has the rights of the token.
func (s *Server) Owner() http.Handler {
	return s.Metrics.count(s.Log, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			r = r.WithContext(auth.With(r.Context(), auth.Owner()))
		}
		s.mux.ServeHTTP(w, r)
	}))
}

// metrics answers who may read what is counted of all users.
func (s *Server) metrics() http.HandlerFunc {
	counted := promhttp.HandlerFor(s.Metrics.Registry, promhttp.HandlerOpts{})
	return func(w http.ResponseWriter, r *http.Request) {
		p, _ := auth.From(r.Context())
		_, err := hub.Do(r.Context(), s.Hub, hub.Request{Principal: p, Operation: policy.MetricsRead}, func(context.Context) (struct{}, error) {
			counted.ServeHTTP(w, r)
			return struct{}{}, nil
		})
		if err != nil {
			problem(w, r, err)
		}
	}
}

// identify lets a request in when it is known who asks.
func (s *Server) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := auth.From(r.Context()); ok {
			next.ServeHTTP(w, r)
			return
		}
		p, err := s.Door.Admit(r.Context(), r.Header.Get("Authorization"))
		if err != nil {
			if fault.Is(err, fault.Unauthorized) {
				w.Header().Set("WWW-Authenticate", `Bearer realm="sandlot"`)
			}
			problem(w, r, err)
			return
		}
		s.counted(next, w, r, p)
	})
}

// mcp answers a GET that does not ask for events with the server's health, as
// the Microsandbox server did.
func (s *Server) mcp() http.Handler {
	closed, health := s.identify(s.Gateway), s.look(s.health)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && !strings.Contains(r.Header.Get("Accept"), "text/event-stream") && r.Header.Get("Mcp-Session-Id") == "" {
			health(w, r)
			return
		}
		closed.ServeHTTP(w, r)
	})
}

// working looks at the runtime, at most every five seconds.
func (s *Server) working(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.checked) > 5*time.Second {
		s.broken, s.checked = s.Check(ctx), time.Now()
	}
	return s.broken
}

// look answers what anyone may ask of the server itself.
func (s *Server) look(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, err := hub.Do(r.Context(), s.Hub, hub.Request{Operation: policy.HealthRead}, func(context.Context) (struct{}, error) {
			handle(w, r)
			return struct{}{}, nil
		})
		if err != nil {
			problem(w, r, err)
		}
	}
}

// Health is the answer to GET /.
type Health struct {
	Status  string   `json:"status"` // healthy or unhealthy
	Server  string   `json:"server"`
	Version string   `json:"version"`
	Wrapper string   `json:"wrapper_status"` // connected or disconnected, as Microsandbox's server said
	Count   int      `json:"tools_count"`
	Tools   []string `json:"available_tools"`
}

// Readiness is the answer to GET /readyz and /healthz.
type Readiness struct {
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	status, wrapper, code := "healthy", "connected", 200
	if err := s.working(r.Context()); err != nil {
		status, wrapper, code = "unhealthy", "disconnected", 503
	}
	names := []string{}
	for _, t := range s.Hub.Own() { // anyone may ask, so nothing of anyone's is named or started
		if t.Alias == "" {
			names = append(names, t.Name)
		}
	}
	writeJSON(w, code, Health{status, "Sandlot", s.Version, wrapper, len(names), names})
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	if err := s.working(r.Context()); err != nil {
		writeJSON(w, 503, Readiness{"not ready", "the runtime does not work; run `sandlot doctor`"})
		return
	}
	writeJSON(w, 200, Readiness{Status: "ready"})
}

// respond answers with v, or with what went wrong.
func respond(w http.ResponseWriter, r *http.Request, status int, v any, err error) {
	if err != nil {
		problem(w, r, err)
		return
	}
	writeJSON(w, status, v)
}

// respondDone answers with nothing, or with what went wrong.
func respondDone(w http.ResponseWriter, r *http.Request, err error) {
	if err != nil {
		problem(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func writeJSON(w http.ResponseWriter, status int, v any) { write(w, status, "application/json", v) }

func write(w http.ResponseWriter, status int, kind string, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // it is ours
	if err := heldBy(w).Made(context.Background(), int64(b.Len())); err != nil {
		f := fault.From(err)
		writeProblem(w, Problem{Title: f.Code(), Status: f.HTTP(), Detail: f.Error(), Data: f.Data()})
		return
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the client went away
}

// problem answers with problem details, RFC 9457.
func problem(w http.ResponseWriter, r *http.Request, err error) {
	if said, ok := errors.AsType[*tool.Refusal](err); ok {
		writeProblem(w, refused(said))
		return
	}
	f := fault.From(err)
	if cause := f.Unwrap(); cause != nil && f.HTTP() >= 500 {
		slog.WarnContext(r.Context(), "request failed", "path", r.URL.Path, "fault", f.Code(), "cause", cause)
	}
	writeProblem(w, Problem{Title: f.Code(), Status: f.HTTP(), Detail: f.Error(), Data: f.Data()})
}

// refused is what a third-party server answered in place of a result.
func refused(said *tool.Refusal) Problem {
	kind, status := fault.Connection, http.StatusBadGateway
	switch said.Code {
	case -32602:
		kind, status = fault.InvalidParameters, http.StatusBadRequest
	case -32002: // of a resource, up to revision 2025-11-25
		kind, status = fault.NotFound, http.StatusNotFound
	}
	f := fault.New(kind, "%s", said.Message).With("rpc_code", said.Code)
	if kind == fault.NotFound {
		f.Advice = []string{"Look at what the server offers: GET /v1/connections/{id}, or `sandlot mcp inspect NAME`; not all that can be read is in a list"}
	}
	if json.Valid(said.Data) {
		f.With("rpc_data", said.Data)
	}
	return Problem{Title: f.Code(), Status: status, Detail: fmt.Sprintf("the MCP server refused: %s (%d)", said.Message, said.Code), Data: f.Data()}
}

func writeProblem(w http.ResponseWriter, p Problem) {
	write(w, p.Status, "application/problem+json", p)
}

// Problem is a fault over HTTP: problem details with the fault's data beside.
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	fault.Data
}

func (s *Server) listSessions(w http.ResponseWriter, r *http.Request) {
	s.tool(w, r, "get_sessions", json.RawMessage(`{}`))
}

func (s *Server) getSession(w http.ResponseWriter, r *http.Request) {
	args, _ := json.Marshal(map[string]string{"session_id": r.PathValue("id")})
	s.tool(w, r, "get_sessions", args)
}

func (s *Server) deleteSession(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	_, err := hub.StopSession.Do(r.Context(), s.Hub, p, hub.SessionID(r.PathValue("id")))
	respondDone(w, r, err)
}

// deleteSessions ends those of all principals.
func (s *Server) deleteSessions(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	_, err := hub.StopAllSessions.Do(r.Context(), s.Hub, p, hub.None{})
	respondDone(w, r, err)
}

func (s *Server) createSession(w http.ResponseWriter, r *http.Request) {
	var q struct{ Template, Flavor string }
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	body.DisallowUnknownFields()
	if err := body.Decode(&q); err != nil && err != io.EOF { // nothing: the defaults
		unread(w, r, err, fault.New(fault.InvalidParameters, "the body must be a JSON object with nothing but template and flavor: %v", err))
		return
	}
	p, _ := auth.From(r.Context())
	made, err := hub.CreateSession.Do(r.Context(), s.Hub, p, hub.Ask{Template: q.Template, Flavor: q.Flavor})
	respond(w, r, http.StatusCreated, made, err)
}

func (s *Server) call(w http.ResponseWriter, r *http.Request) {
	var args json.RawMessage
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<20)).Decode(&args); err != nil {
		unread(w, r, err, fault.New(fault.InvalidParameters, "the body must be a JSON object with the tool's arguments"))
		return
	}
	s.tool(w, r, r.PathValue("name"), args)
}

// tool calls a tool and answers with its fields.
func (s *Server) tool(w http.ResponseWriter, r *http.Request, name string, args json.RawMessage) {
	p, _ := auth.From(r.Context())
	res, err := s.Hub.Call(r.Context(), tool.Call{Principal: p, Name: name, Args: args, Held: heldBy(w)})
	if err != nil {
		problem(w, r, err)
		return
	}
	writeJSON(w, 200, rpc.Flat(res))
}
