package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// applySettings writes the settings file of a server, and waits until the server has taken it up.
func (s *server) applySettings(text string) {
	s.t.Helper()
	file := filepath.Join(s.State, "sandlot.yaml")
	const taken = `msg="the settings file is taken up"`
	before := strings.Count(s.log.String(), taken)
	rewrite(s.t, file, text)
	until(s.t, "the settings are taken up", func() bool { return strings.Count(s.log.String(), taken) > before })
}

// refusal returns the code of the fault of a call, or "" if the call was done.
func (c *client) refusal(tool string, a args) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := c.try(ctx, tool, a)
	if err != nil && code(err) == "" {
		c.t.Fatalf("%s: %v", tool, err)
	}
	return code(err)
}

// TestRules: what a rule denies is denied on each road and under each name of the operation, in running
// sessions too; a wrong change of the rules changes nothing.
func TestRules(t *testing.T) {
	t.Parallel()
	s := start(t)
	token, other := s.token("ann"), s.token("bob")
	header := []string{"Authorization", "Bearer " + token}
	clients := map[string]*client{}
	for _, era := range []string{older, newer} {
		clients[era] = s.connect(era, token, nil)
		// The fast path knows it.
		clients[era].shell("home", "mkdir -p private public; echo canary > private/a; echo b > public/b")
	}
	session := clients[newer].shell("home", "true").session()
	began := time.Now()
	s.applySettings(`policy:
  rules:
    - deny ann shell.execute cat *
    - deny ann file.* /workspace/private/*
    - deny ann file.read /workspace/unread/*
    - deny ann code.execute bash
    - deny ann session.create
    - deny ann port.expose 2222
`)
	t.Logf("the change holds after %s", time.Since(began))
	for era, c := range clients {
		for name, call := range map[string]struct {
			tool string
			args args
			want string
		}{
			"a command":       {"execute_command", args{"command": "cat private/a"}, "FORBIDDEN"},
			"in another form": {"execute_command", args{"command": "cd private;/bin/cat a"}, "FORBIDDEN"},
			"with arguments": {"execute_command", args{"command": "cat", "args": []string{"private/a"}},
				"FORBIDDEN"},
			"nested": {"execute_command", args{"params": args{"command": "cat private/a"}},
				"FORBIDDEN"},
			"the other tool":         {"sandbox_shell_exec", args{"command": "cat private/a"}, "FORBIDDEN"},
			"in the background":      {"execute_command", args{"command": "cat x", "background": true}, "FORBIDDEN"},
			"another command":        {"execute_command", args{"command": "true"}, ""},
			"a file":                 {"sandbox_read_file", args{"path": "private/a"}, "FORBIDDEN"},
			"a file in another form": {"sandbox_read_file", args{"path": "public//../private/./a"}, "FORBIDDEN"},
			"another file":           {"sandbox_read_file", args{"path": "public/b"}, ""},
			"writing": {"sandbox_write_file", args{"path": "/workspace/private/c", "content": "x"},
				"FORBIDDEN"},
			"editing": {"sandbox_edit_file", args{"path": "private/a", "edits": []args{{"old_text": "c", "new_text": "d"}}},
				"FORBIDDEN"},
			"editing what may not be read": {"sandbox_edit_file", args{"path": "public/../unread/a",
				"edits": []args{{"old_text": "c", "new_text": "d"}}}, "FORBIDDEN"},
			"writing what may not be read": {"sandbox_write_file", args{"path": "unread/a", "content": "x"}, ""},
			"the list":                     {"sandbox_list_files", args{"path": "private"}, "FORBIDDEN"},
			"a language":                   {"execute_code", args{"code": "ls", "language": "bash"}, "FORBIDDEN"},
			"an alias of the language":     {"execute_code", args{"code": "ls", "language": "sh"}, ""},
			"another language":             {"execute_code", args{"code": "1", "language": "python"}, ""},
			"a new session":                {"execute_code", args{"code": "1", "session_id": "new"}, "FORBIDDEN"},
			"a port":                       {"expose_port", args{"port": 2222}, "FORBIDDEN"},
		} {
			if got := c.refusal(call.tool, call.args); got != call.want {
				t.Errorf("%s, %s: %q, want %q", era, name, got, call.want)
			}
		}
		if r, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandlot://sessions/" + session +
			"/files/workspace/public/..%2Fprivate/a"}); err == nil || code(err) != "FORBIDDEN" {
			t.Errorf("%s: the resource: %v, %v", era, r, err)
		}
	}
	if r := s.bare("execute_command", args{"command": "cat private/a"}, header...); r.Error == nil ||
		r.Error.Data["error_code"] != "FORBIDDEN" {
		t.Errorf("a bare call: %v", r)
	}
	for _, road := range []struct{ method, path, body string }{
		{"POST", "/v1/tools/execute_command", `{"command":"cat private/a"}`},
		{"GET", "/v1/sessions/home/files/workspace/private/a", ""},
		{"GET", "/v1/sessions/home/files/workspace/public/" + url.PathEscape("../private/a"), ""},
		{"PUT", "/v1/sessions/home/files/workspace/private/a", "x"},
		{"DELETE", "/v1/sessions/home/files/workspace/private/a", ""},
		{"DELETE", "/v1/sessions/home/files/workspace/private?recursive=true", ""},
		{"POST", "/v1/sessions", `{}`},
	} {
		status, _, body := s.request(road.method, road.path, strings.NewReader(road.body),
			append(header, "Content-Type", "application/json")...)
		if status != 403 || strings.Contains(body, "canary") || strings.Contains(body, "sandlot.yaml:") {
			t.Errorf("%s %s: %d %s", road.method, road.path, status, body)
		}
	}
	for _, command := range [][]string{{"cat", "private/a"}, {"bash", "-c", "cat private/a"},
		{"sh", "-c", "true;cat private/a"}} {
		exec := s.as(exec.Command(binary(t), append([]string{"exec", "--state-dir", s.State, "--"}, command...)...))
		exec.Env = append(exec.Env, "SANDLOT_TOKEN="+token)
		out, err := exec.CombinedOutput()
		if err == nil || strings.Contains(string(out), "canary") || !strings.Contains(string(out), "does not allow") {
			t.Errorf("sandlot exec %q: %v %s", command, err, out)
		}
	}
	if got := s.connect(newer, other, nil).shell("home", "echo cat; cat /etc/hostname >/dev/null; "+
		"echo done").Text; !strings.Contains(got, "done") {
		t.Errorf("a rule for ann stops bob: %q", got)
	}

	rewrite(t, filepath.Join(s.State, "sandlot.yaml"),
		"policy:\n  rules:\n    - allow * *\n    - forbid ann file.read\n")
	until(t, "the wrong change is logged", func() bool {
		return strings.Contains(s.log.String(), "sandlot.yaml:4: policy: rules:")
	})
	if got := clients[newer].refusal("execute_command", args{"command": "cat private/a"}); got != "FORBIDDEN" {
		t.Errorf("after a wrong change the rules from before do not hold: %q", got)
	}
	s.applySettings("policy:\n  rules: []\n")
	if got := clients[newer].shell("home", "cat private/a").Text; !strings.Contains(got, "canary") {
		t.Errorf("without rules: %q", got)
	}
}

// TestPolicyCheck: the command says what would happen, and by which rule.
func TestPolicyCheck(t *testing.T) {
	t.Parallel()
	s := start(t)
	rewrite(t, filepath.Join(s.State, "sandlot.yaml"), `mcp_consent: ask
policy:
  rules:
    # a comment
    - allow ann shell.execute git *
    - ask user shell.execute
    - deny service *
`)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"ann", "shell.execute", "git status"}, 0, "allow  (sandlot.yaml:5: allow ann shell.execute git *)"},
		{[]string{"ann", "shell.execute", "git status; ls"}, 3, "ask  (sandlot.yaml:6: ask user shell.execute)"},
		{[]string{"bot", "--service", "file.read", "x"}, 4, "deny  (sandlot.yaml:7: deny service *)"},
		{[]string{"local", "file.read", "x"}, 0, "allow  (the table of operations)"},
		{[]string{"ann", "mcp.install", "x npm:y"}, 3, "ask  (file "},
		{[]string{"ann", "session.stop_all"}, 4, "deny  (the table of operations)"},
		{[]string{"ann", "--role", "operator", "session.stop_all"}, 0, "allow  (the table of operations)"},
		{[]string{"ann", "shell.exec"}, 2, `did you mean "shell.execute"?`},
	} {
		out, errs, code := s.cli(append([]string{"policy", "check"}, c.args...)...)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%q: %d %s%s, want %d %s", c.args, code, out, errs, c.code, c.want)
		}
	}
	if out, _, _ := s.cli("policy", "check", "--json", "ann", "shell.execute", "ls"); !strings.Contains(out,
		fmt.Sprintf("%q", "ask user shell.execute")) {
		t.Errorf("as JSON: %s", out)
	}
}

// TestRuleAsks: a rule that asks does so by the client, in both eras, on the fast path too, and an answer
// counts for as long as the user has said.
func TestRuleAsks(t *testing.T) {
	t.Parallel()
	s := start(t)
	token := s.token("ann")
	people := map[string]*user{older: {}, newer: {}}
	clients := map[string]*client{}
	for era, u := range people {
		clients[era] = s.connect(era, token, u.options())
		clients[era].shell("home", "echo a; true") // the fast path knows such calls
		clients[era].shell("home", "echo a; true")
	}
	s.applySettings("policy:\n  question_timeout: 20s\n  rules:\n    - ask ann shell.execute touch *\n" +
		"    - ask ann session.create\n    - ask ann code.execute bash\n")
	for era, c := range clients {
		u := people[era]
		touch := func(what string) string {
			return c.refusal("execute_command", args{"command": "touch " + what})
		}
		u.answers("accept", "deny")
		if got := touch(era + "-1"); got != "FORBIDDEN" || len(u.questions()) != 1 ||
			!strings.Contains(u.questions()[0], "shell.execute: 'touch "+era+"-1'") {
			t.Errorf("%s: denied: %q, asked %q", era, got, u.questions())
		}
		u.answers("cancel", nil)
		if got := touch(era + "-1"); got != "FORBIDDEN" || len(u.questions()) != 1 {
			t.Errorf("%s: put away: %q, asked %q", era, got, u.questions())
		}
		u.answers("accept", "allow")
		for range 2 {
			if got := touch(era + "-1"); got != "" {
				t.Errorf("%s: allowed: %q", era, got)
			}
		}
		if n := len(u.questions()); n != 2 {
			t.Errorf("%s: an answer for once counts for more: asked %d times", era, n)
		}
		u.answers("accept", "allow for this session")
		for range 2 {
			if got := touch(era + "-2"); got != "" || len(u.questions()) != 1 {
				t.Errorf("%s: for the session: %q, asked %q", era, got, u.questions())
			}
		}
		u.answers("decline", nil)
		if got := touch(era + "-22"); got != "FORBIDDEN" {
			t.Errorf("%s: another command: %q", era, got)
		}
		u.answers("accept", "deny")
		if got := c.refusal("execute_code", args{"code": "ls", "language": "bash"}); got != "FORBIDDEN" ||
			len(u.questions()) != 1 || !strings.Contains(u.questions()[0], "code.execute: bash") {
			t.Errorf("%s: code: %q, asked %q", era, got, u.questions())
		}
		if got := c.refusal("execute_command", args{"command": "ls", "session_id": "new"}); got != "FORBIDDEN" ||
			len(u.questions()) != 2 || !strings.Contains(u.questions()[1], "session.create: host") {
			t.Errorf("%s: a session: %q, asked %q", era, got, u.questions())
		}
		u.answers("decline", nil)
		if got := c.refusal("execute_command", args{"command": "touch a\u202eb\x1b[2J"}); got != "FORBIDDEN" ||
			!strings.Contains(u.questions()[0], `\u202e`) || strings.ContainsAny(u.questions()[0], "\u202e\x1b") {
			t.Errorf("%s: a question with escapes: %q %q", era, got, u.questions())
		}
		got := c.refusal("execute_command", args{"command": "touch " + strings.Repeat("x", 9<<10)})
		if got != "INVALID_PARAMETERS" {
			t.Errorf("%s: too long to be shown: %q", era, got)
		}
	}
	people[newer].answers("accept", "always allow")
	if got := clients[newer].refusal("execute_command", args{"command": "touch always"}); got != "" {
		t.Errorf("always: %q", got)
	}
	s.kill()
	s.launch()
	late := &user{}
	late.answers("decline", nil)
	c := s.connect(newer, token, late.options())
	if got := c.refusal("execute_command", args{"command": "touch always"}); got != "" || len(late.questions()) > 0 {
		t.Errorf("always, after a restart: %q, asked %q", got, late.questions())
	}
	if got := c.refusal("execute_command", args{"command": "touch " + newer + "-2"}); got != "FORBIDDEN" {
		t.Errorf("for the session, after a restart of the server: %q", got)
	}
}

// TestQuestions: what cannot be asked by the client waits for an answer by the command, of its user or an
// operator, and of nobody else.
func TestQuestions(t *testing.T) {
	t.Parallel()
	s := start(t)
	token, other := s.token("ann"), s.token("bob")
	s.applySettings("policy:\n  question_timeout: 1h\n  rules: [\"ask ann shell.execute touch *\"]\n")
	c := s.connect(newer, token, nil)
	as := func(token string, arguments ...string) (string, int) {
		cmd := s.as(exec.Command(binary(t), append([]string{"questions", "--state-dir", s.State}, arguments...)...))
		cmd.Env = append(cmd.Env, "SANDLOT_TOKEN="+token)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	ask := func(what string) (id string, result chan string) {
		result = make(chan string, 1)
		go func() { result <- c.refusal("execute_command", args{"command": "touch " + what}) }()
		until(t, "the question is listed", func() bool {
			out, _ := as(token, "list")
			id, _, _ = strings.Cut(out, " ")
			return strings.Contains(out, "'touch "+what+"'")
		})
		return id, result
	}
	id, result := ask("one")
	if out, code := as(other, "list"); code != 0 || strings.Contains(out, "touch") {
		t.Errorf("bob sees: %d %s", code, out)
	}
	if out, code := as(other, "answer", id, "yes"); code == 0 || !strings.Contains(out, "no such question") {
		t.Errorf("bob answers: %d %s", code, out)
	}
	if out, code := as(other, "answer", "q_nothing", "yes"); code == 0 || !strings.Contains(out, "no such question") {
		t.Errorf("an unknown question: %d %s", code, out)
	}
	if out, code := as(token, "answer", id, "maybe"); code != 2 {
		t.Errorf("maybe: %d %s", code, out)
	}
	if out, code := as(token, "answer", id, "yes"); code != 0 {
		t.Errorf("ann answers: %d %s", code, out)
	}
	if got := <-result; got != "" {
		t.Errorf("after a yes: %q", got)
	}
	id, result = ask("one") // the answer counted once
	if out, _, code := s.cli("questions", "answer", id, "no"); code != 0 {
		t.Errorf("an operator answers: %d %s", code, out)
	}
	if got := <-result; got != "FORBIDDEN" {
		t.Errorf("after a no: %q", got)
	}
	id, result = ask("two")
	if out, code := as(token, "answer", id, "yes", "--always"); code != 0 || <-result != "" {
		t.Errorf("always: %d %s", code, out)
	}
	if got := c.refusal("execute_command", args{"command": "touch two"}); got != "" {
		t.Errorf("it counts always: %q", got)
	}
	list, _ := as(token, "list")
	_, rest, found := strings.Cut(list, "Answers that always count:\n")
	answer, _, _ := strings.Cut(rest, " ")
	if !found || !strings.Contains(rest, "yes  ann shell.execute 'touch two'") {
		t.Fatalf("the stored answers: %s", list)
	}
	if out, code := as(other, "forget", answer); code == 0 {
		t.Errorf("bob makes ann's answer forgotten: %s", out)
	}
	if out, code := as(token, "forget", answer); code != 0 {
		t.Errorf("forget: %d %s", code, out)
	}
	id, result = ask("two")
	if status, _, body := s.post("/v1/questions/"+id, `{"answer":"no"}`, "Authorization", "Bearer "+token); status != 204 ||
		<-result != "FORBIDDEN" {
		t.Errorf("over HTTP: %d %s", status, body)
	}
	// Somebody who gives up is not asked any more.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.try(ctx, "execute_command", args{"command": "touch three"})
	}()
	waits := func() bool { out, _ := as(token, "list"); return strings.Contains(out, "touch three") }
	until(t, "it waits", waits)
	cancel()
	<-ended
	until(t, "it waits no more", func() bool { return !waits() })
	s.applySettings("policy:\n  question_timeout: 1s\n  rules: [\"ask ann shell.execute touch *\"]\n")
	if got := c.refusal("execute_command", args{"command": "touch four"}); got != "FORBIDDEN" {
		t.Errorf("nobody answers: %q", got)
	}
	// Nobody is asked about a session that is not there: its name is the client's own text.
	s.applySettings("policy:\n  question_timeout: 1h\n  rules: [\"ask ann session.stop\"]\n")
	if status, _, body := s.request("DELETE", "/v1/sessions/x%0A%0ANote%3A%20approved", nil, "Authorization",
		"Bearer "+token); status != 404 {
		t.Errorf("an unknown session: %d %s", status, body)
	}
}

// TestReachAsks: a program in a sandbox reaches a host when its user has said yes, and not before; a rule that
// denies ends what is open.
func TestReachAsks(t *testing.T) {
	t.Parallel()
	web := startWeb(t)
	s := start(t, "SANDLOT_NETWORK_REGISTRIES=none", "SANDLOT_NETWORK_HOSTS=web.test=127.0.0.1",
		"SANDLOT_NETWORK_ALLOW_PRIVATE=web.test=127.0.0.0/8")
	token := s.token("ann")
	c := s.connect(newer, token, nil)
	get := func() string {
		return c.shell("home", fmt.Sprintf("curl -sS -m 10 http://web.test:%d/hello", web.Port)).All
	}
	if got := get(); !strings.Contains(got, "hello from") {
		t.Fatalf("without rules: %s", got)
	}
	s.applySettings("policy: {rules: [\"deny ann network.reach WEB.test\"]}\n")
	hits := web.Hits.Load()
	if got := get(); strings.Contains(got, "hello from") {
		t.Errorf("denied: %s", got)
	}
	s.applySettings(fmt.Sprintf("policy: {rules: [\"ask ann network.reach *.test:%d\"]}\n", web.Port))
	if got := get(); strings.Contains(got, "hello from") || !strings.Contains(got, "sandlot questions") {
		t.Errorf("asked: %s", got)
	}
	if n := web.Hits.Load(); n != hits {
		t.Errorf("%d requests before the answer", n-hits)
	}
	list, _, _ := s.cli("questions", "list")
	id, _, _ := strings.Cut(list, " ")
	if !strings.Contains(list, fmt.Sprintf("network.reach: web.test:%d", web.Port)) {
		t.Fatalf("the question: %s", list)
	}
	if out, errs, code := s.cli("questions", "answer", id, "yes", "--session"); code != 0 {
		t.Fatalf("answer: %s%s", out, errs)
	}
	for range 2 {
		if got := get(); !strings.Contains(got, "hello from") {
			t.Errorf("after the yes: %s", got)
		}
	}
	slow := make(chan string, 1)
	go func() {
		slow <- c.shell("home", fmt.Sprintf("curl -sS -m 60 http://web.test:%d/slow", web.Port)).All
	}()
	time.Sleep(300 * time.Millisecond) // it runs
	began := time.Now()
	s.applySettings("policy: {rules: [\"deny * network.reach\"]}\n")
	<-slow
	t.Logf("the open connection ended after %s", time.Since(began))
	if got := get(); strings.Contains(got, "hello from") {
		t.Errorf("denied after a yes: %s", got)
	}
}

// TestRulesForServers: rules decide about connecting and calling third-party servers; a service connects none
// unless a rule or mcp_consent says so.
func TestRulesForServers(t *testing.T) {
	t.Parallel()
	s := start(t)
	token, service := s.token("ann"), s.token("bot", "--service")
	s.put(token, "odd.py")
	u := &user{}
	for _, era := range []string{older, newer} {
		c := s.connect(era, token, u.options())
		s.applySettings("policy: {rules: [\"ask ann mcp.connect * python3 *\", " +
			"\"deny ann mcp.connect\"]} # " + era + "\n")
		u.answers("accept", "deny")
		if got := c.refusal("connect_external_mcp", args{"name": "a " + era, "command": "python3",
			"args": []string{"/workspace/odd.py", "plain", "a"}}); got != "FORBIDDEN" || len(u.questions()) != 1 ||
			!strings.Contains(u.questions()[0], "Runs: python3 /workspace/odd.py plain a") {
			t.Errorf("%s: asked %q: %q", era, u.questions(), got)
		}
		u.answers("accept", "allow")
		if got := c.refusal("connect_external_mcp", args{"name": "b", "command": "/usr/bin/env"}); got != "FORBIDDEN" ||
			len(u.questions()) != 0 {
			t.Errorf("%s: another program: %q, asked %q", era, got, u.questions())
		}
		r := c.call("connect_external_mcp", args{"name": "a/" + era, "command": "python3",
			"args": []string{"/workspace/odd.py", "plain", "a"}})
		if r.IsError || len(u.questions()) != 1 {
			t.Fatalf("%s: allowed: %s, asked %q", era, r.All, u.questions())
		}
		tool := r.exposed(t, "env")
		if got := c.refusal(tool, nil); got != "" {
			t.Errorf("%s: a call: %q", era, got)
		}
		s.applySettings("policy: {rules: [\"allow ann mcp.call a%2F" + era + "/say\", \"ask ann mcp.call a*/env\"]}\n")
		u.answers("accept", "deny")
		if got := c.refusal(tool, nil); got != "FORBIDDEN" || len(u.questions()) != 1 ||
			!strings.Contains(u.questions()[0], "a%2F"+era+"/env") {
			t.Errorf("%s: a call that is asked about: %q, asked %q", era, got, u.questions())
		}
		u.answers("accept", "allow")
		if got := c.refusal(tool, nil); got != "" || len(u.questions()) != 1 {
			t.Errorf("%s: a call that is allowed: %q, asked %q", era, got, u.questions())
		}
	}
	c := s.connect(newer, service, u.options())
	u.answers("accept", "allow")
	connect := func() string {
		return c.refusal("connect_external_mcp", args{"name": "x", "command": "true"})
	}
	if got := connect(); got != "FORBIDDEN" || len(u.questions()) != 0 {
		t.Errorf("a service connects: %q, asked %q", got, u.questions())
	}
	s.applySettings("policy: {rules: [\"allow service mcp.connect * true\"]}\n")
	if got := connect(); got == "FORBIDDEN" || got == "" { // the program is no server
		t.Errorf("a service that may connect: %q", got)
	}
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
