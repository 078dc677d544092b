package gateway

import (
	"context"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
)

// guarded stands before all that answers a client.
func (g *Gateway) guarded(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, broken, err := g.attempt(ctx, next, method, req)
		if broken != nil {
			return nil, rpc.Error(broken)
		}
		return res, err
	}
}

// bounded ends what answers a client with the endpoint, and counts it for its
// principal: a call may come on a stream, in a batch, or outlive its request.
func (g *Gateway) bounded(e *endpoint) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			ctx, release := e.calls.Within(ctx)
			defer release()
			if !strings.HasPrefix(method, "notifications/") {
				done, err := g.Limits.Take(e.principal.ID, limit.Calls, 1)
				if err != nil {
					return nil, rpc.Error(err)
				}
				defer done()
			}
			return next(ctx, method, req)
		}
	}
}

func (g *Gateway) attempt(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request) (res mcp.Result, broken, err error) {
	defer rpc.Recover(ctx, g.Log, method, &broken)
	res, err = next(ctx, method, req)
	return res, nil, err
}
