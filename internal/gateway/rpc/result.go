package rpc

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
	"sandlot/internal/tool"
	"sandlot/internal/toolview"
)

// Describe returns what the SDK has to know of one of Sandlot's own tools.
func Describe(t tool.Tool) *mcp.Tool {
	return &mcp.Tool{Name: t.Name, Description: t.Description, InputSchema: t.Input.Shown()}
}

// definition is the MCP definition of a tool.
type definition struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description"`
	InputSchema map[string]any  `json:"inputSchema"`
	Annotations map[string]bool `json:"annotations"`
}

// Definition returns the MCP definition of one of Sandlot's own tools, as clients get it. It is as short as it can be,
// since it is in each conversation of a model. The HTTP API's document alone has the schemas of results, and what
// models do not need of those of arguments. Titles and annotations are for the client, which does not show them to
// models.
func Definition(t tool.Tool) json.RawMessage {
	d := definition{Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: t.Input.Shown(),
		Annotations: map[string]bool{"readOnlyHint": t.Hints.ReadOnly, "openWorldHint": t.Hints.OpenWorld}}
	if !t.Hints.ReadOnly {
		d.Annotations["destructiveHint"], d.Annotations["idempotentHint"] = t.Hints.Destructive, t.Hints.Idempotent
	}
	b, _ := rawjson.Encode(d) // every type in it can be encoded
	return b
}

// Result returns the MCP result of one of Sandlot's own tools, in a form. A result with an image, or with something else
// that is in content alone, has no structuredContent: some clients show models that in place of content. No text block
// is empty, since some model providers refuse such, and each but the first begins with a line break, since some clients
// join them without one. In the form for models, texts beside each other are one block.
func Result(r *tool.Result, form toolview.Results) *mcp.CallToolResult {
	out := &mcp.CallToolResult{IsError: r.IsError, Content: []mcp.Content{}}
	blocks := r.Blocks()
	inContent := slices.ContainsFunc(blocks, func(c tool.Content) bool { return c.Image != nil || c.Resource != nil })
	if r.Fields != nil && form != toolview.Text && !inContent {
		out.StructuredContent = r.Fields
	}
	if form == toolview.Data && out.StructuredContent != nil && !r.IsError {
		blocks = slices.DeleteFunc(slices.Clone(blocks), func(c tool.Content) bool { return c.Text != nil }) // fields say it
	}
	if r.Summary != "" {
		blocks = append(blocks[:len(blocks):len(blocks)], tool.Text(r.Summary))
	}
	hasText := false
	for _, c := range blocks {
		c = withoutLink(c, blocks)
		if c.Text != nil {
			text := *c.Text
			if text == "" {
				continue
			}
			if hasText && !strings.HasPrefix(text, "\n") {
				text = "\n" + text
			}
			c, hasText = tool.Text(text), true
		}
		out.Content = append(out.Content, contentBlock(c))
	}
	if out.StructuredContent == nil {
		out.Content = join(out.Content, form == toolview.Text)
	}
	if len(out.Content) == 0 && (out.StructuredContent == nil || form != toolview.Data) {
		out.Content = append(out.Content, &mcp.TextContent{Text: noOutput})
	}
	return out
}

// join joins text blocks of a result that has no structuredContent: with adjacent, all that stand beside each other. Codex
// drops the blocks after one that it cuts. A first block whose text is JSON, such as 42, gets the last text at its end in
// any case: Gemini CLI takes such a block for structuredContent, and refuses the result if it is not an object.
func join(blocks []mcp.Content, adjacent bool) []mcp.Content {
	var out []mcp.Content
	for _, b := range blocks {
		text, isText := b.(*mcp.TextContent)
		if adjacent && isText && len(out) > 0 {
			if before, ok := out[len(out)-1].(*mcp.TextContent); ok {
				before.Text += text.Text
				continue
			}
		}
		out = append(out, b)
	}
	if len(out) > 1 {
		first, isFirst := out[0].(*mcp.TextContent)
		last, isLast := out[len(out)-1].(*mcp.TextContent)
		if isFirst && isLast && isJSONValue(first.Text) {
			first.Text += last.Text
			out = out[:len(out)-1]
		}
	}
	return out
}

// isJSONValue reports whether a text is JSON, and not an object.
func isJSONValue(text string) bool {
	text = strings.TrimSpace(text)
	return text != "" && text[0] != '{' && json.Valid([]byte(text))
}

// withoutLink returns the text that stands for a link to something of Sandlot's; it is empty if one of the blocks names
// the address already. A resource_link would end some agents: their clients pass it to a model's provider, who cannot
// read the address.
func withoutLink(c tool.Content, blocks []tool.Content) tool.Content {
	l := c.Link
	switch {
	case l == nil:
		return c
	case slices.ContainsFunc(blocks, func(c tool.Content) bool { return c.Text != nil && strings.Contains(*c.Text, l.URI) }):
		return tool.Text("")
	}
	return tool.Text(fmt.Sprintf("[%s: the resource %s]", cmp.Or(l.Description, l.Name), l.URI))
}

func contentBlock(c tool.Content) mcp.Content {
	switch {
	case c.Image != nil:
		return &mcp.ImageContent{MIMEType: c.Image.MIME, Data: c.Image.Data}
	case c.Resource != nil:
		r := c.Resource
		return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: r.URI, MIMEType: r.MIME, Text: r.Text}}
	}
	return &mcp.TextContent{Text: *c.Text}
}

// FlatResult returns a result as one JSON object for bare calls. The fields of
// structuredContent are at the top level too, beside content and isError.
func FlatResult(r *tool.Result) map[string]any {
	out := map[string]any{}
	if r.Raw != nil {
		fields := Object{}
		_ = json.Unmarshal(ConformResult(r.Raw, revision.Stateful), &fields) // it was validated before
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
		wasLink := c.Link != nil
		if c = withoutLink(c, r.Blocks()); !wasLink || *c.Text != "" {
			blocks = append(blocks, contentObject(c))
		}
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
	}
	return map[string]any{"type": "text", "text": *c.Text}
}
