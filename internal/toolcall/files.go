package toolcall

import (
	"strings"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/servers/state"
	"sandlot/internal/servers/toolfiles"
)

// treeOf returns the files of a principal's tool tree.
func (cs *Calls) treeOf(p auth.Principal) (files []agent.ToolFile, err error) {
	if cs.Tree != nil {
		return cs.Tree(p)
	}
	var all []toolfiles.Server
	for _, s := range cs.Offers(p) {
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
