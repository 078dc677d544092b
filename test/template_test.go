package test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	daemonapi "github.com/moby/moby/client"

	"sandlot/internal/image/imagetest"
	"sandlot/internal/runtime/docker/dockertest"
)

// templates returns what `sandlot template list --json` says, by name.
func (s *server) templates() map[string]map[string]any {
	s.t.Helper()
	out, errs, code := s.cli("template", "list", "--json")
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 {
		s.t.Fatalf("template list: code %d, %v, %s%s", code, err, out, errs)
	}
	all := map[string]map[string]any{}
	for _, t := range list {
		all[t["name"].(string)] = t
	}
	return all
}

// settings writes the server's settings file.
func (s *server) settings(text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.State, "sandlot.yaml"), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// restart starts the server again.
func (s *server) restart() {
	s.t.Helper()
	s.stop()
	transport.CloseIdleConnections()
	s.launch()
}

// testTemplates are settings of two runtimes. The texts in capitals stand for what is known when the test runs.
const testTemplates = `
runtimes: [gvisor, docker]
docker: {host: "DAEMON"}
network: {allow_private: [PRIVATE]}
templates:
  plain: {image: "sandlot-test/base:1", pool: 0}
  data: {runtime: gvisor, DATA}
  python: {runtime: docker, DATA}
  users: {image: "sandlot-test/base:1", packages: {apt: [openssh-client]}, network: {allow: [MIRRORS]}, pool: 0}
  broken:
    image: sandlot-test/base:1
    packages: {pip: ["no-such-package-of-sandlots-tests==9.9"]}
    pool: 0
  alone:
    image: sandlot-test/base:1
    packages: {pip: [six==1.17.0]}
    network: {mode: none}
    pool: 0
  away: {image: "127.0.0.1:1/no/such:1", pool: 0}
`

// testData is the definition of the templates data and python.
const testData = `
    image: "sandlot-test/base:1",
    packages: {pip: [six==1.17.0], npm: [semver@7.7.2], apt: [hello]},
    files: {/etc/greeting: hello from the template,
      /usr/local/bin/greet: {text: "#!/bin/sh\ncat /etc/greeting\n", mode: "0755"}},
    start: echo started >>/workspace/log,
    env: {GREETING: hi},
    network: {allow: [MIRRORS]},
    flavor: medium,
    pool: 1`

// withData returns settings for that Docker daemon, in which the archive's package manager may reach its mirrors.
func withData(t *testing.T, settings, archive, daemon string) string {
	t.Helper()
	return strings.NewReplacer("DAEMON", daemon).Replace(withMirrors(t, strings.ReplaceAll(settings, "DATA", testData),
		archive))
}

// withMirrors returns settings in which the archive's package manager may reach its mirrors.
func withMirrors(t *testing.T, settings, archive string) string {
	t.Helper()
	mirrors, err := imagetest.Mirrors(archive)
	if err != nil {
		t.Fatal(err)
	}
	var allow, private []string
	for _, mirror := range mirrors {
		rule := strconv.Quote(mirror)
		allow = append(allow, rule)
		// A machine may have them at addresses of its own.
		private = append(private, "{host: "+rule+", cidr: 0.0.0.0/0}")
	}
	return strings.NewReplacer("PRIVATE", strings.Join(private, ", "), "MIRRORS", strings.Join(allow, ", ")).Replace(settings)
}

// TestTemplates: images make templates, on both runtimes.
func TestTemplates(t *testing.T) {
	t.Parallel()
	daemon := dockertest.Start(t)
	t.Run("each", func(t *testing.T) {
		t.Run("settings", func(t *testing.T) { t.Parallel(); testSettings(t, daemon) })
		for _, runtime := range []string{"gvisor", "docker"} {
			t.Run("SANDBOX_IMAGE on "+runtime, func(t *testing.T) {
				t.Parallel()
				testSandboxImage(t, runtime, daemon)
			})
		}
	})
	gone(t, daemon)
}

// testSettings: templates of images get ready by themselves, with packages of all kinds; those that cannot be built
// say why to the operator, and the others go on. What was built is used again. A session whose template was removed
// says so, and keeps its files.
func testSettings(t *testing.T, daemon *dockertest.Daemon) {
	s := start(t, append(registries(), "DOCKER_HOST="+daemon.Host)...)
	if out, errs, code := s.cli("image", "import", "docker-daemon:"+dockertest.BaseImage); code != 0 {
		t.Fatalf("%s%s", out, errs)
	}
	settings := withData(t, testTemplates, imagetest.BaseArchive(t), daemon.Host)
	s.settings(settings)
	s.restart()
	progress := ""
	for _, name := range []string{"data", "python", "users"} { // these take longest
		out, errs, code := s.cli("template", "build", name)
		if progress += out; code != 0 {
			t.Fatalf("%s%s", out, errs)
		}
	}
	out, errs, code := s.cli("template", "build")
	progress += out
	for _, want := range []string{"data: apt-get install: ", "data: ready: python node typescript bash sh",
		"python: ready: python node typescript bash sh", "plain: ready: ", "broken: failed: ",
		"No matching distribution",
		"alone: failed: ", "network.allow of the template", "away: failed: "} {
		if !strings.Contains(progress, want) {
			t.Errorf("the progress does not say %q:\n%s", want, progress)
		}
	}
	if code != 1 || !strings.Contains(errs, "broken") || !strings.Contains(errs, "away") ||
		strings.Contains(errs, "data") {
		t.Errorf("code %d, %s", code, errs)
	}
	c := s.connect(older, "", nil)
	plain := c.call("execute_code", args{"template": "plain", "session_id": "new",
		"code": "import os, sys; x = 41; (sys.prefix, os.path.exists('/etc/greeting'))"})
	if plain.Text != "('/usr', False)" {
		t.Errorf("plain: %q", plain.All)
	}
	c.want(plain.session(), "x + 1", "42")
	// A sandbox: gVisor's, with the image's files, and none of this machine.
	if r := c.shell(plain.session(), "dmesg 2>/dev/null | grep -c gVisor; id -u; ls /etc/debian_version /home "+
		filepath.Dir(s.State)); !strings.HasPrefix(r.All, "1\n0\n") ||
		!strings.Contains(r.All, "\n/etc/debian_version\n") || !strings.Contains(r.All, "No such file") {
		t.Errorf("plain: %q", r.All)
	}
	// Packages may give files to other users, and so may programs of sessions.
	users := c.call("execute_command", args{"template": "users", "session_id": "new", "command": "stat -c %G:%a " +
		"/usr/bin/ssh-agent; chown _apt /usr/bin/ssh-agent; stat -c %U /usr/bin/ssh-agent; grep CapBnd /proc/self/status"})
	if users.Text != "_ssh:2755\n_apt\nCapBnd:\t00000000000404fb" {
		t.Errorf("users: %q", users.All)
	}
	s.useData(c, "data", "1")
	s.useData(c, "python", "0")
	if r := s.bare("execute_code", args{"template": "broken", "session_id": "new", "code": "1"}); r.Error == nil ||
		strings.Contains(r.Error.Message, "No matching") || !strings.Contains(r.Error.Message, "Ask the operator") {
		t.Errorf("broken: %+v", r)
	}

	c.call("sandbox_write_file", args{"path": "/workspace/kept", "content": "kept", "session_id": plain.session()})
	before := s.templates()
	s.settings(strings.Replace(settings, `plain: {image: "sandlot-test/base:1", pool: 0}`, "", 1))
	s.restart()
	for name, now := range s.templates() {
		if now["state"] == "ready" && now["built"] != before[name]["built"] {
			t.Errorf("%s was built at %v, and is now %v", name, before[name]["built"], now)
		}
	}
	s.removedTemplate(plain.session())
}

// removedTemplate looks at a session whose template was removed.
func (s *server) removedTemplate(id string) {
	s.t.Helper()
	c := s.connect(older, "", nil)
	r := s.bare("execute_code", args{"session_id": id, "code": "1"})
	if r.Error == nil || !strings.Contains(r.Error.Message, `template "plain"`) ||
		!strings.Contains(r.Error.Message, "/workspace are kept") {
		s.t.Errorf("a removed template: %+v", r)
	}
	moved := c.call("execute_code", args{"session_id": id, "template": "data",
		"code": "print(open('/workspace/kept').read(), open('/etc/greeting').read())"})
	if !strings.Contains(moved.All, "kept hello from the template") {
		s.t.Errorf("moved: %q", moved.All)
	}
}

// useData looks at a session of a template that is made like data. Gvisor is how often its kernel says that it is
// gVisor's.
func (s *server) useData(c *client, template, gvisor string) {
	s.t.Helper()
	r := c.call("execute_code", args{"template": template, "session_id": "new", "code": "import os, six; " +
		"print(six.__version__, six.__file__, os.environ['GREETING'], open('/workspace/log').read())"})
	if !strings.Contains(r.Text, "1.17.0 /usr/local/lib/") || !strings.Contains(r.Text, "hi started") {
		s.t.Errorf("%s: %q", template, r.All)
	}
	const look = "greet; echo; ls /workspace; hello; semver --increment minor 1.2.3; " +
		"dmesg 2>/dev/null | grep -c gVisor; " +
		"pip install -q six==1.16.0 >/dev/null 2>&1; python3 -c 'import six; print(six.__version__)'"
	if got, want := c.shell(r.session(), look).Text, "hello from the template\nlog\nHello, world!\n1.3.0\n"+gvisor+
		"\n1.16.0"; got != want {
		s.t.Errorf("%s: %q, want %q", template, got, want)
	}
	for _, info := range c.call("get_sessions", args{"session_id": r.session()}).Fields["sessions"].([]any) {
		if got := info.(map[string]any); got["flavor"] != "medium" || got["template"] != template {
			s.t.Errorf("its session %v", got)
		}
	}
	for range 600 { // its pool boots another one
		if _, _, text := s.request("GET", "/metrics", nil); strings.Contains(text,
			`sandlot_pool_ready{template="`+template+`"} 1`) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.t.Errorf("%s has no sandbox in the pool", template)
}

// TestReadyMadeTemplate: host provides the name of a ready-made template until that is built. Then new sessions get
// it, homes of host go on serving, and the log says so.
func TestReadyMadeTemplate(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_SNAPSHOTS=false")
	c := s.connect(older, "", nil)
	ask := func(session string) string {
		t.Helper()
		r := c.call("execute_code", args{"template": "base", "session_id": session, "language": "bash",
			"code": "[ -e /etc/apt/sources.list ] && echo image || echo host"})
		return r.Text
	}
	if got := ask("home") + ask("new"); got != "hosthost" {
		t.Errorf("before: %q", got)
	}
	if now := s.templates()["base"]; now["state"] != "not built" || now["usable"] != false {
		t.Errorf("%v", now)
	}
	if out, errs, code := s.cli("image", "import", imagetest.BaseArchive(t), "debian:bookworm-slim"); code != 0 {
		t.Fatalf("%s%s", out, errs)
	}
	out, err := exec.Command("curl", "-sSi", "-X", "POST", "--unix-socket", filepath.Join(s.State, "api.sock"),
		"http://sandlot/v1/templates/base/build").CombinedOutput()
	if answer := string(out); err != nil || !strings.HasPrefix(answer, "HTTP/1.1 202 ") ||
		!strings.Contains(answer, "Location: /v1/templates\r\n") || !strings.Contains(answer, `"name":"base"`) ||
		!strings.Contains(answer, `"progress":"/v1/templates"`) {
		t.Errorf("the request is answered with %v, %s", err, answer)
	}
	if out, errs, code := s.cli("template", "build", "base"); code != 0 || !strings.Contains(out, "base: ready: ") {
		t.Fatalf("code %d, %s%s", code, out, errs)
	}
	if got := ask("home") + ask("new"); got != "hostimage" {
		t.Errorf("after: %q", got)
	}
	if !strings.Contains(s.log.String(), "new sessions that ask for the template base get it") {
		t.Error("the log does not say that new sessions get the template")
	}
	s.restart()
	c = s.connect(older, "", nil)
	if got := ask("home") + ask("new"); got != "hostimage" {
		t.Errorf("after a restart: %q", got)
	}
}

// provenRuntime says that the sandbox of a session is of that runtime, by what is seen in it: the messages of gVisor's
// kernel, or the process namespace of a container that the daemon has for the server.
func provenRuntime(t *testing.T, s *server, daemon *dockertest.Daemon, session, runtime string) {
	t.Helper()
	inside := s.connect(older, "", nil).shell(session, "dmesg 2>/dev/null | grep -q 'Starting gVisor' && "+
		"echo of gVisor; readlink /proc/self/ns/pid").All
	list, err := daemon.Client.ContainerList(t.Context(), daemonapi.ContainerListOptions{
		Filters: make(daemonapi.Filters).Add("label", "dev.sandlot.state="+s.State)})
	if err != nil {
		t.Fatal(err)
	}
	isContainer := slices.ContainsFunc(list.Items, func(c container.Summary) bool {
		space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", daemon.PID(t, c.ID)))
		return err == nil && strings.Contains(inside, space)
	})
	isGVisor := strings.Contains(inside, "of gVisor\n")
	if isGVisor != (runtime == "gvisor") || isContainer != (runtime == "docker") {
		t.Fatalf("this is no sandbox of %s: %q", runtime, inside)
	}
}

// testSandboxImage runs the calls of mcp-codemode with its variables, on one runtime.
func testSandboxImage(t *testing.T, runtime string, daemon *dockertest.Daemon) {
	s := start(t, "SANDBOX_IMAGE="+dockertest.BaseImage, "POOL_SIZE=1", "EXEC_TIMEOUT=10", "MAX_OUTPUT_SIZE=50000",
		"CONTAINER_MEMORY_LIMIT=256m", "CONTAINER_CPU_LIMIT=1.0", "SANDLOT_OUTPUT_STYLE=labeled",
		"SANDLOT_NETWORK_MODE=none", "SANDLOT_RUNTIME="+runtime, "DOCKER_HOST="+daemon.Host, "SANDLOT_SNAPSHOTS=false")
	if runtime == "gvisor" {
		if out, errs, code := s.cli("image", "import", "docker-daemon:"+dockertest.BaseImage); code != 0 {
			t.Fatalf("%s%s", out, errs)
		}
	}
	if out, errs, code := s.cli("template", "build"); code != 0 {
		t.Fatalf("code %d, %s%s", code, out, errs)
	}
	c := s.connect(older, "", nil)
	provenRuntime(t, s, daemon, c.code("", "1").session(), runtime)
	for _, call := range []struct {
		tool string
		args args
		want string
	}{
		{"execute_code", args{"code": "print(6 * 7)", "language": "python"}, "[stdout]\n42\n[exit_code] 0"},
		{"execute_code", args{"code": "print(open('/etc/debian_version').read() != '')"},
			"[stdout]\nTrue\n[exit_code] 0"},
		{"execute_code", args{"code": "echo out; echo err >&2; (exit 3)", "language": "bash"},
			"[stdout]\nout\n[stderr]\nerr\n[exit_code] 3"},
		{"execute_code", args{"code": "echo $((6 * 7))", "language": "SH"}, "[stdout]\n42\n[exit_code] 0"},
		{"execute_code", args{"code": "console.log(6 * 7)", "language": "node"}, "[stdout]\n42\n[exit_code] 0"},
		{"execute_code", args{"code": "console.log([1, 2].length)", "language": "JavaScript"},
			"[stdout]\n2\n[exit_code] 0"},
		{"execute_code", args{"code": "raise ValueError('no')", "language": "Python"}, "ValueError: no\n[exit_code] 1"},
		{"execute_code", args{"code": "print('x' * 60000)", "language": "python"},
			"[exit_code] 0\n[note] Output was truncated due to size limits."},
		{"execute_code", args{"code": "import time; time.sleep(1000)", "language": "python"}, "[exit_code] 124"},
		{"execute_code", args{"code": "1", "language": "cobol"}, "python, node, typescript, bash, sh"},
		{"execute_code", args{"code": "from urllib.request import urlopen; urlopen('http://192.0.2.1/', timeout=5)"},
			"Error"},
		{"sandbox_write_file", args{"path": "/workspace/a.txt", "content": "hello"},
			"Wrote 5 bytes to /workspace/a.txt"},
		{"sandbox_read_file", args{"path": "/workspace/a.txt"}, "hello"},
		{"execute_code", args{"code": "print(open('/workspace/a.txt').read())"}, "[stdout]\nhello\n[exit_code] 0"},
		{"sandbox_list_files", args{}, "a.txt"},
		{"sandbox_list_files", args{"path": "/workspace"}, "a.txt"},
		{"sandbox_read_file", args{"path": "/workspace/none"}, "File not found in sandbox: /workspace/none"},
		{"sandbox_read_file", args{"path": "/etc/passwd"},
			"Path '/etc/passwd' resolves outside the sandbox workspace. " +
				"All paths must be within /workspace."},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		r, err := c.try(ctx, call.tool, call.args)
		cancel()
		got := fmt.Sprint(err)
		if err == nil {
			got = r.All
		}
		if !strings.Contains(got, call.want) {
			t.Errorf("%s %v: %.2000q, want %q", call.tool, call.args, got, call.want)
		}
	}
}
