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

// fastPath answers what need not come to the SDK, for the clients of one endpoint. It
// can be left out: noFastPath changes nothing but how long an answer takes.
type fastPath interface {
	// Serve answers a request, or leaves it to the SDK. What does answer is over when
	// end is called.
	Serve(w http.ResponseWriter, r *http.Request, m rpc.Message, a *limit.Holds) (answered bool, end func())
	// Took hears of a call that the SDK took, whose client is able to do that, where
	// the tool may ask.
	Took(r *mcp.CallToolRequest, can json.RawMessage)
	// List hears that a list is made, and keep what was made.
	List() (keep func(req mcp.Request, p *rpc.Page))
	// Levelled hears that a session wants to be told of logs.
	Levelled(session string)
	// Forget hears that what there is has changed.
	Forget()
}

// noFastPath leaves all to the SDK.
type noFastPath struct{}

func (noFastPath) Serve(http.ResponseWriter, *http.Request, rpc.Message, *limit.Holds) (bool, func()) {
	return false, func() {}
}
func (noFastPath) Took(*mcp.CallToolRequest, json.RawMessage) {}
func (noFastPath) List() func(mcp.Request, *rpc.Page)         { return func(mcp.Request, *rpc.Page) {} }
func (noFastPath) Levelled(string)                            {}
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
				return fastpath.Tool{Own: true, Elicits: e.asks[name]}, true
			}
			def := e.passedOn()[k]
			return fastpath.Tool{Headers: headed(def)}, def != nil
		},
		Fresh: func(ctx context.Context) bool {
			if g.Hub.Ready(ctx, e.principal) {
				return false
			}
			g.features(e)
			return true
		},
		Do: func(ctx context.Context, method string, answer func(context.Context) (json.RawMessage, error)) (json.RawMessage, error) {
			return hub.Do(ctx, g.Hub, hub.Request{Principal: e.principal, Operation: operations[method]}, answer)
		},
	})
}
