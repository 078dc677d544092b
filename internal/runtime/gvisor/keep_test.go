package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandlot/internal/runtime/gvisor/frozen"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/sandbox/sandboxtest"
)

// TestKeepsForAll: one session, whose user chooses what it has open, takes a part of the room for kept files, and what it
// runs comes first. Keeping ends with the time for it.
func TestKeepsForAll(t *testing.T) {
	r := &Runtime{Config: Config{Log: sandboxtest.Log(t)}, frozen: frozen.New(t.TempDir())}
	if err := os.MkdirAll(r.frozen.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var open []hostfile.File
	add := func(name string, size int64, mode os.FileMode) {
		path := filepath.Join(dir, name)
		for _, err := range []error{os.WriteFile(path, []byte(name), mode), os.Truncate(path, size)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		st, err := hostfile.Stat(path, false)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, hostfile.File{State: st, Open: path, Target: path})
	}
	for n := range maxKeptFiles + 10 {
		add(fmt.Sprint("data", n), 10, 0o644)
	}
	add("huge", maxKeptBytes, 0o644)
	add("libx.so.1", 1<<20, 0o644)
	add("python3", 1<<20, 0o755)
	keeping := r.frozen.StartKeeping("ann")
	defer keeping.Done()
	needed, err := r.keepFiles(t.Context(), keeping.File, open, "")
	if err != nil || len(needed) != len(open) {
		t.Fatal(len(needed), err)
	}
	kept := 0
	for _, n := range needed {
		if n.Sum != "" {
			kept++
		}
		if name := filepath.Base(n.Path); (name == "libx.so.1" || name == "python3") != (n.Sum != "") && n.Size > 10 {
			t.Errorf("%s: kept as %q", name, n.Sum)
		}
	}
	if kept != maxKeptFiles {
		t.Errorf("%d files are kept, and %d may be", kept, maxKeptFiles)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := r.keepFiles(ended, keeping.File, open, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// TestHidesNoMount: no file is put into a folder in which something is mounted, which would be hidden.
func TestHidesNoMount(t *testing.T) {
	host := t.TempDir()
	if err := os.MkdirAll(filepath.Join(host, "local", "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	mounts := []specs.Mount{{Destination: "/usr"}, {Destination: "/usr/local/share/data"}}
	for path, want := range map[string]bool{"tool": true, "local/tool": true, "local/bin/tool": false,
		"local/bin/gone/tool": false, "gone/tool": true} {
		if got := inMountPoint(filepath.Join(host, path), "/usr/"+path, mounts); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
