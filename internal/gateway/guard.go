package gateway

import (
	"context"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
)

// recoverMiddleware turns a panic in a later handler into a fault.
func (g *Gateway) recoverMiddleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, panicked, err := g.callRecovering(ctx, next, method, req)
		if panicked != nil {
			return nil, rpc.Error(panicked)
		}
		return res, err
	}
}

// limitMiddleware makes calls end with the endpoint's token, and counts them for the principal.
// HTTP requests are counted elsewhere, but a call may come on a stream or in a batch, or
// outlive its request.
func (g *Gateway) limitMiddleware(e *endpoint) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			ctx, release := e.calls.Context(ctx)
			defer release()
			if !strings.HasPrefix(method, "notifications/") {
				done, err := g.Limits.Acquire(e.principal.ID, limit.Calls, 1)
				if c, ok := req.(*mcp.CallToolRequest); ok && err != nil && e.knows(c.Params.Name) {
					_, own := e.own()[featureKey{method, c.Params.Name}]
					return failedCall(err, c.Params.Name, own, e.resultsOf(c.Extra, c.ClientInfo()))
				}
				if err != nil {
					return nil, rpc.Error(err)
				}
				defer done()
			}
			return next(ctx, method, req)
		}
	}
}

// callRecovering calls next, and returns the fault for a panic in it.
func (g *Gateway) callRecovering(ctx context.Context, next mcp.MethodHandler, method string,
	req mcp.Request) (res mcp.Result, panicked, err error) {
	defer fault.Recover(ctx, g.Log, method, &panicked)
	res, err = next(ctx, method, req)
	return res, nil, err
}
