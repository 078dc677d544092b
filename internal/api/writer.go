package api

import (
	"net/http"
	"sync"
	"time"

	"sandlot/internal/api/conn"
	"sandlot/internal/limit"
)

// statusWriter is the answer to a request, from the first check on: it bounds how long
// the client may take to read it.
type statusWriter struct {
	http.ResponseWriter
	status int

	held *limit.Reservation // what the answer holds until it was written; nil: it does not count

	mu  sync.Mutex // guards cut, while a deadline is set too
	cut bool       // the last deadline stays
}

func (s *statusWriter) WriteHeader(code int) {
	s.status = code
	s.ResponseWriter.WriteHeader(code)
}

// Write gives the client a time for each part of a long answer.
func (s *statusWriter) Write(b []byte) (int, error) {
	return conn.WriteChunks(b, func(part []byte) (int, error) {
		s.allow(time.Now().Add(conn.Stall))
		return s.ResponseWriter.Write(part)
	})
}

// Flush implements http.Flusher.
func (s *statusWriter) Flush() {
	s.allow(time.Now().Add(conn.Stall))
	http.NewResponseController(s.ResponseWriter).Flush()
}

func (s *statusWriter) allow(until time.Time) {
	_ = http.NewResponseController(s).SetWriteDeadline(until) // tests have none
}

// SetWriteDeadline is for http.ResponseController. A later one than that of a
// request that was cut does not count.
func (s *statusWriter) SetWriteDeadline(until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		return nil
	}
	return http.NewResponseController(s.ResponseWriter).SetWriteDeadline(until)
}

// end cuts the request soon, whatever it waits for.
func (s *statusWriter) end(soon time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = true
	control := http.NewResponseController(s.ResponseWriter)
	_ = control.SetReadDeadline(soon) // what was taken over is closed by who did
	_ = control.SetWriteDeadline(soon)
}

func (s *statusWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }
