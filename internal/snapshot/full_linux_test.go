package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDiskCopying: when the disk is full in the middle of a restore, or of a copy, sessions have what they have had,
// nothing is left, and it succeeds when there is room.
func TestFullDiskCopying(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	dir := t.TempDir()
	// The disk has room as far as its bytes tell, and is full when it has that many files.
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=1g,nr_inodes=100"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	w := newWorldIn(t, dir)
	id := w.session(0)
	in := func(name string) string {
		return filepath.Join(w.Sessions.Pool.Workspaces.Path(w.store.workspace(id)), name)
	}
	for n := range 20 {
		if err := os.WriteFile(in(fmt.Sprint("file", n)), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Create(t.Context(), ann, id, "kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in("file0"), []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	var fill []string
	for {
		path := filepath.Join(dir, fmt.Sprint("fill", len(fill)))
		if err := os.WriteFile(path, nil, 0o600); errors.Is(err, unix.ENOSPC) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		fill = append(fill, path)
	}
	for _, path := range fill[:10] { // half of what a copy needs
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	sandbox := w.store.sandbox(id)
	for what, do := range map[string]func() error{
		"a restore":   func() error { _, err := w.Restore(t.Context(), ann, "kept", ""); return err },
		"a new one":   func() error { _, err := w.Restore(t.Context(), ann, "kept", "new"); return err },
		"the home":    func() error { _, err := w.Restore(t.Context(), ann, "kept", "home"); return err },
		"a snapshot":  func() error { _, err := w.Create(t.Context(), ann, id, "second"); return err },
		"two copies":  func() error { _, _, err := w.Fork(t.Context(), ann, id, 2); return err },
		"before call": func() error { _, err := w.Before(t.Context(), ann, id); return err },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "disk is full") {
			t.Errorf("%s: %v", what, err)
		}
		text, err := os.ReadFile(in("file0"))
		if string(text) != "new" || w.store.sandbox(id) != sandbox {
			t.Errorf("%s: the session is not what it was: it has %q in %s: %v", what, text, w.store.sandbox(id), err)
		}
		w.wantWorkspaces(what, 2)
		if images, err := w.fake.FrozenImages(t.Context()); err != nil || len(images) != 1 {
			t.Errorf("%s: there are %d images: %v", what, len(images), err)
		}
		if all, err := w.Sessions.List(t.Context(), ann, ""); err != nil || len(all) != 1 {
			t.Errorf("%s: there are %d sessions: %v", what, len(all), err)
		}
	}
	for _, path := range fill[10:] {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Restore(t.Context(), ann, "kept", ""); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(in("file0")); string(text) != "old" {
		t.Errorf("with room: %q, %v", text, err)
	}
}
