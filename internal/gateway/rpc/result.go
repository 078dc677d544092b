package rpc

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/rawjson"
	"sandlot/internal/tool"
)

// Describe returns what the SDK has to know of one of Sandlot's own tools.
func Describe(t tool.Tool) *mcp.Tool {
	return &mcp.Tool{Name: t.Name, Description: t.Description, InputSchema: t.Input.Shown()}
}

// definition is the MCP definition of a tool.
type definition struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema map[string]any  `json:"inputSchema"`
	Annotations map[string]bool `json:"annotations,omitempty"`
}

// Definition returns the MCP definition of one of Sandlot's own tools, as clients get it. It is as short as it can be,
// since it is in each conversation of a model. The HTTP API's document alone has the schemas of results, and what
// models do not need of those of arguments. Hints that say what MCP assumes without them are left out.
func Definition(t tool.Tool) json.RawMessage {
	d := definition{Name: t.Name, Description: t.Description, InputSchema: t.Input.Shown()}
	switch {
	case t.Hints.ReadOnly:
		d.Annotations = map[string]bool{"readOnlyHint": true}
	case !t.Hints.Destructive:
		d.Annotations = map[string]bool{"destructiveHint": false}
	}
	b, _ := rawjson.Encode(d) // every type in it can be encoded
	return b
}

// Result returns the MCP result of one of Sandlot's own tools.
func Result(r *tool.Result) *mcp.CallToolResult {
	out := &mcp.CallToolResult{IsError: r.IsError, Content: []mcp.Content{}}
	if r.Fields != nil {
		out.StructuredContent = r.Fields
	}
	for _, c := range r.Blocks() {
		out.Content = append(out.Content, contentBlock(c))
	}
	if r.Summary != "" {
		out.Content = append(out.Content, &mcp.TextContent{Text: r.Summary})
	}
	return out
}

func contentBlock(c tool.Content) mcp.Content {
	switch {
	case c.Image != nil:
		return &mcp.ImageContent{MIMEType: c.Image.MIME, Data: c.Image.Data}
	case c.Resource != nil:
		r := c.Resource
		return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: r.URI, MIMEType: r.MIME, Text: r.Text}}
	case c.Link != nil:
		l := c.Link
		return &mcp.ResourceLink{URI: l.URI, Name: l.Name, Description: l.Description, MIMEType: l.MIME, Size: &l.Size}
	}
	return &mcp.TextContent{Text: *c.Text}
}

// FlatResult returns a result as one JSON object for bare calls. The fields of
// structuredContent are at the top level too, beside content and isError.
func FlatResult(r *tool.Result) map[string]any {
	out := map[string]any{}
	if r.Raw != nil {
		fields := Object{}
		_ = json.Unmarshal(r.Raw, &fields) // it was validated before
		delete(fields, "resultType")
		for k, v := range fields {
			out[k] = v
		}
		return out
	}
	if r.Fields != nil {
		all, _ := json.Marshal(r.Fields) // encoding a tool's struct cannot fail
		fields := Object{}
		_ = json.Unmarshal(all, &fields)
		for k, v := range fields {
			out[k] = v
		}
		out["structuredContent"] = json.RawMessage(all)
	}
	blocks := []any{}
	for _, c := range r.Blocks() {
		blocks = append(blocks, contentObject(c))
	}
	out["content"], out["isError"] = blocks, r.IsError
	return out
}

// contentObject is contentBlock as a JSON object. It is quicker: the SDK's types decode what
// they have encoded again.
func contentObject(c tool.Content) map[string]any {
	switch {
	case c.Image != nil:
		return map[string]any{"type": "image", "mimeType": c.Image.MIME, "data": c.Image.Data}
	case c.Resource != nil:
		r := c.Resource
		return map[string]any{"type": "resource",
			"resource": map[string]any{"uri": r.URI, "mimeType": r.MIME, "text": r.Text}}
	case c.Link != nil:
		l := c.Link
		return map[string]any{"type": "resource_link", "uri": l.URI, "name": l.Name, "description": l.Description,
			"mimeType": l.MIME, "size": l.Size}
	}
	return map[string]any{"type": "text", "text": *c.Text}
}
