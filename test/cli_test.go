package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

func TestCommandLine(t *testing.T) {
	t.Parallel()
	s := start(t)
	check := func(stdin string, wantCode int, wantOut string, args ...string) string {
		t.Helper()
		out, errs, code := s.cliIn(stdin, args...)
		if code != wantCode || !strings.Contains(out, wantOut) {
			t.Errorf("%v: code %d, %q, %q; want %d, %q", args, code, out, errs, wantCode, wantOut)
		}
		return out
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "hello.py")
	if err := os.WriteFile(file, []byte("import sys\nprint('hi', "+
		"*sys.argv[1:])\nprint(sys.stdin.read())\nsys.exit(3)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	check("input", 3, "hi a b\ninput\n", "run", file, "a", "b")
	check("print(6*7)", 0, "42\n", "run", "-")
	check("console.log(6*7)", 0, "42\n", "run", "--language", "node", "-")
	check("echo $((6*7)); exit 5", 5, "42\n", "run", "--language", "bash", "-")
	check("abc", 4, "abc", "exec", "--", "sh", "-c", "cat; exit 4")
	check("", 0, "x\n", "exec", "--session", "home", "--", "sh", "-c", "echo x > /workspace/f; cat /workspace/f")
	check("", 0, "x\n", "cp", "home:f", "-")
	check("binary\x00\xff", 0, "", "cp", "-", "home:b")
	if out := check("", 0, "", "cp", "home:b", "-"); out != "binary\x00\xff" {
		t.Errorf("%q", out)
	}
	check("echo from the shell; exit 6\n", 6, "from the shell\n", "shell")
	check("", 0, "home", "sessions")
	var list []map[string]any
	if err := json.Unmarshal([]byte(check("", 0, "[", "sessions", "--json")), &list); err != nil || len(list) != 1 ||
		list[0]["home"] != true {
		t.Errorf("%v %v", list, err)
	}
	// A client's settings, by URL and by program: what is written there works, and is taken out again.
	settings := filepath.Join(dir, "mcp.json")
	for _, client := range []string{"cursor", "claude-desktop"} {
		check("", 0, "is written", "install", client, "--file", settings, "--yes")
		check("", 0, "through it works", "install", client, "--file", settings, "--check")
		check("", 0, "is written", "uninstall", client, "--file", settings, "--yes")
		check("", 1, "", "install", client, "--file", settings, "--check")
	}
	if err := json.Unmarshal([]byte(check("", 0, "[", "sessions", "--json")), &list); err != nil || len(list) != 1 {
		t.Errorf("a check leaves sessions: %v %v", list, err)
	}
	check("", 0, "sandlot", "version")
	check("", 0, "max_sessions", "config")
	check("", 0, "bash completion", "completion", "bash")
	for _, c := range []string{"serve", "stdio", "run", "exec", "shell", "cp", "doctor", "token"} {
		check("", 0, "Usage:", c, "--help")
	}
	check("", 2, "", "nosuch")
	check("", 2, "", "serve", "--bogus")
	check("", 2, "", "run")
	check("", 1, "", "cp", "home:missing", "-")
	check("", 1, "", "exec", "--session", "nobodys", "--", "true")
}

// TestNoServer uses the commands that need none; nothing runs after them.
func TestNoServer(t *testing.T) {
	t.Parallel()
	s := &server{t: t, program: binary(t), State: t.TempDir(),
		env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}}
	if out, errs, code := s.cliIn("print(6*7)", "run", "-"); code != 0 || out != "42\n" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if out, errs, code := s.cli("exec", "--session", "home", "--", "sh", "-c", "echo kept > f"); code != 0 {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if out, errs, code := s.cli("cp", "home:f", "-"); code != 0 || out != "kept\n" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	for setting, want := range map[string]string{"true": "new sandboxes start from one that has booted",
		"false": "none, each sandbox boots: snapshots are turned off"} {
		s.env = append(s.env, "SANDLOT_SNAPSHOTS="+setting)
		if out, errs, code := s.cli("doctor"); code != 0 || !strings.Contains(out, "answered 42") ||
			!strings.Contains(out, "snapshots    "+want) {
			t.Errorf("%d %q %q", code, out, errs)
		}
	}
	if left := s.left(); len(left) != 1 || !strings.HasPrefix(left[0], "image ") { // the home sleeps
		t.Errorf("this is left: %q", left)
	}
}

// TestTerminal is a person at a shell.
func TestTerminal(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, list := range []string{"sessions", "ports", "mcp list", "secret list", "token list"} { // of nothing
		if out, errs, code := s.cli(strings.Fields(list)...); code != 0 || out != "" || !strings.Contains(errs, "o ") {
			t.Errorf("%s: %d %q %q", list, code, out, errs)
		}
	}
	cmd := exec.Command(binary(t), "--state-dir", s.State, "shell")
	cmd.Env = append(s.env, "TERM=xterm")
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 31, Cols: 97})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stuck := time.AfterFunc(2*time.Minute, func() { cmd.Process.Kill() })
	defer stuck.Stop()
	var seen []byte
	buf := make([]byte, 4096)
	until := func(text string) {
		t.Helper()
		for !strings.Contains(string(seen), text) {
			n, err := f.Read(buf)
			if err != nil {
				t.Fatalf("%v, after %q", err, seen)
			}
			seen = append(seen, buf[:n]...)
		}
		_, after, _ := strings.Cut(string(seen), text)
		seen = []byte(after) // what comes next may have come with it
	}
	fmt.Fprint(f, "stty size; tty\n")
	until("31 97")
	until("/dev/pts/")
	// what is typed comes back, so it differs from what is printed
	fmt.Fprint(f, "sh -c 'echo on the''way; exec sleep 1000'\n")
	until("on theway")
	f.Write([]byte{3}) // Ctrl-C ends the sleep, not the shell
	fmt.Fprint(f, "echo al''ive\n")
	until("alive")
	fmt.Fprint(f, "exit 9\n")
	for err == nil {
		_, err = f.Read(buf)
	}
	if cmd.Wait(); cmd.ProcessState.ExitCode() != 9 {
		t.Errorf("exit code %d", cmd.ProcessState.ExitCode())
	}
}

// TestSettings: bad settings stop the start, and say what is allowed.
func TestSettings(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]string{
		"MCP_SERVER_PORT=99999":                  "MCP_SERVER_PORT",
		"MSB_MAX_SESSIONS=many":                  "MSB_MAX_SESSIONS",
		"MSB_DEFAULT_FLAVOR=huge":                "small",
		"MSB_SHARED_VOLUME_PATH=/no/such/dir:/x": "/no/such/dir",
		"SANDLOT_LOG_LEVEL=LOUD":                 "DEBUG",
		"SANDLOT_RUNTIME=podman":                 "gvisor",
		"SANDLOT_HOST=0.0.0.0 SANDLOT_AUTH=off":  "loopback",
	} {
		s := &server{t: t, program: binary(t), State: t.TempDir(),
			env: append([]string{"PATH=" + os.Getenv("PATH")}, strings.Fields(env)...)}
		if _, errs, code := s.cli("serve"); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %q", env, code, errs)
		}
	}
	file := filepath.Join(t.TempDir(), "sandlot.yaml")
	if err := os.WriteFile(file, []byte("max_sesions: 5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, program: binary(t), State: t.TempDir(), env: []string{"PATH=" + os.Getenv("PATH")}}
	if _, errs, code := s.cli("serve", "--config", file); code != 1 || !strings.Contains(errs, "max_sessions") {
		t.Errorf("a misspelled key: %d %q", code, errs)
	}
}

// TestVolumes shares folders of the host.
func TestVolumes(t *testing.T) {
	t.Parallel()
	if isLikeAMac(t) {
		noFolders(t)
		return
	}
	shared, readOnly := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(readOnly, "f"), []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := start(t, "MSB_SHARED_VOLUME_PATH="+shared+":/sandbox/data, "+readOnly+":/sandbox/ro:ro")
	c := s.connect(older, "", nil)
	if r := c.call("get_volume_path", nil); !strings.Contains(r.All, shared) ||
		len(r.Fields["volume_mappings"].([]any)) != 2 {
		t.Errorf("%q %v", r.All, r.Fields)
	}
	id := c.code("new", "open('/sandbox/data/new', 'w').write('x')").session()
	if got, err := os.ReadFile(filepath.Join(shared, "new")); err != nil || string(got) != "x" {
		t.Errorf("%q %v", got, err)
	}
	if r := c.call("sandbox_read_file", args{"path": "/sandbox/ro/f", "session_id": id}); r.Text != "data" {
		t.Errorf("%q", r.All)
	}
	if r := c.shell(id, "{ echo y > /sandbox/ro/f; } 2>&1 | grep -o Read-only"); r.Text != "Read-only" {
		t.Errorf("%q", r.All)
	}
	if r, err := c.try(t.Context(), "sandbox_write_file", args{"path": "/sandbox/ro/f", "content": "y",
		"session_id": id}); err == nil && !r.IsError {
		t.Errorf("%q", r.All)
	}
	if got, _ := os.ReadFile(filepath.Join(readOnly, "f")); string(got) != "data" {
		t.Errorf("the read-only folder holds %q", got)
	}
}
