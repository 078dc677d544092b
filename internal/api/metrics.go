package api

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"sandlot/internal/api/conn"
	"sandlot/internal/api/metric"
	"sandlot/internal/secret"
)

type requestID struct{}

// RequestID returns the id of the request that ctx belongs to, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestID{}).(string)
	return id
}

// count gives each request an id, counts it and logs it.
func count(m *metric.Metrics, log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		id := secret.ID()
		w.Header().Set("X-Request-Id", id)
		r = withOrigin(r.WithContext(context.WithValue(r.Context(), requestID{}, id)))
		sw := &statusWriter{ResponseWriter: w, status: 200}
		sw.setWriteDeadline(time.Time{}) // clear the deadline of the previous request on this connection
		defer func() {
			sw.setWriteDeadline(time.Now().Add(conn.Stall)) // net/http flushes the rest of the response after this
			m.Request(r.Method, sw.status)
			log.DebugContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path, "status", sw.status,
				"client", r.RemoteAddr, "took", time.Since(start))
		}()
		next.ServeHTTP(sw, r)
	})
}
