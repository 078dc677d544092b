package guest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/user"
	"sandlot/proto/agentv1"
)

// TestMain sees to it that no process outlives the tests: orphans become
// children of this one.
func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		os.Exit(child(what))
	}
	if os.Getpid() != 1 { // orphans are children of the first process anyway
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	if left := children(); code == 0 && len(left) > 0 {
		fmt.Fprintln(os.Stderr, "processes are left:", left)
		code = 1
	}
	os.Exit(code)
}

// children lists the living children of this process, waiting for those that
// are about to end.
func children() (left []string) {
	for range 300 {
		left = nil
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, path := range stats {
			text, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
			if len(f) > 1 && f[1] == strconv.Itoa(os.Getpid()) && f[0] != "Z" {
				left = append(left, fmt.Sprintf("%.80s", text))
			}
		}
		if len(left) == 0 {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return left
}

// rig is an agent without a host, that works in a folder of its own.
type rig struct {
	*Agent
	t   *testing.T
	dir string
}

func newRig(t *testing.T) *rig { return newRigOf(t, nil) }

// newRigOf returns a rig with that user.
func newRigOf(t *testing.T, u *user.User) *rig {
	t.Helper()
	a := New(Config{User: u, Socket: filepath.Join(t.TempDir(), "none.sock"), Secret: make([]byte, wire.SecretLen),
		Env: []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "LANG=C.UTF-8"}})
	a.output.dir = t.TempDir()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{a, t, dir}
	r.configure(&agentv1.FileRoot{Path: dir})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); a.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return r
}

func (r *rig) configure(roots ...*agentv1.FileRoot) {
	r.t.Helper()
	_, err := r.Configure(r.t.Context(), &agentv1.ConfigureRequest{FileRoots: roots, Languages: languages(r.t)})
	if err != nil {
		r.t.Fatal(err)
	}
}

// languages are the machine's own.
var languages = func() func(*testing.T) []*agentv1.Language {
	find := sync.OnceValue(func() string {
		if exec.Command("/usr/bin/python3", "--version").Run() == nil {
			return "/usr/bin/python3"
		}
		out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	})
	return func(*testing.T) []*agentv1.Language {
		all := []*agentv1.Language{{Name: "sh", Command: []string{"/bin/sh"}, Extension: ".sh"},
			{Name: "bad", Command: []string{"/bin/sh"}, Extension: "/../x"}}
		if p := find(); p != "" {
			all = append(all, &agentv1.Language{Name: "python", Driver: "python", Command: []string{p}})
		}
		return all
	}
}()

// write makes a file of the rig's folder.
func (r *rig) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// is checks a file's text.
func (r *rig) is(name, want string) {
	r.t.Helper()
	got, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil || string(got) != want {
		r.t.Errorf("%s holds %.200q, %v, want %.200q", name, got, err, want)
	}
}

// refused checks an error's code and text.
func refused(t *testing.T, err error, code connect.Code, text string) {
	t.Helper()
	if err == nil || connect.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %s and %q", err, code, text)
	}
}

func evaluateRun(q *agentv1.EvaluateRequest) *agentv1.RunRequest {
	return &agentv1.RunRequest{Kind: &agentv1.RunRequest_Evaluate{Evaluate: q}}
}

func execRun(q *agentv1.ExecRequest) *agentv1.RunRequest {
	return &agentv1.RunRequest{Kind: &agentv1.RunRequest_Exec{Exec: q}}
}

func readStream(q *agentv1.ReadStream) *agentv1.StreamOpen {
	return &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_ReadFile{ReadFile: q}}
}

func writeStream(q *agentv1.WriteStream) *agentv1.StreamOpen {
	return &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_WriteFile{WriteFile: q}}
}

func dialStream(to net.Addr) *agentv1.StreamOpen {
	port := to.(*net.TCPAddr).Port
	return &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Dial{Dial: uint32(port)}}
}
