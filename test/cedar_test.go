package test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
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

// TestCedarResources: conditions on the resource hold on each road, also where the call names no session.
func TestCedarResources(t *testing.T) {
	t.Parallel()
	s := start(t)
	token := s.token("ann")
	header := []string{"Authorization", "Bearer " + token}
	clients := map[string]*client{older: s.connect(older, token, nil), newer: s.connect(newer, token, nil)}
	home := clients[older].shell("home", "echo x > f").session()
	other := clients[older].shell("new", "echo x > f").session()
	for _, c := range clients {
		for range 2 { // the fast path knows them
			c.shell(home, "true")
			c.code(home, "1")
			c.call("execute_command", args{"command": "true"})
			c.call("sandbox_list_files", args{})
		}
	}
	s.applySettings(`policy:
  cedar: |
    permit (principal, action, resource) unless { resource is Session && resource.owner != "ann" };

    forbid (principal, action, resource == Session::"` + home + `")
    unless { action == Action::"session.list" };
`)
	for resource, want := range map[string]string{home: "deny", other: "allow"} {
		out, errs, _ := s.cli("policy", "check", "ann", "shell.execute", "true", "--resource", resource)
		if !strings.HasPrefix(out, want) {
			t.Errorf("policy check for %s: %q, %q", resource, out, errs)
		}
	}
	refused := func(where, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", where, got, want)
		}
	}
	for id, want := range map[string]string{home: "FORBIDDEN", "home": "FORBIDDEN", "": "FORBIDDEN", other: ""} {
		in := func(a args) args {
			if id != "" {
				a["session_id"] = id
			}
			return a
		}
		calls := map[string]args{"execute_code": {"code": "1"}, "execute_command": {"command": "true"},
			"sandbox_read_file": {"path": "f"}, "sandbox_list_files": {}, "list_processes": {}}
		for tool, a := range calls {
			for era, c := range clients {
				refused(fmt.Sprintf("%s in %q, %s", tool, id, era), c.refusal(tool, in(a)), want)
			}
			bare := s.bare(tool, in(a), header...)
			got := ""
			if bare.Error != nil {
				got, _ = bare.Error.Data["error_code"].(string)
			}
			refused(fmt.Sprintf("%s in %q, bare", tool, id), got, want)
			body, _ := json.Marshal(in(a))
			status, _, text := s.post("/v1/tools/"+tool, string(body), header...)
			if (status == 403) != (want != "") {
				t.Errorf("%s in %q over HTTP: %d %s", tool, id, status, text)
			}
		}
		if id == "" {
			continue
		}
		status, _, text := s.request("GET", "/v1/sessions/"+id+"/files/workspace/f", nil, header...)
		if (status == 403) != (want != "") {
			t.Errorf("a download from %q: %d %s", id, status, text)
		}
		if out, ended := s.cliAs(token, "", "exec", "--session", id, "--", "true"); (ended == 0) != (want == "") {
			t.Errorf("exec in %q: %d %s", id, ended, out)
		}
		for era, c := range clients {
			_, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandlot://sessions/" + id +
				"/files/workspace/f"})
			if got := code(err); got != want {
				t.Errorf("%s: the resource of %q: %v", era, id, err)
			}
		}
	}
	refused("a new session", clients[newer].refusal("execute_code", args{"code": "1", "session_id": "new"}), "")
	s.applySettings("policy:\n") // the test ends the sessions
}

// TestKeyedCommandAndSecret: a stored result is not given again when the rules deny the secret that its call used.
func TestKeyedCommandAndSecret(t *testing.T) {
	t.Parallel()
	s := start(t)
	token := s.token("ann")
	if out, code := s.cliAs(token, "hunter2", "secret", "set", "KEY"); code != 0 {
		t.Fatal(out)
	}
	call := args{"command": "echo $A", "env": args{"A": "${secret:KEY}"}, "idempotency_key": "k"}
	coded := args{"code": "1", "idempotency_key": "k", "language": "bash"}
	for era, c := range map[string]*client{older: s.connect(older, token, nil), newer: s.connect(newer, token, nil)} {
		if got := c.call("execute_command", call).Text; !strings.Contains(got, "hunter2") {
			t.Errorf("%s: %q", era, got)
		}
		c.call("execute_code", coded)
	}
	s.applySettings("policy: {rules: [\"deny * secret.use KEY\", \"deny * code.execute bash\"]}\n")
	for era, c := range map[string]*client{older: s.connect(older, token, nil), newer: s.connect(newer, token, nil)} {
		for tool, a := range map[string]args{"execute_command": call, "execute_code": coded} {
			if got := c.refusal(tool, a); got != "FORBIDDEN" {
				t.Errorf("%s: %s after the rule: %q", era, tool, got)
			}
		}
	}
	s.applySettings("policy:\n")
	if got := s.connect(newer, token, nil).call("execute_command", call).Text; !strings.Contains(got, "hunter2") {
		t.Errorf("without the rule: %q", got)
	}
}

// TestListsWithhold: a list of files shows nothing of what is denied below.
func TestListsWithhold(t *testing.T) {
	t.Parallel()
	s := start(t)
	token := s.token("ann")
	c := s.connect(newer, token, nil)
	c.shell("home", "mkdir -p a/private/canary b; touch a/private/canary/x b/y")
	s.applySettings("policy: {rules: [\"deny * file.* /workspace/a/private/*\"]}\n")
	for _, path := range []string{"/workspace", ".", "a", "/workspace/a/../a"} {
		got := c.call("sandbox_list_files", args{"path": path, "depth": 5, "limit": 10000})
		text, _ := json.Marshal(got.StructuredContent)
		withheld := strings.Contains(string(text), "withheld")
		if strings.Contains(got.All+string(text), "canary") || !withheld {
			t.Errorf("%s: %s %s", path, got.All, text)
		}
	}
	if got := c.call("sandbox_list_files", args{"path": "b"}); !strings.Contains(got.All, "y") ||
		got.Fields["withheld"] != nil {
		t.Errorf("another folder: %s", got.All)
	}
	s.applySettings("policy:\n")
}
