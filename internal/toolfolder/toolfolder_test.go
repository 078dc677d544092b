package toolfolder

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSameFiles: a file that is there as it is to be is not written again, and any other one is.
func TestSameFiles(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	files := []File{{Path: "same", Data: []byte("1")}, {Path: "content", Data: []byte("2")},
		{Path: "mode", Data: []byte("3")}, {Path: "link", Link: "same"}}
	if err := Write(root, Change{Files: files}); err != nil {
		t.Fatal(err)
	}
	before := map[string]os.FileInfo{}
	for _, f := range files {
		if before[f.Path], err = os.Lstat(filepath.Join(dir, f.Path)); err != nil {
			t.Fatal(err)
		}
	}
	files[1].Data, files[2].Executable = []byte("4"), true
	if err := Write(root, Change{Files: files, Complete: true}); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		now, err := os.Lstat(filepath.Join(dir, f.Path))
		if err != nil {
			t.Fatal(err)
		}
		if same := f.Path == "same" || f.Path == "link"; os.SameFile(now, before[f.Path]) != same {
			t.Errorf("%s: it was written again: %t", f.Path, same)
		}
		if f.Link == "" && now.Mode() != f.mode() {
			t.Errorf("%s has the mode %s", f.Path, now.Mode())
		}
	}
}

// TestLink: a linked folder has the same files, and a copy has the same time.
func TestLink(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	if err := Link(from, to); !os.IsNotExist(err) {
		t.Errorf("there is none: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(from, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	files := []File{{Path: "a/f", Data: []byte("1")}, {Path: "l", Link: "a/f"}}
	if err := Write(root, Change{Files: files}); err != nil {
		t.Fatal(err)
	}
	past := time.Unix(1e9, 5)
	if err := os.Chtimes(filepath.Join(from, "a/f"), past, past); err != nil {
		t.Fatal(err)
	}
	if err := Link(from, to); err != nil {
		t.Fatal(err)
	}
	if err := Copy(filepath.Join(from, "a/f"), filepath.Join(to, "copy")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a/f", "l", "copy"} {
		data, err := os.ReadFile(filepath.Join(to, name))
		st, serr := os.Stat(filepath.Join(to, name))
		if err != nil || serr != nil || string(data) != "1" || !st.ModTime().Equal(past) || st.Mode() != 0o444 {
			t.Errorf("%s: %q, %v, %v", name, data, st, err)
		}
	}
}
