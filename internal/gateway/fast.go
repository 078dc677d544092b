package gateway

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/fastpath"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
)

// fastPath answers requests without the SDK, for the clients of one endpoint. It is only an
// optimization: with noFastPath, all answers are the same.
type fastPath interface {
	// Serve answers a request, or returns false: then the SDK has to answer it, and end must
	// be called afterwards.
	Serve(w http.ResponseWriter, r *http.Request, m rpc.Message, answers *limit.Answers) (answered bool, end func())
	// Accept remembers a call that the SDK accepted. Capabilities are the client's if the
	// tool may ask the client's user, and else nil.
	Accept(r *mcp.CallToolRequest, capabilities json.RawMessage)
	// BeginList is called before a list is made, and remember with a page of it.
	BeginList() (remember func(req mcp.Request, p *rpc.Page))
	// ExcludeSession makes the SDK answer a session that wants log messages.
	ExcludeSession(session string)
	// Reset forgets everything, as tools or lists changed.
	Reset()
}

// noFastPath makes the SDK answer every request.
type noFastPath struct{}

func (noFastPath) Serve(http.ResponseWriter, *http.Request, rpc.Message, *limit.Answers) (bool, func()) {
	return false, func() {}
}
func (noFastPath) Accept(*mcp.CallToolRequest, json.RawMessage) {}
func (noFastPath) BeginList() func(mcp.Request, *rpc.Page)      { return func(mcp.Request, *rpc.Page) {} }
func (noFastPath) ExcludeSession(string)                        {}
func (noFastPath) Reset()                                       {}

// newFastPath returns the fast path of an endpoint.
func (g *Gateway) newFastPath(e *endpoint) fastPath {
	if g.SDKOnly {
		return noFastPath{}
	}
	return fastpath.New(fastpath.Config{
		Hub: g.Hub, Calls: e.calls, Relay: g.relay, Server: g.implementation, HasSession: e.hasSession,
		Client:     e.client,
		Operations: operations, Log: g.Log,
		Tool: func(name string) (fastpath.Tool, bool) {
			k := featureKey{"tools/call", name}
			if e.own()[k] != nil {
				look := g.look(e, name)
				return fastpath.Tool{Own: true, Elicits: look.Asks, AsksHosts: look.Hosts}, true
			}
			definition := e.external.current()[k]
			return fastpath.Tool{ArgumentHeaders: hasHeaders(definition)}, definition != nil
		},
		Refresh: func(ctx context.Context) bool {
			if g.Hub.WaitReady(ctx, e.principal) {
				return false
			}
			g.sync(e)
			return true
		},
	})
}
