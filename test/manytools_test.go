package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// many are third-party servers with many tools, as people have them.
type many struct {
	Section string                 // of the settings file: mcp
	Names   []string               // of the servers
	Servers map[string]*mcp.Server // by name

	mu    sync.Mutex
	calls []string // "server/tool arguments"
}

// Calls returns the calls that the servers got, and forgets them.
func (m *many) Calls() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() { m.calls = nil }()
	return m.calls
}

// The names of the servers, and what their tools are about.
var (
	manyNames = strings.Fields("github gitlab jira linear slack notion asana trello zendesk stripe salesforce " +
		"hubspot shopify airtable figma sentry datadog pagerduty grafana snowflake postgres mongo redis confluence " +
		"calendar")
	manyThings = strings.Fields("issue project comment user label")
	manyVerbs  = strings.Fields("create list get update")
)

// manyServers starts third-party servers, each with so many tools, until the test ends. A tool answers with its
// server's name, its own, and its arguments.
func manyServers(t testing.TB, servers, tools int) *many {
	t.Helper()
	m := &many{Section: "mcp:\n", Servers: map[string]*mcp.Server{}}
	mux := http.NewServeMux()
	web := &http.Server{Handler: mux}
	l := listen(t)
	go web.Serve(l)
	t.Cleanup(func() { web.Close() })
	for _, name := range manyNames[:servers] {
		s := mcp.NewServer(&mcp.Implementation{Name: name, Version: "1"}, nil)
		for n := range tools {
			m.addTool(s, name, n)
		}
		mux.Handle("/"+name, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
		m.Names, m.Servers[name] = append(m.Names, name), s
		m.Section += fmt.Sprintf("  %s: {url: \"http://%s/%s\", trust: warn}\n", name, l.Addr(), name)
	}
	return m
}

// manyTool is the name of the tool of that number.
func manyTool(n int) string {
	name := manyVerbs[n%len(manyVerbs)] + "_" + manyThings[n/len(manyVerbs)%len(manyThings)]
	if extra := n / (len(manyVerbs) * len(manyThings)); extra > 0 {
		name += fmt.Sprint("_", extra)
	}
	return name
}

// addTool gives a server its tool of that number.
func (m *many) addTool(s *mcp.Server, server string, n int) {
	name := manyTool(n)
	verb, thing, _ := strings.Cut(name, "_")
	text := func(kind, about string) map[string]any { return map[string]any{"type": kind, "description": about} }
	state := text("string", "Only "+thing+"s in this state are returned, or the state that it gets.")
	state["enum"] = []string{"open", "closed", "all"}
	list := text("array", "The names of labels that the "+thing+" has, each as it stands in "+server+".")
	list["items"] = map[string]any{"type": "string"}
	number := text("integer", "How many results there are on a page, at most one hundred.")
	number["minimum"], number["maximum"] = 1, 100
	required := map[string][]string{"create": {"workspace", "title"}, "list": {"workspace"}, "get": {"workspace", "id"},
		"update": {"workspace", "id"}}[verb]
	s.AddTool(&mcp.Tool{Name: name, Title: strings.ToUpper(verb[:1]) + verb[1:] + " a " + thing,
		Description: fmt.Sprintf("%s%s the %ss of a workspace in %s. The caller needs the right to see the workspace, "+
			"and what the workspace's owner has hidden is left out of the answer.", strings.ToUpper(verb[:1]), verb[1:],
			thing, server),
		InputSchema: map[string]any{"type": "object", "required": required, "additionalProperties": false,
			"properties": map[string]any{
				"workspace": text("string", "The name of the workspace in "+server+", without its owner."),
				"title":     text("string", "A short text that people recognise the "+thing+" by."),
				"id":        text("string", "The id of the "+thing+", as a list of them has it."),
				"state":     state, "labels": list, "per_page": number,
				"after": text("string", "A time in ISO 8601; only what has changed after it is returned."),
			}}},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			call := fmt.Sprintf("%s/%s %s", server, r.Params.Name, r.Params.Arguments)
			m.mu.Lock()
			m.calls = append(m.calls, call)
			m.mu.Unlock()
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: call}}}, nil
		})
}

// listSize returns how many bytes a client's list of tools has as JSON, and how many of them are Sandlot's own.
func (c *client) listSize() (all, own int, names map[string]*mcp.Tool) {
	c.t.Helper()
	names = c.toolNames()
	for name, d := range names {
		b, err := json.Marshal(d)
		if err != nil {
			c.t.Fatal(err)
		}
		all += len(b) + 1
		if !strings.HasPrefix(name, "ext_") {
			own += len(b) + 1
		}
	}
	return all, own, names
}
