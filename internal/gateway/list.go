package gateway

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/rpc"
)

// page is one page of a list: the SDK's result without its items, and these as
// their servers gave them. They were checked before, and are put together here
// without being read again.
type page struct {
	*rpc.Raw
	field string
	items []json.RawMessage
}

// method is the one that lists what is in it.
func (p *page) method() string {
	if p.field == "resourceTemplates" {
		return "resources/templates/list"
	}
	return p.field + "/list"
}

// size is about how many bytes it has.
func (p *page) size() (n int) {
	for _, i := range p.items {
		n += len(i) + 1
	}
	return n
}

// MarshalJSON implements json.Marshaler.
func (p *page) MarshalJSON() ([]byte, error) {
	head, err := p.Raw.MarshalJSON()
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(head)+len(p.field)+8+p.size())
	b = append(b, head[:len(head)-1]...)
	if len(b) > 1 {
		b = append(b, ',')
	}
	b = append(append(append(b, '"'), p.field...), `":[`...)
	for n, i := range p.items {
		if n > 0 {
			b = append(b, ',')
		}
		b = append(b, i...)
	}
	return append(b, "]}"...), nil
}

// whole puts the definitions into a list as they came from their servers.
func (e *endpoint) whole(res mcp.Result, newer bool) (mcp.Result, error) {
	p := &page{}
	third := e.passedOn()
	add := func(method, key string) {
		k := featureKey{method, key}
		raw := e.own[k]
		if raw == nil {
			raw = third[k]
		}
		if raw != nil { // else it went while the list was made
			p.items = append(p.items, raw)
		}
	}
	switch l := res.(type) {
	case *mcp.ListToolsResult:
		p.field = "tools"
		for _, t := range l.Tools {
			add("tools/call", t.Name)
		}
		l.Tools = nil
	case *mcp.ListPromptsResult:
		p.field = "prompts"
		for _, t := range l.Prompts {
			add("prompts/get", t.Name)
		}
		l.Prompts = nil
	case *mcp.ListResourcesResult:
		p.field = "resources"
		for _, t := range l.Resources {
			add("resources/read", t.URI)
		}
		l.Resources = nil
	case *mcp.ListResourceTemplatesResult:
		p.field = "resourceTemplates"
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
	p.Raw, err = rpc.ReadRaw(b, newer)
	if err != nil {
		return nil, err
	}
	delete(p.Fields, p.field)
	return p, nil
}
