package gateway

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// patientWriter keeps a stream of events alive in silence: proxies and clients
// give up on a response in which nothing comes.
type patientWriter struct {
	http.ResponseWriter
	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

const heartbeat = 10 * time.Second

func (p *patientWriter) WriteHeader(code int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Header().Set("X-Accel-Buffering", "no")
	p.ResponseWriter.WriteHeader(code)
	p.arm()
}

// arm starts the clock of a stream of events. The lock is held.
func (p *patientWriter) arm() {
	if p.stopped || !strings.HasPrefix(p.Header().Get("Content-Type"), "text/event-stream") {
		return
	}
	if p.timer != nil {
		p.timer.Reset(heartbeat)
		return
	}
	p.timer = time.AfterFunc(heartbeat, p.beat)
}

func (p *patientWriter) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.allow(0)
	if _, err := io.WriteString(p.ResponseWriter, ": still working\n\n"); err != nil {
		return
	}
	http.NewResponseController(p.ResponseWriter).Flush()
	p.timer.Reset(heartbeat)
}

func (p *patientWriter) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allow(len(b))
	n, err := p.ResponseWriter.Write(b)
	p.arm()
	return n, err
}

// Flush implements http.Flusher.
func (p *patientWriter) Flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allow(0)
	http.NewResponseController(p.ResponseWriter).Flush()
	p.arm()
}

// slowest is how many bytes a second a client has to take.
const slowest = 16 << 10

// allow bounds the next write: a client that does not read for a minute is cut
// off, as what writes to it would wait for ever. The lock is held.
func (p *patientWriter) allow(n int) {
	limit := time.Minute + time.Duration(n/slowest)*time.Second
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(limit)) // not all can
}

// Unwrap is for http.ResponseController.
func (p *patientWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *patientWriter) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Time{}) // the connection is used again
	if p.timer != nil {
		p.timer.Stop()
	}
}
