// Package guesttest is what the tests of the agent's packages share: processes that nobody may leave, the machine's
// interpreters, a folder of files, and refusals.
package guesttest

import (
	"bytes"
	"fmt"
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
)

// Main runs the tests of a package, and ends the process. It fails if the tests pass and leave a process: orphans become
// children of this one.
func Main(m *testing.M) {
	if os.Getpid() != 1 { // orphans are children of the first process anyway
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	if left := Children(); code == 0 && len(left) > 0 {
		fmt.Fprintln(os.Stderr, "processes are left:", left)
		code = 1
	}
	os.Exit(code)
}

// Children lists the living children of this process. It waits three seconds for those that are about to end.
func Children() (left []string) {
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

// Python is the path of the machine's Python, or empty. A shim of a version manager is asked for the real one.
var Python = sync.OnceValue(func() string {
	if exec.Command("/usr/bin/python3", "--version").Run() == nil {
		return "/usr/bin/python3"
	}
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
})

// Folder is a folder of the test's own, and the test.
type Folder struct {
	T    *testing.T
	Path string // without links
}

// NewFolder makes a folder.
func NewFolder(t *testing.T) Folder {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return Folder{t, dir}
}

// Write makes a file, and the folders that it needs.
func (f Folder) Write(name, text string) {
	f.T.Helper()
	path := filepath.Join(f.Path, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.T.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		f.T.Fatal(err)
	}
}

// Is checks a file's text.
func (f Folder) Is(name, want string) {
	f.T.Helper()
	got, err := os.ReadFile(filepath.Join(f.Path, name))
	if err != nil || string(got) != want {
		f.T.Errorf("%s holds %.200q, %v, want %.200q", name, got, err, want)
	}
}

// Refused checks an error's code and text.
func Refused(t *testing.T, err error, code connect.Code, text string) {
	t.Helper()
	if err == nil || connect.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %s and %q", err, code, text)
	}
}
