//go:build !mac

package tree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The owner of everything in a folder changes, also of a deep one, and of nothing behind a link.
func TestSetOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can change owners; CI is root")
	}
	const uid, gid = 61234, 62345
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	err := errors.Join(os.WriteFile(outside, nil, 0o600), os.MkdirAll(filepath.Join(dir, "a/b"), 0o700),
		os.WriteFile(filepath.Join(dir, "a/b/file"), nil, 0o000), os.Symlink(outside, filepath.Join(dir, "link")),
		os.Symlink(filepath.Dir(outside), filepath.Join(dir, "a/folder")),
		os.Mkdir(filepath.Join(dir, "closed"), 0o000),
		syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600), os.WriteFile(filepath.Join(dir, "suid"), nil, 0o755),
		os.Chmod(filepath.Join(dir, "suid"), 0o755|fs.ModeSetuid))
	if err != nil {
		t.Fatal(err)
	}
	deep(t, dir, 2000, "d")
	if err := SetOwner(t.Context(), dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, name := range []string{".", "a", "a/b", "a/b/file", "link", "a/folder", "closed", "pipe", "suid", "deep",
		"deep/d/d/d"} {
		st, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if s := st.Sys().(*syscall.Stat_t); s.Uid != uid || s.Gid != gid || st.Mode()&fs.ModeSetuid != 0 {
			t.Errorf("%s belongs to %d:%d, %v", name, s.Uid, s.Gid, st.Mode())
		}
		seen++
	}
	for _, name := range []string{outside, filepath.Dir(outside)} {
		st, err := os.Lstat(name)
		if err != nil || st.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("%s, behind a link, has another owner, %v", name, err)
		}
	}
	if s := bottomOwner(t, dir); s != uid || seen != 11 {
		t.Errorf("the deepest folder belongs to %d", s)
	}
	if err := SetOwner(t.Context(), filepath.Join(dir, "missing"), uid, gid); err == nil {
		t.Error("a folder that is missing")
	}
}

// bottomOwner returns the owner of the deepest folder that deep made.
func bottomOwner(t *testing.T, dir string) uint32 {
	t.Helper()
	f, err := openAsIs(-100, filepath.Join(dir, "deep"))
	if err != nil {
		t.Fatal(err)
	}
	for {
		next, err := openAsIs(f.fd, "d")
		if err != nil {
			break
		}
		f.close()
		f = next
	}
	defer f.close()
	var st syscall.Stat_t
	if err := syscall.Fstat(f.fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid
}

// The way by os.Root, that of systems other than Linux, changes the same owners.
func TestSetOwnerByRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can change owners; CI is root")
	}
	const uid, gid = 61234, 62345
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	err := errors.Join(os.WriteFile(outside, nil, 0o600), os.MkdirAll(filepath.Join(dir, "a/b"), 0o700),
		os.WriteFile(filepath.Join(dir, "a/b/file"), nil, 0o000), os.Symlink(outside, filepath.Join(dir, "link")),
		os.Symlink(filepath.Dir(outside), filepath.Join(dir, "a/folder")))
	if err != nil {
		t.Fatal(err)
	}
	chain(t, dir, 200)
	if err := setOwnerByRoot(t.Context(), dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".", "a", "a/b", "a/b/file", "link", "a/folder", "deep", "deep/d/d/d"} {
		st, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if s := st.Sys().(*syscall.Stat_t); s.Uid != uid || s.Gid != gid {
			t.Errorf("%s belongs to %d:%d", name, s.Uid, s.Gid)
		}
	}
	for _, name := range []string{outside, filepath.Dir(outside)} {
		st, err := os.Lstat(name)
		if err != nil || st.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("%s, behind a link, has another owner, %v", name, err)
		}
	}
	if s := bottomOwner(t, dir); s != uid {
		t.Errorf("the deepest folder belongs to %d", s)
	}
}
