// Package gateway is the MCP edge: Streamable HTTP in both protocol eras on one
// URL, the bare JSON-RPC calls of older clients, and stdio.
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
	// Fresh says that a bare call of that principal without a session id gets a
	// session of its own.
	Fresh func(auth.Principal) bool
	// Hold returns a context that ends with the principal's token; nil: none ends.
	Hold func(context.Context, auth.Principal) (_ context.Context, release func())
	// Limits bounds what each principal holds; nil: the default.
	Limits *limit.Limiter
	// Connected is called when a principal's client connects; it must not block.
	Connected func(auth.Principal)
	// MaxBody bounds a request, in bytes.
	MaxBody int64
	// Key seals what clients carry for the server between two parts of a call,
	// 32 bytes; without it that ends with the server.
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

	trimming  sync.Mutex // held while sessions are counted
	mu        sync.Mutex
	endpoints map[auth.Principal]*endpoint // a call may depend on all of a principal
	streams   map[*endpoint]bool           // those of one stream alone
	noticed   map[*mcp.ServerSession]bool  // whose end is waited for
}

// New returns the gateway.
func New(c Config) *Gateway {
	if c.MaxBody == 0 {
		c.MaxBody = 16 << 20
	}
	if c.Limits == nil {
		c.Limits = limit.New(limit.Default)
	}
	return &Gateway{Config: c, relay: relay.New(c.Hub, c.Limits, c.Log, c.Key), bare: &bare.Handler{Hub: c.Hub, Fresh: c.Fresh, Log: c.Log},
		endpoints: map[auth.Principal]*endpoint{}, streams: map[*endpoint]bool{}, noticed: map[*mcp.ServerSession]bool{}}
}

// ServeHTTP sends a request where it belongs: see mcp's two eras.
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
		wrong := broken(m, body)
		if wrong == nil {
			wrong = malformed(m, r, body)
		}
		if wrong != nil {
			rpc.Write(w, http.StatusBadRequest, wrong)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		stream = strings.Contains(r.Header.Get("Accept"), "text/event-stream") && m.Method != "initialize"
	}
	e := g.endpoint(p)
	defer g.leave(e)
	if r.Method == http.MethodPost {
		if unknown(w, r, e, m) {
			return
		}
		answered, end := e.fast.Serve(w, r, m, a)
		defer end()
		if answered {
			return
		}
		key, forget := e.unread.put(a)
		defer forget()
		r.Header.Set(answersHeader, key)
	}
	h := e.stateful
	if session == "" && revision.IsStateless(version) {
		h = e.stateless
	}
	pw := rpc.NewKeepAlive(w, stream)
	defer pw.Stop()
	h.ServeHTTP(pw, r)
	if session == "" && h == e.stateful { // it may have begun one
		g.trim(p)
	}
}

// broken returns what is to be answered to a body that is no JSON.
func broken(m rpc.Message, body []byte) any {
	if m.Plain { // it was read
		return nil
	}
	return rpc.Unparsable(body)
}

// RetryAfter is when a client that was refused may try again, in seconds.
const RetryAfter = "1"

// Refuse answers a request that is not read to its end.
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
	var big *http.MaxBytesError
	if errors.As(err, &big) {
		rpc.Write(w, http.StatusRequestEntityTooLarge, rpc.Failure(nil, -32600, "Request too large: at most "+
			bytesText(g.MaxBody)+"; send larger files with PUT /v1/sessions/{id}/files/{path}", nil))
		return
	}
	rpc.Write(w, http.StatusBadRequest, rpc.Failure(nil, -32700, "Parse error: the request could not be read", nil))
}

// Serve speaks MCP over one byte stream (stdio) until it ends.
func (g *Gateway) Serve(ctx context.Context, p auth.Principal, in io.ReadCloser, out io.WriteCloser) error {
	ctx, release := g.living(ctx, p)
	defer release()
	e := g.server(ctx, p)
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
	whole := &wholes{Closer: out, to: out}
	lines := newInlet(in, whole, g.MaxBody)
	lines.holds = func() *limit.Held { return g.Limits.Held(p.ID, limit.Bytes) }
	return e.server.Run(ctx, &duplex{in: lines, out: whole, owner: p.ID, limits: g.Limits, unread: &e.unread})
}

// Close gives up the calls that wait for their clients to come again; their
// contexts do not end with requests. No request may be on its way.
func (g *Gateway) Close() {
	g.each("", func(e *endpoint) {
		e.calls.End()
		if e.release != nil {
			e.release()
		}
	})
}

// connected is for the first message of a client.
func (g *Gateway) connected(p auth.Principal) {
	if g.Connected != nil {
		g.Connected(p)
	}
}
