package gateway

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/rpc"
	"sandlot/internal/revision"
)

// completeList replaces the definitions in a list's result, of which the SDK knows only parts,
// by the complete ones.
func (e *endpoint) completeList(res mcp.Result, stateless bool) (mcp.Result, error) {
	var p *rpc.Page
	switch l := res.(type) {
	case *mcp.ListToolsResult:
		p = newPage(e, "tools", "tools/call", l.Tools, func(t *mcp.Tool) string { return t.Name })
		if !stateless {
			for i, raw := range p.Items {
				p.Items[i] = rpc.ConformTool(raw, revision.Stateful)
			}
		}
		l.Tools = nil
	case *mcp.ListPromptsResult:
		p = newPage(e, "prompts", "prompts/get", l.Prompts, func(p *mcp.Prompt) string { return p.Name })
		l.Prompts = nil
	case *mcp.ListResourcesResult:
		p = newPage(e, "resources", "resources/read", l.Resources, func(r *mcp.Resource) string { return r.URI })
		l.Resources = nil
	case *mcp.ListResourceTemplatesResult:
		p = newPage(e, "resourceTemplates", "resources/templates", l.ResourceTemplates,
			func(t *mcp.ResourceTemplate) string { return t.URITemplate })
		l.ResourceTemplates = nil
	default:
		return res, nil
	}
	b, err := json.Marshal(res)
	if err != nil {
		return nil, err
	}
	p.RawResult, err = rpc.ReadRawResult(b, stateless)
	if err != nil {
		return nil, err
	}
	delete(p.Fields, p.Field)
	return p, nil
}

// newPage returns a page with the complete definitions of the features that the SDK listed.
func newPage[T any](e *endpoint, field, method string, listed []T, key func(T) string) *rpc.Page {
	p := &rpc.Page{Field: field}
	external := e.external.current()
	for _, feature := range listed {
		k := featureKey{method, key(feature)}
		raw := e.own()[k]
		if raw == nil {
			raw = external[k]
		}
		if raw != nil { // nil: it was removed while the list was made
			p.Items = append(p.Items, raw)
		}
	}
	return p
}
