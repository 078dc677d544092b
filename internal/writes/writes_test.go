package writes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What one owner alone has written, and is still there, is theirs, whatever its name is;
// what others have written too, or elsewhere, is nobody's.
func TestGrown(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root is told who writes")
	}
	dir := t.TempDir() // a file system of its own: what else writes to the disk fills the queue of events
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=256m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID, &st); err != nil {
		t.Fatal(err)
	}
	write := func(name string, megabytes int) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err == nil {
			_, err = f.Write(make([]byte, megabytes<<20))
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("old", 4)
	w, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	time.Sleep(1100 * time.Millisecond) // what is made within a second is not known to be new
	who := func(pid int, mount uint64) string {
		if pid == os.Getpid() && mount == st.Mnt_id {
			return "me"
		}
		return ""
	}
	others := func(name string, megabytes int) {
		t.Helper()
		line := fmt.Sprintf("head -c %d /dev/zero >> %s", megabytes<<20, filepath.Join(dir, name))
		if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
	}
	is := func(what string, megabytes int64) {
		t.Helper()
		if err := w.Read(who); err != nil {
			t.Fatal(err)
		}
		if all, err := w.Grown(who); err != nil || all["me"]>>20 != megabytes || len(all) > 1 {
			t.Errorf("%s: %v, %v, want %d MB", what, all, err, megabytes)
		}
	}
	is("nothing", 0)
	write("new", 3)
	is("a new file", 3)
	write("old", 1) // how large it was before is not known
	is("an old one", 3)
	write("old", 2)
	is("an old one, again", 5)
	others("theirs", 8)
	is("others' file", 5)
	write("theirs", 1)
	others("new2", 8)
	write("new2", 1)
	is("others' files, a little", 5)
	write("both", 2)
	others("both", 8)
	is("a file of both", 5)
	if err := errors.Join(os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "renamed")),
		os.Truncate(filepath.Join(dir, "old"), 5<<20)); err != nil {
		t.Fatal(err)
	}
	is("renamed, and cut", 3)
	if err := os.Remove(filepath.Join(dir, "renamed")); err != nil {
		t.Fatal(err)
	}
	is("removed", 0)
	if all, err := w.Grown(func(int, uint64) string { return "" }); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
	for i := range maxFiles + 100 {
		write(fmt.Sprint("many", i), 0)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("many", i)), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("large", 32)
	all, err := w.Grown(who)
	if err == nil {
		all, err = w.Grown(who)
	}
	if n := all["me"] >> 20; err != nil || n < 32 || n > 40 { // some of the small ones too
		t.Errorf("a large file among many: %d MB, %v", n, err)
	}
	if len(w.files) > maxFiles {
		t.Errorf("%d files are followed", len(w.files))
	}
}
