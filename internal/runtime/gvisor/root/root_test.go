package root

import (
	"os"
	"path/filepath"
	"testing"

	"sandlot/internal/image"
)

// What Sandlot makes in an operator's root file system, it makes in there, whatever
// links its author has put into it.
func TestPreparedFollowsNoLinkOut(t *testing.T) {
	for name, target := range map[string]string{".sandlot": "folder", "run": "folder", "run/sandlot": "folder",
		".sandlot/agent": "file", "workspace": "folder"} {
		t.Run(name, func(t *testing.T) {
			root, outside := t.TempDir(), t.TempDir()
			to := outside
			if target == "file" {
				to = filepath.Join(outside, "made")
			}
			if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
			if err := makeMountTargets(root); err == nil {
				t.Error("the root is prepared in spite of a link out of it")
			}
			if made, _ := os.ReadDir(outside); len(made) != 0 {
				t.Errorf("%v was made outside", made)
			}
		})
	}
	root := t.TempDir()
	if err := os.Symlink("var/run", filepath.Join(root, "run")); err != nil { // within it they are fine
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "var", "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := makeMountTargets(root); err != nil {
		t.Error(err)
	}
}

// The same holds for a template's own files.
func TestCoverFollowsNoLinkOut(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(root, "etc")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "usr"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := New(t.TempDir(), false)
	over, err := s.fileBinds(&image.Template{Name: "x", Rootfs: root,
		Files: map[string][]byte{"etc/certs": {1}, "usr/certs": {1}}})
	if err != nil || len(over) != 1 || over[0].Target != "/usr/certs" {
		t.Errorf("%v, %v", over, err)
	}
	if made, _ := os.ReadDir(outside); len(made) != 0 {
		t.Errorf("%v was made outside", made)
	}
}
