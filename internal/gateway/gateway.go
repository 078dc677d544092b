// Package gateway is the MCP edge: Streamable HTTP in both protocol eras on one
// URL, the bare JSON-RPC calls of older clients, and stdio.
package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// Config is what the gateway needs.
type Config struct {
	Hub     *hub.Hub
	Version string
	// Fresh says that a bare call of that principal without a session id gets a
	// session of its own.
	Fresh func(auth.Principal) bool
	// Connected is called when a principal's client connects; it must not block.
	Connected func(auth.Principal)
	// MaxBody bounds a request, in bytes.
	MaxBody int64
	// Key seals what clients carry for the server between two parts of a call,
	// 32 bytes; without it that ends with the server.
	Key []byte
	Log *slog.Logger
}

// Gateway is an http.Handler for the path /mcp.
type Gateway struct {
	Config
	seal seal

	mu        sync.Mutex
	endpoints map[string]*endpoint // by principal's id and kind
	streams   map[*endpoint]bool   // those of one stream alone
}

// endpoint is what one principal's clients talk to. Each has handlers of its
// own, so that no MCP session can be used by anyone else.
type endpoint struct {
	principal           auth.Principal
	server              *mcp.Server
	stateful, stateless http.Handler
	own                 map[featureKey]json.RawMessage // definitions of ours
	shelf               shelf

	syncing sync.Mutex // held while third changes

	mu      sync.Mutex
	leaving map[*mcp.ServerSession]bool    // those that trim closes
	third   map[featureKey]json.RawMessage // definitions of third-party servers; replaced whole
}

// maxSessions bounds the MCP sessions of the older era on one endpoint. Clients
// that do not end theirs would fill an hour with them.
const maxSessions = 256

// trim closes the oldest sessions when there are too many. Their clients are
// told that they are gone, and begin new ones. A call that runs there comes to
// its end, but the SDK drops its answer.
func (e *endpoint) trim() {
	e.mu.Lock()
	defer e.mu.Unlock()
	var live []*mcp.ServerSession // the oldest first, as the server keeps them
	for s := range e.server.Sessions() {
		if s.ID() != "" && !e.leaving[s] {
			live = append(live, s)
		}
	}
	for len(live) > maxSessions {
		s := live[0]
		live = live[1:]
		e.leaving[s] = true
		go func() {
			_ = s.Close() // waits for its calls
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(e.leaving, s)
		}()
	}
}

// New returns the gateway.
func New(c Config) *Gateway {
	if c.MaxBody == 0 {
		c.MaxBody = 16 << 20
	}
	return &Gateway{Config: c, seal: newSeal(c.Key), endpoints: map[string]*endpoint{}, streams: map[*endpoint]bool{}}
}

// statelessFrom is the first revision of the protocol without sessions.
const statelessFrom = "2026-07-28"

// ServeHTTP sends a request where it belongs: see mcp's two eras.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, ok := auth.From(r.Context())
	if !ok {
		http.Error(w, "no principal", http.StatusUnauthorized)
		return
	}
	session, version := r.Header.Get("Mcp-Session-Id"), r.Header.Get("Mcp-Protocol-Version")
	if r.Method == http.MethodPost {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, g.MaxBody))
		if err != nil {
			g.unreadable(w, err)
			return
		}
		if session == "" && version == "" && method(body) != "initialize" {
			g.bare(w, r, p, body)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
	}
	e := g.endpoint(p)
	h := e.stateful
	if session == "" && version >= statelessFrom {
		h = e.stateless
	}
	pw := &patientWriter{ResponseWriter: w}
	defer pw.stop()
	h.ServeHTTP(pw, r)
	if session == "" && h == e.stateful { // it may have begun one
		e.trim()
	}
}

func (g *Gateway) unreadable(w http.ResponseWriter, err error) {
	var big *http.MaxBytesError
	if errors.As(err, &big) {
		writeJSON(w, http.StatusRequestEntityTooLarge, rpcError(nil, -32600, "Request too large: at most "+
			bytesText(g.MaxBody)+"; send larger files with PUT /v1/sessions/{id}/files/{path}", nil))
		return
	}
	writeJSON(w, http.StatusBadRequest, rpcError(nil, -32700, "Parse error: the request could not be read", nil))
}

func method(body []byte) string {
	var m struct {
		Method string `json:"method"`
	}
	if json.Unmarshal(body, &m) != nil {
		return ""
	}
	return m.Method
}

func (g *Gateway) endpoint(p auth.Principal) *endpoint {
	key := p.ID
	if p.Service {
		key += " service"
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.endpoints[key]; e != nil {
		return e
	}
	e := g.server(p)
	get := func(*http.Request) *mcp.Server { return e.server }
	options := mcp.StreamableHTTPOptions{Logger: quiet(g.Log), MaxRequestBodyBytes: g.MaxBody, SessionTimeout: time.Hour,
		PropagateRequestCancellation: true, DisableLocalhostProtection: true} // the host is checked before the gateway
	e.stateful = mcp.NewStreamableHTTPHandler(get, &options)
	options.Stateless = true
	e.stateless = mcp.NewStreamableHTTPHandler(get, &options)
	g.endpoints[key] = e
	return e
}

// Serve speaks MCP over one byte stream (stdio) until it ends.
func (g *Gateway) Serve(ctx context.Context, p auth.Principal, in io.ReadCloser, out io.WriteCloser) error {
	e := g.server(p)
	g.mu.Lock()
	g.streams[e] = true
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		delete(g.streams, e)
		g.mu.Unlock()
		e.shelf.end()
	}()
	return e.server.Run(ctx, &mcp.IOTransport{Reader: in, Writer: out, MaxLineLength: int(g.MaxBody)})
}

// connected is for the first message of a client.
func (g *Gateway) connected(p auth.Principal) {
	if g.Connected != nil {
		g.Connected(p)
	}
}

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
	if _, err := io.WriteString(p.ResponseWriter, ": still working\n\n"); err != nil {
		return
	}
	http.NewResponseController(p.ResponseWriter).Flush()
	p.timer.Reset(heartbeat)
}

func (p *patientWriter) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.ResponseWriter.Write(b)
	p.arm()
	return n, err
}

// Flush implements http.Flusher.
func (p *patientWriter) Flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	http.NewResponseController(p.ResponseWriter).Flush()
	p.arm()
}

// Unwrap is for http.ResponseController.
func (p *patientWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *patientWriter) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	if p.timer != nil {
		p.timer.Stop()
	}
}

// report logs a fault that the user cannot read the cause of.
func (g *Gateway) report(ctx context.Context, what string, f *fault.Error) {
	if cause := f.Unwrap(); cause != nil && f.Kind != fault.Canceled {
		g.Log.WarnContext(ctx, "call failed", "tool", what, "fault", f.Code(), "message", f.Message, "cause", cause)
	}
}
