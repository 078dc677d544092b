package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/auth"
)

// endpoint is what one principal's clients talk to. Each has handlers of its
// own, so that no MCP session can be used by anyone else.
type endpoint struct {
	principal           auth.Principal
	server              *mcp.Server
	stateful, stateless http.Handler
	shelf               shelf
	short               shortcut

	fill sync.Once                      // puts in what is offered, which takes its time
	own  map[featureKey]json.RawMessage // definitions of ours; nil: an alias, which is not listed
	asks map[string]bool                // our tools that may ask their client's user

	syncing sync.Mutex                     // held while third changes
	offered offered                        // what third was made of
	refused map[featureKey]json.RawMessage // what the SDK did not take

	mu      sync.Mutex
	leaving map[*mcp.ServerSession]bool    // those that trim closes
	third   map[featureKey]json.RawMessage // definitions of third-party servers; replaced whole
	saying  map[*mcp.ServerSession]*outbox // what belongs to no call; nil: to all sessions
}

// endpoint returns the principal's, and makes it when there is none. Only those
// who want the same one wait while it is filled.
func (g *Gateway) endpoint(p auth.Principal) *endpoint {
	key := p.ID
	if p.Service {
		key += " service"
	}
	g.mu.Lock()
	e := g.endpoints[key]
	if e == nil {
		e = g.server(p)
		get := func(*http.Request) *mcp.Server { return e.server }
		options := mcp.StreamableHTTPOptions{Logger: quiet(g.Log), MaxRequestBodyBytes: g.MaxBody, SessionTimeout: time.Hour,
			PropagateRequestCancellation: true, DisableLocalhostProtection: true} // the host is checked before the gateway
		e.stateful = mcp.NewStreamableHTTPHandler(get, &options)
		options.Stateless = true
		e.stateless = mcp.NewStreamableHTTPHandler(get, &options)
		g.endpoints[key] = e
	}
	g.mu.Unlock()
	g.filled(e)
	return e
}

// filled waits until all that is offered is in.
func (g *Gateway) filled(e *endpoint) {
	e.fill.Do(func() {
		for _, t := range g.Hub.Tools(context.Background(), e.principal) {
			if t.Raw != nil {
				continue
			}
			k := featureKey{"tools/call", t.Name}
			e.asks[t.Name] = t.Asks
			if t.Alias != "" {
				e.own[k] = nil
				continue
			}
			d := describe(t)
			e.own[k], _ = json.Marshal(d)
			e.server.AddTool(d, g.handler(e.principal, t.Name))
		}
		for _, r := range g.Hub.ResourceTemplates() {
			d := &mcp.ResourceTemplate{URITemplate: r.URI, Name: r.Name, Description: r.Description}
			e.own[featureKey{"resources/templates", r.URI}], _ = json.Marshal(d)
			e.server.AddResourceTemplate(d, g.reader(e.principal))
		}
		g.features(e)
	})
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
