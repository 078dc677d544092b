package frozen

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/runtime/gvisor/kept"
	"sandlot/internal/sandbox"
)

// testBundle is the text of a bundle that Read accepts.
func testBundle(t *testing.T) []byte {
	t.Helper()
	text, err := json.Marshal(specs.Spec{Root: &specs.Root{}, Linux: &specs.Linux{}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// keepProgram returns a function for Make that keeps a program with that content.
func keepProgram(t *testing.T, s *Store, content string) func() (Info, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
	return func() (info Info, err error) {
		if info.Runsc, err = s.Programs.Keep(path, "program"); err == nil {
			info.Agent = info.Runsc
		}
		return info, err
	}
}

// TestRemoveMeanwhile: images are removed while another one is written, whose programs stay.
func TestRemoveMeanwhile(t *testing.T) {
	s := New(t.TempDir())
	none := func() (map[string]bool, error) { return nil, nil }
	make := func(name string, meanwhile func() error) (info Info, err error) {
		return s.Make(name, keepProgram(t, s, "program of "+name), func(dir string, _ *Info) ([]byte, error) {
			return testBundle(t), errors.Join(os.WriteFile(filepath.Join(dir, "pages"), nil, 0o600), meanwhile())
		})
	}
	old, err := make("old", func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	info, err := make("new", func() error { return s.Remove("old", none) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Programs.Find(info.Runsc, "program"); err != nil {
		t.Errorf("the program of an image that was being written: %v", err)
	}
	if _, err := s.Programs.Find(old.Runsc, "program"); err == nil {
		t.Error("the program of an image that was removed is still there")
	}
	if _, err := make("broken", func() error { return errors.New("no room") }); err == nil || len(s.needed) != 0 {
		t.Errorf("after an error, %v is needed: %v", s.needed, err)
	}
	if err := s.Remove("new", none); err != nil {
		t.Error(err)
	}
	if _, err := s.Programs.Find(info.Runsc, "program"); err == nil {
		t.Error("a program that no image needs is still there")
	}
}

// TestKeptFiles: files of the machine are kept once, as long as an image needs them, and within a bound.
func TestKeptFiles(t *testing.T) {
	s := New(t.TempDir())
	none := func() (map[string]bool, error) { return nil, nil }
	path := filepath.Join(t.TempDir(), "libc.so.6")
	make := func(name string, contents ...string) (sums []string) {
		t.Helper()
		if _, err := s.Make(name, keepProgram(t, s, "program"), func(dir string, i *Info) ([]byte, error) {
			for _, text := range contents {
				os.Remove(path)
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					return nil, err
				}
				sum, err := i.KeepFile(path)
				if err != nil {
					return nil, err
				}
				i.Files, sums = append(i.Files, hostfile.Needed{Sum: sum}), append(sums, sum)
			}
			return testBundle(t), os.WriteFile(filepath.Join(dir, "pages"), nil, 0o600)
		}); err != nil {
			t.Fatal(err)
		}
		return sums
	}
	want := func(what string, sums []string, there ...bool) {
		t.Helper()
		for n, sum := range sums {
			if _, err := s.Files.Find(sum, "file"); (err == nil) != there[n] {
				t.Errorf("%s: file %d: %v", what, n, err)
			}
		}
	}
	remove := func(name string) {
		t.Helper()
		s.pruned = time.Time{}
		if err := s.Remove(name, none); err != nil {
			t.Fatal(err)
		}
	}
	first, second := make("first", "one", "both"), make("second", "both", "two")
	if first[1] != second[0] {
		t.Error("the same content is kept twice")
	}
	remove("first")
	want("of the first", first, false, true)
	want("of the second", second, true, true)
	copied, err := s.Copy("second")
	if err != nil {
		t.Fatal(err)
	}
	remove("second")
	want("of a copy", second, true, true)
	third := make("third", "three")
	if err := s.Remove("third", none); err != nil { // soon after the last time, so that not all images are read
		t.Fatal(err)
	}
	want("soon after", third, true)
	remove(copied.Name)
	want("of none", append(second, third...), false, false, false)

	bounded := kept.NewBounded(t.TempDir(), 10, func(int64) error { return nil })
	for text, fits := range map[string]bool{"123456": true, "12345678901": false} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := bounded.Keep(path, "file"); (err == nil) != fits || !fits && !errors.Is(err, kept.ErrFull) {
				t.Errorf("%q: %v", text, err)
			}
		}
	}
	err = os.Truncate(path, 11)
	if err == nil {
		_, err = bounded.KeepIf(path, "file", func(string, int64) error {
			t.Error("a file that is larger than the store is read")
			return nil
		})
	}
	if !errors.Is(err, kept.ErrFull) {
		t.Error(err)
	}
}

// TestTwins: of the plain and the packed form of a file, of which a crash left both, the next server removes the one
// that is not used.
func TestTwins(t *testing.T) {
	dir := t.TempDir()
	s := New(dir)
	for _, name := range []string{"plain", "packed"} {
		if _, err := s.Make(name, keepProgram(t, s, name), func(dir string, info *Info) ([]byte, error) {
			if name == "packed" {
				info.Packed = map[string]int64{"pages": 5}
			}
			return testBundle(t), errors.Join(os.WriteFile(filepath.Join(dir, "pages"), []byte("plain"), 0o600),
				os.WriteFile(filepath.Join(dir, "pages"+packedSuffix), []byte("packed"), 0o600))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := New(dir).List(); err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	for path, stays := range map[string]bool{"plain/pages": true, "plain/pages.zst": false, "packed/pages": false,
		"packed/pages.zst": true} {
		if _, err := os.Stat(filepath.Join(s.Dir, path)); (err == nil) != stays {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestUnpackingInTime: an image that could not be unpacked in time can be used later.
func TestUnpackingInTime(t *testing.T) {
	s := New(t.TempDir())
	const content = "the memory of a sandbox"
	if _, err := s.Make("image", keepProgram(t, s, "program"), func(dir string, _ *Info) ([]byte, error) {
		return testBundle(t), os.WriteFile(filepath.Join(dir, "pages"), []byte(content), 0o600)
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Pack(t.Context(), "image"); err != nil {
		t.Fatal(err)
	}
	info, _, err := s.Read("image")
	if err != nil || info.Packed == nil {
		t.Fatalf("it is not packed: %v, %v", info, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Unpacked(over, "image", info, func(string) error { return nil }); !errors.Is(err, sandbox.ErrLater) {
		t.Errorf("too late: %v", err)
	}
	if err := s.Unpacked(t.Context(), "image", info, func(dir string) error {
		text, err := os.ReadFile(filepath.Join(dir, "pages"))
		if string(text) != content {
			t.Errorf("there is %q", text)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Dir, unpacked+"*")); len(left) > 0 {
		t.Errorf("this is left: %q", left)
	}
}

// TestListReadsOnce: an image is read again only when its record was written again, as there may be thousands.
func TestListReadsOnce(t *testing.T) {
	s := New(t.TempDir())
	info, err := s.Make("one", keepProgram(t, s, "program"), func(dir string, info *Info) ([]byte, error) {
		info.Bytes = 7
		return testBundle(t), os.WriteFile(filepath.Join(dir, "pages"), make([]byte, 4096), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	list := func(want int64) {
		t.Helper()
		if all, err := s.List(); err != nil || len(all) != 1 || all[0].Name != "one" || all[0].Bytes != want {
			t.Errorf("%+v, %v instead of %d bytes", all, err, want)
		}
	}
	list(7)
	if err := os.Remove(filepath.Join(s.path("one"), bundleFile)); err != nil {
		t.Fatal(err)
	}
	list(7) // the bundle was not read
	info.Bytes = 8
	text, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.path("one"), infoFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	list(0) // it was
	if err := os.WriteFile(filepath.Join(s.path("one"), bundleFile), testBundle(t), 0o600); err != nil {
		t.Fatal(err)
	}
	list(8)
	if err := s.Remove("one", func() (map[string]bool, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if all, err := s.List(); err != nil || len(all)+len(s.listed) > 0 {
		t.Errorf("%+v, %v, %+v", all, err, s.listed)
	}
}

// TestToolTrees: the tool tree of an image is in its copies, also when they are packed, and it counts.
func TestToolTrees(t *testing.T) {
	s := New(t.TempDir())
	info, err := s.Make("image", keepProgram(t, s, "program"), func(dir string, info *Info) ([]byte, error) {
		file := filepath.Join(dir, ToolsDir, "a", "t.md")
		err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, make([]byte, 9000), 0o444),
			os.WriteFile(filepath.Join(dir, "pages"), make([]byte, 100), 0o600))
		if err != nil {
			return nil, err
		}
		return testBundle(t), info.Measure(dir)
	})
	if err != nil || info.Bytes < 9000 {
		t.Fatalf("%d bytes, %v", info.Bytes, err)
	}
	first, err := s.Copy("image")
	if err == nil {
		err = s.Pack(t.Context(), first.Name)
	}
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Copy(first.Name)
	if err != nil || !second.Packed {
		t.Fatalf("%+v, %v", second, err)
	}
	for _, name := range []string{"image", first.Name, second.Name} {
		st, err := os.Stat(filepath.Join(s.Tools(name), "a", "t.md"))
		if err != nil || st.Size() != 9000 || st.Mode() != 0o444 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
		if _, _, err := s.Read(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	all, err := s.List()
	small := func(i sandbox.FrozenImage) bool { return i.Bytes < 9000 }
	if err != nil || len(all) != 3 || slices.ContainsFunc(all, small) {
		t.Errorf("%+v, %v", all, err)
	}
	// A machine that lost its power may have lost the tree, which is made again.
	for _, name := range []string{"image", second.Name} {
		if err := os.RemoveAll(s.Tools(name)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Read(name); err != nil {
			t.Errorf("%s without its tree: %v", name, err)
		}
	}
}

// TestUnreadableImage: an image that cannot be read now loses nothing of what it needs, and stops neither listing nor
// removing others. One that is damaged for good needs nothing.
func TestUnreadableImage(t *testing.T) {
	for what, listed := range map[string]bool{"an image that was listed": true, "an image that was not": false} {
		t.Run(what, func(t *testing.T) {
			m := newMachine(t)
			bad, _ := m.mustSleep("ann", m.file("one", 100))
			other, _ := m.mustSleep("ann", m.file("two", 100))
			needs, _, err := m.Read(bad)
			if err != nil {
				t.Fatal(err)
			}
			if listed {
				if _, err := m.List(); err != nil {
					t.Fatal(err)
				}
			}
			record := filepath.Join(m.path(bad), infoFile)
			text, err := os.ReadFile(record)
			if err = errors.Join(err, os.Remove(record), os.Symlink("/proc/self/mem", record)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := m.Read(bad); !errors.Is(err, unix.EIO) {
				t.Fatal(err)
			}
			if all, err := m.List(); err != nil || len(all) != 2 {
				t.Errorf("%v, %v", all, err)
			}
			if _, err := m.Roots(); !errors.Is(err, unix.EIO) {
				t.Errorf("which roots are needed is said to be known: %v", err)
			}
			m.pruned = time.Time{}
			m.remove(other)
			if left, _ := os.ReadDir(filepath.Join(m.Dir, "..", "files")); len(left) != 1 && listed || len(left) == 0 {
				t.Errorf("%d files are kept", len(left))
			}
			program, err := m.Programs.Find(needs.Runsc, "program")
			if _, fileErr := m.Files.Find(needs.Files[0].Sum, KeptName); err != nil || fileErr != nil || program == "" {
				t.Errorf("what it needs is gone: %v, %v", err, fileErr)
			}
			if err := errors.Join(os.Remove(record), os.WriteFile(record, text, 0o600)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := m.Read(bad); err != nil {
				t.Errorf("later: %v", err)
			}
			third, _ := m.mustSleep("ann")
			if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
			m.pruned = time.Time{}
			m.remove(third)
			if left, _ := os.ReadDir(filepath.Join(m.Dir, "..", "files")); len(left) != 0 {
				t.Errorf("an image that is damaged needs %d files", len(left))
			}
		})
	}
}
