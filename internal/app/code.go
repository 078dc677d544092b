package app

import (
	"slices"
	"strings"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/limit"
	"sandlot/internal/servers/state"
	"sandlot/internal/servers/toolfiles"
	"sandlot/internal/toolcall"
)

// openCalls completes a.calls, before a session has a sandbox.
func (a *App) openCalls(limits *limit.Limiter) {
	a.calls.Config = toolcall.Config{Servers: a.servers, Call: a.hub.CallExternal, Background: a.hub.CallInBackground,
		Finder: codeFinder{a.finder, toolcall.Matching{Offers: a.servers.Offered}}, Tree: a.toolTree,
		Own: a.isOwnTool, Scope: a.sessions.ScopeOf,
		Narrow: a.sessions.Narrow, Limits: limits, Log: a.log}
}

// callable are the states of servers whose tools can be called.
var callable = []state.State{state.Connected, state.Idle, state.NeedsApproval}

// toolTree returns the files of a principal's tool tree.
func (a *App) toolTree(p auth.Principal) ([]agent.ToolFile, error) {
	var all []toolfiles.Server
	for _, s := range a.servers.Offered(p) {
		made := toolfiles.Server{Name: s.Name, Instructions: s.Instructions}
		if !slices.Contains(callable, state.State(s.State)) {
			made.State = s.State
		}
		for _, d := range s.Tools {
			text := d.Text()
			marked := "[external:" + s.Name + "] " // which lists need, since they are of all servers
			made.Tools = append(made.Tools, toolfiles.Tool{Name: d.Exposed, Remote: d.Remote, Title: text.Title,
				Description: strings.TrimPrefix(text.Description, marked), Input: text.InputSchema,
				Output: text.OutputSchema, Held: d.HeldBecause})
		}
		all = append(all, made)
	}
	var files []agent.ToolFile
	for _, f := range toolfiles.Tree(all) {
		files = append(files, agent.ToolFile{Path: f.Path, Data: f.Content, Link: f.Link})
	}
	return files, nil
}
