package test

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestCedar: policies in Cedar hold on each road, in running sessions too; a wrong change changes nothing.
func TestCedar(t *testing.T) {
	t.Parallel()
	s := start(t)
	clients := map[string]*client{}
	for _, era := range []string{older, newer} {
		clients[era] = s.connect(era, s.token("ann"), nil)
		clients[era].shell("home", "mkdir -p private; echo canary > private/a") // the fast path knows it
	}
	s.applySettings(`policy:
  rules:
    - deny ann file.list
  cedar: |
    permit (principal, action, resource);

    forbid (principal == Principal::"ann", action == Action::"shell.execute", resource)
    when { context.detail like "cat *" };

    forbid (principal, action in Action::"file", resource)
    when { context.detail like "/workspace/private*" };
`)
	for era, c := range clients {
		for name, call := range map[string]struct {
			tool string
			args args
			want string
		}{
			"a command":       {"execute_command", args{"command": "cat private/a"}, "FORBIDDEN"},
			"in a line":       {"sandbox_shell_exec", args{"command": "cd private && /bin/cat a"}, "FORBIDDEN"},
			"another command": {"execute_command", args{"command": "true"}, ""},
			"a file":          {"sandbox_read_file", args{"path": "x/../private/a"}, "FORBIDDEN"},
			"code":            {"execute_code", args{"code": "1"}, ""},
			"by a rule":       {"sandbox_list_files", args{"path": "."}, "FORBIDDEN"},
		} {
			if got := c.refusal(call.tool, call.args); got != call.want {
				t.Errorf("%s, %s: %q, want %q", era, name, got, call.want)
			}
		}
	}
	check := func(want string, words ...string) {
		t.Helper()
		out, errs, code := s.cli(append([]string{"policy", "check"}, words...)...)
		if !strings.HasPrefix(out, want) {
			t.Errorf("policy check %q says %q, %q, and ends with %d", words, out, errs, code)
		}
	}
	check("deny  (sandlot.yaml:7:1: forbid", "ann", "shell.execute", "cat x")
	check("allow", "bob", "shell.execute", "cat x")
	rewrite(t, filepath.Join(s.State, "sandlot.yaml"), "policy:\n  cedar: |\n    permit (principal);\n")
	until(t, "the log says what is wrong", func() bool {
		return strings.Contains(s.log.String(), "sandlot.yaml:2: cedar")
	})
	if got := clients[newer].refusal("execute_command", args{"command": "cat private/a"}); got != "FORBIDDEN" {
		t.Errorf("after a wrong change: %q", got)
	}
	s.applySettings(`policy:
  cedar: |
    permit (principal, action in [Action::"client", Action::"tool"], resource);
`)
	if got := clients[newer].refusal("execute_code", args{"code": "1"}); got != "FORBIDDEN" {
		t.Errorf("what no policy permits: %q", got)
	}
	if names := clients[newer].toolNames(); len(names) == 0 {
		t.Error("what is permitted is refused")
	}
	s.applySettings("policy:\n") // the test ends the sessions
}
