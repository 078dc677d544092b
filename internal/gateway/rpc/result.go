package rpc

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/tool"
)

// Describe returns the MCP definition of one of Sandlot's own tools.
func Describe(t tool.Tool) *mcp.Tool {
	d := &mcp.Tool{Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: t.Input.Schema(),
		Annotations: &mcp.ToolAnnotations{Title: t.Title,
			ReadOnlyHint:    t.Hints.ReadOnly,
			IdempotentHint:  t.Hints.Idempotent,
			DestructiveHint: &t.Hints.Destructive,
			OpenWorldHint:   &t.Hints.OpenWorld}}
	if t.Output != nil {
		d.OutputSchema = t.Output.Schema()
	}
	return d
}

// Result returns the MCP result of one of Sandlot's own tools.
func Result(r *tool.Result) *mcp.CallToolResult {
	out := &mcp.CallToolResult{IsError: r.IsError, Content: []mcp.Content{}}
	if r.Fields != nil {
		out.StructuredContent = r.Fields
	}
	for _, c := range r.Content {
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
	for _, c := range r.Content {
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
