package gateway

import (
	"context"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
)

// recovering answers a panic of what is behind it as a fault.
func (g *Gateway) recovering(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, panicked, err := g.attempt(ctx, next, method, req)
		if panicked != nil {
			return nil, rpc.Error(panicked)
		}
		return res, err
	}
}

// bounded ends calls with the endpoint, and counts them for the principal: a call may
// come on a stream, in a batch, or outlive its request.
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

func (g *Gateway) attempt(ctx context.Context, next mcp.MethodHandler, method string,
	req mcp.Request) (res mcp.Result, panicked, err error) {
	defer rpc.Recover(ctx, g.Log, method, &panicked)
	res, err = next(ctx, method, req)
	return res, nil, err
}
