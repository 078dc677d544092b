package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/auth"
	"sandlot/internal/gateway/relay"
	"sandlot/internal/revision"
	"sandlot/internal/toolview"
)

// endpoint serves the clients of one token. Each endpoint has its own SDK server, so that
// another token cannot use its MCP sessions. Its calls have the rights of the token, and end
// with it.
//
// Lock order: external.syncMu, then mu.
type endpoint struct {
	principal           auth.Principal // including the token
	wanted              toolview.Mode  // the view that the clients' address names; empty: none
	release             func()         // ends the context of the token
	server              *mcp.Server
	stateful, stateless http.Handler
	calls               *relay.Calls
	answers             runningAnswers
	kept                keptSessions
	fast                fastPath

	fillOnce sync.Once // adds the features to server, which takes time
	// ownDefinitions are Sandlot's own definitions; nil: an alias, which is not listed. A change replaces the map.
	ownDefinitions atomic.Pointer[map[featureKey]json.RawMessage]
	elicits        map[string]bool // whether one of Sandlot's own tools may ask the client's user
	external       externalFeatures
	shown          atomic.Pointer[toolview.Shown] // nil: sync was not called yet; it is changed with external

	mu        sync.Mutex
	closing   map[*mcp.ServerSession]bool
	notifiers map[*mcp.ServerSession]*relay.Notifier // for notifications outside of calls; key nil: to all sessions

	runningRequests int       // guarded by the gateway's mu
	lastUsed        time.Time // when the last request ended; guarded by the gateway's mu
}

// endpointKey identifies an endpoint: a call may depend on every field of a principal, and a list on the view that the
// address names too.
type endpointKey struct {
	principal auth.Principal
	wanted    toolview.Mode
}

// acquire returns the endpoint of a principal's token and of an address, and creates it if there is none. The
// endpoint stays until release is called. While features are added to a new endpoint, only
// its own clients wait.
func (g *Gateway) acquire(k endpointKey) (e *endpoint, release func()) {
	g.mu.Lock()
	e = g.endpoints[k]
	if e == nil {
		g.makeRoom(k.principal)
		e = g.newEndpoint(k)
		g.endpoints[k] = e
	}
	e.runningRequests++
	g.mu.Unlock()
	g.ensureFilled(e)
	return e, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		e.runningRequests--
		e.lastUsed = time.Now()
	}
}

// How many endpoints there can be at once: of one token of a service, for the users that it names, and of one user
// else, who has one for each token and each view that an address names. Each JWT of an identity provider is another
// token. An endpoint takes some hundred KiB.
const maxServiceEndpoints, maxUserEndpoints = 512, 64

// makeRoom ends the endpoint that was used longest ago of all of a service's token, or of a user, who has too many.
// Clients that had a session there get an error for their next request, and begin a new one. The caller
// holds g.mu.
func (g *Gateway) makeRoom(p auth.Principal) {
	limit, shares := maxUserEndpoints, func(q auth.Principal) bool { return q.ID == p.ID }
	if _, isServices := auth.ServiceOf(p.ID); isServices {
		limit, shares = maxServiceEndpoints, func(q auth.Principal) bool {
			_, isServices := auth.ServiceOf(q.ID)
			return isServices && q.Token == p.Token
		}
	}
	var oldest endpointKey
	count := 0
	for k, e := range g.endpoints {
		if !shares(k.principal) {
			continue
		}
		count++
		if e.runningRequests == 0 && (oldest.principal.ID == "" || e.lastUsed.Before(g.endpoints[oldest].lastUsed)) {
			oldest = k
		}
	}
	if count >= limit && oldest.principal.ID != "" { // the running requests are limited too
		e := g.endpoints[oldest]
		delete(g.endpoints, oldest)
		e.release()
	}
}

// newEndpoint returns an endpoint for HTTP, which lasts until its tokenCtx ends.
func (g *Gateway) newEndpoint(k endpointKey) *endpoint {
	tokenCtx, release := g.tokenContext(context.Background(), k.principal)
	e := g.newEmptyEndpoint(tokenCtx, k)
	e.release = release
	g.goroutines.Add(1)
	context.AfterFunc(tokenCtx, func() {
		defer g.goroutines.Done()
		g.closeEndpoint(k, e)
	})
	server := func(*http.Request) *mcp.Server { return e.server }
	options := mcp.StreamableHTTPOptions{
		Logger:                       debugLogger(g.Log),
		MaxRequestBodyBytes:          g.MaxBody,
		SessionTimeout:               time.Hour,
		PropagateRequestCancellation: true,
		DisableLocalhostProtection:   true, // package api checks the Host header
	}
	e.stateful = mcp.NewStreamableHTTPHandler(server, &options)
	options.Stateless = true
	e.stateless = mcp.NewStreamableHTTPHandler(server, &options)
	return e
}

// tokenContext returns a context that ends with the principal's token.
func (g *Gateway) tokenContext(ctx context.Context, p auth.Principal) (context.Context, func()) {
	if g.TokenContext != nil {
		return g.TokenContext(ctx, p)
	}
	return context.WithCancel(ctx)
}

// closeEndpoint closes the sessions and calls of an endpoint whose tokenCtx has ended.
func (g *Gateway) closeEndpoint(k endpointKey, e *endpoint) {
	g.mu.Lock()
	if g.endpoints[k] == e {
		delete(g.endpoints, k)
	}
	g.mu.Unlock()
	var closing sync.WaitGroup
	for s := range e.server.Sessions() {
		closing.Go(func() { _ = s.Close() }) // waits for the session's calls, whose contexts have ended too
	}
	e.calls.End()
	closing.Wait()
}

const (
	// idleTimeout is how long an unused endpoint stays, and sweepInterval how often unused
	// endpoints are looked for.
	idleTimeout, sweepInterval = 10 * time.Minute, time.Minute
)

// Run frees unused endpoints until ctx ends. The next request creates them again.
func (g *Gateway) Run(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.sweep()
			g.sweepRecords(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (g *Gateway) sweep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, e := range g.endpoints {
		if e.runningRequests == 0 && time.Since(e.lastUsed) >= idleTimeout && !e.busy() {
			delete(g.endpoints, k)
			e.release()
		}
	}
}

// busy reports whether a client may still use a session or a suspended call of the endpoint.
func (e *endpoint) busy() bool {
	for range e.server.Sessions() {
		return true
	}
	return e.calls.Suspended()
}

// ensureFilled adds all features to an endpoint, once, or waits until they are added.
func (g *Gateway) ensureFilled(e *endpoint) {
	e.fillOnce.Do(func() {
		for _, t := range g.Hub.Tools(context.Background(), e.principal) {
			if t.Raw == nil {
				e.elicits[t.Name] = t.Elicits
			}
		}
		g.sync(e)
	})
}

// maxSessions is how many MCP sessions of the stateful protocol one principal can have, over
// all tokens. The SDK ends idle sessions only after an hour (SessionTimeout), and some clients
// never end theirs.
const maxSessions = 256

// maxServiceSessions is how many all users of one service can have together.
const maxServiceSessions = 1024

// trimSessions closes sessions of a principal who has too many: the oldest ones of the token
// with the most, whose records are removed too. Their clients get an error for their next request, and begin new
// sessions. A
// call that runs in such a session continues, but the SDK drops its answer.
func (g *Gateway) trimSessions(p auth.Principal) {
	g.trimMu.Lock()
	defer g.trimMu.Unlock()
	g.trim(maxSessions, func(q auth.Principal) bool { return q.ID == p.ID })
	if service, ok := auth.ServiceOf(p.ID); ok {
		g.trim(maxServiceSessions, func(q auth.Principal) bool {
			of, ok := auth.ServiceOf(q.ID)
			return ok && of == service
		})
	}
}

// trim closes the sessions beyond a limit of the principals that counts selects. The caller holds g.trimMu.
func (g *Gateway) trim(limit int, counts func(auth.Principal) bool) {
	sessions, total := map[*endpoint][]*mcp.ServerSession{}, 0
	g.forEachEndpoint("", func(e *endpoint) {
		if counts(e.principal) {
			sessions[e] = e.sessions()
			total += len(sessions[e])
		}
	})
	for ; total > limit; total-- {
		var most *endpoint
		for e, list := range sessions {
			if most == nil || len(list) > len(sessions[most]) {
				most = e
			}
		}
		g.forget(context.Background(), most, sessions[most][0].ID())
		g.closeSession(most, sessions[most][0])
		sessions[most] = sessions[most][1:]
	}
}

// sessions returns the sessions that clients can use, the oldest first.
func (e *endpoint) sessions() []*mcp.ServerSession {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []*mcp.ServerSession
	for s := range e.server.Sessions() {
		if s.ID() != "" && !e.closing[s] {
			all = append(all, s)
		}
	}
	return all
}

// closeSession closes a session in the background, as closing waits for the session's calls.
func (g *Gateway) closeSession(e *endpoint, s *mcp.ServerSession) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closing[s] = true
	g.goroutines.Go(func() {
		_ = s.Close()
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.closing, s)
	})
}

// hasSession reports whether there is a session of the stateful protocol with that id.
func (e *endpoint) hasSession(id string) bool { return e.session(id) != nil }

// session returns the session of the stateful protocol with that id; nil: there is none.
func (e *endpoint) session(id string) *mcp.ServerSession {
	for s := range e.server.Sessions() {
		if s.ID() == id {
			return s
		}
	}
	return nil
}

// client returns what the session with that id says of its client: its name, and the revision of MCP.
func (e *endpoint) client(id string) (name, version string) {
	s := e.session(id)
	if s == nil {
		return "", revision.Stateful
	}
	if i := s.InitializeParams(); i != nil && i.ClientInfo != nil {
		name = i.ClientInfo.Name
	}
	return name, revisionOf(s, false)
}
