// Package gateway is the MCP edge: Streamable HTTP on one URL, in the stateful protocol
// (until 2025-11-25) and the stateless one (from 2026-07-28), the bare JSON-RPC calls of
// older clients, and stdio.
package gateway

import (
	"bytes"
	"context"
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
	"sandlot/internal/gateway/bare"
	"sandlot/internal/gateway/relay"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/revision"
)

// Config is what the gateway needs.
type Config struct {
	Hub     *hub.Hub
	Version string
	// Fresh says whether a principal's bare call without a session id gets a session of
	// its own.
	Fresh func(auth.Principal) bool
	// Hold returns a context that ends with the principal's token; nil: no token ends.
	Hold func(context.Context, auth.Principal) (_ context.Context, release func())
	// Limits bounds what each principal holds; nil: the default.
	Limits *limit.Limiter
	// Connected is called when a principal's client connects; it must not block.
	Connected func(auth.Principal)
	// MaxBody bounds a request, in bytes.
	MaxBody int64
	// Key, of 32 bytes, seals the state that clients carry between two parts of a call;
	// without it such calls end with the server.
	Key []byte
	// SDKAlone leaves the fast path out: every request passes the SDK.
	SDKAlone bool
	Log      *slog.Logger
}

// Gateway is an http.Handler for the path /mcp.
type Gateway struct {
	Config
	relay *relay.Relay
	bare  *bare.Handler
	work  sync.WaitGroup // goroutines that outlive a request; Close waits for them

	trimming  sync.Mutex // held while sessions are counted; before mu and an endpoint's
	mu        sync.Mutex
	endpoints map[auth.Principal]*endpoint // a call may depend on every field of a principal
	streams   map[*endpoint]bool           // each of one stdio connection
	followed  map[*mcp.ServerSession]bool  // sessions whose end the hub is told
}

// New returns the gateway.
func New(c Config) *Gateway {
	if c.MaxBody == 0 {
		c.MaxBody = 16 << 20
	}
	if c.Limits == nil {
		c.Limits = limit.New(limit.Default)
	}
	return &Gateway{
		Config:    c,
		relay:     relay.New(c.Hub, c.Limits, c.Log, c.Key),
		bare:      &bare.Handler{Hub: c.Hub, Fresh: c.Fresh, Log: c.Log},
		endpoints: map[auth.Principal]*endpoint{},
		streams:   map[*endpoint]bool{},
		followed:  map[*mcp.ServerSession]bool{},
	}
}

// ServeHTTP answers a request by the fast path or the SDK, in the stateful or the
// stateless protocol, or as a bare call.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, ok := auth.From(r.Context())
	if !ok {
		http.Error(w, "no principal", http.StatusUnauthorized)
		return
	}
	session, version := r.Header.Get("Mcp-Session-Id"), r.Header.Get("Mcp-Protocol-Version")
	stream := false
	a := g.Limits.Holds(p.ID)
	defer a.Release()
	var m rpc.Message
	if r.Method == http.MethodPost {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, g.MaxBody))
		if err != nil {
			g.unreadable(w, err)
			return
		}
		m = rpc.Read(body)
		if session == "" && version == "" && m.Method != "initialize" {
			g.bare.Serve(w, r, p, body, a)
			return
		}
		if wrong := malformed(m, r, body); wrong != nil {
			rpc.Write(w, http.StatusBadRequest, wrong)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		stream = strings.Contains(r.Header.Get("Accept"), "text/event-stream") && m.Method != "initialize"
	}
	e, release := g.acquire(p)
	defer release()
	if r.Method == http.MethodPost {
		if unknown(w, r, e, m) {
			return
		}
		answered, end := e.fast.Serve(w, r, m, a)
		defer end()
		if answered {
			return
		}
		entry, remove := e.unread.put(a)
		defer remove()
		r.Header.Set(answersHeader, entry)
	}
	h := e.stateful
	if session == "" && revision.IsStateless(version) {
		h = e.stateless
	}
	writer := rpc.NewKeepAlive(w, stream)
	defer writer.Stop()
	h.ServeHTTP(writer, r)
	if session == "" && h == e.stateful { // it may have begun a session
		g.trim(p)
	}
}

// RetryAfter is after how many seconds a client that was refused may try again.
const RetryAfter = "1"

// Refuse answers a request whose body is not read to its end.
func Refuse(w http.ResponseWriter, f *fault.Error) {
	status := http.StatusBadRequest
	w.Header().Set("Connection", "close") // what is left of the body is not read
	if f.Kind == fault.ResourceLimit {
		status = http.StatusTooManyRequests
		w.Header().Set("Retry-After", RetryAfter)
	}
	rpc.Write(w, status, rpc.Failure(nil, f.RPC(), f.Error(), f.Data()))
}

func (g *Gateway) unreadable(w http.ResponseWriter, err error) {
	if said, ok := errors.AsType[*fault.Error](err); ok { // why it was not read
		Refuse(w, said)
		return
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		rpc.Write(w, http.StatusRequestEntityTooLarge, rpc.Invalid("Request too large: at most "+
			bytesText(g.MaxBody)+"; send larger files with PUT /v1/sessions/{id}/files/{path}"))
		return
	}
	rpc.Write(w, http.StatusBadRequest, rpc.Failure(nil, -32700, "Parse error: the request could not be read", nil))
}

// Serve speaks MCP over one byte stream, as on stdio, until it ends.
func (g *Gateway) Serve(ctx context.Context, p auth.Principal, in io.ReadCloser, out io.WriteCloser) error {
	ctx, release := g.lifeOf(ctx, p)
	defer release()
	e := g.server(ctx, p)
	e.release = release
	g.mu.Lock()
	g.streams[e] = true
	g.mu.Unlock()
	g.filled(e)
	defer func() {
		g.mu.Lock()
		delete(g.streams, e)
		g.mu.Unlock()
		e.calls.End()
	}()
	stdout := &messageWriter{Closer: out, to: out}
	lines := newInlet(in, stdout, g.MaxBody)
	lines.holds = func() *limit.Held { return g.Limits.Held(p.ID, limit.Bytes) }
	return e.server.Run(ctx, &duplex{in: lines, out: stdout, owner: p.ID, limits: g.Limits, unread: &e.unread})
}

// Close ends all endpoints and streams, with their sessions and suspended calls, and
// waits for them. No request may be running. A call that does not end with its context
// holds Close up for closeTimeout.
func (g *Gateway) Close() {
	g.each("", func(e *endpoint) {
		e.calls.End()
		e.release()
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.work.Wait()
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
		g.Log.Warn("sessions of MCP did not end in time", "after", closeTimeout)
	}
}

const closeTimeout = 10 * time.Second

// connected reports the first message of a client.
func (g *Gateway) connected(p auth.Principal) {
	if g.Connected != nil {
		g.Connected(p)
	}
}
