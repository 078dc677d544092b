package test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// installable is a third-party server, as a package of npm, that calls tools of its user itself: when it is asked to
// (in its own process and in a child), and from a process that its installation leaves behind, which notes each new
// answer in a file.
const installable = toolClient + `
import os, sys, subprocess
def back(a):
    if a.pop('child', False):
        return subprocess.run([sys.executable, __file__, 'once', json.dumps(a)], capture_output=True, text=True).stdout
    return text(call(**a))
if sys.argv[1:2] == ['once']:
    print(back(json.loads(sys.argv[2])))
    sys.exit()
if sys.argv[1:2] == ['left']:
    if os.fork():
        sys.exit()
    os.setsid()
    last = None
    while True:
        try:
            now = back({'server': 'odd', 'tool': 'say', 'text': 'left'})
        except OSError as e:
            now = 'no socket'
        if now != last:
            open('/workspace/left.txt', 'a').write(now + '\\n')
        last = now
        time.sleep(0.05)
def answer(m):
    method = m['method']
    if method == 'initialize':
        return {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}},
                'serverInfo': {'name': 'e', 'version': '1'}}
    if method == 'tools/list':
        return {'tools': [{'name': 'back', 'inputSchema': {'type': 'object'}}]}
    if method == 'tools/call':
        return {'content': [{'type': 'text', 'text': back(m['params']['arguments'])}]}
    return {}
for line in sys.stdin:
    m = json.loads(line)
    if 'id' in m and 'method' in m:
        def one(m=m): print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': answer(m)}), flush=True)
        threading.Thread(target=one, daemon=True).start()
`

// pack writes the package of installable into the home, as npm takes it from a file.
func (c *client) pack() {
	c.t.Helper()
	r := c.code("home", fmt.Sprintf(`import io, json, tarfile
manifest = {'name': 'inside', 'version': '1.0.0', 'bin': {'inside': 'inside.py'},
    'scripts': {'postinstall': 'python3 inside.py left </dev/null >/dev/null 2>&1; printenv INSTALLS > /workspace/installs'}}
with tarfile.open('/workspace/inside.tgz', 'w:gz') as t:
    for name, text in {'package.json': json.dumps(manifest), 'inside.py': '#!/usr/bin/env python3\n' + %s}.items():
        i = tarfile.TarInfo('package/' + name)
        i.size, i.mode = len(text.encode()), 0o755
        t.addfile(i, io.BytesIO(text.encode()))`, quotePython(installable)))
	if r.IsError {
		c.t.Fatal(r.All)
	}
}

// inside installs the package as a server, and returns the name of its tool.
func (c *client) inside() string {
	c.t.Helper()
	r := c.call("auto_install_and_connect_mcp", args{"name": "inside", "install": args{"type": "npm",
		"spec": "/workspace/inside.tgz"}, "env": args{"INSTALLS": "with this"}})
	if r.IsError {
		c.t.Fatal(r.All)
	}
	return r.exposed(c.t, "back")
}

// packPython writes a package into the home, as pip takes it from a folder: a server that is built without any other
// package, by code that writes the variable INSTALLS.
func (c *client) packPython() {
	c.t.Helper()
	r := c.code("home", fmt.Sprintf(`import os
os.makedirs('/workspace/pipped', exist_ok=True)
for name, body in {'pyproject.toml': """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
""", 'server.txt': %s, 'backend.py': """import os, zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    open('/workspace/pip-installs', 'w').write(os.environ.get('INSTALLS', ''))
    info = 'pipped-1.0.dist-info/'
    files = {'pipped.py': 'import os, runpy\\ndef main(): runpy.run_path(os.path.dirname(__file__) + "/pipped_server.py", run_name="__main__")\\n',
        'pipped_server.py': open('server.txt').read(), info + 'METADATA': 'Metadata-Version: 2.1\\nName: pipped\\nVersion: 1.0\\n',
        info + 'WHEEL': 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n',
        info + 'entry_points.txt': '[console_scripts]\\npipped = pipped:main\\n'}
    files[info + 'RECORD'] = ''.join(name + ',,\\n' for name in [*files, info + 'RECORD'])
    name = 'pipped-1.0-py3-none-any.whl'
    with zipfile.ZipFile(os.path.join(directory, name), 'w') as z:
        for path, text in files.items(): z.writestr(path, text)
    return name
"""}.items():
    open('/workspace/pipped/' + name, 'w').write(body)`, quotePython(installable)))
	if r.IsError {
		c.t.Fatal(r.All)
	}
}

// TestCodeToolsInstalled: a server that was installed in a sandbox, and what its installation has left behind, call
// tools as programs in the background: not as the cell that calls the server, and with no more than the token that has
// installed it. Code itself cannot install anything.
func TestCodeToolsInstalled(t *testing.T) {
	t.Parallel()
	s := start(t)
	full := s.token("ann")
	s.put(full, "odd.py")
	a := &asked{}
	c := s.connect(older, full, a.options())
	c.odd("odd", "plain", nil)
	c.pack()
	for _, how := range []string{"'sandlot', 'connect_external_mcp'", "'sandlot', 'auto_install_and_connect_mcp'"} {
		r := c.code("home", toolClient+"text(call("+how+", name='inside', install={'type': 'npm', "+
			"'spec': '/workspace/inside.tgz'}))")
		if !strings.Contains(r.Text, "is a tool of Sandlot itself") {
			t.Errorf("code installs by %s: %s", how, r.All)
		}
	}
	c.inside()
	if r := c.shell("home", "cat /workspace/installs"); r.Text != "with this" {
		t.Errorf("the installation had the variable %q", r.All)
	}
	c.packPython()
	if r := c.call("auto_install_and_connect_mcp", args{"name": "pipped", "install": args{"type": "pip",
		"spec": "/workspace/pipped"}, "env": args{"INSTALLS": "with this"}}); r.IsError {
		t.Error(r.All)
	}
	if r := c.shell("home", "cat /workspace/pip-installs"); r.Text != "with this" {
		t.Errorf("the installation by pip had the variable %q", r.All)
	}
	until(t, "what the installation has left behind calls", func() bool {
		return strings.Contains(c.shell("home", "cat /workspace/left.txt").Text, "odd: left")
	})
	// A cell calls the server, which calls back meanwhile.
	for _, child := range []string{"False", "True"} {
		back := func(more string) *result {
			t.Helper()
			return c.code("home", "text(ask(dial()[1], {'call': {'server': 'inside', 'tool': 'back', "+
				"'arguments': dict(child="+child+", server='odd', "+more+")}}))")
		}
		if r := back("tool='say', text='hi'"); !strings.Contains(r.Text, "odd: hi") {
			t.Errorf("the server has called %s", r.All)
		}
		answered := make(chan *result)
		go func() { answered <- back("tool='ask'") }()
		s.answerQuestion(s.question("> Which colour?"), "no")
		if r := <-answered; !strings.Contains(r.Text, "decline") {
			t.Errorf("the server was answered %s", r.All)
		}
		if r := back("tool='ask', method='sampling/createMessage'"); !strings.Contains(r.Text, "there is no client") {
			t.Errorf("the server has got from a model: %s", r.All)
		}
	}
	if got := a.all(&a.asked); got != "" {
		t.Errorf("the client of the cell was asked %q", got)
	}
	out, errs, code := s.cli("events", "--json", "--since", "1h")
	if code != 0 {
		t.Fatal(errs)
	}
	for line := range strings.Lines(out) {
		var e struct {
			Name   string `json:"name"`
			Caller string `json:"called_by"`
		}
		if json.Unmarshal([]byte(line), &e) == nil && e.Caller != "" && strings.HasPrefix(e.Name, "ext_odd_") &&
			!strings.HasSuffix(e.Caller, ", a program in the background") {
			t.Errorf("a call of the server is one of %s", e.Caller)
		}
	}
	s.applySettings("policy:\n  rules: [\"deny * code.background\"]\n")
	if r := c.code("home", "text(call('odd', 'say', text='own'))"); !strings.Contains(r.Text, "odd: own") {
		t.Errorf("the cell itself: %s", r.All)
	}
	if r := c.code("home", "text(ask(dial()[1], {'call': {'server': 'inside', 'tool': 'back', "+
		"'arguments': {'server': 'odd', 'tool': 'say'}}}))"); !strings.Contains(r.Text, "code.background") {
		t.Errorf("though a rule denies it, the server has called %s", r.All)
	}
}

// TestCodeToolsInstalledScope: see TestCodeToolsInstalled; the token that installs has a smaller scope than the others
// of its user.
func TestCodeToolsInstalledScope(t *testing.T) {
	t.Parallel()
	s := start(t)
	full := s.token("ann")
	narrow := s.token("ann", "--user", "ann", "--scope", "mcp.connect", "--scope", "mcp.install",
		"--scope", "mcp.list", "--scope", "session.*")
	s.put(full, "odd.py")
	c, n := s.connect(older, full, nil), s.connect(older, narrow, nil)
	c.odd("odd", "plain", nil)
	c.pack()
	c.script("client.py", sayer)
	c.called("odd: cmd")
	tool := n.inside()
	left := func() string { return c.shell("home", "cat /workspace/left.txt").Text }
	until(t, "what the installation has left behind calls", func() bool {
		return strings.Contains(left(), "the operation")
	})
	refused := func(when string) {
		t.Helper()
		for _, child := range []bool{false, true} {
			r := c.call(tool, args{"server": "odd", "tool": "say", "text": "hi", "child": child})
			if !strings.Contains(r.All, "the operation") || strings.Contains(r.All, "odd: hi") {
				t.Errorf("%s, the server (a child of it: %v) has called %s", when, child, r.All)
			}
		}
	}
	refused("after the installation")
	c.called("the operation")
	if r := c.shell("home", "python3 /workspace/client.py"); !strings.Contains(r.Text, "odd: cmd") {
		t.Errorf("a command of the other token: %s", r.All)
	}
	if got := left(); strings.Contains(got, "odd: left") {
		t.Errorf("what the installation has left behind has called: %s", got)
	}
	// Another sandbox has the scope of those who start something there, until that server runs in it.
	c.call("stop_session", args{"session_id": c.code("home", "1").session()})
	c.called("odd: cmd")
	if r := c.call("restart_external_mcp", args{"name": "inside"}); r.IsError {
		t.Fatal(r.All)
	}
	refused("in another sandbox")
	c.called("the operation")
}
