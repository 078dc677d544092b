package app

import (
	"encoding/json"
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
		Finder: toolcall.Matching{Offers: a.servers.Offered}, Tree: a.toolTree,
		Own: a.isOwnTool, Scope: a.sessions.ScopeOf,
		Narrow: a.sessions.Narrow, Limits: limits, Log: a.log}
}

// toolTree returns the files of a principal's tool tree.
func (a *App) toolTree(p auth.Principal) ([]agent.ToolFile, error) {
	var all []toolfiles.Server
	for _, s := range a.servers.Offered(p) {
		made := toolfiles.Server{Name: s.Name, Instructions: s.Instructions, State: notCallable[state.State(s.State)]}
		for _, d := range s.Tools {
			var raw struct {
				Title, Description        string
				InputSchema, OutputSchema json.RawMessage
			}
			_ = json.Unmarshal(d.Raw, &raw) // it is sanitized
			text := strings.TrimSpace(strings.TrimPrefix(raw.Description, "[external:"+s.Name+"]"))
			made.Tools = append(made.Tools, toolfiles.Tool{Name: d.Exposed, Remote: d.Remote, Title: raw.Title,
				Description: text, Input: raw.InputSchema, Output: raw.OutputSchema, Held: d.HeldBecause})
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
