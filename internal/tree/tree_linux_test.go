//go:build !mac

package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

var plenty = Limits{Entries: 1 << 30, Depth: 4096}

// deep makes so many levels beneath dir, which grows from the top, as hostile code
// does it: no path is long, and it takes as long for each level.
func deep(t *testing.T, dir string, levels int, name string) {
	t.Helper()
	top := filepath.Join(dir, "deep")
	if err := os.Mkdir(top, 0o700); err != nil {
		t.Fatal(err)
	}
	for range levels - 1 {
		next := filepath.Join(dir, "next")
		if err := errors.Join(os.Mkdir(next, 0o700), os.Rename(top, filepath.Join(next, name)),
			os.Rename(next, top)); err != nil {
			t.Fatal(err)
		}
	}
}

// few leaves the process so many descriptors more than it has, while f runs.
func few(t *testing.T, more int, f func()) {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	now := was
	now.Cur = uint64(len(open) + more)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
	f()
}

func TestMeasure(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	for name, size := range map[string]int{"a/b/c/file": 1 << 20, "a/other": 4 << 10, "empty": 0} {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700),
			os.WriteFile(at, make([]byte, size), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "big"), make([]byte, 8<<20), 0o600),
		os.Symlink(outside, filepath.Join(dir, "link")),
		os.Symlink("..", filepath.Join(dir, "a", "up")), unix.Mkfifo(filepath.Join(dir, "a", "fifo"),
			0o600)); err != nil {
		t.Fatal(err)
	}
	got, err := Measure(t.Context(), dir, plenty)
	if err != nil || got.Entries != 9 || got.Bytes < 1<<20+4<<10 || got.Bytes > 1<<20+64<<10 {
		t.Errorf("%+v, %v, want 9 entries and a megabyte", got, err)
	}
	if _, err := Measure(t.Context(), filepath.Join(dir, "link"), plenty); err == nil {
		t.Error("a link was followed at the top")
	}
}

// A folder of many is read on where the walk has left it, also below the levels
// that stay open.
func TestMeasureWide(t *testing.T) {
	dir := t.TempDir()
	at := dir
	for i := range maxOpenLevels + 10 {
		at = filepath.Join(at, fmt.Sprint("level", i))
	}
	want := int64(maxOpenLevels + 10)
	for i := range 600 {
		if err := os.MkdirAll(filepath.Join(at, fmt.Sprintf("%0200d", i), "x", "y"), 0o700); err != nil {
			t.Fatal(err)
		}
		want += 3
	}
	few(t, maxOpenLevels+20, func() {
		if got, err := Measure(t.Context(), dir, plenty); err != nil || got.Entries != want {
			t.Errorf("%+v, %v, want %d entries", got, err, want)
		}
		if got, err := Measure(t.Context(), dir, Limits{Entries: 500, Depth: 4096}); err != ErrEntries ||
			got.Entries != 500 {
			t.Errorf("%+v, %v, want ErrEntries at 500", got, err)
		}
	})
}

// The depth costs neither descriptors nor much memory: these names alone would be
// a gigabyte as paths.
func TestMeasureDeep(t *testing.T) {
	dir := t.TempDir()
	deep(t, dir, 2500, strings.Repeat("n", 250))
	for i := range 2500 { // many to wait at the end of a long path, from the top
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprint(i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	few(t, maxOpenLevels+20, func() {
		if got, err := Measure(t.Context(), dir, plenty); err != nil || got.Entries != 5000 {
			t.Errorf("%+v, %v, want 5000 entries", got, err)
		}
		if _, err := Measure(t.Context(), dir, Limits{Entries: 1 << 30, Depth: 2000}); err != ErrDepth {
			t.Errorf("%v, want ErrDepth", err)
		}
	})
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
		t.Errorf("measuring took %d bytes of memory", used)
	}
}

// A folder that leaves the tree while the walk is in it does not lead it out.
func TestMeasureMoved(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	deep(t, dir, maxOpenLevels+30, "a")
	w := walk{limits: plenty, buffer: make([]byte, dirBufferSize)}
	top, err := openFolder(unix.AT_FDCWD, dir)
	if err != nil {
		t.Fatal(err)
	}
	w.levels = []level{{folder: top}}
	for len(w.levels) < maxOpenLevels+20 {
		if err := w.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	last := w.levels[len(w.levels)-1].fd
	if err := unix.Renameat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d/a", last), unix.AT_FDCWD,
		filepath.Join(outside, "a")); err != nil {
		t.Fatal(err)
	}
	where := fmt.Sprintf("/proc/self/fd/%d", last)
	if where, err = os.Readlink(where); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(where, filepath.Join(outside, "moved")); err != nil {
		t.Fatal(err)
	}
	for err == nil && len(w.levels) > 0 {
		err = w.step(t.Context())
	}
	if err != ErrMoved {
		t.Errorf("%v, want ErrMoved", err)
	}
	for _, l := range w.levels {
		if l.fd >= 0 {
			l.close()
		}
	}
}

func TestCancel(t *testing.T) {
	dir := t.TempDir()
	deep(t, dir, 100, "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Measure(ctx, dir, plenty); !errors.Is(err, context.Canceled) {
		t.Errorf("Measure: %v", err)
	}
	if err := Remove(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("Remove: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "deep")); err != nil {
		t.Error("what was cancelled has removed something")
	}
}

// Folders deeper than the process has descriptors, wide ones, links and closed
// ones are all removed, and nothing else is.
func TestRemove(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	precious := filepath.Join(outside, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(dir, "victim")
	if err := os.Mkdir(victim, 0o700); err != nil {
		t.Fatal(err)
	}
	deep(t, victim, 2500, strings.Repeat("n", 250))
	for i := range 2000 {
		at := filepath.Join(victim, "wide", fmt.Sprint(i))
		if err := errors.Join(os.MkdirAll(at, 0o700), os.WriteFile(filepath.Join(at, "f"), nil, 0o400)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(outside, filepath.Join(victim, "out")),
		os.Symlink(precious, filepath.Join(victim, "wide", "file")),
		os.Mkdir(filepath.Join(victim, ".moved-1"), 0o700), os.Chmod(filepath.Join(victim, "wide", "7"), 0),
		os.Chmod(filepath.Join(victim, "deep"), 0o500)); err != nil {
		t.Fatal(err)
	}
	few(t, maxOpenStages+20, func() {
		for range 2 { // one that is not there is fine
			if err := Remove(t.Context(), victim); err != nil {
				t.Error(err)
			}
		}
	})
	wantRemoved(t, victim, precious)
}

// What cannot be removed stays, and all else goes.
func TestRemoveStuck(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	victim := filepath.Join(t.TempDir(), "victim")
	stuck := filepath.Join(victim, "a", "b", "mounted")
	if err := errors.Join(os.MkdirAll(stuck, 0o700), os.MkdirAll(filepath.Join(victim, "a", "other", "x"), 0o700),
		os.WriteFile(filepath.Join(victim, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", stuck, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(stuck, unix.MNT_DETACH)
	if err := Remove(t.Context(), victim); !errors.Is(err, unix.EBUSY) {
		t.Errorf("%v, want EBUSY", err)
	}
	for path, there := range map[string]bool{stuck: true, filepath.Join(victim, "a", "other"): false,
		filepath.Join(victim, "file"): false} {
		if _, err := os.Lstat(path); (err == nil) != there {
			t.Errorf("%s: %v, want there = %v", path, err, there)
		}
	}
	if err := errors.Join(unix.Unmount(stuck, 0), Remove(t.Context(), victim)); err != nil {
		t.Error(err)
	}
}

// Folders of others that cannot be opened are passed by, and stay as they are.
func TestMeasureForeign(t *testing.T) {
	dir := t.TempDir()
	closed := filepath.Join(dir, "closed")
	if err := errors.Join(os.MkdirAll(filepath.Join(closed, "in"), 0o700), os.Mkdir(filepath.Join(dir, "open"), 0o755),
		os.Chmod(closed, 0)); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(closed, 0o700)
	want := int64(2)
	if os.Getuid() == 0 {
		want = 3 // nothing is closed to root
	}
	if got, err := Measure(t.Context(), dir, Limits{Entries: 100, Depth: 10, Foreign: true}); err != nil ||
		got.Entries != want {
		t.Errorf("%+v, %v, want %d entries", got, err, want)
	}
	if st, err := os.Stat(closed); err != nil || st.Mode().Perm() != 0 {
		t.Errorf("its mode is %v, %v", st, err)
	}
	if got, err := Measure(t.Context(), dir, Limits{Entries: 100, Depth: 10}); err != nil || got.Entries != 3 {
		t.Errorf("one's own: %+v, %v, want 3 entries", got, err)
	}
}

// What a sandbox of an unprivileged server has closed does not hide what is in it: in
// its own folder it is opened, in others' it counts as not measured. Folders of others
// that no sandbox can write are left out.
func TestMeasureClosed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs two users")
	}
	const user, other = 54321, 54322
	top := t.TempDir()
	if err := os.Chmod(filepath.Dir(top), 0o755); err != nil {
		t.Fatal(err)
	}
	dirs := map[string]struct {
		mode, inner os.FileMode
		uid         int
		want        error
	}{
		"closed":        {0, 0o700, user, ErrUnreadable},
		"listed alone":  {0o400, 0o700, user, ErrUnreadable},
		"not listed":    {0o300, 0o700, user, ErrUnreadable},
		"below":         {0o700, 0, user, ErrUnreadable},
		"of others":     {0o700, 0o700, other, nil},
		"others' names": {0o744, 0o700, other, nil},
		"drop box":      {0o733, 0o700, other, ErrUnreadable},
	}
	for name, d := range dirs {
		for _, kind := range []string{"own", "foreign"} {
			at := filepath.Join(top, kind, name)
			inner := filepath.Join(at, "d", "inner")
			file := filepath.Join(inner, "file")
			if err := errors.Join(os.MkdirAll(inner, 0o755), os.WriteFile(file, make([]byte, 1<<20), 0o600),
				os.Chown(file, d.uid, d.uid), os.Chown(inner, d.uid, d.uid),
				os.Chmod(inner, d.inner), os.Chown(filepath.Dir(inner), d.uid, d.uid),
				os.Chmod(filepath.Dir(inner), d.mode), os.Chown(at, user, user)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := syscall.Setresuid(user, user, 0); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setresuid(0, 0, 0)
	for name, d := range dirs {
		foreign := plenty
		foreign.Foreign = true
		at := filepath.Join(top, "foreign", name)
		if _, err := Measure(t.Context(), at, foreign); err != d.want {
			t.Errorf("foreign, %s: %v, want %v", name, err, d.want)
		}
		if i, err := os.Lstat(filepath.Join(at, "d")); err != nil || i.Mode().Perm() != d.mode {
			t.Errorf("foreign, %s: its mode is %v now", name, i.Mode())
		}
		if d.uid != user {
			continue
		}
		if size, err := Measure(t.Context(), filepath.Join(top, "own", name), plenty); err != nil ||
			size.Bytes < 1<<20 {
			t.Errorf("own, %s: %+v, %v", name, size, err)
		}
	}
}
