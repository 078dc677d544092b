package rpc

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"
)

// KeepAlive sends heartbeats on a silent stream of events, as proxies and clients give up
// on a silent response. Where the client accepts a stream, KeepAlive begins one when the
// handler wrote nothing for a while; a response that then is no stream is sent as one
// event.
type KeepAlive struct {
	http.ResponseWriter
	header http.Header // as the handler sets it

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
	sent    bool // the header
	begun   bool // here, not by the handler
	one     bool // what the handler writes is no stream
	body    bytes.Buffer
}

const silence = 10 * time.Second

// NewKeepAlive returns a KeepAlive until Stop. Stream says that the client accepts a stream
// of events.
func NewKeepAlive(w http.ResponseWriter, stream bool) *KeepAlive {
	p := &KeepAlive{ResponseWriter: w, header: http.Header{}}
	if stream {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.timer = time.AfterFunc(silence, p.heartbeat)
	}
	return p
}

// Header implements http.ResponseWriter.
func (p *KeepAlive) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (p *KeepAlive) WriteHeader(code int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.send(code)
	p.arm()
}

// streams says whether the handler writes a stream of events. The lock is held.
func (p *KeepAlive) streams() bool {
	return strings.HasPrefix(p.header.Get("Content-Type"), "text/event-stream")
}

// send sends the header, once. The lock is held.
func (p *KeepAlive) send(code int) {
	if p.begun {
		p.one = p.one || code != http.StatusOK || !p.streams()
	}
	if p.sent {
		return
	}
	p.sent = true
	maps.Copy(p.ResponseWriter.Header(), p.header)
	p.ResponseWriter.Header().Set("X-Accel-Buffering", "no")
	p.ResponseWriter.WriteHeader(code)
	if !p.streams() && p.timer != nil {
		p.timer.Stop()
	}
}

// begin begins a stream of events before the handler wrote anything. The lock is held.
func (p *KeepAlive) begin() {
	p.sent, p.begun = true, true
	h := p.ResponseWriter.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	p.ResponseWriter.WriteHeader(http.StatusOK)
}

// arm starts the clock of a stream of events. The lock is held.
func (p *KeepAlive) arm() {
	if p.stopped || !p.begun && !p.streams() {
		return
	}
	if p.timer != nil {
		p.timer.Reset(silence)
		return
	}
	p.timer = time.AfterFunc(silence, p.heartbeat)
}

func (p *KeepAlive) heartbeat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	if !p.sent {
		p.begin()
	}
	p.allow(0)
	if _, err := io.WriteString(p.ResponseWriter, ": still working\n\n"); err != nil {
		return
	}
	http.NewResponseController(p.ResponseWriter).Flush()
	p.timer.Reset(silence)
}

func (p *KeepAlive) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.send(http.StatusOK)
	if p.one {
		return p.body.Write(b)
	}
	p.allow(len(b))
	n, err := p.ResponseWriter.Write(b)
	p.arm()
	return n, err
}

// Flush implements http.Flusher.
func (p *KeepAlive) Flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.send(http.StatusOK)
	p.allow(0)
	http.NewResponseController(p.ResponseWriter).Flush()
	p.arm()
}

// slowestReader is how many bytes a second a client has to take.
const slowestReader = 16 << 10

// allow bounds the next write: a client that does not read for a minute is cut off, or
// its writer would wait for ever. The lock is held.
func (p *KeepAlive) allow(n int) {
	limit := time.Minute + time.Duration(n/slowestReader)*time.Second
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(limit)) // not all can
}

// Event sends one event, and begins the stream when nothing was sent.
func (p *KeepAlive) Event(data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped || p.sent && !p.begun {
		return // the answer was sent
	}
	if !p.sent {
		p.begin()
	}
	p.allow(len(data))
	// A client that went away is noticed when it is answered.
	_, _ = io.WriteString(p.ResponseWriter, frame(data))
	http.NewResponseController(p.ResponseWriter).Flush()
	p.arm()
}

// frame makes one event of a message.
func frame(message []byte) string {
	if line := (&bytes.Buffer{}); bytes.ContainsAny(message, "\r\n") && json.Compact(line, message) == nil {
		message = line.Bytes()
	}
	return "event: message\ndata: " + strings.ReplaceAll(string(message), "\n", "\ndata: ") + "\n\n"
}

// Unwrap is for http.ResponseController.
func (p *KeepAlive) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Stop ends the heartbeats, and sends the rest of the response.
func (p *KeepAlive) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	if all := bytes.TrimSpace(p.body.Bytes()); len(all) > 0 {
		p.allow(len(all))
		// Nobody is told when it cannot be written any more.
		_, _ = io.WriteString(p.ResponseWriter, frame(all))
	}
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Time{}) // the connection is used again
	if p.timer != nil {
		p.timer.Stop()
	}
}
