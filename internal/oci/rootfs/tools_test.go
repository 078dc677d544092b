package rootfs

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/erofs"
)

// hostTar returns an archive that the machine's own tar makes of a folder.
func hostTar(t *testing.T, args string, fill func(folder string)) []byte {
	t.Helper()
	folder := t.TempDir()
	fill(folder)
	return tarOf(t, folder, append(strings.Fields(args), ".")...)
}

// tarOf returns what the machine's own tar makes in a folder.
func tarOf(t *testing.T, folder string, args ...string) []byte {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command("tar", append([]string{"-C", folder, "--numeric-owner", "-cf", "-"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, errs.String())
	}
	return out.Bytes()
}

func touch(t *testing.T, name string) string {
	t.Helper()
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// checkByFsck has erofs-utils check an image.
func checkByFsck(t *testing.T, image string) {
	t.Helper()
	out, err := exec.Command("fsck.erofs", image).CombinedOutput()
	if err != nil || strings.Contains(strings.ToLower(string(out)), "<e>") {
		t.Errorf("fsck.erofs (`make tools` installs it): %v\n%s", err, out)
	}
}

// checkByGVisor has gVisor's own reader read all of an image's metadata, and look up every name.
func checkByGVisor(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	image, err := erofs.OpenImage(f) // takes the file over
	if err != nil {
		f.Close()
		t.Fatalf("gVisor refuses the image: %v", err)
	}
	defer image.Close()
	type visit struct{ nid, parent uint64 }
	for queue := []visit{{image.RootNid(), image.RootNid()}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		dir, err := image.Inode(at.nid)
		if err != nil {
			t.Fatalf("gVisor: inode %d: %v", at.nid, err)
		}
		err = dir.IterDirents(func(name string, kind uint8, nid uint64) error {
			found, err := dir.Lookup(name)
			if err != nil || found != nid {
				t.Errorf("gVisor: look-up of %q in %d: %d, %v; want %d", name, at.nid, found, err, nid)
			}
			child, err := image.Inode(nid)
			if err != nil {
				return err
			}
			switch {
			case name == "." && nid != at.nid, name == ".." && nid != at.parent:
				t.Errorf("gVisor: %q of %d is %d", name, at.nid, nid)
			case name == ".", name == "..":
			case child.IsDir():
				queue = append(queue, visit{nid, at.nid})
			case child.IsRegular():
				if _, err := child.DataOffset(); err != nil {
					t.Errorf("gVisor cannot map %q: %v", name, err)
				}
				_, err = child.DataRanges()
				return err
			case child.IsSymlink():
				_, err = child.Readlink()
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatalf("gVisor: directory %d: %v", at.nid, err)
		}
	}
}
