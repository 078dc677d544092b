//lint:file-ignore SA1019 clients of the stateful protocol have sampling, roots and logging

package gateway

import (
	"context"
	"encoding/json"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/relay"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
)

// passing answers for third-party servers, in front of the SDK's own handlers,
// which know of their tools, prompts and resources what they need to announce
// changes and to check headers.
func (g *Gateway) passing(e *endpoint) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			unread := e.unread.of(req.GetExtra())
			switch r := req.(type) {
			case *mcp.ListToolsRequest, *mcp.ListPromptsRequest, *mcp.ListResourcesRequest, *mcp.ListResourceTemplatesRequest:
				g.fresh(ctx, e)
			case *mcp.CallToolRequest:
				foreign := g.foreign(ctx, e, method, r.Params.Name)
				if foreign || e.asks[r.Params.Name] {
					q := passed(method, r, r.Params.Name, r.Params.InputResponses, r.Params.RequestState)
					q.Holds = unread
					e.fast.Took(r, q.Capabilities)
					if foreign {
						return g.relay.Result(ctx, e.calls, q, g.relay.Tool(e.calls, q, r.Params.Arguments))
					}
					return g.relay.Result(ctx, e.calls, q, g.relay.ElicitingTool(e.calls, q, r.Params.Arguments))
				}
				if _, own := e.own[featureKey{method, r.Params.Name}]; !own && g.Hub.HasExternal() {
					if why := g.Hub.Missing(ctx, e.principal, r.Params.Name); why != nil {
						return nil, rpc.Error(why)
					}
				}
				e.fast.Took(r, nil)
			case *mcp.GetPromptRequest:
				if g.foreign(ctx, e, method, r.Params.Name) {
					return g.other(ctx, e, unread, passed(method, r, r.Params.Name, r.Params.InputResponses, r.Params.RequestState))
				}
			case *mcp.ReadResourceRequest:
				if g.Hub.HasExternal() && !ours(r.Params.URI) {
					return g.other(ctx, e, unread, passed(method, r, r.Params.URI, r.Params.InputResponses, r.Params.RequestState))
				}
			case *mcp.CompleteRequest:
				if g.Hub.HasExternal() && r.Params.Ref != nil && !ours(r.Params.Ref.URI) {
					return g.other(ctx, e, unread, passed(method, r, r.Params.Ref.Name+r.Params.Ref.URI, nil, ""))
				}
			}
			keep := e.fast.List()
			res, err := g.answered(ctx, e, method, func(ctx context.Context) (mcp.Result, error) { return next(ctx, method, req) })
			if err != nil {
				return res, err
			}
			if res, err = e.whole(res, rpc.IsStateless(req)); err == nil {
				if p, ok := res.(*rpc.Page); ok {
					if err := unread.Held().Reserve(ctx, p.Size()); err != nil {
						return nil, rpc.Error(err)
					}
					keep(req, p)
				}
			}
			return res, err
		}
	}
}

// fresh brings up to date what there is: what was connected a moment ago is
// announced a moment later, and is there now.
func (g *Gateway) fresh(ctx context.Context, e *endpoint) {
	g.ready(ctx, e)
	g.features(e)
}

// patience is how long a list waits for servers of which nothing is known yet.
const patience = 10 * time.Second

// ready waits for servers that start for the first time.
func (g *Gateway) ready(ctx context.Context, e *endpoint) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if g.Hub.Ready(ctx, e.principal) {
		g.features(e)
	}
}

func passed[P mcp.Params](method string, r *mcp.ServerRequest[P], key string, responses mcp.InputResponseMap, state string) *relay.Request {
	q := &relay.Request{Method: method, Key: key, Stateless: rpc.IsStateless(r), Meta: r.Params.GetMeta(), Params: rpc.Object{}}
	q.Capabilities = relay.Abilities(r.ClientCapabilities())
	if b, err := json.Marshal(r.Params); err == nil {
		_ = json.Unmarshal(b, &q.Params)
	}
	for _, own := range []string{"_meta", "inputResponses", "requestState"} {
		delete(q.Params, own)
	}
	l := sessionWriter{session: r.Session}
	if t, ok := any(r.Params).(interface{ GetProgressToken() any }); ok {
		l.token = t.GetProgressToken()
	}
	q.Writer = l
	if responses != nil {
		q.Inputs.Responses, _ = json.Marshal(responses)
	}
	q.Inputs.State = state
	return q
}

// other passes on what is no tool call.
func (g *Gateway) other(ctx context.Context, e *endpoint, unread *limit.Holds, q *relay.Request) (mcp.Result, error) {
	q.Holds = unread
	return g.relay.Result(ctx, e.calls, q, g.relay.Other(e.calls, q))
}
