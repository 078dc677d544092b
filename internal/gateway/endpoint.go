package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/auth"
	"sandlot/internal/gateway/relay"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
)

// endpoint is what the clients of one token talk to. Each has handlers of its own,
// so that no MCP session can be used by anyone else, and what is called by it has
// the rights of that token, and ends with it.
type endpoint struct {
	principal           auth.Principal  // with the token
	life                context.Context // ends with the token
	release             func()          // of life
	server              *mcp.Server
	stateful, stateless http.Handler
	calls               *relay.Calls
	unread              unread
	fast                fastPath

	fill sync.Once                      // puts in what is offered, which takes its time
	own  map[featureKey]json.RawMessage // definitions of ours; nil: an alias, which is not listed
	asks map[string]bool                // our tools that may ask their client's user

	syncing sync.Mutex                     // held while third changes
	offered hub.Offered                    // what third was made of
	refused map[featureKey]json.RawMessage // what the SDK did not take

	mu      sync.Mutex
	leaving map[*mcp.ServerSession]bool            // those that trim closes
	third   map[featureKey]json.RawMessage         // definitions of third-party servers; replaced whole
	saying  map[*mcp.ServerSession]*relay.Notifier // what belongs to no call; nil: to all sessions

	users int       // requests that are on their way; the gateway's mu guards it
	used  time.Time // when the last one was answered, likewise
}

// endpoint returns the one of the principal's token, and makes it when there is
// none. It stays until leave is called. Only those who want the same one wait while
// it is filled.
func (g *Gateway) endpoint(p auth.Principal) *endpoint {
	g.mu.Lock()
	e := g.endpoints[p]
	if e == nil {
		life, release := g.living(context.Background(), p)
		e = g.server(life, p)
		e.release = release
		context.AfterFunc(life, func() { g.retire(p, e) })
		get := func(*http.Request) *mcp.Server { return e.server }
		options := mcp.StreamableHTTPOptions{Logger: quiet(g.Log), MaxRequestBodyBytes: g.MaxBody, SessionTimeout: time.Hour,
			PropagateRequestCancellation: true, DisableLocalhostProtection: true} // the host is checked before the gateway
		e.stateful = mcp.NewStreamableHTTPHandler(get, &options)
		options.Stateless = true
		e.stateless = mcp.NewStreamableHTTPHandler(get, &options)
		g.endpoints[p] = e
	}
	e.users++
	g.mu.Unlock()
	g.filled(e)
	return e
}

// leave says that a request of the endpoint's was answered.
func (g *Gateway) leave(e *endpoint) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e.users--
	e.used = time.Now()
}

func (g *Gateway) living(ctx context.Context, p auth.Principal) (context.Context, func()) {
	if g.Hold != nil {
		return g.Hold(ctx, p)
	}
	return context.WithCancel(ctx)
}

// retire ends what is left on an endpoint whose life is over.
func (g *Gateway) retire(p auth.Principal, e *endpoint) {
	g.mu.Lock()
	if g.endpoints[p] == e {
		delete(g.endpoints, p)
	}
	g.mu.Unlock()
	var closing sync.WaitGroup
	for s := range e.server.Sessions() {
		closing.Go(func() { _ = s.Close() }) // after its calls, which have ended too
	}
	e.calls.End()
	closing.Wait()
}

const (
	// restful is how long an endpoint is kept that nobody uses, and resting how
	// often they are looked at.
	restful, resting = 10 * time.Minute, time.Minute
)

// Run frees endpoints that nobody uses any more, until ctx ends. The next request
// makes them again.
func (g *Gateway) Run(ctx context.Context) {
	tick := time.NewTicker(resting)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.sweep()
		case <-ctx.Done():
			return
		}
	}
}

func (g *Gateway) sweep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, e := range g.endpoints {
		if e.users == 0 && time.Since(e.used) >= restful && !e.busy() {
			delete(g.endpoints, p)
			e.release()
		}
	}
}

// busy says whether the endpoint has what a client may come back to.
func (e *endpoint) busy() bool {
	for range e.server.Sessions() {
		return true
	}
	return e.calls.Suspended()
}

// filled waits until all that is offered is in.
func (g *Gateway) filled(e *endpoint) {
	e.fill.Do(func() {
		for _, t := range g.Hub.Tools(context.Background(), e.principal) {
			if t.Raw != nil {
				continue
			}
			k := featureKey{"tools/call", t.Name}
			e.asks[t.Name] = t.Elicits
			if t.Alias != "" {
				e.own[k] = nil
				continue
			}
			d := rpc.Describe(t)
			e.own[k], _ = json.Marshal(d)
			e.server.AddTool(d, g.handler(e, t.Name))
		}
		for _, r := range g.Hub.ResourceTemplates() {
			d := &mcp.ResourceTemplate{URITemplate: r.URI, Name: r.Name, Description: r.Description}
			e.own[featureKey{"resources/templates", r.URI}], _ = json.Marshal(d)
			e.server.AddResourceTemplate(d, g.reader(e))
		}
		g.features(e)
	})
}

// maxSessions bounds the MCP sessions of the stateful protocol of one principal, by whatever
// tokens. Clients that do not end theirs would fill an hour with them.
const maxSessions = 256

// trim closes the oldest sessions when a principal has too many, of the token with
// the most. Their clients are told that they are gone, and begin new ones. A call
// that runs there comes to its end, but the SDK drops its answer.
func (g *Gateway) trim(p auth.Principal) {
	g.trimming.Lock()
	defer g.trimming.Unlock()
	live, all := map[*endpoint][]*mcp.ServerSession{}, 0
	g.each(p.ID, func(e *endpoint) {
		live[e] = e.live()
		all += len(live[e])
	})
	for ; all > maxSessions; all-- {
		var most *endpoint
		for e, its := range live {
			if most == nil || len(its) > len(live[most]) {
				most = e
			}
		}
		most.close(live[most][0])
		live[most] = live[most][1:]
	}
}

// live returns the sessions that clients can come back to, the oldest first, as the
// server keeps them.
func (e *endpoint) live() []*mcp.ServerSession {
	e.mu.Lock()
	defer e.mu.Unlock()
	var live []*mcp.ServerSession
	for s := range e.server.Sessions() {
		if s.ID() != "" && !e.leaving[s] {
			live = append(live, s)
		}
	}
	return live
}

// close closes a session, which waits for its calls.
func (e *endpoint) close(s *mcp.ServerSession) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leaving[s] = true
	go func() {
		_ = s.Close()
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.leaving, s)
	}()
}

// lives says whether there is a session of the stateful protocol.
func (e *endpoint) lives(id string) bool {
	for s := range e.server.Sessions() {
		if s.ID() == id {
			return true
		}
	}
	return false
}
