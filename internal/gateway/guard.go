package gateway

import (
	"context"
	"runtime/debug"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/fault"
	"sandlot/internal/limit"
)

// recovered makes a fault of a panic, for the SDK's goroutines and ours, where a
// panic would end the whole server. It is to be deferred itself.
func (g *Gateway) recovered(ctx context.Context, what string, err *error) {
	r := recover()
	if r == nil {
		return
	}
	g.Log.ErrorContext(ctx, "panic", "in", what, "panic", r, "stack", string(debug.Stack()))
	*err = fault.New(fault.Internal, "something went wrong inside Sandlot")
}

// guarded stands before all that answers a client.
func (g *Gateway) guarded(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, broken, err := g.attempt(ctx, next, method, req)
		if broken != nil {
			return nil, wireError(fault.From(broken))
		}
		return res, err
	}
}

// bounded ends what answers a client with the endpoint, and counts it for its
// principal: a call may come on a stream, in a batch, or outlive its request.
func (g *Gateway) bounded(e *endpoint) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			ctx, release := e.within(ctx)
			defer release()
			if !strings.HasPrefix(method, "notifications/") {
				done, err := g.Limits.Take(e.principal.ID, limit.Calls, 1)
				if err != nil {
					return nil, wireError(fault.From(err))
				}
				defer done()
			}
			return next(ctx, method, req)
		}
	}
}

func (g *Gateway) attempt(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request) (res mcp.Result, broken, err error) {
	defer g.recovered(ctx, method, &broken)
	res, err = next(ctx, method, req)
	return res, nil, err
}
