package gvisor

import (
	"context"
	_ "embed"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"sandlot/internal/agent"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

//go:embed testdata/sockets.py
var socketAttacks string

//go:embed testdata/modes.py
var modeAttacks string

//go:embed testdata/work.py
var ordinaryWork string

// answering opens a socket of the host's that counts who comes, and a named pipe
// that has a reader.
func answering(t *testing.T, dir string, came *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(dir, "h.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // until the socket is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			came.Add(1)
			c.Write([]byte("CANARY"))
			c.Close()
		}
	}()
	u, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: filepath.Join(dir, "d.sock")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	go func() {
		for b := make([]byte, 9); ; came.Add(1) {
			if _, _, err := u.ReadFrom(b); err != nil {
				return
			}
		}
	}()
	pipe := filepath.Join(dir, "h.fifo")
	if err := syscall.Mkfifo(pipe, 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	go func() {
		for b := make([]byte, 9); ; came.Add(1) {
			if _, err := f.Read(b); err != nil {
				return
			}
		}
	}()
	for _, name := range []string{"h.sock", "d.sock"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
}

// withRoot is the template with a root of the operator's, which is at that folder.
func withRoot(t *testing.T, r *Runtime, of *image.Template, dir string) *image.Template {
	t.Helper()
	from, err := r.roots.For(of)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", from.Path+"/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	own := *of
	own.Name, own.Rootfs = "own", dir
	return &own
}

// What a sandbox shares with the host is files: no socket or pipe of the host's can
// be used, whatever way it is found, and no file gets a mode that is of use on the
// host. Its own sockets, pipes and modes work as they should.
func TestSharedFolders(t *testing.T) {
	t.Parallel()
	s := subject(t, os.Getuid() != 0)
	rt := s.Open(t).(*Runtime)
	defer rt.Close()
	// A socket's address has 107 bytes at most.
	top, err := os.MkdirTemp("", "share")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	folder := map[string]string{}
	var came atomic.Int64
	for _, name := range []string{"share", "fixed", "root", "workspace"} {
		folder[name] = filepath.Join(top, name)
		if err := os.Mkdir(folder[name], 0o700); err != nil {
			t.Fatal(err)
		}
	}
	spec := s.Spec()
	spec.Template = withRoot(t, rt, spec.Template, folder["root"])
	for _, name := range []string{"share", "fixed", "root", "workspace"} {
		answering(t, folder[name], &came)
	}
	spec.Mounts = []sandbox.Mount{{Source: folder["workspace"], Target: "/workspace"},
		{Source: folder["share"], Target: "/share", Shared: true},
		{Source: folder["fixed"], Target: "/fixed", ReadOnly: true, Shared: true}}
	b, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Stop(context.WithoutCancel(t.Context()))
	c := agent.New(b, sandboxtest.Log(t), nil)
	defer c.Close()
	if got := shell(t, c, "cat /proc/version"); !strings.Contains(strings.ToLower(got), "gvisor") {
		t.Fatalf("this is no sandbox: %s", got)
	}
	python := func(code string) string { return shell(t, c, "timeout 25 python3 - <<'END'\n"+code+"\nEND") }

	if got := python(socketAttacks); got != "tried" || came.Load() != 0 {
		t.Errorf("sockets of the host were reached (%d): %s", came.Load(), got)
	}
	if conn, err := net.Dial("unix", filepath.Join(folder["share"], "h.sock")); err != nil { // and they do answer
		t.Error(err)
	} else {
		conn.Close()
	}
	if got := python(modeAttacks); got != "tried" {
		t.Error(got)
	}
	for _, name := range []string{"share", "workspace", "root", "fixed"} {
		filepath.WalkDir(folder[name], func(path string, d fs.DirEntry, _ error) error {
			if i, err := d.Info(); err == nil && (i.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice) != 0) {
				t.Errorf("%s is %v", path, i.Mode())
			}
			if n, err := syscall.Getxattr(path, "security.capability", nil); err == nil {
				t.Errorf("%s has capabilities (%d bytes)", path, n)
			}
			return nil
		})
	}
	if got := python(ordinaryWork); got != "done" {
		t.Errorf("ordinary work: %s", got)
	}
}
