package gateway

import (
	"context"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/toolview"
)

// view returns what the endpoint's clients are shown.
func (e *endpoint) view() toolview.Shown {
	if s := e.shown.Load(); s != nil {
		return *s
	}
	return toolview.Shown{Mode: toolview.All}
}

// lists reports whether a third-party server's feature is in lists. Tools that are not can be used all the same. Prompts
// and resources are in all lists: models do not pay for them, and clients offer their users no others.
func (e *endpoint) lists(k featureKey) bool {
	return k.method != "tools/call" || e.view().ListsTool(k.key)
}

// used notes that a client has used a third-party tool, and updates what its principal's clients are shown.
func (g *Gateway) used(p auth.Principal, name string) {
	if !g.Views.Used(p, name) {
		return
	}
	auto := false
	g.forEachEndpoint(p.ID, func(e *endpoint) { auto = auto || e.view().Auto })
	if auto {
		g.goroutines.Go(func() { g.SyncFeatures(p.ID) })
	}
}

// SyncViews updates what all clients are shown, after the settings have changed.
func (g *Gateway) SyncViews() { g.SyncFeatures("") }

// instructionsMiddleware adds the instructions to the results that have them: they depend on the view of the moment.
func (g *Gateway) instructionsMiddleware(e *endpoint) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			res, err := next(ctx, method, req)
			if err != nil {
				return res, err
			}
			switch r := res.(type) {
			case *mcp.InitializeResult:
				r.Instructions = g.instructionsFor(e)
			case *mcp.DiscoverResult:
				r.Instructions = g.instructionsFor(e)
			}
			return res, nil
		}
	}
}

// instructionsFor returns the instructions for the endpoint's clients.
func (g *Gateway) instructionsFor(e *endpoint) string {
	func() {
		var err error
		defer fault.Recover(context.Background(), g.Log, "features", &err) // it logs the panic
		g.sync(e)
	}()
	text := instructions
	if g.Ready != nil {
		text = strings.TrimSpace(text + " " + g.Ready())
	}
	return strings.TrimSpace(text + " " + e.view().Instructions())
}
