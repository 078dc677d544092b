package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// link makes a symbolic link, where this user of this system may.
func link(t *testing.T, to, name string) {
	t.Helper()
	if err := os.Symlink(to, name); err != nil && runtime.GOOS != "windows" {
		t.Fatal(err)
	}
}

// chain makes so many levels of folders below dir, and moves each chain below the next one, so that no path is long.
func chain(t *testing.T, dir string, levels int) {
	t.Helper()
	top := filepath.Join(dir, "deep")
	if err := os.Mkdir(top, 0o700); err != nil {
		t.Fatal(err)
	}
	for range levels - 1 {
		next := filepath.Join(dir, "next")
		if err := errors.Join(os.Mkdir(next, 0o700), os.Rename(top, filepath.Join(next, "d")),
			os.Rename(next, top)); err != nil {
			t.Fatal(err)
		}
	}
}

// The way by os.Root, that of systems other than Linux, measures what is in a folder, and follows no link.
func TestMeasureByRoot(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	for name, size := range map[string]int{"a/b/c/file": 1 << 20, "a/other": 4 << 10} {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700),
			os.WriteFile(at, make([]byte, size), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "big"), make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	link(t, outside, filepath.Join(dir, "a", "b"+"link"))
	link(t, filepath.Join(dir, "a"), filepath.Join(dir, "a", "b", "self"))
	limits := Limits{Entries: 1 << 20, Depth: 4096}
	got, err := measureByRoot(t.Context(), dir, limits)
	if err != nil || got.Entries > 7 || got.Entries < 5 || got.Bytes < 1<<20+4<<10 || got.Bytes > 1<<20+64<<10 {
		t.Errorf("%+v, %v, want at most 7 entries and a megabyte", got, err)
	}
	link(t, outside, filepath.Join(dir, "top"))
	if _, err := measureByRoot(t.Context(), filepath.Join(dir, "top"), limits); err == nil {
		t.Error("a link was followed at the top")
	}
	if _, err := measureByRoot(t.Context(), dir, Limits{Entries: 3, Depth: 4096}); err != ErrEntries {
		t.Errorf("%v, want ErrEntries", err)
	}
	if _, err := measureByRoot(t.Context(), dir, Limits{Entries: 100, Depth: 2}); err != ErrDepth {
		t.Errorf("%v, want ErrDepth", err)
	}
}

// A deep folder needs few descriptors, and the walk finds back from it.
func TestDeepByRoot(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	victim := filepath.Join(dir, "victim")
	precious := filepath.Join(outside, "precious")
	if err := errors.Join(os.Mkdir(victim, 0o700), os.WriteFile(precious, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	const levels = 300
	chain(t, victim, levels)
	for i := range 600 {
		at := filepath.Join(victim, fmt.Sprint(i), "x")
		if err := errors.Join(os.MkdirAll(at, 0o700), os.WriteFile(filepath.Join(at, "f"), nil, 0o400)); err != nil {
			t.Fatal(err)
		}
	}
	link(t, outside, filepath.Join(victim, "out"))
	link(t, outside, filepath.Join(victim, "7", "out"))
	if err := errors.Join(os.Mkdir(filepath.Join(victim, ".moved-1"), 0o700), os.Chmod(filepath.Join(victim, "9"), 0),
		os.Chmod(filepath.Join(victim, "deep"), 0o500)); err != nil {
		t.Fatal(err)
	}
	few(t, 2*maxOpenStages, func() {
		got, err := measureByRoot(t.Context(), victim, Limits{Entries: 1 << 20, Depth: 4096})
		if want := int64(levels + 3*600 + 1); err != nil || got.Entries < want || got.Entries > want+2 {
			t.Errorf("%+v, %v, want %d entries and two links", got, err, want)
		}
		for range 2 { // one that is not there is fine
			if err := removeByRoot(t.Context(), victim); err != nil {
				t.Error(err)
			}
		}
	})
	wantRemoved(t, victim, precious)
}

// A folder that leaves the tree while the walk is below it does not lead the walk out.
func TestMovedByRoot(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows moves no folder that is open")
	}
	dir, outside := t.TempDir(), t.TempDir()
	chain(t, dir, maxOpenLevels+30)
	parent, info, err := openTop(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	w := rootWalk{limits: Limits{Entries: 1 << 20, Depth: 4096}}
	if err := w.push(t.Context(), parent, filepath.Base(dir), info); err != nil {
		t.Fatal(err)
	}
	for len(w.levels) < maxOpenLevels+20 {
		if err := w.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(dir, "deep", "d"), filepath.Join(outside, "moved")); err != nil {
		t.Fatal(err)
	}
	for err == nil && len(w.levels) > 0 {
		err = w.step(t.Context())
	}
	if err != ErrMoved {
		t.Errorf("%v, want ErrMoved", err)
	}
	for _, l := range w.levels {
		if l.root != nil {
			l.root.Close()
		}
	}
}

// A name that another file got between the look-up and the opening leads nowhere: os.Root follows a link.
func TestReplacedByRoot(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o700),
		os.Mkdir(filepath.Join(dir, "b"), 0o700)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	info, err := root.Lstat("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	link(t, "b", filepath.Join(dir, "a"))
	if _, err := openIn(root, "a", info); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want that it is gone", err)
	}
}

// What is cancelled removes nothing.
func TestCancelByRoot(t *testing.T) {
	dir := t.TempDir()
	chain(t, dir, 20)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := measureByRoot(ctx, dir, Limits{Entries: 100, Depth: 100}); !errors.Is(err, context.Canceled) {
		t.Errorf("measuring: %v", err)
	}
	if err := removeByRoot(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("removing: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "deep")); err != nil {
		t.Error("what was cancelled has removed something")
	}
}

// wantRemoved checks that a tree is gone, and that what a link in it leads to is not.
func wantRemoved(t *testing.T, victim, precious string) {
	t.Helper()
	if _, err := os.Lstat(victim); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error("a link was followed")
	}
}
