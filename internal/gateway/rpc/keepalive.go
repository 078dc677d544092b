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

// KeepAlive is a ResponseWriter that sends heartbeats on a silent event stream: proxies and
// clients give up on a silent response. If the client accepts an event stream, and the handler
// writes nothing for a while, KeepAlive begins a stream by itself. If the handler then writes
// another kind of response, it is sent as one event.
type KeepAlive struct {
	http.ResponseWriter
	header http.Header // set by the handler

	mu          sync.Mutex
	timer       *time.Timer
	stopped     bool
	headerSent  bool
	streamBegun bool // an event stream was begun by KeepAlive, not by the handler
	asOneEvent  bool // body collects the handler's response, to be sent as one event
	body        bytes.Buffer
}

// heartbeatInterval is after how much silence a heartbeat is sent.
const heartbeatInterval = 10 * time.Second

// NewKeepAlive returns a KeepAlive; the caller must call Stop. Stream: the client accepts an
// event stream.
func NewKeepAlive(w http.ResponseWriter, stream bool) *KeepAlive {
	p := &KeepAlive{ResponseWriter: w, header: http.Header{}}
	if stream {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.timer = time.AfterFunc(heartbeatInterval, p.heartbeat)
	}
	return p
}

// Header implements http.ResponseWriter.
func (p *KeepAlive) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (p *KeepAlive) WriteHeader(code int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sendHeader(code)
	p.resetTimer()
}

// isEventStream reports whether the handler writes an event stream. The caller holds p.mu.
func (p *KeepAlive) isEventStream() bool {
	return strings.HasPrefix(p.header.Get("Content-Type"), "text/event-stream")
}

// sendHeader sends the header, once. The caller holds p.mu.
func (p *KeepAlive) sendHeader(code int) {
	if p.streamBegun {
		p.asOneEvent = p.asOneEvent || code != http.StatusOK || !p.isEventStream()
	}
	if p.headerSent {
		return
	}
	p.headerSent = true
	maps.Copy(p.ResponseWriter.Header(), p.header)
	p.ResponseWriter.Header().Set("X-Accel-Buffering", "no")
	p.ResponseWriter.WriteHeader(code)
	if !p.isEventStream() && p.timer != nil {
		p.timer.Stop()
	}
}

// beginStream begins an event stream before the handler wrote anything. The caller holds p.mu.
func (p *KeepAlive) beginStream() {
	p.headerSent, p.streamBegun = true, true
	h := p.ResponseWriter.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	p.ResponseWriter.WriteHeader(http.StatusOK)
}

// resetTimer starts the timer for the next heartbeat of an event stream. The caller holds p.mu.
func (p *KeepAlive) resetTimer() {
	if p.stopped || !p.streamBegun && !p.isEventStream() {
		return
	}
	if p.timer != nil {
		p.timer.Reset(heartbeatInterval)
		return
	}
	p.timer = time.AfterFunc(heartbeatInterval, p.heartbeat)
}

func (p *KeepAlive) heartbeat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	if !p.headerSent {
		p.beginStream()
	}
	p.setWriteDeadline(0)
	if _, err := io.WriteString(p.ResponseWriter, ": still working\n\n"); err != nil {
		return
	}
	http.NewResponseController(p.ResponseWriter).Flush()
	p.timer.Reset(heartbeatInterval)
}

func (p *KeepAlive) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sendHeader(http.StatusOK)
	if p.asOneEvent {
		return p.body.Write(b)
	}
	p.setWriteDeadline(len(b))
	n, err := p.ResponseWriter.Write(b)
	p.resetTimer()
	return n, err
}

// Flush implements http.Flusher.
func (p *KeepAlive) Flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sendHeader(http.StatusOK)
	p.setWriteDeadline(0)
	http.NewResponseController(p.ResponseWriter).Flush()
	p.resetTimer()
}

// minReadRate is how many bytes a second a client must read.
const minReadRate = 16 << 10

// setWriteDeadline sets the deadline for writing n bytes: a minute, plus the time that the
// slowest allowed client needs. Without it, a client that does not read would block the writer
// forever. The caller holds p.mu.
func (p *KeepAlive) setWriteDeadline(n int) {
	limit := time.Minute + time.Duration(n/minReadRate)*time.Second
	// An error means that the writer has no deadlines.
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(limit))
}

// Event sends a message as one event, and begins the stream if nothing was sent before.
func (p *KeepAlive) Event(data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped || p.headerSent && !p.streamBegun {
		return // the handler has sent its response
	}
	if !p.headerSent {
		p.beginStream()
	}
	p.setWriteDeadline(len(data))
	// If the client is gone, the handler notices when it writes the response.
	_, _ = io.WriteString(p.ResponseWriter, formatEvent(data))
	http.NewResponseController(p.ResponseWriter).Flush()
	p.resetTimer()
}

// formatEvent formats a message as one event.
func formatEvent(message []byte) string {
	if line := (&bytes.Buffer{}); bytes.ContainsAny(message, "\r\n") && json.Compact(line, message) == nil {
		message = line.Bytes()
	}
	return "event: message\ndata: " + strings.ReplaceAll(string(message), "\n", "\ndata: ") + "\n\n"
}

// Unwrap is for http.ResponseController.
func (p *KeepAlive) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Stop ends the heartbeats, and sends a collected response as one event.
func (p *KeepAlive) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	if all := bytes.TrimSpace(p.body.Bytes()); len(all) > 0 {
		p.setWriteDeadline(len(all))
		// If the client is gone, there is no one to report an error to.
		_, _ = io.WriteString(p.ResponseWriter, formatEvent(all))
	}
	// The connection may serve another request.
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Time{})
	if p.timer != nil {
		p.timer.Stop()
	}
}
