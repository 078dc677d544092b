//go:build !mac

package tree

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCopy: a copy has everything that hostile code may have written, and follows no link.
func TestCopy(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	from, to := filepath.Join(t.TempDir(), "from"), t.TempDir()
	long := time.Date(2001, 2, 3, 4, 5, 6, 7000, time.UTC)
	in := func(names ...string) string { return filepath.Join(append([]string{from}, names...)...) }
	for _, err := range []error{
		os.WriteFile(outside, []byte("secret"), 0o600),
		os.MkdirAll(in("a", "b"), 0o755),
		os.WriteFile(in("a", "f"), []byte("text"), 0o640),
		os.WriteFile(in("denied"), []byte("mine"), 0o600),
		os.Link(in("a", "f"), in("a", "b", "same")),
		os.Symlink(outside, in("link")),
		os.Symlink(filepath.Dir(outside), in("folder")),
		unix.Mkfifo(in("fifo"), 0o600),
		unix.Setxattr(in("a", "f"), "user.note", []byte("value"), 0),
		os.Chmod(in("denied"), 0),
		os.Chmod(in("a", "f"), 0o4751),
		os.Chtimes(in("a", "f"), long, long),
		os.Chmod(in("a", "b"), 0o500),
		os.Chtimes(in("a", "b"), long, long),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	sparse, err := os.Create(in("sparse"))
	if err == nil {
		_, err = sparse.WriteAt([]byte("end"), 1<<30)
	}
	if err = errors.Join(err, sparse.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(in("a", "b"), 0o700); os.Chmod(filepath.Join(to, "a", "b"), 0o700) })
	size, err := Copy(t.Context(), from, to, SandboxLimits)
	if err != nil {
		t.Fatal(err)
	}
	if size.Entries != 9 || size.Bytes > 1<<20 {
		t.Errorf("it has %+v", size)
	}
	stat := func(names ...string) (os.FileInfo, *syscall.Stat_t) {
		st, err := os.Lstat(filepath.Join(append([]string{to}, names...)...))
		if err != nil {
			t.Fatal(err)
		}
		return st, st.Sys().(*syscall.Stat_t)
	}
	f, fst := stat("a", "f")
	same, sst := stat("a", "b", "same")
	original, err := os.Lstat(in("a", "f"))
	if err != nil {
		t.Fatal(err)
	}
	if f.Mode() != original.Mode() || !f.ModTime().Equal(long) || fst.Ino != sst.Ino || os.SameFile(f, original) ||
		!os.SameFile(f, same) {
		t.Errorf("the file is %v %v", f.Mode(), f.ModTime())
	}
	if dir, _ := stat("a", "b"); dir.Mode().Perm() != 0o500 || !dir.ModTime().Equal(long) {
		t.Errorf("the folder is %v %v", dir.Mode(), dir.ModTime())
	}
	value := make([]byte, 10)
	if n, err := unix.Getxattr(filepath.Join(to, "a", "f"), "user.note", value); string(value[:max(n, 0)]) != "value" {
		t.Errorf("its attribute is %q: %v", value, err)
	}
	if target, err := os.Readlink(filepath.Join(to, "link")); err != nil || target != outside {
		t.Errorf("the link leads to %q: %v", target, err)
	}
	if st, _ := stat("fifo"); st.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("the fifo is %v", st.Mode())
	}
	if st, _ := stat("denied"); st.Mode().Perm() != 0 || st.Size() != 4 {
		t.Errorf("the file without rights is %v", st.Mode())
	}
	if st, raw := stat("sparse"); st.Size() != 1<<30+3 || raw.Blocks > 2048 {
		t.Errorf("the file with a hole has %d bytes, and %d blocks", st.Size(), raw.Blocks)
	}
}

// TestCopyLimits: a tree that is too deep or too wide is not copied.
func TestCopyLimits(t *testing.T) {
	deep, wide := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(deep, strings.Repeat("d/", maxCopiedDepth+1)), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(wide, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Copy(t.Context(), deep, t.TempDir(), SandboxLimits); !errors.Is(err, ErrDepth) {
		t.Errorf("a deep tree: %v", err)
	}
	if _, err := Copy(t.Context(), wide, t.TempDir(), Limits{Entries: 3, Depth: 9}); !errors.Is(err, ErrEntries) {
		t.Errorf("a wide tree: %v", err)
	}
}

// TestCopyLinks: a tree with more files with several links than the copy keeps in memory is refused.
func TestCopyLinks(t *testing.T) {
	from := t.TempDir()
	dir := filepath.Join(from, strings.Repeat(strings.Repeat("d", 250)+"/", 14))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range maxLinkedPaths/(14*250) + 1 {
		name := filepath.Join(dir, strconv.Itoa(i))
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Link(name, name+"l")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Copy(t.Context(), from, t.TempDir(), SandboxLimits); !errors.Is(err, ErrLinks) {
		t.Errorf("the copy: %v", err)
	}
}
