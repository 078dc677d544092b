package test

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// addShelf gives a server a prompt and a resource.
func addShelf(s *mcp.Server) {
	s.AddPrompt(&mcp.Prompt{Name: "greet", Description: "Greets somebody warmly.",
		Arguments: []*mcp.PromptArgument{{Name: "who"}}},
		func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			text := &mcp.TextContent{Text: "Greet " + r.Params.Arguments["who"]}
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: text}}}, nil
		})
	s.AddResource(&mcp.Resource{Name: "almanac", URI: "shelf://almanac", Description: "What grows when."},
		func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "Beans"}}}, nil
		})
}

// shelf is what third-party servers' prompts and resources a client is shown.
func (c *client) shelf() (prompt, uri string) {
	c.t.Helper()
	for p, err := range c.Prompts(c.t.Context(), nil) {
		if err != nil {
			c.t.Fatal(err)
		}
		prompt += p.Name
	}
	for r, err := range c.Resources(c.t.Context(), nil) {
		if err != nil {
			c.t.Fatal(err)
		}
		if strings.Contains(r.URI, "almanac") {
			uri += r.URI
		}
	}
	return prompt, uri
}

// TestShelfView: prompts and resources of third-party servers are listed in each view, and are found, got and read.
func TestShelfView(t *testing.T) {
	t.Parallel()
	m := manyServers(t, 2, 20) // too many tools for auto
	addShelf(m.Servers["github"])
	file := filepath.Join(t.TempDir(), "sandlot.yaml")
	rewrite(t, file, "tools: all\n"+m.Section)
	s := start(t, "SANDLOT_CONFIG="+file)
	c := s.connectAt("/mcp", older, "", true, nil)
	var prompt, uri string
	until(t, "prompts and resources are listed", func() bool {
		prompt, uri = c.shelf()
		return prompt != "" && uri != ""
	})
	uses := func(c *client) {
		t.Helper()
		p, err := c.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: prompt,
			Arguments: map[string]string{"who": "Ann"}})
		if err != nil || p.Messages[0].Content.(*mcp.TextContent).Text != "Greet Ann" {
			t.Errorf("the prompt: %+v, %v", p, err)
		}
		r, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil || r.Contents[0].Text != "Beans" {
			t.Errorf("the resource: %+v, %v", r, err)
		}
		for query, want := range map[string]string{"greet warmly": `^prompt ` + prompt + `\(who\?\) \[github\] Greets`,
			"what grows": `^resource ` + regexp.QuoteMeta(uri) + ` \[github\] What grows`} {
			found := c.call("search_tools", args{"query": query}).Text
			if !regexp.MustCompile(want).MatchString(found) {
				t.Errorf("%q finds %s", query, found)
			}
		}
	}
	for _, view := range []string{"all", "search", "code", "auto"} {
		for _, era := range []string{older, newer} {
			c := s.connectAt("/mcp?tools="+view, era, "", false, nil)
			if p, u := c.shelf(); p == "" || u == "" {
				t.Errorf("%s, %s: %q and %q are listed", view, era, p, u)
			}
			uses(c)
		}
	}
}
