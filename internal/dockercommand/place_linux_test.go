package dockercommand

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFolderOfOthers: a folder that others can write by more than its mode is not trusted, nor one of a group with
// people.
func TestFolderOfOthers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("it needs root, to make folders of others")
	}
	dir := shortDir(t)
	makeFolder := func(name string, gid int) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(path, 0o755), os.Chown(path, 0, gid), os.Chmod(path, 0o775)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, gid := range map[string]int{"root": 0, "daemon": daemonGroup} {
		if err := checkFolder(makeFolder(name, gid)); err != nil {
			t.Errorf("of the group %s: %v", name, err)
		}
	}
	if err := checkFolder(makeFolder("staff", 50)); err == nil {
		t.Error("of the group staff, which has people: it is trusted")
	}
	// acl(5): version 2; the owner, the user 65534, the group, the mask and others.
	acl := []byte{2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 254, 255, 0, 0, 4, 0, 5, 0,
		255, 255, 255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 5, 0, 255, 255, 255, 255}
	path := makeFolder("acl", 0)
	if err := unix.Setxattr(path, "system.posix_acl_access", acl, 0); err != nil {
		t.Fatal(err)
	}
	if err := checkFolder(path); err == nil {
		t.Error("which an access control list gives to another user: it is trusted")
	}
}
