package gateway

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/fastpath"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
)

// fastPath answers requests without the SDK, for the clients of one endpoint. It can be
// left out: noFastPath changes nothing but how long an answer takes.
type fastPath interface {
	// Serve answers a request, or leaves it to the SDK, which has answered when end is
	// called.
	Serve(w http.ResponseWriter, r *http.Request, m rpc.Message, a *limit.Holds) (answered bool, end func())
	// Took remembers a call that the SDK accepted. Capabilities are the client's, where
	// the tool may ask its user.
	Took(r *mcp.CallToolRequest, capabilities json.RawMessage)
	// List is called before a list is made, and remember with a page of it.
	List() (remember func(req mcp.Request, p *rpc.Page))
	// LevelSet says that a session wants log messages.
	LevelSet(session string)
	// Forget says that tools or lists changed.
	Forget()
}

// noFastPath leaves every request to the SDK.
type noFastPath struct{}

func (noFastPath) Serve(http.ResponseWriter, *http.Request, rpc.Message, *limit.Holds) (bool, func()) {
	return false, func() {}
}
func (noFastPath) Took(*mcp.CallToolRequest, json.RawMessage) {}
func (noFastPath) List() func(mcp.Request, *rpc.Page)         { return func(mcp.Request, *rpc.Page) {} }
func (noFastPath) LevelSet(string)                            {}
func (noFastPath) Forget()                                    {}

// fast returns the fast path of an endpoint.
func (g *Gateway) fast(e *endpoint) fastPath {
	if g.SDKAlone {
		return noFastPath{}
	}
	return fastpath.New(fastpath.Config{
		Calls: e.calls, Relay: g.relay, Server: g.implementation, Lives: e.lives, Call: g.ownTool, Log: g.Log,
		Tool: func(name string) (fastpath.Tool, bool) {
			k := featureKey{"tools/call", name}
			if e.own[k] != nil {
				return fastpath.Tool{Own: true, Elicits: e.elicits[name]}, true
			}
			definition := e.external.all()[k]
			return fastpath.Tool{Headers: hasHeaders(definition)}, definition != nil
		},
		Fresh: func(ctx context.Context) bool {
			if g.Hub.Ready(ctx, e.principal) {
				return false
			}
			g.sync(e)
			return true
		},
		Do: func(ctx context.Context, method string, answer fastpath.Answer) (json.RawMessage, error) {
			return hub.Do(ctx, g.Hub, hub.Request{Principal: e.principal, Operation: operations[method]}, answer)
		},
	})
}
