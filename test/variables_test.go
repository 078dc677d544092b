package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// variablesUser is a user with sessions that have variables.
type variablesUser struct {
	t     *testing.T
	s     *server
	token string
}

// cells print the variables of a session, in each language.
var variablesCells = map[string]string{
	"python": "import os; print(*[os.environ.get(n, '-') for n in ('PLAIN', 'KEY', 'BOUND')])",
	"node":   "console.log(...['PLAIN', 'KEY', 'BOUND'].map(n => process.env[n] ?? '-'))",
	"bash":   `echo "${PLAIN--}" "${KEY--}" "${BOUND--}"`,
}

// sees fails the test unless all that runs in a session has its variables, with that value of the secret.
func (u *variablesUser) sees(session, value string) {
	u.t.Helper()
	want, c := "plain hunter2's "+value+" sandlot_", u.s.connect(older, u.token, nil)
	check := func(what, got string) {
		u.t.Helper()
		if !strings.Contains(got, want) {
			u.t.Errorf("%s has %s; want %s", what, got, want)
		}
	}
	for language, code := range variablesCells {
		for range 2 { // the second cell of Python goes to the interpreter directly
			check(language, c.call("execute_code", args{"code": code, "language": language,
				"session_id": session}).Text)
		}
	}
	line := variablesCells["bash"]
	check("a command", c.call("execute_command", args{"command": line, "session_id": session}).Text)
	background := c.call("execute_command", args{"command": line + " > /tmp/out; echo done", "background": true,
		"session_id": session})
	c.call("read_process", args{"process_id": background.Fields["process_id"], "wait": 10})
	check("a process in the background", c.call("execute_command", args{"command": "cat /tmp/out",
		"session_id": session}).Text)
	out, _ := u.s.cliAs(u.token, "", "exec", "--session", session, "--", "sh", "-c", line)
	check("sandlot exec", out)
	out, _ = u.s.cliAs(u.token, "", "exec", "--session", session, "--env", "PLAIN=mine", "--", "sh", "-c", line)
	if !strings.HasPrefix(out, "mine "+value) {
		u.t.Errorf("a variable of a command does not replace that of the session: %s", out)
	}
	if got := c.call("execute_command", args{"command": line, "session_id": session,
		"env": map[string]string{"KEY": "mine"}}); !strings.Contains(got.Text, "hunter2's mine ") {
		u.t.Errorf("a variable of a command does not replace that of the session: %s", got.All)
	}
}

func (u *variablesUser) set(value string, arguments ...string) {
	u.t.Helper()
	if out, code := u.s.cliAs(u.token, value, append([]string{"secret", "set"}, arguments...)...); code != 0 {
		u.t.Fatal(out)
	}
}

// create makes a session with variables over the HTTP API, and returns its id, or the problem.
func (u *variablesUser) create(token string, env map[string]string) (id, problem string) {
	u.t.Helper()
	body, _ := json.Marshal(map[string]any{"env": env})
	status, _, text := u.s.post("/v1/sessions", string(body), "Authorization", "Bearer "+token)
	var made struct {
		ID string `json:"session_id"`
	}
	if status >= http.StatusMultipleChoices {
		return "", text
	}
	if err := json.Unmarshal([]byte(text), &made); err != nil || made.ID == "" {
		u.t.Fatalf("%d %s", status, text)
	}
	return made.ID, ""
}

// TestVariablesOfSessions: what runs in a session has its variables, by every door, with stored secrets in place of
// their references, also after its sandbox was stopped, and after a crash of Sandlot; another value of a secret is
// there in the next cell and the next program; nothing that Sandlot writes, or tells, has a value.
func TestVariablesOfSessions(t *testing.T) {
	t.Parallel()
	u := &variablesUser{t: t, s: start(t, "SANDLOT_LOG_LEVEL=DEBUG", "SANDLOT_ON_STOP=end")}
	u.token = u.s.token("ann")
	env := map[string]string{"PLAIN": "plain hunter2's", "KEY": "${secret:KEY}", "BOUND": "${secret:BOUND}"}
	if _, problem := u.create(u.token, env); !strings.Contains(problem, "sandlot secret set ") ||
		strings.Contains(problem, "hunter2") {
		t.Errorf("without the secrets: %s", problem)
	}
	u.set("hunter2-key", "KEY")
	u.set("hunter2-bound", "BOUND", "--host", "api.example.com")
	byHTTP, _ := u.create(u.token, env)
	byTool := u.s.connect(newer, u.token, nil).call("execute_code", args{"code": variablesCells["python"],
		"session_id": "new", "env": env})
	if !strings.Contains(byTool.Text, "plain hunter2's hunter2-key sandlot_") {
		t.Errorf("the first cell has %s", byTool.All)
	}
	printed, code := u.s.cliAs(u.token, "", "sessions", "new", "--env", "PLAIN=plain hunter2's", "--env",
		"KEY=${secret:KEY}", "--env", "BOUND=${secret:BOUND}", "--flavor", "medium")
	if code != 0 {
		t.Fatal(printed)
	}
	sessions := []string{byHTTP, byTool.session(), strings.TrimSpace(printed)}
	for _, id := range sessions {
		u.sees(id, "hunter2-key")
		u.s.connect(older, u.token, nil).call("execute_command", args{"command": "echo x > kept", "session_id": id})
	}
	u.refused(sessions[0])
	list := u.s.connect(older, u.token, nil).call("get_sessions", args{})
	_, _, listed := u.s.request("GET", "/v1/sessions", nil, "Authorization", "Bearer "+u.token)
	if strings.Contains(list.All+listed, "hunter2") || !strings.Contains(listed, byHTTP) {
		t.Errorf("the lists have values: %s, %s", list.All, listed)
	}

	u.set("hunter2-again", "KEY")
	c := u.s.connect(older, u.token, nil)
	c.call("execute_code", args{"code": "x = 7", "session_id": byHTTP})
	u.sees(byHTTP, "hunter2-again")
	if got := c.call("execute_code", args{"code": "print(x)", "session_id": byHTTP}); got.Text != "7" {
		t.Errorf("the interpreter has lost its variables: %s", got.All)
	}
	u.s.kill()
	transport.CloseIdleConnections()
	u.s.launch()
	u.set("hunter2-later", "KEY")
	u.sees(byHTTP, "hunter2-later") // in its old sandbox
	u.endSandboxes()
	u.s.connect(older, u.token, nil).call("execute_command", args{"command": "true", "session_id": byHTTP}) // a notice
	u.sees(byHTTP, "hunter2-later")
	events, _, _ := u.s.cli("events", "--json", "--since", "1h")
	if strings.Contains(events, "hunter2") || !strings.Contains(events, `"operation":"secret.use","name":"KEY"`) {
		t.Errorf("the events: %s", events)
	}
	u.s.holds("hunter2")

	// A secret that is gone stops what would start, and nothing else.
	if out, code := u.s.cliAs(u.token, "", "secret", "remove", "KEY"); code != 0 {
		t.Fatal(out)
	}
	c = u.s.connect(older, u.token, nil)
	for tool, arguments := range map[string]args{"execute_code": {"code": "1"},
		"execute_command": {"command": "true"}} {
		arguments["session_id"] = byHTTP
		if got := c.refusal(tool, arguments); got != "NOT_FOUND" {
			t.Errorf("%s, without the secret: %q", tool, got)
		}
	}
	if out, code := u.s.cliAs(u.token, "", "exec", "--session", byHTTP, "--", "true"); code == 0 ||
		!strings.Contains(out, "sandlot secret set KEY") {
		t.Errorf("sandlot exec, without the secret: %d %s", code, out)
	}
	if got := c.call("sandbox_read_file", args{"path": "kept", "session_id": byHTTP}); !strings.Contains(got.All, "x") {
		t.Errorf("a file, without the secret: %s", got.All)
	}
	u.withoutKey(byHTTP)
	u.s.holds("hunter2")
}

// endSandboxes makes all sandboxes end with their server, and starts a server.
func (u *variablesUser) endSandboxes() {
	u.t.Helper()
	if out, errs, code := u.s.cli("stop", "--sessions"); code != 0 {
		u.t.Fatal(out, errs)
	}
	_ = u.s.cmd.Wait()
	transport.CloseIdleConnections()
	u.s.launch()
}

// refused tries to get at a session's secrets by others, and by rules that deny them.
func (u *variablesUser) refused(session string) {
	u.t.Helper()
	t, s := u.t, u.s
	bob, bot := s.token("bob"), s.token("ann", "--service")
	env := map[string]string{"A": "${secret:KEY}"}
	if _, problem := u.create(bob, env); !strings.Contains(problem, "sandlot secret set KEY") {
		t.Errorf("another user's secret: %s", problem)
	}
	if got := s.connect(newer, bob, nil).refusal("execute_code", args{"code": "1", "session_id": session}); got !=
		"SESSION_NOT_FOUND" {
		t.Errorf("another user's session: %q", got)
	}
	for _, door := range []struct {
		tool      string
		arguments args
	}{{"execute_code", args{"code": "1", "env": env}}, {"execute_code", args{"code": "1", "session_id": session}},
		{"execute_command", args{"command": "env", "session_id": session}},
		{"execute_command", args{"command": "env", "session_id": session, "background": true}}} {
		if got := s.connect(newer, bot, nil).refusal(door.tool, door.arguments); got != "FORBIDDEN" {
			t.Errorf("a service: %v: %q", door, got)
		}
	}
	if out, code := s.cliAs(bot, "", "exec", "--session", session, "--", "env"); code == 0 || strings.Contains(out,
		"hunter2") {
		t.Errorf("a service: %d %s", code, out)
	}
	_, before := s.sessionsOf(u.token)
	if _, problem := u.create(bot, env); !strings.Contains(problem, "FORBIDDEN") {
		t.Errorf("a service: %s", problem)
	}
	if _, after := s.sessionsOf(u.token); after != before {
		t.Errorf("a session is left: %s", after)
	}
	s.applySettings("policy: {rules: [\"deny ann secret.use KEY\", \"allow ann shell.execute echo *\", " +
		"\"deny ann shell.execute\"]}\n")
	c := s.connect(newer, u.token, nil)
	if got := c.refusal("execute_code", args{"code": "1", "session_id": session}); got != "FORBIDDEN" {
		t.Errorf("a rule that denies the secret: %q", got)
	}
	// A rule that allows a command does not allow it with variables, whoever gave them.
	plain, _ := u.create(u.token, map[string]string{"PATH": "/workspace:/usr/bin:/bin"})
	if got := c.refusal("execute_command", args{"command": "echo x", "session_id": plain}); got != "FORBIDDEN" {
		t.Errorf("a command that a rule allows without variables: %q", got)
	}
	if out, code := s.cliAs(u.token, "", "exec", "--session", plain, "--", "echo", "x"); code == 0 {
		t.Errorf("a command that a rule allows without variables: %d %s", code, out)
	}
	if got := c.call("execute_command", args{"command": "echo x", "session_id": "home"}); got.IsError {
		t.Errorf("a command that a rule allows: %s", got.All)
	}
	s.applySettings("policy: {rules: []}\n")
	for what, env := range map[string]map[string]string{"a name": {"A=B": "hunter2"}, "NUL": {"A": "hunter2\x00"},
		"much": {"A": strings.Repeat("hunter2", 10000)}, "a reference": {"A": "hunter2${secret:}"}} {
		if id, problem := u.create(u.token, env); id != "" || strings.Contains(problem, "hunter2") {
			t.Errorf("%s: %s %s", what, id, problem)
		}
	}
	if got := c.refusal("execute_code", args{"code": "1", "session_id": "home", "env": env}); got !=
		"INVALID_PARAMETERS" {
		t.Errorf("variables for the home: %q", got)
	}
}

// withoutKey: when the server's key is lost, nothing runs without the variables.
func (u *variablesUser) withoutKey(session string) {
	u.t.Helper()
	if err := os.Remove(filepath.Join(u.s.State, "secrets.key")); err != nil {
		u.t.Fatal(err)
	}
	c := u.s.connect(older, u.token, nil)
	if got := c.refusal("execute_command", args{"command": "true", "session_id": session}); got !=
		"CONFIGURATION_ERROR" {
		u.t.Errorf("without the key: %q", got)
	}
}

// sessionsOf returns the ids of a user's sessions, sorted, and as a text.
func (s *server) sessionsOf(token string) (ids []string, text string) {
	s.t.Helper()
	var list struct {
		Sessions []struct {
			ID string `json:"session_id"`
		} `json:"sessions"`
	}
	_, _, body := s.request("GET", "/v1/sessions", nil, "Authorization", "Bearer "+token)
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		s.t.Fatalf("%v: %s", err, body)
	}
	for _, one := range list.Sessions {
		ids = append(ids, one.ID)
	}
	slices.Sort(ids)
	return ids, fmt.Sprint(ids)
}
