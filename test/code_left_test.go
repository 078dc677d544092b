package test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/servers/serverstest"
)

// question waits for a question whose text, as the command line shows it, has some text, and returns its id.
func (s *server) question(text string) (id string) {
	s.t.Helper()
	until(s.t, "a question waits: "+text, func() bool {
		list, _, _ := s.cli("questions", "list")
		id, _, _ = strings.Cut(list, " ")
		return strings.Contains(list, text)
	})
	return id
}

// answerQuestion answers a question.
func (s *server) answerQuestion(id string, words ...string) {
	s.t.Helper()
	if out, errs, code := s.cli(append([]string{"questions", "answer", id}, words...)...); code != 0 {
		s.t.Fatal(out, errs)
	}
}

// script writes a Python program into the home, which begins with toolClient.
func (c *client) script(name, code string) {
	c.t.Helper()
	c.code("home", fmt.Sprintf("open('/workspace/%s', 'w').write(%s) and None", name,
		quotePython(toolClient+"\n"+code)))
}

// sayer is a script that calls the tool that its argument names, and prints the answer.
const sayer = "import sys\nprint(text(call('odd', (sys.argv + ['say'])[1], text='cmd')), flush=True)"

// background starts a command in the background of the home, and returns the id of its process.
func (c *client) background(command string) (processID string) {
	c.t.Helper()
	processID, _ = c.call("execute_command", args{"command": command, "background": true, "session_id": "home"}).
		Fields["process_id"].(string)
	return processID
}

// called waits for what the script client.py prints, which calls a tool from the background.
func (c *client) called(text string) {
	c.t.Helper()
	c.awaitOutput(c.background("exec python3 /workspace/client.py"), text)
}

// leftBehind is a program that calls a tool again and again, in the way that its first argument says.
const leftBehind = toolClient + `
import os, sys
how, tool = sys.argv[1:]
def once():
    try:
        call('odd', tool, bytes=1)
    except OSError:
        pass
if how == 'kept': # one connection
    c, f = dial()
    while True:
        ask(f, {'call': {'server': 'odd', 'tool': tool}})
        time.sleep(0.2)
while True:
    if how == 'itself':
        once()
    elif how == 'child': # which has just been started
        if os.fork() == 0:
            once()
            os._exit(0)
        os.wait()
    elif how == 'orphan': # a new process, whose parent has ended
        if os.fork():
            os._exit(0)
        once()
    time.sleep(0.2)
`

// TestCodeToolsLeftBehind: what a cell leaves behind is a program in the background, also while a later cell runs in
// the same interpreter, whatever it forks. A child of the cell that runs belongs to that cell.
func TestCodeToolsLeftBehind(t *testing.T) {
	t.Parallel()
	s := start(t)
	ann := s.token("ann")
	s.put(ann, "odd.py")
	c := s.connect(older, ann, nil)
	c.odd("odd", "plain", nil)
	c.code("home", "import subprocess\nopen('/workspace/left.py', 'w').write("+quotePython(leftBehind)+")\n"+toolClient)
	c.script("client.py", sayer)
	run := func(language, code string) *result {
		t.Helper()
		r := c.call("execute_code", args{"code": code, "language": language, "session_id": "home"})
		if r.IsError {
			t.Fatal(r.All)
		}
		return r
	}
	const start = "['python3', '/workspace/left.py', '%s', '%s']"
	run("python", fmt.Sprintf("for a in "+start+", "+start+", "+start+":\n    subprocess.Popen(a)",
		"itself", "say", "child", "where", "kept", "number"))
	run("python", "subprocess.run('python3 /workspace/left.py orphan log & sleep 0.3', shell=True)")
	run("bash", "python3 /workspace/left.py itself env >/dev/null 2>&1 &")
	run("node", "require('child_process').spawn('python3', ['/workspace/left.py', 'child', 'big'], "+
		"{stdio: 'ignore'}).unref()")
	tools := []string{"say", "where", "number", "log", "env", "big"}
	// calls counts, by tool, the calls of programs in the background and those of cells.
	calls := func() (background, cells map[string]int) {
		background, cells = map[string]int{}, map[string]int{}
		out, errs, code := s.cli("events", "--json", "--since", "1h")
		if code != 0 {
			t.Fatal(errs)
		}
		for line := range strings.Lines(out) {
			var e struct {
				Name   string `json:"name"`
				Caller string `json:"called_by"`
			}
			if json.Unmarshal([]byte(line), &e) != nil || e.Caller == "" {
				continue
			}
			_, tool, _ := strings.Cut(strings.TrimPrefix(e.Name, "ext_"), "_")
			if strings.HasSuffix(e.Caller, ", a program in the background") {
				background[tool]++
			} else {
				cells[tool]++
			}
		}
		return background, cells
	}
	until(t, "all call in the background", func() bool {
		background, _ := calls()
		for _, tool := range tools {
			if background[tool] == 0 {
				return false
			}
		}
		return true
	})
	before, cellsBefore := calls()
	for language, code := range map[string]string{
		"python": "time.sleep(1); subprocess.run(['python3', '/workspace/client.py', 'slow'], capture_output=True, " +
			"text=True).stdout",
		"bash": "sleep 1; python3 /workspace/client.py slow",
		"node": "await new Promise(done => setTimeout(done, 1000)); " +
			"require('child_process').execSync('python3 /workspace/client.py slow').toString()",
	} {
		if r := run(language, code); !strings.Contains(r.Text, "done") {
			t.Errorf("%s: %q", language, r.All)
		}
	}
	after, cellsAfter := calls()
	for _, tool := range tools {
		if cellsAfter[tool] != cellsBefore[tool] || after[tool] <= before[tool] {
			t.Errorf("%s: %d calls of the cells that ran, %d in the background", tool,
				cellsAfter[tool]-cellsBefore[tool], after[tool]-before[tool])
		}
	}
	if cellsAfter["slow"] != 3 || after["slow"] != 0 {
		t.Errorf("children of the cells that ran: %d calls, %d in the background", cellsAfter["slow"], after["slow"])
	}
}

// TestCodeToolsScope: what a token of a smaller scope starts, in whatever way, leaves nothing behind that may do more.
func TestCodeToolsScope(t *testing.T) {
	t.Parallel()
	s := start(t)
	others := []string{"--scope", "mcp.connect", "--scope", "mcp.list", "--scope", "mcp.restart", "--scope",
		"process.*", "--scope", "session.*"}
	for how, act := range map[string]func(n *client, shell string) *result{
		"connecting": func(n *client, _ string) *result { return n.odd("its", "plain", nil) },
		"restarting": func(n *client, _ string) *result { return n.call("restart_external_mcp", args{"name": "odd"}) },
		"writing to a process": func(n *client, shell string) *result {
			return n.call("write_process", args{"process_id": shell, "data": "true\n"})
		},
	} {
		t.Run(how, func(t *testing.T) {
			user, _, _ := strings.Cut(how, " ")
			full, narrow := s.token(user), s.token(user, append([]string{"--user", user}, others...)...)
			s.put(full, "odd.py")
			c, n := s.connect(older, full, nil), s.connect(older, narrow, nil)
			c.odd("odd", "plain", nil)
			c.script("client.py", sayer)
			c.called("odd: cmd")
			if r := act(n, c.background("exec sh")); r.IsError {
				t.Fatal(r.All)
			}
			c.called("the operation")
			if how != "connecting" {
				return
			}
			// The server that the token has defined is started again, in another sandbox.
			home := c.code("home", "1").session()
			c.call("stop_session", args{"session_id": home})
			c.called("odd: cmd")
			c.call("restart_external_mcp", args{"name": "its"})
			c.called("the operation")
		})
	}
}

// TestCodeToolsScopeElsewhere: a token of a smaller scope that restarts a server that runs in no sandbox takes
// nothing from what runs in the home, and does so if the server runs there.
func TestCodeToolsScopeElsewhere(t *testing.T) {
	t.Parallel()
	bank := serverstest.NewProtected(t, 0)
	host := strings.TrimSuffix(strings.TrimPrefix(bank.URL, "http://"), "/mcp")
	odd, err := filepath.Abs("servers/odd.py")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sandlot.yaml")
	rewrite(t, file, fmt.Sprintf("mcp: {onhost: {command: python3, args: [%q, plain, onhost], where: host, user: '0'}}",
		odd))
	s := start(t, "SANDLOT_CONFIG="+file, "SANDLOT_NETWORK_ALLOW_PRIVATE="+host+"=127.0.0.0/8")
	full := s.token("ann")
	narrow := s.token("ann", "--user", "ann", "--scope", "mcp.list", "--scope", "mcp.restart", "--scope", "session.*")
	s.put(full, "odd.py")
	c, n := s.connect(older, full, nil), s.connect(older, narrow, nil)
	c.odd("odd", "plain", nil)
	link, _ := c.call("connect_external_mcp", args{"name": "bank", "url": bank.URL}).Fields["authUrl"].(string)
	logIn(t, link)
	until(t, "it is logged in", func() bool { return c.state("bank")["state"] == "connected" })
	c.script("client.py", sayer)
	for _, name := range []string{"bank", "onhost"} {
		n.call("restart_external_mcp", args{"name": name})
		c.called("odd: cmd")
	}
	// The other server starts in a sandbox, also in one that is not there yet.
	home := c.code("home", "1").session()
	c.call("stop_session", args{"session_id": home})
	if r := n.call("restart_external_mcp", args{"name": "odd"}); r.IsError {
		t.Fatal(r.All)
	}
	c.called("the operation")
}

// TestCodeToolsElicit: what a server asks in a call of a program in the background waits for an answer, on the command
// line and over HTTP.
func TestCodeToolsElicit(t *testing.T) {
	t.Parallel()
	s := start(t)
	ann := s.token("ann")
	s.put(ann, "odd.py")
	c := s.connect(older, ann, nil)
	c.odd("odd", "plain", nil)
	ask := c.asksOf("odd")
	id := ask("{}")
	question := s.question("> Which colour?")
	list, _, _ := s.cli("questions", "list")
	for _, want := range []string{"The MCP server odd asks this", "has called its tool ask:",
		`"colour" (string, required)`, "sandlot questions answer " + question + " yes colour=…"} {
		if !strings.Contains(list, want) {
			t.Errorf("the question lacks %q: %s", want, list)
		}
	}
	for _, words := range [][]string{{"yes"}, {"yes", "size=1", "colour=red"}, {"yes", "--always", "colour=red"},
		{"yes", "red"}} {
		if out, _, code := s.cli(append([]string{"questions", "answer", question}, words...)...); code == 0 {
			t.Errorf("%q is an answer: %s", words, out)
		}
	}
	s.answerQuestion(question, "yes", "colour=red")
	c.awaitOutput(id, `[{"action": "accept", "content": {"colour": "red"}}]`)
	id = ask(`{"params": {"message": "Sure?"}}`)
	s.answerQuestion(s.question("> Sure?"), "yes")
	c.awaitOutput(id, `[{"action": "accept", "content": {}}]`)
	id = ask(`{"method": "sampling/createMessage"}`)
	c.awaitOutput(id, "there is no client for sampling/createMessage")
	id = ask(`{"params": {"mode": "url", "message": "Go there", "url": "https://example.com", "elicitationId": "1"}}`)
	c.awaitOutput(id, "cannot wait for an answer: it is not a form, but of the mode url")
	id = ask(`{"params": {"message": "Which?", "requestedSchema": {"properties": {"x": {"type": "object"}}}}}`)
	c.awaitOutput(id, "it must be string, number, integer or boolean")
	id = ask(`{"params": {"message": "Still there?"}}`)
	s.question("> Still there?")
	c.call("stop_process", args{"process_id": id})
	until(t, "the question ends with the program that called", func() bool {
		out, _, _ := s.cli("questions", "list")
		return strings.Contains(out, "No question waits")
	})
}
