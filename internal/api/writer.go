package api

import (
	"net/http"
	"sync"
	"time"

	"sandlot/internal/api/conn"
	"sandlot/internal/limit"
)

// statusWriter is the response writer of every request. It records the status, and bounds
// how long the client may take to read the response.
type statusWriter struct {
	http.ResponseWriter
	status int

	reserved *limit.Reservation // reserved memory, until the response is written; nil: it counts against no limit

	mu    sync.Mutex // guards cut, and orders the setting of deadlines
	ended bool       // set by end: later deadlines are ignored
}

func (s *statusWriter) WriteHeader(code int) {
	s.status = code
	s.ResponseWriter.WriteHeader(code)
}

// Write sets a new deadline for each part of a long response.
func (s *statusWriter) Write(b []byte) (int, error) {
	return conn.WriteChunks(b, func(part []byte) (int, error) {
		s.setWriteDeadline(time.Now().Add(conn.Stall))
		return s.ResponseWriter.Write(part)
	})
}

// Flush implements http.Flusher.
func (s *statusWriter) Flush() {
	s.setWriteDeadline(time.Now().Add(conn.Stall))
	http.NewResponseController(s.ResponseWriter).Flush()
}

func (s *statusWriter) setWriteDeadline(until time.Time) {
	_ = http.NewResponseController(s).SetWriteDeadline(until) // fails for the recorders of tests
}

// SetWriteDeadline is for http.ResponseController. After end it does nothing.
func (s *statusWriter) SetWriteDeadline(until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	return http.NewResponseController(s.ResponseWriter).SetWriteDeadline(until)
}

// endAt makes reads and writes of the request fail at the time soon, whatever it waits for.
func (s *statusWriter) endAt(soon time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	control := http.NewResponseController(s.ResponseWriter)
	_ = control.SetReadDeadline(soon) // fails for a hijacked connection, which its handler closes
	_ = control.SetWriteDeadline(soon)
}

func (s *statusWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }
