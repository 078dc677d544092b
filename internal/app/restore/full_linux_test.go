package restore

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/store"
)

// onSmallDisk puts the state folder, with what it has, on a file system of its own. fill leaves so many KB of it free.
func (r *restoring) onSmallDisk() (fill func(free int), empty func()) {
	r.t.Helper()
	if os.Getuid() != 0 {
		r.t.Skip("only root can mount a small file system")
	}
	copied := filepath.Join(r.t.TempDir(), "copy")
	err := os.CopyFS(copied, os.DirFS(r.StateDir))
	if err == nil {
		err = unix.Mount("small", r.StateDir, "tmpfs", 0, "size=16m,mode=700")
	}
	if err == nil {
		r.t.Cleanup(func() {
			if err := unix.Unmount(r.StateDir, unix.MNT_DETACH); err != nil {
				r.t.Error(err)
			}
		})
		err = os.CopyFS(r.StateDir, os.DirFS(copied))
	}
	if err != nil {
		r.t.Fatal(err)
	}
	path := filepath.Join(r.StateDir, "fill")
	empty = func() {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.t.Fatal(err)
		}
	}
	fill = func(free int) {
		r.t.Helper()
		empty()
		var disk unix.Statfs_t
		err := unix.Statfs(r.StateDir, &disk)
		if err == nil {
			err = os.WriteFile(path, make([]byte, int(disk.Bavail)*int(disk.Bsize)-free<<10), 0o600)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	return fill, empty
}

// TestRestoreOnFullDisk: wherever a restore finds the disk full, the content is the old one, a server starts, it is said
// whose fault that is, and the next restore succeeds when there is room.
func TestRestoreOnFullDisk(t *testing.T) {
	r := newRestoring(t, "")
	fill, empty := r.onSmallDisk()
	r.has("old", "")
	large := backupWith(t, func(ctx context.Context, db *store.DB) error { return addToken(ctx, db, "new") })
	for free := 0; free <= 4*len(large)>>10; free += 16 {
		fill(free)
		_, err := r.Prepare(t.Context(), bytes.NewReader(large), int64(len(large)))
		if err == nil { // enough
			if free == 0 {
				t.Error("a full disk is none")
			}
			break
		}
		if !fault.Is(err, fault.ResourceLimit) || !strings.Contains(err.Error(), "full") {
			t.Errorf("with %d KB: %v", free, err)
		}
		empty()
		r.has("old", "")
	}
	empty()
	if pending, err := r.Pending(); err != nil || pending == nil {
		t.Fatalf("no restore was prepared: %+v, %v", pending, err)
	}
	for free := 0; ; free += 16 {
		db, err := store.OpenServer(t.Context(), r.Database, r.Log)
		if err != nil {
			t.Fatal(err)
		}
		fill(free)
		err = r.Apply(t.Context(), db)
		if err != nil {
			t.Errorf("with %d KB the server does not start: %v", free, err)
		}
		empty()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
		last, err := r.Last()
		if err != nil {
			t.Fatal(err)
		}
		if last != nil && last.State == hub.RestorePending { // there was room
			r.has("new", hub.RestorePending)
			break
		}
		state := hub.RestoreFailed
		if last == nil {
			state = "" // there was no room even for that
		}
		if r.has("old", state); last != nil && !strings.Contains(last.Problem, "full") &&
			!strings.Contains(last.Problem, syscall.ENOSPC.Error()) {
			t.Errorf("with %d KB: %s", free, last.Problem)
		}
		if free > 1<<13 {
			t.Fatal("it is never restored")
		}
		r.prepared()
	}
	fill(0)
	if err := r.Confirm(); err != nil {
		t.Errorf("it is restored, and a full disk keeps the server from starting: %v", err)
	}
	empty()
	r.has("new", hub.RestoreDone)
}
