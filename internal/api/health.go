package api

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
)

// runtimeError checks the runtime at most every five seconds, and returns the latest result.
func (s *Server) runtimeError(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.checkedAt) > 5*time.Second {
		s.checkErr, s.checkedAt = s.CheckRuntime(ctx), time.Now()
	}
	return s.checkErr
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	status, wrapper, code := "healthy", "connected", http.StatusOK
	if err := s.runtimeError(r.Context()); err != nil {
		status, wrapper, code = "unhealthy", "disconnected", http.StatusServiceUnavailable
	}
	p, _ := auth.FromContext(r.Context())
	names := s.Gateway.OwnTools(p) // without authentication: built-in tools only, and nothing is started
	writeJSON(w, code, protocol.Health{Status: status, Server: "Sandlot", Version: s.Version, Wrapper: wrapper,
		Count: len(names), Tools: names})
}

// Listens sets the MCP address for clients of this machine. The default is that there is none.
func (s *Server) Listens(address string) { s.address.Store(&address) }

func (s *Server) alive(w http.ResponseWriter, r *http.Request) {
	alive := protocol.Readiness{Status: "ok"}
	if _, onSocket := auth.FromContext(r.Context()); onSocket && s.address.Load() != nil {
		alive.Address = *s.address.Load()
	}
	writeJSON(w, http.StatusOK, alive)
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	if err := s.runtimeError(r.Context()); err != nil {
		writeJSON(w, http.StatusServiceUnavailable,
			protocol.Readiness{Status: "not ready", Reason: "the runtime does not work; run `sandlot doctor`"})
		return
	}
	writeJSON(w, http.StatusOK, protocol.Readiness{Status: "ready"})
}

// metrics serves the metrics, which cover all users, to principals with the role.
func (s *Server) metrics() http.HandlerFunc {
	counted := promhttp.HandlerFor(s.Metrics.Registry, promhttp.HandlerOpts{})
	return func(w http.ResponseWriter, r *http.Request) {
		p, _ := auth.FromContext(r.Context())
		s.ifAllowed(w, r, hub.Request{Principal: p, Operation: policy.MetricsRead}, counted.ServeHTTP)
	}
}
