package test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// cliAs runs a command as the user of a token, and returns all that it printed.
func (s *server) cliAs(token, stdin string, args ...string) (string, int) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.program, append([]string{"--state-dir", s.State}, args...)...)
	cmd.Env = append(s.env, "SANDLOT_TOKEN="+token)
	cmd.Stdin = strings.NewReader(stdin)
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

// holds fails the test when the value stands in the state folder, outside of
// workspaces, or in the server's log.
func (s *server) holds(value string) {
	s.t.Helper()
	database := false
	_ = filepath.WalkDir(s.State, func(f string, e fs.DirEntry, err error) error {
		switch {
		case err != nil: // it went meanwhile
			return nil
		case e.IsDir() && e.Name() == "workspaces":
			return fs.SkipDir
		case !e.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(f)
		database = database || e.Name() == "sandlot.db" && err == nil
		if bytes.Contains(b, []byte(value)) {
			s.t.Errorf("%s has the value", f)
		}
		return nil // a mounted namespace cannot be read
	})
	if !database {
		s.t.Error("there is no database")
	}
	if log := s.log.String(); strings.Contains(log, value) || !strings.Contains(log, "level=DEBUG") {
		s.t.Errorf("the log has the value, or is not whole:\n%s", log)
	}
}

// TestSecretServerKilled: what a user stored is given to their servers after a
// crash of Sandlot too, without being given again, and stands nowhere.
func TestSecretServerKilled(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_LOG_LEVEL=DEBUG")
	tokens, tools := map[string]string{"ann": s.token("ann"), "bob": s.token("bob")}, map[string]string{}
	for user, token := range tokens {
		s.put(token, "odd.py")
		add := []string{"mcp", "add", "odd", "--env", "ODD_KEY=a ${secret:KEY} b", "--env", "ODD_TOO=${secret:KEY}",
			"--", "python3", "/workspace/odd.py", "plain", "odd"}
		if out, code := s.cliAs(token, "", add...); code != 1 || !strings.Contains(out, "sandlot secret set KEY") {
			t.Fatalf("%s, without the secret: %d %s", user, code, out)
		}
		if out, code := s.cliAs(token, "hunter2 of "+user+"\n", "secret", "set", "KEY"); code != 0 ||
			strings.Contains(out, "hunter2") {
			t.Fatalf("%s stores it: %d %s", user, code, out)
		}
		if out, code := s.cliAs(token, "", add...); code != 0 || strings.Contains(out, "hunter2") {
			t.Fatalf("%s adds the server: %d %s", user, code, out)
		}
		c := s.connect(older, token, nil)
		list, _ := json.Marshal(c.call("list_external_mcp", args{}).StructuredContent)
		if !strings.Contains(string(list), `"secrets":["KEY"]`) || strings.Contains(string(list), "hunter2") {
			t.Errorf("%s lists %s", user, list)
		}
		for name := range c.toolNames() {
			if strings.HasSuffix(name, "_env") {
				tools[user] = name
			}
		}
	}
	shows := func(era, user, value string) {
		t.Helper()
		if got := s.connect(era, tokens[user], nil).call(tools[user], nil); !strings.Contains(got.Text, `"a `+value+
			` b"`) || !strings.Contains(got.Text, `"ODD_TOO": "`+value+`"`) {
			t.Errorf("%s's server has %s, want %s", user, got.Text, value)
		}
	}
	shows(older, "ann", "hunter2 of ann")
	shows(newer, "bob", "hunter2 of bob")
	s.holds("hunter2")
	if st, err := os.Stat(filepath.Join(s.State, "secrets.key")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", st, err)
	}

	s.kill()
	transport.CloseIdleConnections()
	s.launch()
	shows(newer, "ann", "hunter2 of ann")
	shows(older, "bob", "hunter2 of bob")

	// Another value is there at the next start; one that is gone is said to be.
	if out, code := s.cliAs(tokens["ann"], "hunter2 again", "secret", "set", "KEY"); code != 0 ||
		!strings.Contains(out, "sandlot mcp restart odd") {
		t.Errorf("stored again: %d %s", code, out)
	}
	shows(older, "ann", "hunter2 of ann")
	if out, code := s.cliAs(tokens["ann"], "", "mcp", "restart", "odd"); code != 0 {
		t.Errorf("restarted: %d %s", code, out)
	}
	shows(older, "ann", "hunter2 again")
	if out, code := s.cliAs(tokens["ann"], "", "secret", "remove", "KEY"); code != 0 ||
		!strings.Contains(out, "odd refers to it") {
		t.Errorf("removed: %d %s", code, out)
	}
	if out, code := s.cliAs(tokens["ann"], "", "mcp", "restart", "odd"); code != 1 ||
		!strings.Contains(out, "sandlot secret set KEY") {
		t.Errorf("restarted without it: %d %s", code, out)
	}
	if row := s.connect(older, tokens["ann"], nil).state("odd"); row["state"] != "needs_env" {
		t.Errorf("without it: %v", row)
	}
	shows(newer, "bob", "hunter2 of bob")

	// A key that is lost is said too, and what it sealed can be stored again.
	if err := os.Remove(filepath.Join(s.State, "secrets.key")); err != nil {
		t.Fatal(err)
	}
	bob := tokens["bob"]
	if out, code := s.cliAs(bob, "", "mcp", "restart", "odd"); code != 1 ||
		!strings.Contains(out, "can no longer be read") {
		t.Errorf("without the key: %d %s", code, out)
	}
	if out, code := s.cliAs(bob, "", "secret", "list"); code != 0 || !strings.Contains(out, "used by odd") ||
		!strings.Contains(out, "store it again") {
		t.Errorf("listed without the key: %d %s", code, out)
	}
	if out, code := s.cliAs(bob, "hunter2 anew\n", "secret", "set", "KEY"); code != 0 {
		t.Errorf("stored with a new key: %d %s", code, out)
	}
	shows(newer, "bob", "hunter2 anew")
	s.holds("hunter2")
}

// TestSecretInCommands: a variable of a command has a stored secret in place of its reference, by every door, also
// after a crash of Sandlot, and nothing that Sandlot writes has it. A bound one is its placeholder. A service gets
// none unless a rule says so.
func TestSecretInCommands(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_LOG_LEVEL=DEBUG")
	ann, bob, bot := s.token("ann"), s.token("bob"), s.token("ann", "--service")
	env := map[string]string{"MINE": "a ${secret:KEY} b"}
	run := func(token, session string) *result {
		t.Helper()
		return s.connect(older, token, nil).call("execute_command", args{"command": `echo "<$MINE>"`, "env": env,
			"session_id": session})
	}
	set := func(value string, arguments ...string) {
		t.Helper()
		if out, code := s.cliAs(ann, value, append([]string{"secret", "set"}, arguments...)...); code != 0 {
			t.Fatal(out)
		}
	}
	if got := s.connect(older, ann, nil).refusal("execute_command", args{"command": "true", "env": env}); got !=
		"NOT_FOUND" {
		t.Errorf("without the secret: %q", got)
	}
	if _, _, body := s.post("/v1/tools/execute_command", `{"command":"true","env":{"A":"${secret:KEY}"}}`,
		"Authorization", "Bearer "+ann); !strings.Contains(body, "sandlot secret set KEY") {
		t.Errorf("without the secret: %s", body)
	}
	set("hunter2 of ann", "KEY")
	if got := run(ann, "home"); !strings.Contains(got.Text, "<a hunter2 of ann b>") {
		t.Errorf("ann's command: %s", got.All)
	}
	if _, _, body := s.post("/v1/tools/execute_command", `{"command":"echo $A","env":{"A":"${secret:KEY}"}}`,
		"Authorization", "Bearer "+ann); !strings.Contains(body, "hunter2 of ann") {
		t.Errorf("over HTTP: %s", body)
	}
	if out, code := s.cliAs(ann, "", "exec", "--session", "home", "--env", "A=${secret:KEY}", "--", "sh", "-c",
		"echo $A"); code != 0 || out != "hunter2 of ann\n" {
		t.Errorf("the command line: %d %s", code, out)
	}
	if out, code := s.cliAs(ann, "", "exec", "--session", "home", "--env", "A=${secret:NONE}", "--",
		"true"); code == 0 || !strings.Contains(out, "sandlot secret set NONE") {
		t.Errorf("the command line, without the secret: %d %s", code, out)
	}
	if got := s.connect(newer, bob, nil).refusal("execute_command", args{"command": "true", "env": env}); got !=
		"NOT_FOUND" {
		t.Errorf("another user's: %q", got)
	}
	if got := s.connect(newer, bot, nil).refusal("execute_command", args{"command": "true", "env": env}); got !=
		"FORBIDDEN" {
		t.Errorf("a service: %q", got)
	}
	s.applySettings("policy: {rules: [\"allow service secret.use KEY\", \"deny ann secret.use PROD_*\"]}\n")
	if got := run(bot, "new"); !strings.Contains(got.Text, "<a hunter2 of ann b>") {
		t.Errorf("a service that may: %s", got.All)
	}
	set("hunter2-of-prod", "PROD_KEY")
	if got := s.connect(newer, ann, nil).refusal("execute_command", args{"command": "true",
		"env": map[string]string{"A": "${secret:PROD_KEY}"}}); got != "FORBIDDEN" {
		t.Errorf("one that a rule denies: %q", got)
	}
	set("hunter2-bound", "BOUND", "--host", "api.example.com")
	if got := s.connect(newer, ann, nil).call("execute_command", args{"command": "echo $A",
		"env": map[string]string{"A": "${secret:BOUND}"}}); !strings.HasPrefix(got.Text, "sandlot_") {
		t.Errorf("a bound one: %s", got.All)
	}
	s.connect(older, ann, nil).call("execute_command", args{"command": "echo $MINE; sleep 600", "env": env,
		"background": true, "session_id": "home"})
	s.holds("hunter2")

	s.kill()
	transport.CloseIdleConnections()
	s.launch()
	if got := run(ann, "home"); !strings.Contains(got.Text, "<a hunter2 of ann b>") {
		t.Errorf("after a crash: %s", got.All)
	}
	set("hunter2 again", "KEY")
	if got := run(ann, "home"); !strings.Contains(got.Text, "<a hunter2 again b>") {
		t.Errorf("with another value: %s", got.All)
	}
	events, _, _ := s.cli("events", "--json", "--since", "1h")
	if !strings.Contains(events, `"operation":"secret.use","name":"KEY"`) {
		t.Errorf("the events do not name it: %s", events)
	}
	s.holds("hunter2")
}
