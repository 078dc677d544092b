package app

import (
	"context"

	"sandlot/internal/auth"
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
		Search: func(ctx context.Context, p auth.Principal, q toolcall.Search) (any, error) {
			return a.finder.Search(ctx, p, q.Query, q.Server, q.Limit)
		},
		Offers: a.servers.Offered, Own: a.isOwnTool, Scope: a.sessions.ScopeOf,
		Narrow: a.sessions.Narrow, Limits: limits, Log: a.log}
}
