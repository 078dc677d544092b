//lint:file-ignore SA1019 clients of the stateful protocol set the level

package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/mcpsession"
)

// Sessions of the stateful protocol go on with the next server, and after their endpoint was freed: what a client has
// said once is stored before it is answered, and said to the SDK again when a request with the session's id comes and
// the session is not there. The client's rights are those of its token at that time.

// keptSessions are the records of an endpoint's sessions.
type keptSessions struct {
	// resuming is held while a session is made again; locked before begin and mu.
	resuming sync.Mutex

	// begin is held from the moment when a request without a session is given to the SDK until the SDK takes newID.
	begin sync.Mutex
	newID func() string

	mu      sync.Mutex // held while a record is stored, so that the last one has all changes
	records map[string]mcpsession.Record
	making  string // the session that is made again: the SDK has it before it knows its client
}

// touchInterval is how much older a record's time of use may be than the last request.
const touchInterval = 10 * time.Minute

// serveNew gives the SDK a request of the stateful protocol without a session. If that begins one, it has this id.
func (e *endpoint) serveNew(w http.ResponseWriter, r *http.Request, id string) {
	e.kept.begin.Lock()
	unlock := sync.OnceFunc(e.kept.begin.Unlock)
	defer unlock()
	e.kept.newID = func() string {
		unlock()
		return id
	}
	e.stateful.ServeHTTP(w, r)
}

// keepMiddleware stores what clients say once in their sessions, before they are answered.
func (g *Gateway) keepMiddleware(e *endpoint) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			res, err := next(ctx, method, req)
			if s, ok := req.GetSession().(*mcp.ServerSession); ok && err == nil && g.MCPSessions != nil && s.ID() != "" {
				g.keep(ctx, e, s.ID(), req)
			}
			return res, err
		}
	}
}

// keep stores what a request changes in the record of its session.
func (g *Gateway) keep(ctx context.Context, e *endpoint, id string, req mcp.Request) {
	e.kept.mu.Lock()
	defer e.kept.mu.Unlock()
	record, known := e.kept.records[id]
	before := record
	switch p := req.GetParams().(type) {
	case *mcp.InitializeParams:
		params, err := json.Marshal(p)
		if known || err != nil { // known: it is said to the SDK again
			return
		}
		var fits bool
		if record, fits = mcpsession.New(id, e.principal, string(e.wanted), params, time.Now()); !fits {
			return
		}
	case *mcp.InitializedParams:
		record.Initialized = true
	case *mcp.SetLoggingLevelParams:
		record.Level = string(p.Level)
	case *mcp.SubscribeParams:
		record = record.Subscribe(p.URI, false)
	case *mcp.UnsubscribeParams:
		record = record.Subscribe(p.URI, true)
	default:
		return
	}
	if len(record.Params) == 0 || known && record.Initialized == before.Initialized && record.Level == before.Level &&
		equalSets(record.URIs, before.URIs) {
		return
	}
	record.Used = time.Now()
	g.store(ctx, e, record)
}

func equalSets(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// store stores a record. The caller holds e.kept.mu.
func (g *Gateway) store(ctx context.Context, e *endpoint, r mcpsession.Record) {
	if err := g.MCPSessions.PutMCPSession(context.WithoutCancel(ctx), r); err != nil {
		g.Log.WarnContext(ctx, "an MCP session could not be stored: it ends with this server", "error", err)
		return
	}
	if e.kept.records == nil {
		e.kept.records = map[string]mcpsession.Record{}
	}
	e.kept.records[r.ID] = r
}

// resume makes a stored session again if the SDK does not have it, and notes that it is used. The error says that it
// is not known whether there is one.
func (g *Gateway) resume(r *http.Request, e *endpoint, id string) error {
	if g.MCPSessions == nil || g.isThere(r.Context(), e, id) {
		return nil
	}
	e.kept.resuming.Lock()
	defer e.kept.resuming.Unlock()
	if g.isThere(r.Context(), e, id) {
		return nil
	}
	record, found, err := g.MCPSessions.MCPSession(r.Context(), id)
	if err != nil || !found || !record.BelongsTo(e.principal, string(e.wanted), time.Now()) {
		return err
	}
	record.Used = time.Now()
	e.kept.mu.Lock()
	g.store(r.Context(), e, record)
	e.kept.making = id
	e.kept.mu.Unlock()
	defer func() {
		e.kept.mu.Lock()
		e.kept.making = ""
		e.kept.mu.Unlock()
	}()
	ctx := context.WithoutCancel(r.Context())
	if !e.sayAgain(ctx, id, "initialize", record.Params) {
		return nil
	}
	if record.Initialized {
		e.sayAgain(ctx, id, "notifications/initialized", nil)
	}
	if record.Level != "" {
		e.sayAgain(ctx, id, "logging/setLevel", mcp.SetLoggingLevelParams{Level: mcp.LoggingLevel(record.Level)})
	}
	if len(record.URIs) > 0 {
		g.goroutines.Go(func() { // a third-party server may have to start first
			for _, uri := range record.URIs {
				e.sayAgain(e.calls.TokenContext, id, "resources/subscribe", mcp.SubscribeParams{URI: uri})
			}
		})
	}
	g.trimSessions(e.principal)
	return nil
}

// isThere reports whether the SDK has a session, and knows its client, and notes that it is used.
func (g *Gateway) isThere(ctx context.Context, e *endpoint, id string) bool {
	e.kept.mu.Lock()
	defer e.kept.mu.Unlock()
	if e.kept.making == id || !e.hasSession(id) {
		return false
	}
	if r, ok := e.kept.records[id]; ok && time.Since(r.Used) > touchInterval {
		r.Used = time.Now()
		g.store(ctx, e, r)
	}
	return true
}

// sayAgain gives the SDK a message of a session that is made again, and reports whether it was taken.
func (e *endpoint) sayAgain(ctx context.Context, session, method string, params any) bool {
	m := map[string]any{"jsonrpc": "2.0", "method": method}
	if params != nil {
		m["params"], m["id"] = params, "sandlot-"+rand.Text() // the client's own ids are others
	}
	body, err := json.Marshal(m)
	if err != nil {
		return false
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/mcp", bytes.NewReader(body))
	if err != nil {
		return false
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	w := &unread{header: http.Header{}, status: http.StatusOK}
	if method == "initialize" {
		e.serveNew(w, r, session)
		return w.status < http.StatusBadRequest && e.hasSession(session)
	}
	r.Header.Set("Mcp-Session-Id", session)
	e.stateful.ServeHTTP(w, r)
	return w.status < http.StatusBadRequest
}

// unread is a response that nobody reads.
type unread struct {
	header http.Header
	status int
}

// Header implements http.ResponseWriter.
func (u *unread) Header() http.Header { return u.header }

// Write implements http.ResponseWriter.
func (u *unread) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements http.ResponseWriter.
func (u *unread) WriteHeader(status int) { u.status = status }

// Flush implements http.Flusher.
func (u *unread) Flush() {}

// forget removes the record of a session that its client has ended, or that was one too many.
func (g *Gateway) forget(ctx context.Context, e *endpoint, id string) {
	if g.MCPSessions == nil {
		return
	}
	e.kept.mu.Lock()
	defer e.kept.mu.Unlock()
	delete(e.kept.records, id)
	if err := g.MCPSessions.RemoveMCPSession(context.WithoutCancel(ctx), id); err != nil {
		g.Log.WarnContext(ctx, "the record of an MCP session could not be removed; it is when it is too old", "error", err)
	}
}

// sweepRecords frees the records of sessions that are not there any more, and removes those that are too old from the
// store.
func (g *Gateway) sweepRecords(ctx context.Context) {
	if g.MCPSessions == nil {
		return
	}
	g.forEachEndpoint("", func(e *endpoint) {
		there := map[string]bool{}
		e.kept.mu.Lock()
		defer e.kept.mu.Unlock()
		for s := range e.server.Sessions() {
			there[s.ID()] = true
		}
		maps.DeleteFunc(e.kept.records, func(id string, _ mcpsession.Record) bool { return !there[id] })
	})
	if err := g.MCPSessions.RemoveMCPSessions(ctx, time.Now().Add(-mcpsession.MaxAge)); err != nil && ctx.Err() == nil {
		g.Log.WarnContext(ctx, "old records of MCP sessions could not be removed; the next minute tries again",
			"error", err)
	}
}
