package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandlot/internal/sandbox"
	"sandlot/internal/tree"
)

// deepen makes so many levels of folders in dir, from the top.
func deepen(t *testing.T, dir string, levels int) {
	t.Helper()
	top, next := filepath.Join(dir, "deep"), filepath.Join(dir, "next")
	err := os.Mkdir(top, 0o700)
	for range levels - 1 {
		err = errors.Join(err, os.Mkdir(next, 0o700), os.Rename(top, filepath.Join(next, "a")), os.Rename(next, top))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func allocate(t *testing.T, path string, size int64) *os.File {
	t.Helper()
	f, err := os.Create(path)
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A sandbox answers for its own workspace alone, whatever it or others put into a
// shared folder; and for that one also where it is too deep to be measured.
func TestDiskIsItsOwn(t *testing.T) {
	t.Parallel()
	s := subject(t, os.Getuid() != 0)
	rt := s.Open(t).(*Runtime)
	spec := s.Spec()
	own, shared := t.TempDir(), t.TempDir()
	spec.Mounts = []sandbox.Mount{{Source: own, Target: "/workspace"}, {Source: shared, Target: "/share", Shared: true}}
	sb, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	b := sb.(*box)
	u := diskQuery{b.pid, spec.Limits.DiskBytes, spec.Mounts, ""}
	life := func() sandbox.Status {
		st, err := b.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	var d diskUse
	rt.measureDisk(b, &d, u, true)
	allocate(t, filepath.Join(shared, "big"), spec.Limits.DiskBytes+slack+1<<20).Close()
	deepen(t, shared, tree.SandboxLimits.Depth+10)
	rt.measureDisk(b, &d, u, false)
	if st := life(); st.State != sandbox.Running || !d.graceEnd.IsZero() {
		t.Errorf("what is in a shared folder ended it: %+v", st)
	}
	deepen(t, own, tree.SandboxLimits.Depth+10)
	var found diskUse // what a next life of it finds
	rt.measureDisk(b, &found, u, true)
	if st := life(); st.State != sandbox.Running || found.graceEnd.IsZero() {
		t.Errorf("it has no time to remove what an earlier life left: %+v", st)
	}
	rt.measureDisk(b, &found, u, false)
	<-b.exited
	if st := life(); st.Reason != "disk" {
		t.Errorf("a workspace that is too deep: %+v", st)
	}
	if err := errors.Join(b.Stop(t.Context()), rt.Close()); err != nil {
		t.Error(err)
	}
}

// A file without a name in a shared folder, which others may have removed, does
// not count for who only reads it.
func TestUnlinkedOfOthers(t *testing.T) {
	u := diskQuery{mounts: []sandbox.Mount{{Target: "/workspace"}, {Target: "/share", Shared: true}}}
	for path, want := range map[string]bool{"/root/share/x (deleted)": true, "/root/share2/x (deleted)": false,
		"/root/workspace/x (deleted)": false, "/share/x": false} {
		if got := u.isShared(path); got != want {
			t.Errorf("shares(%s) = %v", path, got)
		}
	}
	f := allocate(t, filepath.Join(t.TempDir(), "file"), 1<<20)
	defer f.Close()
	reader, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if me := os.Getpid(); !openForWriting(me, fmt.Sprint(f.Fd())) || openForWriting(me, fmt.Sprint(reader.Fd())) {
		t.Error("writable is wrong")
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if got := unlinkedSize(diskQuery{pid: os.Getpid()}); got < 1<<20 {
		t.Errorf("%d bytes without a name, want a megabyte at least", got)
	}
}
