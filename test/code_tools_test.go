//lint:file-ignore SA1019 clients of the older era have sampling and logging

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// toolClient is Python that calls a tool by one line of JSON. Texts of progress go to the list steps.
const toolClient = `import json, socket, threading, time
steps = []
def dial():
    c = socket.socket(socket.AF_UNIX)
    c.connect('/run/mcp/socket')
    return c, c.makefile('rwb')
def ask(f, request):
    try:
        f.write(json.dumps(request).encode() + b'\n')
        f.flush()
    except OSError:
        return {'error': {'code': 'gone'}}
    while True:
        line = f.readline()
        if not line:
            return {'error': {'code': 'gone'}}
        a = json.loads(line)
        if 'progress' not in a:
            return a
        steps.append(a['progress'])
def call(server, tool, timeout=0, **arguments):
    c, f = dial()
    with c, f:
        return ask(f, {'call': {'server': server, 'tool': tool, 'arguments': arguments, 'timeout': timeout}})
def text(a):
    e = a.get('error', {})
    return a['result']['content'][0]['text'] if 'result' in a else e['code'] + ': ' + e.get('message', '')
`

// asked is a client's user and model, who answer, and what they were asked and told.
type asked struct {
	mu    sync.Mutex
	asked []string
	steps []string
	logs  []string
}

func (a *asked) note(to *[]string, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*to = append(*to, text)
}

func (a *asked) all(of *[]string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(*of, "|")
}

func (a *asked) options() *mcp.ClientOptions {
	return &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			a.note(&a.asked, r.Params.Message)
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"colour": "red"}}, nil
		},
		CreateMessageHandler: func(_ context.Context, r *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			by, _, _ := strings.Cut(r.Params.SystemPrompt, " asks")
			a.note(&a.asked, "sampling for "+by)
			return &mcp.CreateMessageResult{Content: &mcp.TextContent{Text: "said"}, Role: "assistant", Model: "m"}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			a.note(&a.steps, r.Params.Message)
		},
		LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
			b, _ := json.Marshal(r.Params.Data)
			a.note(&a.logs, string(b))
		},
	}
}

// TestCodeTools: code in a sandbox calls the tools of a third-party server, over the socket of the tool tree.
func TestCodeTools(t *testing.T) {
	t.Parallel()
	s := start(t)
	ann, bob := s.token("ann"), s.token("bob")
	s.put(ann, "odd.py")
	c := s.connect(older, ann, nil)
	if r := c.shell("home", "ls /run/mcp 2>&1"); !strings.Contains(r.All, "No such file") {
		t.Errorf("without servers there is a tool tree: %q", r.All)
	}
	c.odd("odd", "plain", nil)
	c.want("home", toolClient+"text(call('odd', 'say', text='hi'))", "'odd: hi'")
	home := c.code("home", "1").session()
	t.Run("calls", func(t *testing.T) { codeCalls(t, c) })
	t.Run("runs", func(t *testing.T) { codeRuns(t, s, ann, home) })
	for _, era := range []string{older, newer} {
		t.Run(era, func(t *testing.T) { codeAsks(t, s, era, ann) })
	}
	t.Run("others", func(t *testing.T) {
		b := s.connect(older, bob, nil)
		if r := b.shell("home", "ls /run/mcp 2>&1"); !strings.Contains(r.All, "No such file") {
			t.Errorf("bob has a tool tree: %q", r.All)
		}
		s.put(bob, "odd.py")
		b.odd("own", "plain", nil)
		r := b.code("home", toolClient+"text(call('odd', 'say')), text(call('own', 'say', text='b'))")
		if !strings.Contains(r.Text, `not_found: there is no connection "odd"`) || !strings.Contains(r.Text, "own: b") {
			t.Errorf("bob called %q", r.Text)
		}
	})
}

// codeCalls makes calls of all kinds from cells of the home, in which toolClient has run.
func codeCalls(t *testing.T, c *client) {
	many := `c, f = dial()
got = [text(ask(f, {'call': {'server': 'odd', 'tool': 'say', 'arguments': {'text': str(n)}}})) for n in range(1000)]
got == ['odd: %d' % n for n in range(1000)]`
	c.want("home", many, "True")
	atOnce := `def one(n): out[n] = text(call('odd', 'slow', steps=1))
out = {}
began = time.time()
threads = [threading.Thread(target=one, args=(n,)) for n in range(40)]
[w.start() for w in threads]; [w.join() for w in threads]
list(out.values()) == ['done'] * 40`
	c.want("home", atOnce, "True")
	for code, want := range map[string]string{
		"text(call('odd', 'nothing'))":                  `not_found: the MCP server "odd" has no tool "nothing"`,
		"text(call('none', 'say'))":                     `not_found: there is no connection "none"`,
		"text(call('sandlot', 'execute_code'))":         "is a tool of Sandlot itself: use it from the client",
		"text(call('odd', 'slow', 0.3, pause=5))":       "timeout: there was no answer in 0.3 seconds",
		"call('odd', 'number')":                         `'structuredContent': {'n': 12345678901234567890}`,
		"len(text(call('odd', 'big')))":                 fmt.Sprint(12<<20 + 8),
		"text(call('odd', 'say', text='é\\n\\u2028😀'))": `odd: é\n\u2028😀`,
		"text(ask(dial()[1], {'call': {'server': 'odd', 'tool': 'say', 'arguments': [1]}}))": "invalid_parameters: ",
		"text(ask(dial()[1], [1]))":                                      "a request is one line of JSON",
		"text(ask(dial()[1], {}))":                                       "a request has one of the fields",
		"ask(dial()[1], {'search': {'query': 'what given'}})":            "'remote': 'say'",
		"ask(dial()[1], {'describe': {'server': 'odd', 'tool': 'say'}})": "'inputSchema': {",
		"text(call('odd', 'die'))":                                       "connection_error: ",
	} {
		if r := c.code("home", code); !strings.Contains(r.Text, want) {
			t.Errorf("%s: got %q, want %q", code, r.All, want)
		}
	}
	c.want("home", "text(call('odd', 'say', text='again'))", "'odd: again'")
	node := `await new Promise(done => { const c = require('net').connect('/run/mcp/socket'); let line = '';
c.setEncoding('utf8').on('data', d => (line += d).endsWith('\n') && done(JSON.parse(line).result.content[0].text))
c.write(JSON.stringify({call: {server: 'odd', tool: 'say', arguments: {text: 'js'}}}) + '\n') })`
	r := c.call("execute_code", args{"code": node, "language": "node", "session_id": "home"})
	if !strings.Contains(r.Text, "odd: js") {
		t.Errorf("from JavaScript: %q", r.All)
	}
}

// codeRuns: calls end with what made them, and events say what that was.
func codeRuns(t *testing.T, s *server, token, home string) {
	c := s.connect(older, token, nil)
	c.code("home", "out = []\ndef wait(): out.append(text(call('odd', 'slow', steps=600)))\n"+
		"waits = threading.Thread(target=wait)\nwaits.start()\ntime.sleep(0.2)")
	if r := c.code("home", "waits.join(20)\nout"); !strings.Contains(r.Text, "ended: ") {
		t.Errorf("a call after the end of its cell: %q", r.All)
	}
	// A thread that is left behind calls in the background, and so does a process.
	c.code("home", "left = []\ndef later():\n    time.sleep(0.3)\n"+
		"    left.append(text(call('odd', 'say', text='late')))\n"+
		"threading.Thread(target=later).start()")
	time.Sleep(time.Second)
	c.want("home", "left", "['odd: late']")
	c.script("client.py", sayer)
	if r := c.shell("home", "(python3 /workspace/client.py say)"); !strings.Contains(r.Text, "odd: cmd") {
		t.Errorf("from a command: %q", r.All)
	}
	id := c.background("python3 /workspace/client.py say")
	c.awaitOutput(id, "odd: cmd")
	out, errs, code := s.cli("events", "--json")
	if code != 0 {
		t.Fatal(errs)
	}
	_, process, _ := strings.Cut(id, ".")
	for _, caller := range []string{", a cell in python", ", a command", ", a program in the background",
		", process " + process} {
		if !strings.Contains(out, `"called_by":"code of session `+home+caller) {
			t.Errorf("no event of %q: %s", caller, out)
		}
	}
	if !slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
		return strings.Contains(line, `"outcome":"CANCELED"`) && strings.Contains(line, "called_by")
	}) {
		t.Errorf("the call that ended with its cell is not an event: %s", out)
	}
}

// codeAsks: what a tool asks and tells goes to the client whose cell, or command, runs, and to nobody for a program in
// the background.
func codeAsks(t *testing.T, s *server, era, token string) {
	a := &asked{}
	c := s.connect(era, token, a.options())
	if r := c.code("home", toolClient+"text(call('odd', 'ask'))"); !strings.Contains(r.Text, `"colour": "red"`) {
		t.Errorf("asked: %q", r.All)
	}
	sampled := c.code("home", "text(call('odd', 'ask', method='sampling/createMessage'))")
	if !strings.Contains(sampled.Text, "said") {
		t.Errorf("sampled: %q", sampled.All)
	}
	if r := c.shell("home", "python3 /workspace/client.py ask"); !strings.Contains(r.Text, `"colour": "red"`) {
		t.Errorf("asked from a command: %q", r.All)
	}
	const which = "The MCP server odd asks:\n> Which colour?"
	if got := a.all(&a.asked); got != which+"|sampling for The MCP server odd|"+which {
		t.Errorf("asked %q", got)
	}
	p := &mcp.CallToolParams{Name: "execute_code", Arguments: args{"session_id": "home",
		"code": "steps.clear()\ncall('odd', 'slow')\nprint(steps)"}}
	p.SetProgressToken("p")
	r, err := c.CallTool(t.Context(), p)
	if err != nil || !strings.Contains(r.Content[0].(*mcp.TextContent).Text, "['step 1', 'step 2', 'step 3']") {
		t.Errorf("%v, %v", r, err)
	}
	until(t, "the client knows the progress", func() bool { return strings.Contains(a.all(&a.steps), "step 3") })
	id := c.background("python3 /workspace/client.py ask")
	s.answerQuestion(s.question("Which colour?"), "no")
	c.awaitOutput(id, `"action": "decline"`)
	if got := a.all(&a.asked); strings.Count(got, "|") != 2 {
		t.Errorf("asked for a process in the background: %q", got)
	}
}

// quotePython returns a text as a literal of Python.
func quotePython(text string) string {
	b, _ := json.Marshal(text)
	return string(b)
}

// looping is a program that calls a tool again and again, and prints the text of each answer that differs from the
// last.
const looping = toolClient + `
last = None
while True:
    try:
        now = text(call('odd', 'say', text='loop'))
    except OSError as e:
        now = 'no socket'
    if now != last:
        print(now, flush=True)
    last = now
    time.sleep(0.02)
`

// loops starts looping in the background of a session.
func (c *client) loops(session string) (processID string) {
	c.t.Helper()
	c.code(session, "open('/workspace/loop.py', 'w').write("+quotePython(looping)+")")
	r := c.call("execute_command", args{"command": "exec python3 /workspace/loop.py", "background": true,
		"session_id": session})
	id, _ := r.Fields["process_id"].(string)
	c.awaitOutput(id, "odd: loop")
	return id
}

// awaitOutput waits until the output of a process has a text.
func (c *client) awaitOutput(id, text string) {
	c.t.Helper()
	var got string
	defer func() {
		if c.t.Failed() {
			c.t.Logf("the process printed %q", got)
		}
	}()
	until(c.t, "a process prints "+text, func() bool {
		got = c.call("read_process", args{"process_id": id}).Text
		return strings.Contains(got, text)
	})
}

// TestCodeToolsServerKilled: a program in the background calls tools while the server is killed and started again. The
// call that is under way fails with a word, and later ones work.
func TestCodeToolsServerKilled(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("", "odd.py")
	c := s.connect(older, "", nil)
	c.odd("odd", "plain", nil)
	id := c.loops("home")
	c.code("home", "open('/workspace/slow.py', 'w').write("+quotePython(toolClient+`
c, f = dial()
f.write(json.dumps({'call': {'server': 'odd', 'tool': 'slow', 'arguments': {'steps': 900}}}).encode() + b'\n')
f.flush()
print(f.readline(), flush=True)
try:
    while line := f.readline():
        print(line)
except OSError:
    pass
print('gone: ', flush=True)`)+")")
	slow, _ := c.call("execute_command", args{"command": "exec python3 /workspace/slow.py", "background": true,
		"session_id": "home"}).Fields["process_id"].(string)
	c.awaitOutput(slow, "progress")
	s.kill()
	transport.CloseIdleConnections()
	s.launch()
	c = s.connect(older, "", nil)
	c.awaitOutput(slow, "gone: ")
	until(t, "calls work again", func() bool {
		all := c.call("read_process", args{"process_id": id}).Text
		return strings.HasSuffix(strings.TrimSpace(all), "odd: loop")
	})
	if r := c.code("home", toolClient+"text(call('odd', 'say', text='x'))"); r.Text != "'odd: x'" {
		t.Errorf("after the restart: %q", r.All)
	}
	if r := c.call("disconnect_external_mcp", args{"name": "odd", "delete": true}); r.IsError {
		t.Fatal(r.All)
	}
	c.awaitOutput(id, `not_found: there is no connection "odd"`)
}

// TestCodeToolsAsleep: connections end when a session sleeps or is copied, and the socket works after that. A call
// that is under way keeps its session awake. A copy is a sandbox of its own.
func TestCodeToolsAsleep(t *testing.T) {
	t.Parallel()
	s := start(t, sleepy...)
	s.put("", "odd.py")
	c := s.connect(older, "", nil)
	c.odd("odd", "plain", nil)
	id := c.code("new", toolClient+"c, f = dial()\ntext(ask(f, {'call': {'server': 'odd', 'tool': 'say', 'arguments': "+
		"{'text': '1'}}}))").session()
	asleep := func() bool { return sessionStatus(c, id) == "hibernated" }
	until(t, "it sleeps with an open connection", asleep)
	const say = "text(ask(f, {'call': {'server': 'odd', 'tool': 'say', 'arguments': {}}}))"
	const again = "text(call('odd', 'say', text='2')), " + say
	if r := c.code(id, again); !strings.Contains(r.All, "('odd: 2', 'gone: ')") {
		t.Errorf("after it has slept: %q", r.All)
	}
	c.code(id, "c, f = dial(); c2, f2 = dial(); "+say)
	copied, _ := c.call("fork_session", args{"session_id": id}).Fields["copies"].([]any)
	if len(copied) != 1 {
		t.Fatalf("copies: %v", copied)
	}
	other, _ := copied[0].(string)
	for _, session := range []string{other, id} {
		if r := c.code(session, again); !strings.Contains(r.All, "('odd: 2', 'gone: ')") {
			t.Errorf("after it was copied, %s: %q", session, r.All)
		}
	}
	c.code(id, "open('/workspace/slow.py', 'w').write("+quotePython(toolClient)+
		" + \"\\nprint(text(call('odd', 'slow', steps=2, pause=4)), flush=True)\")")
	slow, _ := c.call("execute_command", args{"command": "exec python3 /workspace/slow.py", "background": true,
		"session_id": id}).Fields["process_id"].(string)
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if asleep() {
			t.Fatal("it sleeps while a call is under way")
		}
	}
	c.awaitOutput(slow, "done")
}

// recovers closes the connections of a flood, and calls a tool as soon as that can be done.
const recovers = `def recovers():
    [c.close() for c in held]
    while True:
        try:
            return text(call('odd', 'say', text='still'))
        except OSError:
            time.sleep(0.05)
recovers()`

// floods is code with a flood that lasts: threads that call a tool as fast as they can, open calls that do not end, and
// send huge messages, or some of these. It returns how many of each were made. busy only takes processors.
const floods = `def flood(seconds, *kinds):
    end, count = time.time() + seconds, {'calls': 0, 'open': 0, 'huge': 0}
    wait = json.dumps({'call': {'server': 'rich', 'tool': 'wait', 'arguments': {}}}).encode() + b'\n'
    def calls():
        while time.time() < end:
            try: count['calls'] += 'result' in call('odd', 'say', text='flood')
            except OSError: pass
    def opens():
        while time.time() < end:
            try:
                c = socket.socket(socket.AF_UNIX)
                c.settimeout(0.05)
                c.connect('/run/mcp/socket')
                c.sendall(wait)
                held.append(c)
                count['open'] += 1
            except OSError: pass
            if len(held) > 500:
                held.pop(0).close()
    def huge():
        line = b'{"call": {"server": "odd", "tool": "say", "x": "' + b'y' * (15 << 20) + b'"}}\n'
        while time.time() < end:
            try:
                c, f = dial()
                c.settimeout(5)
                c.sendall(line)
                count['huge'] += b'result' in f.readline()
            except OSError: pass
    all = [threading.Thread(target=w) for w in (calls, calls, calls, calls, opens, opens, huge, huge)
        if not kinds or w.__name__ in kinds]
    [w.start() for w in all]; [w.join() for w in all]
    [c.close() for c in held]; held.clear()
    return count
def busy(seconds):
    import subprocess
    loop = 'import time; end = time.time() + %r\nwhile time.time() < end: pass' % seconds
    all = [subprocess.Popen(['python3', '-c', loop]) for _ in range(4)]
    return [w.wait() for w in all]
def wakes(seconds):
    import subprocess
    echo = 'import sys\nwhile b := sys.stdin.buffer.read1(9): sys.stdout.buffer.write(b), sys.stdout.flush()'
    end = time.time() + seconds
    def ping(p):
        while time.time() < end:
            p.stdin.write(b'x'); p.stdin.flush(); p.stdout.read(1)
        p.stdin.close()
    all = [subprocess.Popen(['python3', '-c', echo], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    threads = [threading.Thread(target=ping, args=[p]) for p in all]
    [t.start() for t in threads]; [t.join() for t in threads]
    return [p.wait() for p in all]
`

// processorTime is how many seconds of processors a process has taken.
func processorTime(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	var user, system float64 // in hundredths
	fmt.Sscan(strings.Join(strings.Fields(rest)[11:13], " "), &user, &system)
	return (user + system) / 100
}

// floodTime is how long a flood lasts, and how long its neighbour is alone before it; SANDLOT_FLOOD=30s makes that
// long, and makes a flood of each kind; before these come programs that call no tools, to compare with: some that only
// compute, and some that wake each other.
func floodTime(t *testing.T) (seconds float64, long bool) {
	t.Helper()
	text := os.Getenv("SANDLOT_FLOOD")
	if text == "" {
		return 2, false
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("SANDLOT_FLOOD: %v", err)
	}
	return d.Seconds(), true
}

// TestCodeToolsAttacked: hostile code of one user on the way to tools, beside the calls of another.
func TestCodeToolsAttacked(t *testing.T) {
	t.Parallel()
	s := start(t)
	mallory := s.token("mallory")
	s.put(mallory, "odd.py")
	s.put(mallory, "rich.py")
	c := s.connect(older, mallory, nil)
	c.odd("odd", "plain", nil)
	noted := c.rich("rich", "rich").exposed(t, "noted")
	id := c.code("new", toolClient+"import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))").
		session()
	proven(t, c, id)
	n := s.neighbour(t, s.token("victim"))
	seconds, long := floodTime(t)
	c.code(id, "held = []\n"+floods)
	n.phase("alone")
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	all := []string{"flood(%v)"}
	if long {
		all = []string{"busy(%v)", "wakes(%v)", "flood(%v, 'calls')", "flood(%v, 'opens')", "flood(%v, 'huge')",
			"flood(%v)"}
	}
	for _, code := range all {
		n.phase(code)
		before := processorTime(t, s.cmd.Process.Pid)
		r := c.code(id, fmt.Sprintf(code, seconds))
		t.Logf("%s: the server took %.1f s of the processors: %s", code, processorTime(t, s.cmd.Process.Pid)-before,
			r.Text)
		if r.IsError || code == "flood(%v)" && strings.Contains(r.Text, "'open': 0") {
			t.Errorf("%s: %s", code, r.All)
		}
	}
	for _, a := range []struct{ what, code, want string }{
		{"a forged secret", `def forged():
    c = socket.socket(socket.AF_UNIX)
    c.connect('/run/sandlot/agent.sock')
    c.sendall(b'SANDLOTT' + os.urandom(32) + b'\0\0\0\0')
    return c.recv(10)
forged()`, `b'\x15'`},
		{"an endless line", `def endless():
    c, f = dial()
    try:
        for n in range(320):
            c.sendall(b'x' * 65536)
    except OSError:
        pass
    return f.readline()
endless()`, `too_large`},
		{"a huge line that is none", `ask(dial()[1], {'call': {'server': 'odd', 'tool': 'say', 'x': 'y' * (15 << 20)}})`,
			"odd: "},
		{"nested deeply", `def nested(f):
    f.write(b'[' * 1000000 + b'\n')
    f.flush()
    return f.readline()
nested(dial()[1])`,
			"invalid_request"},
		{"names of all kinds", `names = [('', ''), ('../x', 'a/b'), ('odd', '\0'), ('odd', 'x' * 100000)]
[text(call(x, y))[:9] for x, y in names]`,
			"['not_found', 'not_found', 'not_found', 'not_found']"},
		{"a forged tag", `forged = {'tag': 'x', 'session': 'home', 'principal': 'victim'}
text(ask(dial()[1], {**forged, 'call': {'server': 'odd', 'tool': 'say'}}))`,
			"odd: "},
		{"ten thousand connections", `held = []
def flood():
    for n in range(10000):
        c = socket.socket(socket.AF_UNIX)
        c.settimeout(0.5)
        try:
            c.connect('/run/mcp/socket')
        except OSError:
            continue
        held.append(c)
    return len(held) > 64 and sum(map(is_open, held)) <= 64 + 256
def is_open(c):
    c.setblocking(False)
    try:
        return c.recv(1) != b''
    except BlockingIOError:
        return True
    except OSError:
        return False
flood()`, "True"},
		{"after that", recovers, "odd: still"},
		{"ten thousand open calls", `def flood():
    line = json.dumps({'call': {'server': 'rich', 'tool': 'wait', 'arguments': {}}}).encode() + b'\n'
    held.clear()
    for n in range(10000):
        c = socket.socket(socket.AF_UNIX)
        c.settimeout(0.05 if n > 200 else 5)
        try:
            c.connect('/run/mcp/socket')
            c.sendall(line)
        except OSError:
            continue
        held.append(c)
    return len(held) > 64
flood()`, "True"},
		{"after those", recovers, "odd: still"},
		{"a slow reader", `def slow():
    c, f = dial()
    line = json.dumps({'call': {'server': 'odd', 'tool': 'big', 'arguments': {'bytes': 1 << 20}}}).encode() + b'\n'
    f.write(line * 50)
    f.flush()
    held.append(f)
    return text(call('odd', 'say', text='beside'))
slow()`, "odd: beside"},
	} {
		n.phase("attacks")
		r := c.code(id, a.code)
		if !strings.Contains(r.Text, a.want) {
			t.Errorf("%s: got %q, want %q", a.what, r.All, a.want)
		}
		if a.what == "ten thousand open calls" {
			if _, open := c.noted(noted); len(open) == 0 || len(open) > 32 {
				t.Errorf("%d calls of one session are under way", len(open))
			}
		}
		t.Logf("%s: %v ms; the server has %d MB", a.what, r.Fields["execution_time_ms"],
			memory(t, s.cmd.Process.Pid)>>20)
	}
	n.phase("after all")
	// A session that has ended calls nothing more.
	other := c.code("new", "1").session()
	c.loops(other)
	c.call("stop_session", args{"session_id": other})
	count := func() int {
		out, _, _ := s.cli("events", "--json", "--since", "1h")
		return strings.Count(out, `"called_by":"code of session `+other)
	}
	before := count()
	time.Sleep(500 * time.Millisecond)
	if after := count(); before == 0 || after != before {
		t.Errorf("%d calls of a session that has ended, after %d", after, before)
	}
	n.end()
}

// TestCodeToolsRules: a program in the background calls by a rule of its own, and never with more than the tokens that
// started something in its sandbox.
func TestCodeToolsRules(t *testing.T) {
	t.Parallel()
	s := start(t)
	full := s.token("ann")
	narrow := s.token("ann", "--scope", "code.*", "--scope", "shell.*", "--scope", "session.*")
	s.put(full, "odd.py")
	c, n := s.connect(older, full, nil), s.connect(older, narrow, nil)
	c.odd("odd", "plain", nil)
	c.code("home", toolClient+"open('/workspace/client.py', 'w').write("+quotePython(toolClient)+
		" + \"\\nprint(text(call('odd', 'say', text='cmd')), flush=True)\")")
	background := func() string {
		t.Helper()
		id, _ := c.call("execute_command", args{"command": "exec python3 /workspace/client.py", "background": true,
			"session_id": "home"}).Fields["process_id"].(string)
		return id
	}
	said := func(c *client, want string) {
		t.Helper()
		if r := c.code("home", "text(call('odd', 'say', text='cell'))"); !strings.Contains(r.Text, want) {
			t.Errorf("a cell: %q, want %q", r.All, want)
		}
	}
	c.awaitOutput(background(), "odd: cmd")
	s.applySettings("policy:\n  rules:\n    - deny ann code.background odd/say\n")
	c.awaitOutput(background(), "forbidden: ")
	said(c, "odd: cell")
	s.applySettings("policy:\n  rules:\n    - ask ann code.background\n")
	id := background()
	s.answerQuestion(s.question("code.background"), "yes")
	c.awaitOutput(id, "odd: cmd")
	s.applySettings("policy:\n  rules:\n    - deny ann mcp.call odd/say\n")
	said(c, "forbidden: ")
	s.applySettings("policy: {}\n")
	said(n, "forbidden: Not allowed: the operation mcp.call is not in the scope of your token")
	said(c, "cannot be told apart from this code")
	if r := c.shell("home", "python3 /workspace/client.py"); !strings.Contains(r.Text, "odd: cmd") {
		t.Errorf("a command: %q", r.All)
	}
	c.awaitOutput(background(), "forbidden: Not allowed: the operation mcp.call is not in the scope")
	s.kill()
	transport.CloseIdleConnections()
	s.launch()
	c = s.connect(older, full, nil)
	c.awaitOutput(background(), "forbidden: Not allowed: the operation mcp.call is not in the scope")
}
