package hostfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandlot/internal/sandbox"
)

// TestUnchanged: what changes nothing of a file's content changes nothing of its state; everything else does.
func TestUnchanged(t *testing.T) {
	for what, c := range map[string]struct {
		change func(path string) error
		same   bool
	}{
		"nothing":           {func(string) error { return nil }, true},
		"the same owner":    {func(p string) error { return os.Chown(p, os.Getuid(), os.Getgid()) }, true},
		"another name":      {func(p string) error { return os.Link(p, p+".backup") }, true},
		"a name and back":   {func(p string) error { return errors.Join(os.Rename(p, p+"~"), os.Rename(p+"~", p)) }, true},
		"the same mode":     {func(p string) error { return os.Chmod(p, 0o644) }, true},
		"another mode":      {func(p string) error { return os.Chmod(p, 0o600) }, false},
		"a longer text":     {func(p string) error { return os.WriteFile(p, []byte("longer"), 0o644) }, false},
		"another time":      {func(p string) error { return os.Chtimes(p, time.Time{}, time.Unix(1, 0)) }, false},
		"a replaced file":   {func(p string) error { return errors.Join(os.Rename(p, p+"~"), os.WriteFile(p, []byte("text"), 0o644)) }, false},
		"a removed file":    {os.Remove, false},
		"a link to another": {func(p string) error { return errors.Join(os.Rename(p, p+"~"), os.Symlink(p+"~", p)) }, false},
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte("text"), 0o644); err != nil {
			t.Fatal(err)
		}
		before, err := Stat(path, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.change(path); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		kept := File{State: before, Target: "/usr/file"}.Needed()
		if err := before.CheckUnchanged(); (err == nil) != c.same {
			t.Errorf("%s: %v", what, err)
		}
		if err := kept.Check(); (err == nil) != c.same {
			t.Errorf("%s, when it wakes: %v", what, err)
		}
	}
}

// TestReplacedFile: an open file is known by what is open, whatever is at its path by now.
func TestReplacedFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lib (deleted)") // a name as the kernel would make it
	for what, c := range map[string]struct {
		change   func() error
		target   string
		replaced bool
	}{
		"nothing":  {func() error { return nil }, "/usr/lib (deleted)", false},
		"replaced": {func() error { return errors.Join(os.Remove(path), os.WriteFile(path, []byte("y"), 0o644)) }, "/usr/lib (deleted)", true},
		"removed":  {func() error { return os.Remove(path) }, "/usr/lib (deleted)", true},
	} {
		os.Remove(path)
		if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		shown, err := os.Readlink(name)
		if err != nil {
			t.Fatal(err)
		}
		s := Sandbox{Root: dir, Mounts: []specs.Mount{{Destination: "/usr", Type: "bind", Source: dir,
			Options: []string{"ro"}}}}
		got, shared, err := s.file(Open{Path: name, Target: GoferRoot + "/usr" + strings.TrimPrefix(shown, dir)})
		if err != nil || !shared || got.Replaced != c.replaced || got.Target != c.target || got.Path != path || got.Size != 1 {
			t.Errorf("%s: %+v, %v, %v", what, got, shared, err)
		}
		f.Close()
	}
}

// TestOneAfterAnother: what two programs have open under one name, one from before an upgrade and one from after it,
// cannot both be kept. The session stays awake then, and loses nothing.
func TestOneAfterAnother(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lib")
	var open []Open
	for n := range 2 {
		os.Remove(path)
		if err := os.WriteFile(path, []byte{byte(n)}, 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		open = append(open, Open{Path: fmt.Sprintf("/proc/self/fd/%d", f.Fd()), Target: GoferRoot + "/usr/lib"})
	}
	open[0].Target += deleted
	s := Sandbox{Root: dir, Mounts: []specs.Mount{{Destination: "/usr", Type: "bind", Source: dir,
		Options: []string{"ro"}}}}
	if files, err := s.filesOf(open); !errors.Is(err, sandbox.ErrReplaced) {
		t.Errorf("%v, %v", files, err)
	}
	if files, err := s.filesOf(open[:1]); err != nil || len(files) != 1 || !files[0].Replaced {
		t.Errorf("the one from before: %v, %v", files, err)
	}
}

// TestThroughOverlay: a file of the machine that is open through an overlay, as in a sandbox that woke after its
// neighbours were removed, is the machine's, until that one is replaced.
func TestThroughOverlay(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount an overlay")
	}
	base := t.TempDir()
	if err := unix.Mount("small", base, "tmpfs", 0, "size=1m"); err != nil { // an overlay may be no layer of another one
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(base, unix.MNT_DETACH) })
	dir, more, over := filepath.Join(base, "usr"), filepath.Join(base, "more"), filepath.Join(base, "over")
	path := filepath.Join(dir, "file")
	for _, d := range []string{dir, more, over} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("overlay", over, "overlay", unix.MS_RDONLY, "lowerdir="+more+":"+dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(over, unix.MNT_DETACH) })
	f, err := os.Open(filepath.Join(over, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := Sandbox{Root: dir, Mounts: []specs.Mount{{Destination: "/usr", Type: "bind", Source: dir, Options: []string{"ro"}}}}
	open := Open{Path: fmt.Sprintf("/proc/self/fd/%d", f.Fd()), Target: GoferRoot + "/usr/file"}
	got, _, err := s.file(open)
	if err != nil || got.Replaced || got.Needed().Check() != nil {
		t.Errorf("it is the machine's: %+v, %v, %v", got, err, got.Needed().Check())
	}
	st, err := os.Stat(path)
	if err == nil {
		err = errors.Join(os.Rename(path, path+"~"), os.WriteFile(path, []byte("y"), 0o644),
			os.Chtimes(path, st.ModTime(), st.ModTime()))
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err = s.file(open); err != nil || !got.Replaced {
		t.Errorf("another one of the same size and time is in its place: %+v, %v", got, err)
	}
}
