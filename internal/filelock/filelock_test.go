package filelock

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// One open file at a time has a lock alone, several share one, closing unlocks, and the file stays usable meanwhile.
func TestTry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		t.Helper()
		f, err := Open(path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	first, second, third := open(), open(), open()
	try := func(f *os.File, alone, want bool) {
		t.Helper()
		if got, err := Try(f, alone); err != nil || got != want {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
	}
	try(first, true, true)
	try(second, true, false)
	try(second, false, false)
	if _, err := first.WriteString("text"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "text" {
		t.Errorf("the locked file: %q, %v", text, err)
	}
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Error(err)
	}
	first.Close()
	try(second, false, true)
	try(third, false, true)
	second.Close()
	third.Close()
	if err := os.Symlink(path+".moved", path); err != nil {
		if runtime.GOOS == "windows" {
			t.Skip("this user may make no links")
		}
		t.Fatal(err)
	}
	if f, err := Open(path, 0o600); err == nil {
		f.Close()
		t.Error("a link was followed")
	}
}
