package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandlot/internal/image"
	"sandlot/internal/runtime/gvisor/frozen"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/runtime/gvisor/kept"
	"sandlot/internal/sandbox"
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

// listed makes a file, as a sandbox has it open.
func listed(t *testing.T, dir, name string, size int64) hostfile.File {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := errors.Join(os.WriteFile(path, []byte(name), 0o644), os.Truncate(path, size)); err != nil {
		t.Fatal(err)
	}
	st, err := hostfile.Stat(path, false)
	if err != nil {
		t.Fatal(err)
	}
	return hostfile.File{State: st, Open: path, Target: "/usr/" + name}
}

// TestKeptFilesThatDoNotFit: what is not kept takes no room from what could be.
func TestKeptFilesThatDoNotFit(t *testing.T) {
	r, dir := &Runtime{Config: Config{Log: sandboxtest.Log(t)}}, t.TempDir()
	var open []hostfile.File
	for n := range 6 { // programs come first
		open = append(open, listed(t, dir, fmt.Sprintf("liblarge%d.so", n), 100<<20))
	}
	open = append(open, listed(t, dir, "data", 100<<20))
	needed, err := r.keepFiles(t.Context(), func(from string) (string, error) {
		if strings.Contains(from, "large") {
			return "", kept.ErrFull
		}
		return "sum of " + filepath.Base(from), nil
	}, open, "")
	if err != nil {
		t.Fatal(err)
	}
	info := frozen.Info{Files: needed}
	if unkept := info.Unkept(); len(unkept) != 6 || unkept[0] != "/usr/liblarge0.so" {
		t.Errorf("not kept: %q", unkept)
	}
	if n := needed[len(needed)-1]; n.Sum != "sum of data" {
		t.Errorf("what fits is not kept: %+v", n)
	}
}

// TestKeptFileChanges: a file that changes while it is kept is kept as it is then. One that changes all the time counts as
// not kept.
func TestKeptFileChanges(t *testing.T) {
	r, dir := &Runtime{Config: Config{Log: sandboxtest.Log(t)}}, t.TempDir()
	open := []hostfile.File{listed(t, dir, "once", 10), listed(t, dir, "ever", 20), listed(t, dir, "gone", 30)}
	tries := map[string]int{}
	needed, err := r.keepFiles(t.Context(), func(from string) (string, error) {
		name := filepath.Base(from)
		tries[name]++
		switch {
		case name == "gone":
			return "", errors.Join(errors.New("no such file"), os.Remove(from))
		case name == "ever" || tries[name] == 1:
			st, err := os.Stat(from)
			return "changing", errors.Join(err, os.Truncate(from, st.Size()+1))
		}
		return "whole", nil
	}, open, "")
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	for _, n := range needed {
		sums[filepath.Base(n.Path)] = n.Sum
		if n.Sum != "" && n.Check() != nil {
			t.Errorf("%s: its copy is that of another state: %v", n.Path, n.Check())
		}
	}
	if sums["once"] != "whole" || sums["ever"] != "" || sums["gone"] != "" || len(sums) != 3 {
		t.Errorf("kept: %q", sums)
	}
}

// TestLostFileIsNamed: the file for which a sandbox cannot wake is named as the sandbox knows it, with what to do.
func TestLostFileIsNamed(t *testing.T) {
	host, err := hostFeatures()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := &Runtime{Config: Config{Log: sandboxtest.Log(t)}, frozen: frozen.New(dir)}
	spec := sandbox.Spec{Template: &image.Template{Name: "host"}}
	for name, want := range map[string]string{"libx.so": "/usr/libx.so,", "lib\ny.so": `"/usr/lib\ny.so"`} {
		for what, change := range map[string]func(path string) error{
			"changed":  func(path string) error { return os.Truncate(path, 3) },
			"removed":  os.Remove,
			"a folder": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) },
		} {
			for _, sum := range []string{"", strings.Repeat("0", 64)} { // not kept; kept, and gone
				needed := listed(t, dir, name, 10).Needed()
				needed.Sum = sum
				if err := change(needed.Path); err != nil {
					t.Fatal(err)
				}
				info := frozen.Info{Host: host, Files: []hostfile.Needed{needed}}
				info.Record.Template = "host"
				_, err := r.checkFrozen(info, &specs.Spec{Root: &specs.Root{Path: dir}}, spec)
				var e *sandbox.Explained
				if !errors.As(err, &e) || !strings.Contains(e.Words, want) || !strings.Contains(e.Words, "template with an image") ||
					strings.Contains(e.Words, dir) {
					t.Errorf("%s: %s: %v", name, what, err)
				}
				if err := os.RemoveAll(needed.Path); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestGoneFolder: of what was mounted, folders of the machine that are gone are found, and nothing that each sandbox has of
// its own, or gets anew.
func TestGoneFolder(t *testing.T) {
	there := t.TempDir()
	gone := filepath.Join(there, "gone")
	own := []sandbox.Mount{{Source: there, Target: "/workspace"}}
	mounts := []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, bind(gone, "/.sandlot/agent", true),
		bind(gone, "/workspace", false), bind(there, "/usr", true)}
	if got := goneFolder(mounts, own); got != "" {
		t.Errorf("%s is gone", got)
	}
	if got := goneFolder(append(mounts, bind(gone, "/opt/python", true)), own); got != "/opt/python" {
		t.Errorf("%q is gone", got)
	}
}
