package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// baseImage is the archive of a root file system with Python, pip and bash that test/tools makes.
func baseImage(t *testing.T) string {
	t.Helper()
	path := filepath.Join(tools(t), "base.tar")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; run `make tools`", err)
	}
	return path
}

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

const testTemplates = `
templates:
  plain: {image: "test/base:1", pool: 0}
  data:
    image: test/base:1
    packages: {pip: [six==1.17.0]}
    files:
      /etc/greeting: hello from the template
      /usr/local/bin/greet: {text: "#!/bin/sh\ncat /etc/greeting\n", mode: "0755"}
    start: echo started >>/workspace/log
    env: {GREETING: hi}
    flavor: medium
    pool: 1
  broken:
    image: test/base:1
    packages: {pip: ["no-such-package-of-sandlots-tests==9.9"]}
    pool: 0
  away: {image: "127.0.0.1:1/no/such:1", pool: 0}
`

// TestTemplates: templates of images get ready by themselves; those that cannot be built say why, and the others go
// on. What was built is used again. A session whose template was removed says so, and keeps its files.
func TestTemplates(t *testing.T) {
	t.Parallel()
	s := start(t, registries()...)
	if out, errs, code := s.cli("image", "import", baseImage(t), "test/base:1"); code != 0 {
		t.Fatalf("%s%s", out, errs)
	}
	s.settings(testTemplates)
	s.restart()
	out, errs, code := s.cli("template", "build")
	for _, want := range []string{"data: ready: python node typescript bash sh",
		"plain: ready: python node typescript bash sh", "broken: failed: ", "No matching distribution",
		"away: failed: "} {
		if !strings.Contains(out, want) {
			t.Errorf("the progress does not say %q:\n%s", want, out)
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
		filepath.Dir(s.State)); !strings.Contains(r.All, "1\n0\n/etc/debian_version\n") ||
		!strings.Contains(r.All, "No such file") {
		t.Errorf("plain: %q", r.All)
	}
	useData(t, c)
	if r := s.bare("execute_code", args{"template": "broken", "session_id": "new", "code": "1"}); r.Error == nil ||
		!strings.Contains(r.Error.Message, "No matching distribution") {
		t.Errorf("broken: %+v", r)
	}

	c.call("sandbox_write_file", args{"path": "/workspace/kept", "content": "kept", "session_id": plain.session()})
	before := s.templates()["data"]["built"]
	s.settings(strings.Replace(testTemplates, `plain: {image: "test/base:1", pool: 0}`, "", 1))
	s.restart()
	if now := s.templates()["data"]; now["state"] != "ready" || now["built"] != before {
		t.Errorf("data was built at %v, and is now %v", before, now)
	}
	c = s.connect(older, "", nil)
	r := s.bare("execute_code", args{"session_id": plain.session(), "code": "1"})
	if r.Error == nil || !strings.Contains(r.Error.Message, `template "plain"`) ||
		!strings.Contains(r.Error.Message, "/workspace are kept") {
		t.Errorf("a removed template: %+v", r)
	}
	moved := c.call("execute_code", args{"session_id": plain.session(), "template": "data",
		"code": "print(open('/workspace/kept').read(), open('/etc/greeting').read())"})
	if !strings.Contains(moved.All, "kept hello from the template") {
		t.Errorf("moved: %q", moved.All)
	}
}

// useData looks at a session of the template data.
func useData(t *testing.T, c *client) {
	t.Helper()
	r := c.call("execute_code", args{"template": "data", "session_id": "new", "code": "import os, six; " +
		"print(six.__version__, six.__file__, os.environ['GREETING'], open('/workspace/log').read())"})
	if !strings.Contains(r.Text, "1.17.0 /usr/local/lib/") || !strings.Contains(r.Text, "hi started") {
		t.Errorf("data: %q", r.All)
	}
	if r := c.shell(r.session(), "greet; ls /workspace; pip install -q six==1.16.0 >/dev/null 2>&1; "+
		"python3 -c 'import six; print(six.__version__)'"); !strings.HasPrefix(r.Text, "hello from the template") ||
		!strings.Contains(r.Text, "log\n1.16.0") {
		t.Errorf("data: %q", r.All)
	}
	for _, info := range c.call("get_sessions", args{"session_id": r.session()}).Fields["sessions"].([]any) {
		if got := info.(map[string]any); got["flavor"] != "medium" || got["template"] != "data" {
			t.Errorf("its session %v", got)
		}
	}
}

// TestReadyMadeTemplate: host provides the name of a ready-made template until that is built. Then new sessions get
// it, homes of host go on serving, and the log says so.
func TestReadyMadeTemplate(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDLOT_POOL_SIZE=0", "SANDLOT_SNAPSHOTS=false")
	c := s.connect(older, "", nil)
	ask := func(session string) string {
		t.Helper()
		r := c.call("execute_code", args{"template": "base", "session_id": session, "language": "bash",
			"code": "[ -e /etc/debian_version ] && echo image || echo host"})
		return r.Text
	}
	if got := ask("home") + ask("new"); got != "hosthost" {
		t.Errorf("before: %q", got)
	}
	if now := s.templates()["base"]; now["state"] != "not built" || now["usable"] != false {
		t.Errorf("%v", now)
	}
	if out, errs, code := s.cli("image", "import", baseImage(t), "debian:bookworm-slim"); code != 0 {
		t.Fatalf("%s%s", out, errs)
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

// TestSandboxImage: mcp-codemode's variable makes a template, which is the default one.
func TestSandboxImage(t *testing.T) {
	t.Parallel()
	s := start(t, "SANDBOX_IMAGE=test/base:1", "SANDLOT_POOL_SIZE=0", "SANDLOT_SNAPSHOTS=false")
	if out, errs, code := s.cli("image", "import", baseImage(t), "test/base:1"); code != 0 {
		t.Fatalf("%s%s", out, errs)
	}
	if out, errs, code := s.cli("template", "build"); code != 0 {
		t.Fatalf("code %d, %s%s", code, out, errs)
	}
	began := time.Now()
	r := s.bare("execute_code", args{"code": "print(open('/etc/debian_version').read() != '', 6 * 7)"})
	if text := fmt.Sprint(r.Result["content"]); r.Error != nil || !strings.Contains(text, "True 42") {
		t.Errorf("after %v: %+v", time.Since(began), r)
	}
}
