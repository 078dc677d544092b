package app

import (
	"context"
	"strings"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/limit"
	"sandlot/internal/servers/state"
	"sandlot/internal/servers/toolfiles"
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
		Finder: codeFinder{a.finder, toolcall.Matching{Offers: a.servers.Offered}}, Tree: a.toolTree,
		Own: a.isOwnTool, Scope: a.sessions.ScopeOf,
		Narrow: a.sessions.Narrow, Limits: limits, Log: a.log}
}

// toolTree returns the files of a principal's tool tree.
func (a *App) toolTree(p auth.Principal) ([]agent.ToolFile, error) {
	var all []toolfiles.Server
	for _, s := range a.servers.Offered(p) {
		made := toolfiles.Server{Name: s.Name, Instructions: s.Instructions, State: notCallable[state.State(s.State)]}
		for _, d := range s.Tools {
			text := d.Text()
			// Lists need that mark, since they are of all servers.
			text.Description = strings.TrimSpace(strings.TrimPrefix(text.Description, "[external:"+s.Name+"]"))
			made.Tools = append(made.Tools, toolfiles.Tool{Name: d.Exposed, Remote: d.Remote, Title: text.Title,
				Description: text.Description, Input: text.InputSchema, Output: text.OutputSchema, Held: d.HeldBecause})
		}
		all = append(all, made)
	}
	var files []agent.ToolFile
	for _, f := range toolfiles.Tree(all) {
		files = append(files, agent.ToolFile{Path: f.Path, Data: f.Content, Link: f.Link})
	}
	return files, nil
}

// notCallable says of the states in which a server cannot be called what helps.
var notCallable = map[state.State]string{
	state.Failed:    "it has failed (the tool list_external_mcp says why)",
	state.NeedsEnv:  "it lacks values (the tool list_external_mcp says which)",
	state.NeedsAuth: "its user has to log in (the tool list_external_mcp says how)",
}
