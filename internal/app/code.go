package app

import (
	"context"
	"encoding/json"

	"sandlot/internal/auth"
	"sandlot/internal/limit"
	"sandlot/internal/toolcall"
)

// openCalls completes a.calls, before a session has a sandbox; what calls the hub is added when there is one.
func (a *App) openCalls(limits *limit.Limiter) {
	a.calls.Config = toolcall.Config{Servers: a.servers,
		Logged: func(owner string, params json.RawMessage) { a.gateway.ForwardLog(owner, params) },
		Search: func(ctx context.Context, p auth.Principal, q toolcall.Search) (any, error) {
			return a.finder.Search(ctx, p, q.Query, q.Server, q.Limit)
		},
		Offers: a.servers.Offered, Own: a.isOwnTool, Scope: a.sessions.ScopeOf,
		Narrow: a.sessions.Narrow, Limits: limits, Log: a.log}
}
