// Package gateway is the server's MCP interface. It serves Streamable HTTP on one URL, in the
// stateful protocol (until 2025-11-25) and the stateless one (from 2026-07-28), the bare
// JSON-RPC calls of older clients, and stdio.
package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/gateway/bare"
	"sandlot/internal/gateway/relay"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/mcpsession"
	"sandlot/internal/policy"
	"sandlot/internal/revision"
	"sandlot/internal/toolview"
)

// Config is what the gateway needs.
type Config struct {
	Hub     *hub.Hub
	Version string
	// NewSession reports whether a principal's bare call without a session id gets a new
	// session, and not the principal's home session.
	NewSession func(auth.Principal) bool
	// TokenContext returns a context that ends with the principal's token; nil: tokens do not
	// end.
	TokenContext func(context.Context, auth.Principal) (_ context.Context, release func())
	// Limits bounds what each principal uses; nil: the default limits.
	Limits *limit.Limiter
	// Connected is called when a principal's client connects; it must not block.
	Connected func(auth.Principal)
	// MaxBody is the largest request in bytes; 0: 16 MiB.
	MaxBody int64
	// SealKey, of 32 bytes, encrypts the requestState of suspended calls. Without it the key
	// is random, and no state is valid after a restart.
	SealKey []byte
	// Views decides what clients are shown; nil: the default settings do.
	Views *toolview.Views
	// MCPSessions stores sessions of the stateful protocol; nil: they end with the server.
	MCPSessions mcpsession.Store
	// Ready says in a line which packages sandboxes have; nil, or an empty line: none.
	Ready func() string
	// SDKOnly turns the fast path off: the SDK answers every request.
	SDKOnly bool
	Log     *slog.Logger
}

// Gateway is an http.Handler for the path /mcp.
type Gateway struct {
	Config
	relay      *relay.Relay
	bare       *bare.Handler
	goroutines sync.WaitGroup  // goroutines that outlive a request; Close waits for them
	streams    context.Context // ends with EndStreams
	endStreams context.CancelFunc

	trimMu          sync.Mutex // held while sessions are counted; locked before mu and an endpoint's mu
	mu              sync.Mutex
	endpoints       map[endpointKey]*endpoint
	stdioEndpoints  map[*endpoint]bool          // one for each stdio connection
	watchedSessions map[*mcp.ServerSession]bool // sessions whose end is reported to the hub
}

// New returns a gateway.
func New(c Config) *Gateway {
	if c.MaxBody == 0 {
		c.MaxBody = 16 << 20
	}
	if c.Limits == nil {
		c.Limits = limit.New(limit.Default)
	}
	if c.Views == nil {
		c.Views = toolview.New()
	}
	g := &Gateway{
		Config:          c,
		relay:           relay.New(c.Hub, c.Limits, c.Log, c.SealKey),
		bare:            &bare.Handler{Hub: c.Hub, NewSession: c.NewSession, Views: c.Views, Log: c.Log},
		endpoints:       map[endpointKey]*endpoint{},
		stdioEndpoints:  map[*endpoint]bool{},
		watchedSessions: map[*mcp.ServerSession]bool{},
	}
	g.relay.Used = g.used
	g.streams, g.endStreams = context.WithCancel(context.Background())
	return g
}

// ServeHTTP answers a request by the fast path or the SDK, in the stateful or the
// stateless protocol, or as a bare call.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, ok := auth.FromContext(r.Context())
	if !ok {
		http.Error(w, "no principal", http.StatusUnauthorized)
		return
	}
	wanted, err := toolview.Parse(r.URL.Query().Get("tools"))
	if err != nil {
		rpc.Write(w, http.StatusBadRequest, rpc.InvalidRequest(fmt.Sprintf("Invalid request: tools=%q %v",
			fault.Clip(r.URL.Query().Get("tools")), err)))
		return
	}
	if err := takeResults(r); err != nil {
		rpc.Write(w, http.StatusBadRequest, rpc.InvalidRequest("Invalid request: "+err.Error()))
		return
	}
	session, version := r.Header.Get("Mcp-Session-Id"), r.Header.Get("Mcp-Protocol-Version")
	stream := false
	answers := g.Limits.NewAnswers(p.ID)
	defer answers.Release()
	var m rpc.Message
	if r.Method == http.MethodPost {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, g.MaxBody))
		if err != nil {
			g.refuseBody(w, err)
			return
		}
		m = rpc.Read(body)
		if session == "" && version == "" && m.Method != "initialize" {
			g.bare.Serve(w, r, p, wanted, body, answers)
			return
		}
		if errorAnswer := malformed(m, r, body); errorAnswer != nil {
			rpc.Write(w, http.StatusBadRequest, errorAnswer)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		stream = strings.Contains(r.Header.Get("Accept"), "text/event-stream") && m.Method != "initialize"
	}
	e, release := g.acquire(endpointKey{p, wanted})
	defer release()
	if session != "" && m.Method == "initialize" && !e.hasSession(session) { // the client begins anew
		r.Header.Del("Mcp-Session-Id")
		session = ""
	}
	if session != "" {
		if err := g.resume(r, e, session); err != nil {
			rpcErr := rpc.LoggedError(r.Context(), g.Log, "session", err)
			rpc.Write(w, http.StatusServiceUnavailable, rpc.ErrorResponseTo(m.ID, rpcErr))
			return
		}
	}
	if r.Method == http.MethodPost {
		if refuseUnknownMethod(w, r, e, m) || refuseDiscover(w, m) {
			return
		}
		answered, end := e.fast.Serve(w, r, m, answers)
		defer end()
		if answered {
			return
		}
		entry, remove := e.answers.add(answers, event.FromContext(r.Context()))
		defer remove()
		r.Header.Set(answersHeader, entry)
	}
	r, unbind := g.bindStanding(r, m)
	defer unbind()
	handler := e.stateful
	if session == "" && revision.IsStateless(version) {
		handler = e.stateless
	}
	writer := rpc.NewKeepAlive(w, stream)
	defer writer.Stop()
	ends := r.Method == http.MethodDelete && session != "" && e.hasSession(session)
	switch {
	case handler == e.stateful && session == "" && r.Method == http.MethodPost:
		e.serveNew(writer, r, rand.Text())
		g.trimSessions(p) // the request may have begun a session
	default:
		handler.ServeHTTP(writer, r)
	}
	if ends && !e.hasSession(session) {
		g.forget(r.Context(), e, session)
	}
}

// takeResults makes the header of a request say which form of results it asks for, by its address or that header.
func takeResults(r *http.Request) error {
	text := r.URL.Query().Get("results")
	if text == "" {
		text = r.Header.Get(rpc.ResultsHeader)
	}
	form, err := toolview.ParseResults(text)
	if err != nil {
		return fmt.Errorf("results=%q %w", fault.Clip(text), err)
	}
	r.Header.Set(rpc.ResultsHeader, string(form))
	return nil
}

// RetryAfter is the Retry-After header of a refusal, in seconds.
const RetryAfter = "1"

// Refuse answers a request with a fault, and closes its connection: the rest of the body is
// not read.
func Refuse(w http.ResponseWriter, f *fault.Error) {
	status := http.StatusBadRequest
	w.Header().Set("Connection", "close")
	if f.Kind == fault.ResourceLimit {
		status = http.StatusTooManyRequests
		w.Header().Set("Retry-After", RetryAfter)
	}
	rpc.Write(w, status, rpc.ErrorResponse(nil, f.RPC(), f.Error(), f.Data()))
}

// refuseBody answers a request whose body could not be read.
func (g *Gateway) refuseBody(w http.ResponseWriter, err error) {
	if refusal, ok := errors.AsType[*fault.Error](err); ok { // from a reader of the body that counts it
		Refuse(w, refusal)
		return
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		rpc.Write(w, http.StatusRequestEntityTooLarge, rpc.InvalidRequest("Request too large: at most "+
			mebibytes(g.MaxBody)+"; send larger files with PUT /v1/sessions/{id}/files/{path}"))
		return
	}
	rpc.Write(w, http.StatusBadRequest, rpc.ErrorResponse(nil, -32700, "Parse error: the request could not be read",
		nil))
}

// Asked is what a client asks for when it connects; empty fields leave the choice to the settings, and to what is known
// of the client.
type Asked struct {
	Tools   toolview.Mode
	Results toolview.Results
}

// Serve serves one client over a pair of streams, as on stdio, until the input ends, or after EndStreams until no call
// runs.
func (g *Gateway) Serve(ctx context.Context, p auth.Principal, asked Asked, in io.ReadCloser, out io.WriteCloser) error {
	ctx, release := g.tokenContext(ctx, p)
	defer release()
	e := g.newEmptyEndpoint(ctx, endpointKey{p, asked.Tools})
	e.release = release
	g.mu.Lock()
	g.stdioEndpoints[e] = true
	g.mu.Unlock()
	g.ensureFilled(e)
	defer func() {
		g.mu.Lock()
		delete(g.stdioEndpoints, e)
		g.mu.Unlock()
		e.calls.End()
	}()
	stdout := &messageWriter{Closer: out, out: out}
	input := newLineReader(in, stdout, g.MaxBody)
	input.newReservation = func() *limit.Reservation { return g.Limits.NewReservation(p.ID, limit.RequestBytes) }
	return e.server.Run(ctx, &duplex{in: input, out: stdout, owner: p.ID, limits: g.Limits, answers: &e.answers,
		results: asked.Results, origin: event.FromContext(ctx), stops: g.streams.Done()})
}

// Close ends all endpoints with their sessions and suspended calls, and waits until they have
// ended. No request may be running. A call that does not end with its context delays Close
// by closeTimeout.
func (g *Gateway) Close() {
	g.forEachEndpoint("", func(e *endpoint) {
		e.calls.End()
		e.release()
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.goroutines.Wait()
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
		g.Log.Warn("sessions of MCP did not end in time", "after", closeTimeout)
	}
}

const closeTimeout = 10 * time.Second

// connected calls Config.Connected after a client's first message, if the client's token has the
// scope to run something in a sandbox.
func (g *Gateway) connected(p auth.Principal) {
	runs := policy.InScope(p, policy.CodeExecute) || policy.InScope(p, policy.ShellExecute)
	if g.Connected != nil && runs {
		g.Connected(p)
	}
}

// OwnTools returns the names of Sandlot's own tools that a principal's client lists, as long as no tools of third-party
// servers are in its list. It starts no servers.
func (g *Gateway) OwnTools(p auth.Principal) []string {
	shown, names := g.Views.Shown(p, "", nil), []string{}
	for _, t := range g.Hub.OwnTools() {
		if t.Alias == "" && shown.Lists(t.Name) {
			names = append(names, t.Name)
		}
	}
	return names
}
