package app

import (
	"context"
	"encoding/json"

	"sandlot/internal/auth"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/tool"
	"sandlot/internal/toolcall"
)

// openCalls completes a.calls, before a session has a sandbox.
func (a *App) openCalls(limits *limit.Limiter) {
	a.calls.Config = toolcall.Config{Servers: a.servers,
		Call: func(ctx context.Context, c tool.Call) (*tool.Result, error) { return a.hub.CallExternal(ctx, c) },
		Background: func(ctx context.Context, session string, c tool.Call) (*tool.Result, error) {
			return a.hub.CallInBackground(ctx, session, c)
		},
		May: func(ctx context.Context, session string, p auth.Principal, server, name string) error {
			return a.hub.MayCall(ctx, session, p, server, name)
		},
		Elicit: func(ctx context.Context, e toolcall.Elicitation) (json.RawMessage, error) {
			return a.hub.Elicit(ctx, hub.Elicitation(e))
		},
		Logged: func(owner string, params json.RawMessage) { a.gateway.ForwardLog(owner, params) },
		Search: func(ctx context.Context, p auth.Principal, q toolcall.Search) (any, error) {
			return a.finder.Search(ctx, p, q.Query, q.Server, q.Limit)
		},
		Offers: a.servers.Offered, Own: a.isOwnTool, Scope: a.sessions.ScopeOf,
		Narrow: a.sessions.Narrow, Limits: limits, Log: a.log}
}
