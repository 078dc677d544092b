//lint:file-ignore SA1019 clients of the older era have sampling and logging

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// third is a real server: how it is installed, and calls of all its tools.
type third struct {
	name, kind, spec string
	start            []string // its program and arguments, where they have to be said
	prepare          string   // a command in the home before it starts
	calls            []call
}

type call struct {
	tool string
	a    args
}

func thirds(w *web) []third {
	const file = "/workspace/data/note.txt"
	entity := func(n string) args {
		return args{"name": n, "entityType": "thing", "observations": []string{"is " + n}}
	}
	return []third{
		{name: "everything", kind: "npm", spec: "@modelcontextprotocol/server-everything", calls: []call{
			{"echo", args{"message": "hello"}}, {"get-sum", args{"a": 2, "b": 3}},
			{"get-annotated-message", args{"messageType": "error", "includeImage": true}},
			{"get-env", nil}, {"get-resource-links", args{"count": 3}},
			{"get-resource-reference", args{"resourceType": "Text", "resourceId": 1}},
			{"get-structured-content", args{"location": "New York"}}, {"get-tiny-image", nil},
			{"gzip-file-as-resource", args{"name": "x.gz", "data": "data:text/plain;base64,aGVsbG8=",
				"outputType": "resource"}},
			{"toggle-simulated-logging", nil}, {"toggle-simulated-logging", nil}, {"toggle-subscriber-updates", nil},
			{"toggle-subscriber-updates", nil},
			{"trigger-long-running-operation", args{"duration": 1, "steps": 4}}, {"trigger-elicitation-request", nil},
			{"trigger-url-elicitation", args{"url": "https://example.test/x", "message": "Open it",
				"elicitationId": "1"}},
			{"trigger-sampling-request", args{"prompt": "hi", "maxTokens": 5}},
			{"simulate-research-query", args{"topic": "sand"}}, {"get-sum", args{"a": "x"}}}},
		{name: "files", kind: "npm", spec: "@modelcontextprotocol/server-filesystem",
			start: []string{"mcp-server-filesystem", "/workspace/data"},
			prepare: "mkdir -p /workspace/data/sub && echo one > " + file +
				" && echo two > /workspace/data/sub/b.txt && printf w > /workspace/data/w.txt && echo " + wholePNG +
				" | base64 -d > /workspace/data/p.png", calls: []call{
				{"list_allowed_directories", nil}, {"read_file", args{"path": file}},
				{"read_text_file", args{"path": file, "head": 1}},
				{"read_media_file", args{"path": "/workspace/data/p.png"}},
				{"read_multiple_files", args{"paths": []string{file, "/workspace/data/none"}}},
				{"list_directory", args{"path": "/workspace/data"}},
				{"list_directory_with_sizes", args{"path": "/workspace/data"}},
				{"directory_tree", args{"path": "/workspace/data"}},
				{"search_files", args{"path": "/workspace/data", "pattern": "**/*.txt"}},
				{"get_file_info", args{"path": file}},
				{"edit_file", args{"path": file, "edits": []args{{"oldText": "one", "newText": "three"}},
					"dryRun": true}}, {"create_directory", args{"path": "/workspace/data/sub"}},
				{"write_file", args{"path": "/workspace/data/w.txt", "content": "w"}},
				{"move_file", args{"source": "/workspace/data/none", "destination": "/workspace/data/y"}},
				{"read_file", args{"path": "/etc/passwd"}}}},
		{name: "memory", kind: "npm", spec: "@modelcontextprotocol/server-memory", calls: []call{
			{"create_entities", args{"entities": []args{entity("a"), entity("b")}}},
			{"create_relations", args{"relations": []args{{"from": "a", "to": "b", "relationType": "knows"}}}},
			{"add_observations", args{"observations": []args{{"entityName": "a", "contents": []string{"more"}}}}},
			{"read_graph", nil}, {"search_nodes", args{"query": "more"}}, {"open_nodes", args{"names": []string{"a"}}},
			{"delete_observations", args{"deletions": []args{{"entityName": "a", "observations": []string{"more"}}}}},
			{"delete_relations", args{"relations": []args{{"from": "a", "to": "b", "relationType": "knows"}}}},
			{"delete_entities", args{"entityNames": []string{"a", "b"}}}}},
		{name: "thinking", kind: "npm", spec: "@modelcontextprotocol/server-sequential-thinking", calls: []call{
			{"sequentialthinking", args{"thought": "first", "nextThoughtNeeded": false, "thoughtNumber": 1,
				"totalThoughts": 1}}}},
		{name: "time", kind: "pip", spec: "mcp-server-time", start: []string{"mcp-server-time", "--local-timezone=UTC"},
			calls: []call{
				{"get_current_time", args{"timezone": "Europe/Berlin"}},
				{"convert_time", args{"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}},
				{"get_current_time", args{"timezone": "Nowhere"}}}},
		{name: "git", kind: "pip", spec: "mcp-server-git", start: []string{"mcp-server-git"},
			prepare: "mkdir -p /workspace/r && cd /workspace/r && git init -q -b main && git config user.email " +
				"t@web.test && git config user.name t && echo a > f && git add f && git commit -qm one && echo b > f " +
				"&& git branch side", calls: []call{
				{"git_status", args{"repo_path": "/workspace/r"}},
				{"git_diff_unstaged", args{"repo_path": "/workspace/r"}},
				{"git_diff_staged", args{"repo_path": "/workspace/r"}},
				{"git_diff", args{"repo_path": "/workspace/r", "target": "HEAD"}},
				{"git_log", args{"repo_path": "/workspace/r", "max_count": 1}},
				{"git_show", args{"repo_path": "/workspace/r", "revision": "HEAD"}},
				{"git_branch", args{"repo_path": "/workspace/r", "branch_type": "local"}},
				{"git_add", args{"repo_path": "/workspace/r", "files": []string{"f"}}},
				{"git_reset", args{"repo_path": "/workspace/r"}},
				{"git_checkout", args{"repo_path": "/workspace/r", "branch_name": "none"}},
				{"git_create_branch", args{"repo_path": "/workspace/r", "branch_name": "side"}},
				{"git_commit", args{"repo_path": "/nowhere", "message": "x"}}}},
		{name: "fetch", kind: "pip", spec: "mcp-server-fetch",
			start: []string{"mcp-server-fetch", "--ignore-robots-txt"}, calls: []call{
				{"fetch", args{"url": fmt.Sprintf("http://web.test:%d/hello", w.Port)}}}},
		{name: "greeter", kind: "git", spec: fmt.Sprintf("https://web.test:%d/git/greeter.git#main", w.TLSPort),
			calls: []call{{"greet", args{"name": "Ann"}}}},
	}
}

// wholePNG is a whole image, in base64.
const wholePNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="

// TestThirdParty installs real servers with one call each, one of each kind of package, calls each of their
// tools, and compares what comes with what the same server says over its own
// standard output, in the same home. Packages come from where this machine has
// them from; all else is the test's own.
func TestThirdParty(t *testing.T) { testThirdParty(t, "everything", "time", "greeter") }

// TestThirdPartyMore does the same with more servers that people use.
func TestThirdPartyMore(t *testing.T) {
	testThirdParty(t, "files", "memory", "thinking", "git", "fetch")
}

func testThirdParty(t *testing.T, names ...string) {
	t.Parallel()
	w := startWeb(t)
	s := start(t, append(append(registries(), w.settings("web.test")...), "SANDLOT_DEFAULT_FLAVOR=large",
		"SANDLOT_TOOLS=all")...)
	opts := &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			if r.Params.Mode == "url" {
				return &mcp.ElicitResult{Action: "decline"}, nil
			}
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ann", "check": true,
				"email": "a@example.test", "firstLine": "x", "untitledSingleSelectEnum": "Monica"}}, nil
		},
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Model: "test", Role: "assistant",
				Content: &mcp.TextContent{Text: "sampled"}}, nil
		},
		Capabilities: &mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapabilities{
			Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}}},
	}
	c := s.connect(older, "", opts)
	for _, th := range thirds(w) {
		if !slices.Contains(names, th.name) {
			continue
		}
		t.Run(th.name, func(t *testing.T) {
			t.Parallel()
			c := &client{t, c.ClientSession}
			if th.prepare != "" {
				c.shell("home", th.prepare)
			}
			a := args{"name": th.name, "install": args{"type": th.kind, "spec": th.spec}}
			if th.start != nil {
				a["start"] = args{"command": th.start[0], "args": th.start[1:]}
			}
			if th.kind == "git" {
				a["env"] = args{"INSTALLS": "with this"}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			r, err := c.try(ctx, "auto_install_and_connect_mcp", a)
			if err != nil || r.IsError {
				t.Fatalf("%v %+v", err, r)
			}
			d := th.direct(t, s, opts, r)
			th.compare(t, c, d, r)
			th.fromCode(t, c)
			if th.kind == "git" {
				installed, _ := r.Fields["installed"].(map[string]any)
				if r := c.shell("home", fmt.Sprint("cat ", installed["folder"], "/repo/installed-with")); r.Text != "with this" {
					t.Errorf("the installation had the variable %q", r.All)
				}
			}
			if th.name == "fetch" {
				if got := c.call(r.exposed(t, "fetch"), th.calls[0].a); !strings.Contains(got.All,
					"hello from web.test") {
					t.Errorf("fetched %q", got.All)
				}
			}
			c.call("disconnect_external_mcp", args{"name": th.name})
		})
	}
}

// fromCode calls the server's first tool from Python: it answers as a client is answered.
func (th third) fromCode(t *testing.T, c *client) {
	t.Helper()
	first := th.calls[0]
	arguments, err := json.Marshal(first.a)
	if err != nil {
		t.Fatal(err)
	}
	r := c.code("home", fmt.Sprintf(`import json, mcp_tools
from mcp_tools import %[1]s as server
answer = getattr(server, %[2]q)(**(json.loads(%[3]q) or {}))
isinstance(answer, (str, dict)) and len(answer) > 0`, th.name, strings.ReplaceAll(first.tool, "-", "_"), arguments))
	if r.Text != "True" {
		t.Errorf("%s from Python: %s", first.tool, r.All)
	}
}

// direct connects to a second process of the same server, without the hub.
func (th third) direct(t *testing.T, s *server, opts *mcp.ClientOptions, r *result) *mcp.ClientSession {
	t.Helper()
	installed, _ := r.Fields["installed"].(map[string]any)
	folder, _ := installed["folder"].(string)
	if version, _ := installed["version"].(string); !strings.ContainsAny(version, "0123456789") {
		t.Errorf("version %q of what was installed", version)
	}
	cwd := folder
	if th.kind == "git" {
		cwd += "/repo"
	}
	row := strings.TrimSuffix(strings.TrimPrefix(regexp.MustCompile(`running .* \(in`).FindString(r.All), "running "),
		" (in")
	script := fmt.Sprintf(`cd %s && PATH=%s/.sandlot-bin:%s/node_modules/.bin:%s/venv/bin:$PATH exec %s`, cwd, cwd, cwd,
		folder, row)
	cmd := exec.Command(s.program, "exec", "--session", "home", "--state-dir", s.State, "--", "sh", "-c", script)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts).
		Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, &mcp.ClientSessionOptions{ProtocolVersion: older})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

func (th third) compare(t *testing.T, c *client, d *mcp.ClientSession, r *result) {
	t.Helper()
	list, err := d.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	called := map[string]bool{}
	for _, call := range th.calls {
		called[call.tool] = true
	}
	through := c.toolNames()
	for _, tool := range list.Tools {
		if !called[tool.Name] {
			t.Errorf("the tool %s is not called", tool.Name)
		}
		got := through[r.exposed(t, tool.Name)]
		if got == nil {
			t.Errorf("%s is not listed", tool.Name)
			continue
		}
		for what, pair := range map[string][2]any{"inputSchema": {tool.InputSchema, got.InputSchema},
			"outputSchema": {tool.OutputSchema, got.OutputSchema}, "annotations": {tool.Annotations, got.Annotations},
			"title": {tool.Title, got.Title}} {
			if x, y := asJSON(pair[0]), asJSON(pair[1]); x != y {
				t.Errorf("%s of %s: %s, through the hub %s", what, tool.Name, x, y)
			}
		}
		if !strings.HasSuffix(got.Description, strings.TrimSpace(tool.Description)) {
			t.Errorf("description of %s: %q, through the hub %q", tool.Name, tool.Description, got.Description)
		}
	}
	// What one sequence of calls changes, it puts back.
	var want []string
	for _, call := range th.calls {
		want = append(want, outcome(d.CallTool(t.Context(), &mcp.CallToolParams{Name: call.tool,
			Arguments: call.given()})))
	}
	for i, call := range th.calls {
		if got := outcome(c.CallTool(t.Context(), &mcp.CallToolParams{Name: r.exposed(t, call.tool),
			Arguments: call.given()})); got != want[i] {
			t.Errorf("%s %v\n  directly:        %.1500s\n  through the hub: %.1500s", call.tool, call.a, want[i], got)
		}
	}
}

func (c call) given() args {
	if c.a == nil {
		return args{}
	}
	return c.a
}

func asJSON(v any) string { b, _ := json.Marshal(v); return string(b) }

// volatile is what differs from one call to the next: numbers, and what a
// server knows of its own process.
var volatile = regexp.MustCompile(`[0-9]+|"SANDLOT[^"]*":"[^"]*"|\\"(_|PWD|OLDPWD|SHLVL|PATH|SANDLOT_PROCESS)\\": ?\\"[^"]*\\",?|\\n *`)

var runs = regexp.MustCompile(`#+`)

func steady(s string) string {
	return runs.ReplaceAllString(volatile.ReplaceAllString(s, "#"), "#")
}

func outcome(r *mcp.CallToolResult, err error) string {
	if err != nil {
		return steady("error " + err.Error())
	}
	r.Meta = nil
	return steady(asJSON(r))
}

// everythingServer starts the SDK's own conformance server, on loopback.
func everythingServer(t *testing.T, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "everything")
	if out, err := exec.Command("go", "build", "-o", program,
		"github.com/modelcontextprotocol/go-sdk/conformance/everything-server").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	cmd := exec.Command(program, append([]string{"-http", address}, flags...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	until(t, "the server listens", func() bool {
		r, err := http.Get("http://" + address + "/mcp")
		if err == nil {
			r.Body.Close()
		}
		return err == nil
	})
	return "http://" + address + "/mcp"
}

// startConfigured starts a server with MCP servers in its settings file.
func startConfigured(t *testing.T, section string, settings ...string) *server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sandlot.yaml")
	if err := os.WriteFile(file, []byte(section), 0o600); err != nil {
		t.Fatal(err)
	}
	return start(t, append(settings, "SANDLOT_CONFIG="+file)...)
}

// conforms runs all scenarios that a revision requires of servers or clients, and returns which of them passed, and the
// suite's output. Scenarios that the suite itself excuses are not among them.
func conforms(t *testing.T, revision string, argv ...string) (passed map[string]bool, out string) {
	t.Helper()
	out, err := run(t, t.TempDir(), append(append([]string{"conformance"}, argv...), "--requirements", revision)...)
	_, summary, _ := strings.Cut(out, "SUMMARY ===")
	scored, not, _ := strings.Cut(summary, "Not scored for")
	passed = map[string]bool{}
	for i, part := range []string{scored, not} {
		for line := range strings.Lines(part) {
			f := strings.Fields(line)
			if len(f) < 2 || f[0] != "✗" && f[0] != "✓" {
				continue
			}
			if name := strings.TrimSuffix(f[1], ":"); i == 0 {
				passed[name] = strings.Contains(line, " 0 failed")
			} else {
				delete(passed, name)
			}
		}
	}
	return passed, fmt.Sprintf("%v\n%s", err, tail(out, 5000))
}

// TestHubConformance: all required scenarios of both revisions pass for a server
// behind the hub, as if it were asked itself.
func TestHubConformance(t *testing.T) {
	t.Parallel()
	for revision, flags := range map[string][]string{newer: nil, older: {"-stateless=false"}} {
		t.Run(revision, func(t *testing.T) {
			s := startConfigured(t, "mcp:\n  fixture: {type: http, url: \""+everythingServer(t, flags...)+
				"\", prefix: \"\", trust: warn}\n")
			passed, out := conforms(t, revision, "server", "--url", s.URL+"/mcp")
			for name, ok := range passed {
				if !ok {
					t.Errorf("%s failed", name)
				}
			}
			if want := map[string]int{newer: 37, older: 30}[revision]; len(passed) != want {
				t.Errorf("%d scenarios were required, want %d: %s", len(passed), want, out)
			}
		})
	}
}

// required reads which scenarios a revision requires of clients.
func required(t *testing.T, revision string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(tools(t), "node_modules/@modelcontextprotocol/conformance/requirements",
		revision+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "\nclient:\n")
	for line := range strings.Lines(list) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "- ")
		if !ok && !strings.HasPrefix(strings.TrimSpace(line), "#") {
			break
		}
		if ok {
			names = append(names, name)
		}
	}
	return names
}

// TestHubClientConformance: with the hub as the client, all scenarios that a
// revision requires of clients pass. Each has a Sandlot of its own, whose user
// logs in where that is needed.
func TestHubClientConformance(t *testing.T) {
	t.Parallel()
	built, program := filepath.Join(t.TempDir(), "built"), filepath.Join(t.TempDir(), "conformance-client")
	if out, err := exec.Command("go", "build", "-o", built, "./conformance").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The suite runs all scenarios at once, and each starts a Sandlot.
	script := fmt.Sprintf("#!/bin/sh\nexec flock -o '%s'$(($$ %% 4)) env SANDLOT_CONFORMANCE_HUB='%s' '%s' \"$@\"\n",
		filepath.Join(t.TempDir(), "few"), binary(t), built)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, revision := range []string{older, newer} {
		names := required(t, revision)
		if len(names) < 15 {
			t.Fatalf("%s requires %q", revision, names)
		}
		passed, out := conforms(t, revision, "client", "--command", program, "--timeout", "150000", "--verbose")
		for _, name := range names {
			if !passed[name] {
				t.Errorf("%s, %s failed: %s", revision, name, out)
			}
		}
	}
}
