package test

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
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
	if _, errs, code := s.cli("stdio", "--tools", "some"); code != 2 || !strings.Contains(errs, "all, search, code, auto") {
		t.Errorf("a view that there is not, of stdio: %d %s", code, errs)
	}
}

// lists checks what a client is shown.
func (m *many) lists(t *testing.T, c *client, view string) {
	t.Helper()
	size, own, names := c.listSize()
	t.Logf("%s: %d tools, %d bytes, %d of them own", view, len(names), size, own)
	for name, want := range map[string]bool{"execute_code": true, "ext_figma_get_label": view == "all",
		"search_tools": view != "all", "call_tool": view == "search" || view == "auto",
		"describe_tools": view == "search" || view == "auto"} {
		if (names[name] != nil) != want {
			t.Errorf("%s is listed: %v", name, !want)
		}
	}
	if text := c.InitializeResult().Instructions; strings.Contains(text, "search_tools") != (view != "all") ||
		len(text) > 900 {
		t.Errorf("instructions of %d bytes: %s", len(text), text)
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
	if !strings.HasPrefix(first, name+"(workspace, title, after?, id?, ") || !strings.Contains(first, "[github] Create") {
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
