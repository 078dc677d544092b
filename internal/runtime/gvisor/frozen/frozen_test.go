package frozen

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

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
	if err := s.Files(over, "image", info, func(string) error { return nil }); !errors.Is(err, sandbox.ErrLater) {
		t.Errorf("too late: %v", err)
	}
	if err := s.Files(t.Context(), "image", info, func(dir string) error {
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
