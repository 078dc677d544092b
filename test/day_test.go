package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestDay does a day's work as an agent would, with the real tools, in a fresh
// home: in the template host, on a server without root; and on a Mac, in an image.
func TestDay(t *testing.T) {
	t.Parallel()
	if daemonOf(t) != nil {
		spendDay(t, start(t, registries()...), defaultTemplate(t))
		return
	}
	spendDay(t, startUnprivileged(t, registries()...), "host")
}

// TestDayInARootFileSystem is TestDay in a template whose root file system is a folder.
func TestDayInARootFileSystem(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "sandlot.yaml")
	settings := fmt.Sprintf("templates: {own: {rootfs: %s, languages: [{name: python, driver: python, command: "+
		"[/usr/bin/python3]}, "+
		"{name: node, driver: node, command: [/usr/bin/node]}, {name: bash, driver: bash, command: [/bin/bash]}]}}\n",
		rootfs(t))
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	spendDay(t, start(t, append(registries(), "SANDLOT_CONFIG="+file, "SANDLOT_DEFAULT_TEMPLATE=own")...), "own")
}

func spendDay(t *testing.T, s *server, template string) {
	d := &day{t: t, server: s, template: template, token: s.token("ann")}
	d.client = s.connect(older, d.token, nil)
	d.installs()
	d.commits()
	d.shows()
	d.background()
	d.system()
	d.call("stop_session", args{"session_id": d.session})
	d.uses("after a new start")
	d.keeps()
}

// rootfs makes a root file system of its own of the machine's programs.
func rootfs(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	script := `set -e; cd "$1"; mkdir -p usr/lib etc/ssl/certs root tmp var/tmp usr/share usr/local/lib
ln -s usr/bin bin; ln -s usr/bin sbin; ln -s usr/lib lib; test ! -e /lib64 || ln -s usr/lib64 lib64
put() { for f in "$@"; do test ! -e "$f" || { mkdir -p ".$(dirname $f)"; cp -al "$f" ".$f" 2>/dev/null || cp -a "$f" ".$f"; }; done; }
put /usr/bin /usr/lib64 /usr/lib/python3* /usr/lib/git-core /usr/lib/node_modules /usr/share/nodejs /usr/share/python-wheels /usr/share/git-core
put /etc/alternatives /usr/lib/*-linux-gnu/*.so* /usr/lib/*-linux-gnu/*/libblas* /usr/lib/*-linux-gnu/*/liblapack*
printf 'root:x:0:0:root:/root:/bin/bash\n' > etc/passwd; printf 'root:x:0:\n' > etc/group; printf '127.0.0.1 localhost\n' > etc/hosts; : > etc/resolv.conf`
	out, err := exec.Command("bash", "-c", script, "bash", root).CombinedOutput()
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	return root
}

type day struct {
	t *testing.T
	*server
	*client
	template, token, session string
}

// does runs a command in the home, which must do without a complaint.
func (d *day) does(command string, want ...string) *result {
	d.t.Helper()
	r := d.call("execute_command", args{"command": command, "session_id": "home", "timeout": 240})
	d.session = r.session()
	if r.Fields["exit_code"] != 0.0 {
		d.t.Fatalf("%s: %s", command, tail(r.All, 3000))
	}
	for _, w := range want {
		if !strings.Contains(r.All, w) {
			d.t.Errorf("%s: %q is not in %q", command, w, tail(r.All, 3000))
		}
	}
	return r
}

// installs installs in every way, and uses it at once.
func (d *day) installs() {
	// The interpreters run already, and find what comes.
	code := func(language, code, want string) {
		d.t.Helper()
		if r := d.call("execute_code", args{"code": code, "language": language, "session_id": "home"}); r.IsError ||
			r.Fields["result"] != want {
			d.t.Errorf("%s: %s: %q", language, code, tail(r.All, 3000))
		}
	}
	code("python", "x = 1; x", "1")
	code("node", "var x = 1; x", "1")
	d.does("pip install cowsay && cowsay -t moo && command -v cowsay", "Successfully installed cowsay", "moo",
		"/workspace/.local/bin/cowsay")
	if r := d.does("pip install --user six uv"); strings.Contains(r.Text, "not on PATH") {
		d.t.Errorf("%q", r.Text)
	}
	d.does("uv pip install --no-progress isodd 'toolz' && python3 -c 'import toolz; print(toolz.__file__)'",
		"/workspace/.local/lib/python3")
	d.does("npm install -g semver && semver 1.2.3 && npm root -g", "added 1 package", "1.2.3",
		"/workspace/.local/lib/node_modules")
	code("python", "import cowsay, six, toolz; x + cowsay.__name__.count('c') + len(toolz.__name__)", "7")
	code("python", "%pip install -q iniconfig\nimport iniconfig; iniconfig.__name__", "'iniconfig'")
	code("node", "x + Number(require('semver').major('4.5.6'))", "5")
	code("node", "import semver from 'semver'; x + semver.major('5.5.6')", "6")
	code("node", "(await import('semver')).default.major('7.5.6')", "7")
	d.does("python -c 'import six; print(7*6)'", "42")
	d.does("npx -y semver@7 2.3.4", "2.3.4")
	d.does("mkdir -p js && cd js && npm install ms && node -e 'console.log(require(\"ms\")(1000))'", "1s")
	// Environments are as they are elsewhere.
	d.does("python3 -m venv venv && venv/bin/pip install -q toolz && venv/bin/python -c 'import toolz; "+
		"print(toolz.__file__)'", "/workspace/venv/lib")
	d.does("mkdir -p /tmp/p && cd /tmp/p && uv venv -q && uv pip install -q toolz && ls "+
		".venv/lib/python3*/site-packages", "toolz")
	d.does("pip install -q --target /tmp/t toolz && ls /tmp/t", "toolz")
	d.uses("at once")
}

// uses uses what is installed.
func (d *day) uses(when string) {
	d.t.Helper()
	d.does("cowsay -t "+strings.ReplaceAll(when, " ", "-")+
		" && semver 3.4.5 && uv --version && python3 -c 'import six, toolz, cowsay; print(7*6)'", "3.4.5", "uv ", "42")
	d.does("venv/bin/python -c 'import toolz; print(7*6)'", "42")
	if r := d.call("execute_code", args{"code": "require('semver').valid('4.5.6')", "language": "node",
		"session_id": "home"}); !strings.Contains(r.All, "4.5.6") {
		d.t.Errorf("Node, %s: %q", when, r.All)
	}
	if r := d.call("execute_code", args{"code": "import six, toolz, cowsay; print(7*6)",
		"session_id": "home"}); !strings.HasPrefix(r.All, "42") && !strings.Contains(r.All, "\n42") {
		d.t.Errorf("Python, %s: %q", when, r.All)
	}
}

func (d *day) commits() {
	r := d.does("mkdir g && cd g && git init && echo a > a && git add -A && git commit -m first && git log "+
		"--format='%an <%ae>'", "ann <ann@sandlot.invalid>")
	if strings.Contains(r.Text, "hint:") {
		d.t.Errorf("%q", r.Text)
	}
	d.does("cd g && git config --global user.name Ann && git commit -q --amend --reset-author --no-edit && git log "+
		"--format='%an <%ae>'", "Ann <ann@sandlot.invalid>")
	d.does("cd g && git config user.email ann@example.test && git commit -q --amend --reset-author --no-edit && git "+
		"log --format='%an <%ae>'", "Ann <ann@example.test>")
	d.does("git init -q . && git status --short", "?? g/")
	if r := d.does("git status --short; rm -rf .git"); strings.Contains(r.Text, ".local") {
		d.t.Errorf("%q", r.Text)
	}
	r = d.call("execute_command", args{"command": "git clone https://example.com/a.git", "session_id": "home"})
	if !strings.Contains(r.All, "sandlot network allow example.com:443 --session "+d.session) {
		d.t.Errorf("%q", r.All)
	}
}

// shows prints as programs do for a terminal.
func (d *day) shows() {
	const bar = `for i in 0 50 100; do printf '\r\033[32m%s%%\033[0m' $i; sleep 0.01; done; echo; echo done`
	if r := d.does(bar); r.Text != "100%\ndone" {
		d.t.Errorf("%q", r.Text)
	}
	const raw = "\r\x1b[32m0%\x1b[0m\r\x1b[32m50%\x1b[0m\r\x1b[32m100%\x1b[0m\ndone\n"
	r := d.call("sandbox_shell_exec", args{"command": bar})
	if r.Fields["stdout"] != raw || r.Text != "100%\ndone" {
		d.t.Errorf("%q, %q", r.Fields["stdout"], r.Text)
	}
	// Its bytes are a link away.
	for language, code := range map[string]string{"bash": bar, "python": fmt.Sprintf("print(%q, end='')", raw)} {
		r := d.call("execute_code", args{"code": code, "language": language, "session_id": "home"})
		if r.Text != "100%\ndone" || len(links(r)) != 1 {
			d.t.Errorf("%s: %q, %d links", language, r.Text, len(links(r)))
			continue
		}
		if _, text := d.resource(links(r)[0]); text != raw {
			d.t.Errorf("%s: %q", language, text)
		}
	}
	// Zeros are seen, and are in the data.
	for language, code := range map[string]string{"bash": `printf 'a\0b\0'`, "python": `print("a\0b\0", end="")`,
		"node": `process.stdout.write("a\0b\0"); 0`} {
		r := d.call("execute_code", args{"code": code, "language": language, "session_id": "home"})
		if r.Text != "a␀b␀" || r.Fields["output"] != "a\x00b\x00" || r.Fields["stdout_base64"] != "YQBiAA==" ||
			len(links(r)) != 1 {
			d.t.Errorf("%s: %q, %q", language, r.All, r.Fields)
			continue
		}
		if _, text := d.resource(links(r)[0]); text != "a\x00b\x00" {
			d.t.Errorf("%s: %q", language, text)
		}
	}
	if r := d.does("printf 'one\\r\\ntwo\\n'"); len(links(r)) != 0 {
		d.t.Errorf("a link to what is shown as it is: %q", r.All)
	}
	if out, _, _ := d.cli("exec", "--session", "new", "--", "printf", `a\rb\033[31mc\n`); out != "a\rb\x1b[31mc\n" {
		d.t.Errorf("sandlot exec changed the bytes: %q", out)
	}
	// The whole of an output is as it came.
	r = d.does(`printf '\033[31m'; head -c 100000 /dev/zero | tr '\0' x; printf '\033[0m\n'`, "left out here")
	for _, link := range links(r) {
		_, text := d.resource(link)
		if len(text) != 100010 || !strings.HasPrefix(text, "\x1b[31mx") || !strings.HasSuffix(text, "x\x1b[0m\n") {
			d.t.Errorf("%d bytes, %.20q", len(text), text)
		}
	}
	if ms, ok := r.Fields["execution_time_ms"].(float64); !ok || ms != float64(int64(ms)) {
		d.t.Errorf("%v ms", r.Fields["execution_time_ms"])
	}
}

// background starts something that is ended by its time limit, which outlives the
// server.
func (d *day) background() {
	r := d.call("execute_command", args{"command": "seq 30000; sleep 600", "background": true, "timeout": 8,
		"session_id": "home"})
	id, _ := r.Fields["process_id"].(string)
	if r.IsError || id == "" {
		d.t.Fatalf("%q", r.All)
	}
	d.kill()
	d.launch()
	d.client = d.connect(newer, d.token, nil)
	for cursor := 0.0; ; {
		r = d.call("read_process", args{"process_id": id, "cursor": cursor, "wait": 30})
		cursor = r.Fields["cursor"].(float64)
		if r.Fields["running"] == false {
			break
		}
	}
	if r.Fields["exit_code"] != 124.0 || r.Fields["killed_by"] != "time" ||
		!strings.Contains(r.All, "its time limit of 8 seconds was over") {
		d.t.Errorf("%v %q", r.Fields, tail(r.All, 300))
	}
	// It has ended, whatever is left to be read.
	r = d.call("read_process", args{"process_id": id, "max_bytes": 10})
	if r.Fields["running"] != false || r.Fields["exit_code"] != 124.0 || r.Fields["bytes_left"].(float64) < 100000 ||
		r.Fields["output"] != "1\n2\n3\n4\n5\n" {
		d.t.Errorf("%v", r.Fields)
	}
}

// system tries to install into the system.
func (d *day) system() {
	for _, command := range []string{"apt-get install -y jq", "cd /tmp && sudo apt update", "dpkg -i x.deb",
		"apk add jq"} {
		r := d.call("execute_command", args{"command": command, "session_id": "home"})
		if said := strings.Contains(r.All, "are those of the server's machine"); said != (d.template == "host") {
			d.t.Errorf("%s: %q", command, r.All)
		}
	}
}

// keeps looks for what lies in the workspace, and for what should not.
func (d *day) keeps() {
	if r := d.does("cd /workspace && ls -A && find . -path '*cache*' -not -name '*.py' | grep -v node_modules/ | " +
		"grep -v site-packages/; git config --global user.name"); r.Text != ".local\ng\njs\nvenv\nAnn" {
		d.t.Errorf("the workspace: %q", r.Text)
	}
}

// links returns the addresses of what a result says is elsewhere.
func links(r *result) (found []string) {
	for _, uri := range resourceURI.FindAllString(r.All, -1) {
		if !slices.Contains(found, uri) {
			found = append(found, uri)
		}
	}
	return found
}

var resourceURI = regexp.MustCompile(`sandlot://sessions/[^\s\]]+`)

// resource reads a resource's text.
func (d *day) resource(uri string) (mime, text string) {
	d.t.Helper()
	r, err := d.ReadResource(d.t.Context(), &mcp.ReadResourceParams{URI: uri})
	if err != nil || len(r.Contents) != 1 {
		d.t.Fatalf("%s: %v", uri, err)
	}
	return r.Contents[0].MIMEType, r.Contents[0].Text + string(r.Contents[0].Blob)
}
