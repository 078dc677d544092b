package oci

import (
	"testing"

	"golang.org/x/sys/unix"
)

// smallDisk returns a folder on a file system of a size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("sandlot-test", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatalf("a small disk cannot be made (the tests run as root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("%s stays mounted: %v", dir, err)
		}
	})
	return dir
}

func enlarge(t *testing.T, dir, size string) {
	t.Helper()
	if err := unix.Mount("sandlot-test", dir, "tmpfs", unix.MS_REMOUNT, "size="+size); err != nil {
		t.Fatal(err)
	}
}
