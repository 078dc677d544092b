//lint:file-ignore SA1019 clients of the stateful protocol have sampling, roots and logging

package gateway

import (
	"context"
	"encoding/json"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/relay"
	"sandlot/internal/gateway/rpc"
)

// proxyMiddleware answers requests for third-party servers, and calls of Sandlot's tools that
// elicit, instead of the SDK's own handlers. Of third-party tools, prompts and resources, the
// SDK knows only what it needs to notify clients of changes and to check headers.
func (g *Gateway) proxy(e *endpoint) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			unread := e.unread.of(req.GetExtra())
			if q := g.proxied(ctx, e, method, req); q != nil {
				q.Holds = unread
				return g.relay.Result(ctx, e.calls, q)
			}
			switch r := req.(type) {
			case *mcp.ListToolsRequest, *mcp.ListPromptsRequest, *mcp.ListResourcesRequest,
				*mcp.ListResourceTemplatesRequest:
				g.ready(ctx, e)
				g.sync(e)
			case *mcp.CallToolRequest:
				if _, own := e.own[featureKey{method, r.Params.Name}]; !own && g.Hub.HasExternal() {
					if missing := g.Hub.Missing(ctx, e.principal, r.Params.Name); missing != nil {
						return nil, rpc.Error(missing)
					}
				}
				e.fast.Took(r, nil)
			}
			return g.viaSDK(ctx, e, next, method, req)
		}
	}
}

// answerBySDK has the SDK answer a request, and completes the definitions of a list.
func (g *Gateway) viaSDK(ctx context.Context, e *endpoint, next mcp.MethodHandler, method string,
	req mcp.Request) (mcp.Result, error) {
	remember := e.fast.List()
	res, err := g.answered(ctx, e, method, func(ctx context.Context) (mcp.Result, error) {
		return next(ctx, method, req)
	})
	if err != nil {
		return res, err
	}
	res, err = e.complete(res, rpc.IsStateless(req))
	if p, ok := res.(*rpc.Page); ok && err == nil {
		if err := e.unread.of(req.GetExtra()).Held().Reserve(ctx, p.Size()); err != nil {
			return nil, rpc.Error(err)
		}
		remember(req, p)
	}
	return res, err
}

// relayRequest returns the request for the relay, if a third-party server or a tool that
// elicits has to answer it; nil: the SDK answers it.
func (g *Gateway) proxied(ctx context.Context, e *endpoint, method string, req mcp.Request) *relay.Request {
	switch r := req.(type) {
	case *mcp.CallToolRequest:
		external := g.external(ctx, e, method, r.Params.Name)
		if !external && !e.elicits[r.Params.Name] {
			return nil
		}
		q := proxyRequest(method, r, r.Params.Name, r.Params.InputResponses, r.Params.RequestState)
		q.Own, q.Arguments = !external, r.Params.Arguments
		e.fast.Took(r, q.Capabilities)
		return q
	case *mcp.GetPromptRequest:
		if g.external(ctx, e, method, r.Params.Name) {
			return proxyRequest(method, r, r.Params.Name, r.Params.InputResponses, r.Params.RequestState)
		}
	case *mcp.ReadResourceRequest:
		if g.Hub.HasExternal() && !isOwn(r.Params.URI) {
			return proxyRequest(method, r, r.Params.URI, r.Params.InputResponses, r.Params.RequestState)
		}
	case *mcp.CompleteRequest:
		if g.Hub.HasExternal() && r.Params.Ref != nil && !isOwn(r.Params.Ref.URI) {
			return proxyRequest(method, r, r.Params.Ref.Name+r.Params.Ref.URI, nil, "")
		}
	}
	return nil
}

// listTimeout is how long a client's list waits for servers that have not listed their
// features yet.
const listTimeout = 10 * time.Second

// waitReady waits for servers that have not listed their features yet, and adds them.
func (g *Gateway) ready(ctx context.Context, e *endpoint) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if g.Hub.Ready(ctx, e.principal) {
		g.sync(e)
	}
}

// newRelayRequest returns the relay's request for one of the SDK.
func proxyRequest[P mcp.Params](method string, r *mcp.ServerRequest[P], key string, responses mcp.InputResponseMap,
	state string) *relay.Request {
	q := &relay.Request{Method: method, Key: key, Stateless: rpc.IsStateless(r), Meta: r.Params.GetMeta(),
		Capabilities: relay.Capabilities(r.ClientCapabilities()), Params: rpc.Object{}}
	if b, err := json.Marshal(r.Params); err == nil {
		_ = json.Unmarshal(b, &q.Params)
	}
	for _, own := range []string{"_meta", "inputResponses", "requestState"} {
		delete(q.Params, own)
	}
	w := sessionWriter{session: r.Session}
	if t, ok := any(r.Params).(interface{ GetProgressToken() any }); ok {
		w.token = t.GetProgressToken()
	}
	q.Writer = w
	if responses != nil {
		q.Inputs.Responses, _ = json.Marshal(responses)
	}
	q.Inputs.State = state
	return q
}
