package program

import (
	"bytes"
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// built fails the test if this test was built without the agents.
func built(t *testing.T) {
	t.Helper()
	for _, arch := range architectures {
		if _, err := embedded(arch); err != nil {
			t.Fatalf("the agent for %s is not in this program: %v; run `make build`", arch, err)
		}
	}
}

func newAgent(t *testing.T, used ...string) *Agent {
	return &Agent{Dir: filepath.Join(t.TempDir(), "agents"), InUse: func() ([]string, error) { return used, nil }}
}

// file returns the path of an agent's file.
func (a *Agent) file(t *testing.T, machine string) string {
	t.Helper()
	path, err := a.File(machine)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFile: the agent for each processor is written whole, as a program for it, by any of the processor's names, and
// once for all who use it.
func TestFile(t *testing.T) {
	built(t)
	a := newAgent(t)
	for machine, want := range map[string]elf.Machine{"x86_64": elf.EM_X86_64, "amd64": elf.EM_X86_64,
		"aarch64": elf.EM_AARCH64, "arm64": elf.EM_AARCH64, "": machines[runtime.GOARCH]} {
		if err := a.Check(machine); err != nil {
			t.Errorf("%s: %v", machine, err)
		}
		path := a.file(t, machine)
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if f.Machine != want {
			t.Errorf("%s: the agent is for %s", machine, f.Machine)
		}
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o755 {
			t.Errorf("%s: %v, %v", machine, st.Mode(), err)
		}
	}
	left, err := os.ReadDir(a.Dir)
	if err != nil || len(left) != 2 {
		t.Errorf("two agents are in %v, %v", left, err)
	}
	var all sync.WaitGroup
	other := &Agent{Dir: a.Dir, InUse: a.InUse}
	before, err := os.Stat(a.file(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		all.Go(func() {
			if path, err := other.File(""); err != nil || path != a.file(t, "") {
				t.Errorf("another process has %s, %v", path, err)
			}
		})
	}
	all.Wait()
	if after, err := os.Stat(a.file(t, "")); err != nil || !os.SameFile(before, after) ||
		!after.ModTime().Equal(before.ModTime()) {
		t.Errorf("the file was written again: %v", err)
	}
}

// TestBrokenFile: what a crash of the machine has left of a file, and what else is in its place, is replaced, and not
// written over: a sandbox may have it.
func TestBrokenFile(t *testing.T) {
	built(t)
	first := newAgent(t)
	path := first.file(t, "")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(whole)
	changed[len(changed)/2] ^= 1
	for what, spoil := range map[string]func() error{
		"empty":   func() error { return os.WriteFile(path, nil, 0o755) },
		"a part":  func() error { return os.WriteFile(path, whole[:1000], 0o755) },
		"changed": func() error { return os.WriteFile(path, changed, 0o755) },
		"a link":  func() error { return os.Symlink(os.DevNull, path) },
		"none":    func() error { return nil },
	} {
		if err := errors.Join(os.Remove(path), spoil()); err != nil {
			t.Fatal(err)
		}
		held, _ := os.Lstat(path)
		again := &Agent{Dir: first.Dir, InUse: first.InUse}
		if got := again.file(t, ""); got != path {
			t.Errorf("%s: the file is %s", what, got)
		}
		now, err := os.Lstat(path)
		got, _ := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, whole) || held != nil && os.SameFile(held, now) {
			t.Errorf("%s: the file was not replaced: %v", what, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if first.file(t, ""); !hasSum(path, mustSum(t)) {
		t.Error("a file that was removed while its server runs is not written again")
	}
}

func mustSum(t *testing.T) string {
	sum, err := embedded(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestOldFiles: files of other versions are removed, except those that sandboxes have, or another process may be about
// to use.
func TestOldFiles(t *testing.T) {
	built(t)
	const used, old, young, foreign = namePrefix + "amd64-0", namePrefix + "amd64-1", namePrefix + "new-2", "mine"
	for _, failure := range []error{nil, errors.New("a record is broken")} {
		a := newAgent(t)
		a.InUse = func() ([]string, error) { return []string{used}, failure }
		if err := os.Mkdir(a.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{used, old, young, foreign} {
			path := filepath.Join(a.Dir, name)
			err := os.WriteFile(path, nil, 0o755)
			if past := time.Now().Add(-2 * minAge); name != young {
				err = errors.Join(err, os.Chtimes(path, past, past))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		path := a.file(t, "")
		if name := a.Kept(path); name != filepath.Base(path) || a.Named(name) != path || a.Named("") != "" {
			t.Errorf("the name of %s is %q", path, name)
		}
		entries, err := os.ReadDir(a.Dir)
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, e := range entries {
			left = append(left, e.Name())
		}
		want := []string{used, young, foreign, filepath.Base(path)}
		if failure != nil {
			want = append(want, old)
		}
		slices.Sort(want)
		if !slices.Equal(left, want) {
			t.Errorf("%v: these are left: %q, want %q", failure, left, want)
		}
	}
}

// TestWhichFile: the settings' file comes first; one beside the program is used if it is the same, or the only one.
func TestWhichFile(t *testing.T) {
	built(t)
	source, err := os.ReadFile(newAgent(t).file(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	put := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	same, stale := put("same", source), put("stale", append(bytes.Clone(source), 0))
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	for _, c := range []struct {
		what, path, beside, machine, want string // want: empty: one that was written
	}{
		{"the settings'", stale, same, "", stale},
		{"the same beside", "", same, "", same},
		{"a stale one beside", "", stale, "", ""},
		{"none beside", "", filepath.Join(dir, "none"), "", ""},
		{"for another processor", "", same, other, ""},
		{"for a processor that is not known", "", stale, "riscv64", stale},
	} {
		a := newAgent(t)
		a.Path, a.Beside = c.path, c.beside
		got, err := a.File(c.machine)
		if checked := a.Check(c.machine); err != nil || checked != nil {
			t.Errorf("%s: %v, %v", c.what, err, checked)
		}
		if c.want != "" && got != c.want || c.want == "" && a.Kept(got) == "" {
			t.Errorf("%s: the agent is %s", c.what, got)
		}
		if _, err := os.Stat(a.Dir); (err == nil) != (c.want == "") {
			t.Errorf("%s: the folder: %v", c.what, err)
		}
	}
	a := newAgent(t)
	_, err = a.File("riscv64")
	if checked := a.Check("riscv64"); err == nil || checked == nil || !strings.Contains(checked.Error(), "`agent`") {
		t.Errorf("no agent: %v, %v", err, checked)
	}
	a.Path = put("plain", []byte("no program"))
	if err := a.Check(""); err == nil {
		t.Error("a file that is no program is accepted")
	}
	if _, err := embedded("s390x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an agent for s390x: %v", err)
	}
}
