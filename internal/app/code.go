package app

import (
	"context"
	"fmt"
	"strings"

	"sandlot/internal/agent"
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
		Finder: toolcall.Matching{Offers: a.servers.Offered}, Tree: a.toolTree,
		Own: a.isOwnTool, Scope: a.sessions.ScopeOf,
		Narrow: a.sessions.Narrow, Limits: limits, Log: a.log}
}

// toolTree returns the files of a principal's tool tree.
func (a *App) toolTree(p auth.Principal) ([]agent.ToolFile, error) {
	text := &strings.Builder{}
	text.WriteString("# Tools of third-party MCP servers\n")
	for _, s := range a.servers.Offered(p) {
		fmt.Fprintf(text, "\n## %q (%s)\n\n", s.Name, s.State)
		for _, d := range s.Tools {
			fmt.Fprintf(text, "- %q\n", d.Remote)
		}
	}
	return []agent.ToolFile{{Path: "README.md", Data: []byte(text.String())}}, nil
}
