package gateway

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/rpc"
)

// whole puts the definitions into a list as they came from their servers.
func (e *endpoint) whole(res mcp.Result, stateless bool) (mcp.Result, error) {
	p := &rpc.Page{}
	third := e.passedOn()
	add := func(method, key string) {
		k := featureKey{method, key}
		raw := e.own[k]
		if raw == nil {
			raw = third[k]
		}
		if raw != nil { // else it went while the list was made
			p.Items = append(p.Items, raw)
		}
	}
	switch l := res.(type) {
	case *mcp.ListToolsResult:
		p.Field = "tools"
		for _, t := range l.Tools {
			add("tools/call", t.Name)
		}
		l.Tools = nil
	case *mcp.ListPromptsResult:
		p.Field = "prompts"
		for _, t := range l.Prompts {
			add("prompts/get", t.Name)
		}
		l.Prompts = nil
	case *mcp.ListResourcesResult:
		p.Field = "resources"
		for _, t := range l.Resources {
			add("resources/read", t.URI)
		}
		l.Resources = nil
	case *mcp.ListResourceTemplatesResult:
		p.Field = "resourceTemplates"
		for _, t := range l.ResourceTemplates {
			add("resources/templates", t.URITemplate)
		}
		l.ResourceTemplates = nil
	default:
		return res, nil
	}
	b, err := json.Marshal(res)
	if err != nil {
		return nil, err
	}
	p.Raw, err = rpc.ReadRaw(b, stateless)
	if err != nil {
		return nil, err
	}
	delete(p.Fields, p.Field)
	return p, nil
}
