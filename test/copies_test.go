package test

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestServersOfCopies: after a session went back to a snapshot, was copied, or slept, its third-party servers answer,
// and commands of the command line wake it.
func TestServersOfCopies(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_SNAPSHOTS=true")
	s.put("", "odd.py")
	c := s.connect(older, "", nil)
	proven(t, c, "home")
	say := c.odd("odd", "plain", nil).exposed(t, "say")
	answers := func(when string) {
		t.Helper()
		if r := c.call(say, args{"text": "hi"}); r.Text != "odd: hi" {
			t.Errorf("%s the server says %q", when, r.All)
		}
	}
	answers("at first")
	c.code("home", "x = 41")
	c.call("snapshot_session", args{"session_id": "home", "name": "first"})
	answers("after a snapshot")
	c.code("home", "x = 0")
	c.call("restore_snapshot", args{"name": "first"})
	answers("after going back")
	c.want("home", "x", "41")
	r := c.call("fork_session", args{"session_id": "home"})
	answers("after a copy was made")
	copied := r.Fields["copies"].([]any)[0].(string)
	if r := c.shell(copied, "pgrep -fc 'odd[.]py'"); r.Text != "0" {
		t.Errorf("the servers of the home run in its copy, where nobody calls them: %q", r.All)
	}
	for name, command := range map[string][]string{"exec": {"exec", "--session", "home", "--", "echo", "awake"},
		"shell": {"shell", "--session", "home"}} {
		s.stop()
		s.launch()
		if out, errs, code := s.cliIn("echo awake\n", command...); code != 0 || !strings.Contains(out, "awake") {
			t.Errorf("%s in a session that sleeps: %d %q %q", name, code, out, errs)
		}
		c = s.connect(older, "", nil)
		c.want("home", "x", "41")
		answers("after " + name + " in a session that slept")
	}
	c.call("stop_session", args{"session_id": copied})
	c.call("remove_snapshot", args{"name": "first"})
}

// TestNumpyOfCopies: the random numbers of the functions of numpy differ in the copies of a session. A generator that
// the program has made itself goes on as it was.
func TestNumpyOfCopies(t *testing.T) {
	t.Parallel()
	s := start(t, append(registries(), "SANDLOT_SNAPSHOTS=true")...)
	c := s.connect(older, "", nil)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	r, err := c.try(ctx, "execute_command", args{"session_id": "new", "timeout": 290,
		"command": "pip install -q --target /workspace/py numpy && echo installed"})
	if err != nil || !strings.Contains(r.Text, "installed") {
		t.Fatalf("%v %q", err, tail(r.All, 1500))
	}
	id := r.session()
	c.code(id, "import sys; sys.path.insert(0, '/workspace/py'); import numpy\n"+
		"numpy.random.seed(1); own = numpy.random.default_rng(1)")
	seen, owns := map[string]bool{}, map[string]bool{}
	all := []string{id}
	for _, copied := range c.call("fork_session", args{"session_id": id, "count": 2}).Fields["copies"].([]any) {
		all = append(all, copied.(string))
	}
	for _, session := range all {
		r := c.code(session, "print(numpy.random.random(3)); print(own.random(3))")
		legacy, own, _ := strings.Cut(r.Text, "\n")
		seen[legacy], owns[own] = true, true
	}
	if len(seen) != 3 || len(owns) != 1 {
		t.Errorf("of three sessions the random numbers are %v, and those of their own generators %v", seen, owns)
	}
}

// TestSecretsOfProgramsInCopies: who may not use a secret by now gets no copy of a session in which a program had it:
// a third-party server in the home, a command, or one of `sandlot exec`.
func TestSecretsOfProgramsInCopies(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_SNAPSHOTS=true")
	ann := s.token("ann")
	s.put(ann, "odd.py")
	cli := func(arguments ...string) {
		t.Helper()
		if out, code := s.cliAs(ann, "hunter2", arguments...); code != 0 {
			t.Fatal(out)
		}
	}
	cli("secret", "set", "KEY")
	cli("mcp", "add", "odd", "--env", "ODD_KEY=${secret:KEY}", "--", "python3", "/workspace/odd.py", "plain", "odd")
	c := s.connect(older, ann, nil)
	exec, command := c.code("new", "1").session(), c.code("new", "1").session()
	cli("exec", "--session", exec, "--env", "A=${secret:KEY}", "--", "true")
	c.call("execute_command", args{"command": "true", "session_id": command, "env": args{"A": "${secret:KEY}"}})
	without := c.code("new", "1").session()
	sessions := map[string]string{"server": "home", "exec": exec, "command": command}
	for what, id := range sessions {
		c.call("snapshot_session", args{"session_id": id, "name": what})
		defer func() { c.call("remove_snapshot", args{"name": what}) }()
	}
	s.applySettings("policy: {rules: [\"deny ann secret.use KEY\"]}\n")
	for what, id := range sessions {
		for tool, a := range map[string]args{"fork_session": {"session_id": id},
			"restore_snapshot": {"name": what, "session_id": "new"}} {
			if got := c.refusal(tool, a); got != "FORBIDDEN" {
				t.Errorf("%s, %s: %q", what, tool, got)
			}
		}
	}
	if got := c.refusal("fork_session", args{"session_id": without}); got != "" {
		t.Errorf("a session without it: %q", got)
	}
	s.applySettings("policy: {rules: []}\n")
	if got := c.refusal("fork_session", args{"session_id": "home"}); got != "" {
		t.Errorf("who may use it: %q", got)
	}
}
