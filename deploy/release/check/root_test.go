package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/release"
)

// root is the root file system of another machine, in which programs run as root, in a mount and a process namespace of
// their own. It has the network of this one.
type root string

// newRoot makes a root file system of an archive; an empty path makes an empty one.
func newRoot(t *testing.T, archive string) root {
	t.Helper()
	r := root(t.TempDir())
	if archive != "" {
		run(t, "tar", "-xf", archive, "-C", string(r))
	}
	for _, d := range []string{"proc", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(string(r), d), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// enterVariable makes this program enter a root file system and become another program.
const enterVariable = "SANDLOT_CHECK_ROOT"

func TestMain(m *testing.M) {
	if to := os.Getenv(enterVariable); to != "" {
		fmt.Fprintln(os.Stderr, enter(to, os.Args[1:]))
		os.Exit(127)
	}
	os.Exit(m.Run())
}

// enter makes a folder the root of this process, and becomes a program there. A chroot would not do: gVisor makes
// namespaces. Nor would programs of this machine: where they are not, they cannot run.
func enter(to string, args []string) error {
	err := errors.Join(unix.Mount(to, to, "", unix.MS_BIND, ""), unix.Mount("proc", to+"/proc", "proc", 0, ""),
		unix.Mount("/dev", to+"/dev", "", unix.MS_BIND|unix.MS_REC, ""), os.Chdir(to), unix.PivotRoot(".", "."),
		unix.Unmount(".", unix.MNT_DETACH), os.Chdir("/"),
		os.Setenv("PATH", "/opt/sandlot:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"))
	if err != nil {
		return err
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	return unix.Exec(program, args, []string{"PATH=" + os.Getenv("PATH"), "HOME=/tmp",
		"DEBIAN_FRONTEND=noninteractive"})
}

// command is a program in the root file system.
func (r root) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--mount", "--propagation", "private", "--pid", "--fork",
		"--kill-child", os.Args[0]}, args...)...)
	cmd.Env = append(os.Environ(), enterVariable+"="+string(r))
	return cmd
}

func (r root) try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := r.command(ctx, args...).CombinedOutput()
	return string(out), err
}

func (r root) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := r.try(t, args...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return out
}

// copy copies a file of this machine into the root file system.
func (r root) copy(t *testing.T, from, to string) {
	t.Helper()
	run(t, "install", "-D", from, filepath.Join(string(r), to))
}

// working checks that Sandlot, which a package has installed, is whole, and makes sandboxes.
func (r root) working(t *testing.T, version, upgrade string) {
	t.Helper()
	if out := r.run(t, "sandlot", "version"); out != "sandlot "+version+"\n" {
		t.Error(out)
	}
	if out := r.run(t, "sandlot", "doctor"); strings.Contains(out, "FAIL") || !strings.Contains(out, "host: [") {
		t.Error(out)
	}
	if out := r.run(t, "stat", "-c", "%U %G %a", "/var/lib/sandlot"); out != "sandlot sandlot 700\n" {
		t.Error(out)
	}
	unit := filepath.Join(string(r), "usr/lib/systemd/system/sandlot.service")
	if text, err := os.ReadFile(unit); err != nil ||
		!strings.Contains(string(text), "ExecStart=/opt/sandlot/sandlot serve") {
		t.Errorf("%v\n%s", err, text)
	}
	by, err := os.ReadFile(filepath.Join(string(r), "opt/sandlot", release.ManagedName))
	if string(by) != upgrade+"\n" {
		t.Errorf("%q, %v", by, err)
	}
	// As the unit starts it.
	r.serves(t, "import os; print(6*7, os.path.exists('/opt/sandlot'))", "42 False",
		"runuser", "--user", "sandlot", "--",
		"env", "HOME=/var/lib/sandlot", "SANDLOT_NETWORK_REGISTRIES=none", "sandlot", "--state-dir", "/var/lib/sandlot")
}

// gone checks that nothing is left of a package but the state.
func (r root) gone(t *testing.T) {
	t.Helper()
	for _, path := range []string{"usr/bin/sandlot", "opt/sandlot", "usr/lib/systemd/system/sandlot.service"} {
		if _, err := os.Lstat(filepath.Join(string(r), path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if _, err := os.Stat(filepath.Join(string(r), "var/lib/sandlot")); err != nil {
		t.Error(err)
	}
}

// call asks the server at a port of this machine to run code, until it answers as wanted.
func call(t *testing.T, port int, code, want string) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{
			"name": "execute_code", "arguments": map[string]string{"code": code}}})
	if err != nil {
		t.Fatal(err)
	}
	answer := ""
	for range 300 {
		response, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/mcp", port), "application/json",
			bytes.NewReader(text))
		if err == nil {
			body, readErr := io.ReadAll(response.Body)
			response.Body.Close()
			if answer = string(body); readErr == nil && strings.Contains(answer, want) {
				return
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Errorf("the server answers %s", answer)
}

// serves starts the server by a command line, lets it run code, and ends it, with all that it has started.
func (r root) serves(t *testing.T, code, want string, line ...string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var log bytes.Buffer
	serve := r.command(ctx, append(line, "serve", "--port", fmt.Sprint(port))...)
	serve.Stdout, serve.Stderr = &log, &log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { // all that it has started ends with its process namespace
		cancel()
		_ = serve.Wait() // which says that it was killed
		if t.Failed() {
			t.Logf("the server's log:\n%s", &log)
		}
	}()
	call(t, port, code, want)
}
