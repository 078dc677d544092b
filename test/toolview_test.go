package test

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/test/tokens"
)

// connectAt connects as connect does, to a path. With events, the client gets notifications at any time.
func (s *server) connectAt(path, version, token string, events bool, opts *mcp.ClientOptions) *client {
	s.t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts)
	session, err := c.Connect(s.t.Context(), &mcp.StreamableClientTransport{Endpoint: s.URL + path,
		HTTPClient: &http.Client{Transport: bearer{token, s.web()}}, DisableStandaloneSSE: !events},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		s.t.Fatalf("connecting: %v", err)
	}
	s.t.Cleanup(func() { session.Close() })
	return &client{s.t, session}
}

// TestToolViews: with 25 servers of 20 tools, each view lists what it says, in few tokens, and every tool is found and
// called in every view.
func TestToolViews(t *testing.T) {
	t.Parallel()
	m := manyServers(t, 25, 20)
	s := startConfigured(t, m.Section)
	s.connectAt("/mcp?tools=all", newer, "", false, nil).toolNames() // from now on it is known what the servers offer
	for _, era := range []string{older, newer} {
		for view, path := range map[string]string{"all": "/mcp?tools=all", "search": "/mcp?tools=search",
			"code": "/mcp?tools=code", "auto": "/mcp"} {
			t.Run(view+" "+era, func(t *testing.T) {
				s := *s
				s.t = t
				c := s.connectAt(path, era, "", false, nil)
				m.lists(t, c, view)
				m.finds(t, c)
			})
		}
	}
	t.Run("stdio", func(t *testing.T) {
		cmd := exec.Command(binary(t), "--state-dir", s.State, "stdio", "--tools", "code")
		cmd.Env = s.env
		session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
			Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		c := &client{t, session}
		m.lists(t, c, "code")
		m.finds(t, c)
	})
	code, _, body := s.request("POST", "/mcp?tools=some", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	if code != http.StatusBadRequest || !strings.Contains(body, "all, search, code, auto") {
		t.Errorf("a view that there is not: %d %s", code, body)
	}
	if _, errs, code := s.cli("stdio", "--tools", "some"); code != 2 ||
		!strings.Contains(errs, "all, search, code, auto") {
		t.Errorf("a view that there is not, of stdio: %d %s", code, errs)
	}
}

// lists checks what a client is shown.
func (m *many) lists(t *testing.T, c *client, view string) {
	t.Helper()
	size, own, names := c.listSize()
	t.Logf("%s: %d tools, %d bytes, %d of them own", view, len(names), size, own)
	finders := 0
	for _, name := range []string{"search_tools", "describe_tools", "call_tool"} {
		if names[name] != nil {
			finders += len(asJSON(names[name]))
		}
	}
	if finders > 1500 { // some 400 tokens
		t.Errorf("the tools that find others have %d bytes", finders)
	}
	if view == "search" && size != own || view == "code" && size != own || size-own > 8000 && view != "all" {
		t.Errorf("%d bytes of third-party tools are listed", size-own)
	}
	for name, want := range map[string]bool{"execute_code": true, "ext_figma_get_label": view == "all",
		"search_tools": view != "all", "call_tool": view == "search" || view == "auto",
		"describe_tools": view == "search" || view == "auto"} {
		if (names[name] != nil) != want {
			t.Errorf("%s is listed: %v", name, !want)
		}
	}
	sum := 0
	for _, d := range names {
		sum += tokens.CountJSON(d)
	}
	t.Logf("%s: %d tokens", view, sum)
	if most := map[string]int{"search": 3700, "code": 3250}[view]; most > 0 && sum > most {
		t.Errorf("%s: %d tokens are listed, and %d is the most", view, sum, most)
	}
	text := c.InitializeResult().Instructions
	if n := tokens.Count(text); n > 200 || strings.Contains(text, "search_tools") != (view != "all") ||
		!strings.Contains(text, "mcp_tools") {
		t.Errorf("instructions of %d tokens: %s", n, text)
	}
}

// finds searches for a tool, looks at it, and calls it in both ways.
func (m *many) finds(t *testing.T, c *client) {
	t.Helper()
	const name = "ext_github_create_issue"
	began := time.Now()
	found := c.call("search_tools", args{"query": "create github issue"})
	t.Logf("found in %s:\n%s", time.Since(began), found.Text)
	first, _, _ := strings.Cut(found.Text, "\n")
	if !strings.HasPrefix(first, name+"(workspace, title, after?, id?, ") ||
		!strings.Contains(first, "[github] Create") {
		t.Errorf("the first hit: %s", first)
	}
	if n := strings.Count(found.Text, "\n"); n != 10 || !strings.Contains(found.Text, "more match") {
		t.Errorf("%d lines: %s", n, found.Text)
	}
	if d := c.call("describe_tools", args{"names": []string{name, "ext_jira_get_user"}}).Text; !strings.Contains(d,
		`"name":"ext_github_create_issue"`) || !strings.Contains(d, "without its owner") || !strings.Contains(d,
		`"name":"ext_jira_get_user"`) {
		t.Errorf("described: %s", d)
	}
	m.Calls()
	for tool, a := range map[string]args{name: {"workspace": "w", "title": "direct"},
		"call_tool": {"name": name, "arguments": args{"title": "called", "workspace": "w"}}} {
		if got := c.call(tool, a); got.IsError || !strings.HasPrefix(got.Text, "github/create_issue {") {
			t.Errorf("%s: %s", tool, got.All)
		}
	}
	if n := len(m.Calls()); n != 2 {
		t.Errorf("the server got %d calls", n)
	}
	_, err := c.try(t.Context(), "call_tool", args{"name": name,
		"arguments": args{"titel": "x", "labels": "bug", "per_page": 1000}})
	for _, want := range []string{"workspace is missing", "title is missing", "titel is unknown",
		"labels must be an array, and is \"bug\"", "per_page must be at most 100", name + "(workspace: string, "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said of wrong arguments: %v", want, err)
		}
	}
	if calls := m.Calls(); len(calls) > 0 {
		t.Errorf("the server got %q", calls)
	}
}

// listsUntil lists the tools until the list is as it should be.
func (c *client) listsUntil(what string, ok func(map[string]*mcp.Tool) bool) {
	c.t.Helper()
	until(c.t, what, func() bool { return ok(c.toolNames()) })
}

// TestAutoView: auto changes with what the servers offer and with what the user uses, and tells clients; what is not
// listed any more can be called.
func TestAutoView(t *testing.T) {
	t.Parallel()
	m := manyServers(t, 2, 20) // about 12,000 tokens
	file := filepath.Join(t.TempDir(), "sandlot.yaml")
	rewrite(t, file, m.Section)
	s := start(t, "SANDLOT_CONFIG="+file)
	ann := s.token("ann")
	changes := make(chan struct{}, 1000)
	c := s.connectAt("/mcp", older, ann, true, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changes <- struct{}{} }})
	told := func(what string) {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(time.Minute):
			t.Fatalf("the client is not told that %s", what)
		}
		time.Sleep(100 * time.Millisecond) // several changes are told at once
		for len(changes) > 0 {
			<-changes
		}
	}
	isAll := func(names map[string]*mcp.Tool) bool {
		return names["search_tools"] == nil && names["ext_github_list_issue"] != nil
	}
	isSearch := func(names map[string]*mcp.Tool) bool {
		return names["search_tools"] != nil && names["call_tool"] != nil && names["ext_gitlab_get_user"] == nil
	}
	c.listsUntil("too many tools are not listed", isSearch)
	told("the servers are there")

	const name = "ext_github_list_issue"
	if r := c.call("call_tool", args{"name": name, "arguments": args{"workspace": "w"}}); r.IsError {
		t.Fatal(r.All)
	}
	told("a tool was used")
	if names := c.toolNames(); names[name] == nil || !isSearch(names) {
		t.Error("the tool that was used is not listed")
	}
	bob := s.connectAt("/mcp", newer, s.token("bob"), false, nil)
	if names := bob.toolNames(); names[name] != nil {
		t.Error("a tool that another user has used is listed")
	}

	for n := 6; n < 20; n++ { // the server has fewer tools now
		m.Servers["github"].RemoveTools(manyTool(n))
		m.Servers["gitlab"].RemoveTools(manyTool(n))
	}
	told("there are fewer tools")
	c.listsUntil("fewer tools are all listed", isAll)
	for n := 6; n < 20; n++ {
		m.addTool(m.Servers["github"], "github", n)
		m.addTool(m.Servers["gitlab"], "gitlab", n)
	}
	told("there are more tools")
	c.listsUntil("more tools are not listed", isSearch)
	if r := c.call("ext_gitlab_get_user", args{"workspace": "w", "id": "1"}); !strings.HasPrefix(r.Text,
		"gitlab/get_user") {
		t.Errorf("a tool that is not listed any more: %s", r.All)
	}
	told("a tool was used again")

	rewrite(t, file, "tools_limit: 1000000\n"+m.Section)
	told("the settings have changed")
	c.listsUntil("the limit is higher", isAll)
	rewrite(t, file, "tools_for: {principals: {ann: code}}\n"+m.Section)
	told("the settings have changed again")
	c.listsUntil("the settings say code", func(names map[string]*mcp.Tool) bool {
		return names["search_tools"] != nil && names["call_tool"] == nil && names[name] == nil
	})
	rewrite(t, file, "tools_for: {principals: {ann: everything}}\n"+m.Section)
	until(t, "a wrong change is in the log", func() bool {
		return strings.Contains(s.log.String(), "must be one of all")
	})
	rewrite(t, file, m.Section)
}

// TestCallToolIsTheTool: a call by call_tool is that of the tool, for rules, events, scopes and questions.
func TestCallToolIsTheTool(t *testing.T) {
	t.Parallel()
	m := manyServers(t, 2, 4)
	m.Servers["gitlab"].AddTool(&mcp.Tool{Name: "ask", InputSchema: map[string]any{"type": "object"}},
		func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			answer, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "Which?",
				RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"a": map[string]any{
					"type": "string"}}}})
			if err != nil {
				return nil, err
			}
			text := &mcp.TextContent{Text: fmt.Sprint(answer.Content["a"])}
			return &mcp.CallToolResult{Content: []mcp.Content{text}}, nil
		})
	s := startConfigured(t, m.Section+"policy:\n  rules:\n    - deny ann mcp.call github/create_*\n"+
		"    - ask ann mcp.call github/get_*\ntools: search\n", "SANDLOT_AUTH=required")
	ann := s.token("ann")
	asked := make(chan string, 10)
	const which = "The MCP server gitlab asks:\n> Which?"
	opts := &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (
		*mcp.ElicitResult, error) {
		asked <- r.Params.Message
		if r.Params.Message == which {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"a": "this one"}}, nil
		}
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"decision": "allow"}}, nil
	}}
	call := func(c *client, name string, a args) (*result, error) {
		return c.try(t.Context(), "call_tool", args{"name": name, "arguments": a})
	}
	for _, era := range []string{older, newer} {
		c := s.connect(era, ann, opts)
		if _, err := call(c, "ext_github_create_issue", args{"workspace": "w",
			"title": "t"}); code(err) != "FORBIDDEN" {
			t.Errorf("%s: what a rule denies: %v", era, err)
		}
		if r, err := call(c, "ext_gitlab_ask", nil); err != nil || r.Text != "this one" || <-asked != which {
			t.Errorf("%s: a tool that asks: %+v %v", era, r, err)
		}
		r, err := call(c, "ext_github_get_issue", args{"workspace": "w", "id": "7"})
		if err != nil || !strings.HasPrefix(r.Text, "github/get_issue") {
			t.Fatalf("%s: what a rule asks about: %+v %v", era, r, err)
		}
		if question := <-asked; !strings.Contains(question, "github/get_issue") ||
			strings.Contains(question, "call_tool") {
			t.Errorf("%s: the question is %q", era, question)
		}
		if _, err := call(c, "ext_github_nothing", nil); err == nil ||
			!strings.Contains(err.Error(), "ext_github_nothing") {
			t.Errorf("%s: a tool that there is not: %v", era, err)
		}
		if r, err := call(c, "execute_code", args{"code": "6*7"}); err != nil || r.Fields["session_id"] == nil ||
			!strings.Contains(r.All, "42") {
			t.Errorf("%s: an own tool: %+v %v", era, r, err)
		}
	}
	_, _, events := s.request("GET", "/v1/events?follow=false", nil, credentials(ann)...)
	if strings.Contains(events, "call_tool") || strings.Count(events, `"ext_github_get_issue"`) < 2 ||
		!strings.Contains(events, `"ext_github_create_issue"`) {
		t.Errorf("the events are\n%s", events)
	}
	narrow := s.token("ann", "--scope", "tool.*", "--scope", "client.*")
	few := s.connect(newer, narrow, nil)
	if names := few.toolNames(); names["call_tool"] != nil || names["search_tools"] == nil {
		t.Error("a token without mcp.call is shown call_tool, or no search_tools")
	}
	for name, a := range map[string]args{"ext_gitlab_get_issue": {"workspace": "w", "id": "1"},
		"ext_gitlab_list_issue": nil,
		"execute_code":          {"code": "1"}} {
		if _, err := call(few, name, a); err == nil || strings.Contains(err.Error(), "workspace") {
			t.Errorf("a token without mcp.call calls %s: %v", name, err)
		}
		body := asJSON(args{"name": name, "arguments": a})
		code, _, text := s.request("POST", "/v1/tools/call_tool", strings.NewReader(body), credentials(narrow)...)
		if code != 403 || strings.Contains(text, "workspace") {
			t.Errorf("a token without mcp.call calls %s over HTTP: %d %s", name, code, text)
		}
	}
	if found := few.call("search_tools", args{"query": "issue"}); !strings.Contains(found.Text, "Nothing is found") {
		t.Errorf("a token without mcp.call finds %s", found.Text)
	}
	if code, _, body := s.request("POST", "/v1/tools/call_tool", strings.NewReader(
		`{"name":"ext_gitlab_get_issue","arguments":{"workspace":"w","id":"9"}}`), credentials(ann)...); code != 200 ||
		!strings.Contains(body, "gitlab/get_issue") {
		t.Errorf("over HTTP: %d %s", code, body)
	}
}
