package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A tmpfs of the sandbox counts once, and a folder of the host's tmpfs does not.
func TestTmpfsUsed(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "sandlot test ") // a tmpfs on every Linux
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	mountinfo := filepath.Join(t.TempDir(), "mountinfo")
	used := func(text string) uint64 {
		if err := os.WriteFile(mountinfo, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return tmpfsUsed(mountinfo)
	}
	const own = "25 30 0:22 / /dev/shm rw,nosuid shared:5 - tmpfs tmpfs rw\n26 30 0:22 / /dev/shm rw - tmpfs tmpfs rw\n"
	before := used(own)
	const size = 64 << 20
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := used(own); got < before+size/2 || got > before+2*size {
		t.Errorf("%d bytes, before a file of %d bytes it was %d", got, size, before)
	}
	for _, other := range []string{"", "x\n", "25 30 0:22 /folder /dev/shm rw - tmpfs tmpfs rw\n",
		"25 30 0:22 / /dev/shm rw - ext4 /dev/sda rw\n", "25 30 0:23 / /proc rw - tmpfs tmpfs rw\n"} {
		if got := used(other); got != 0 {
			t.Errorf("%q: %d bytes", other, got)
		}
	}
	escaped := "25 30 0:22 / " + strings.ReplaceAll(dir, " ", `\040`) + " rw - tmpfs tmpfs rw\n"
	if got := used(escaped); got < size/2 {
		t.Errorf("%q: %d bytes", escaped, got)
	}
	if got := tmpfsUsed(filepath.Join(dir, "missing")); got != 0 {
		t.Errorf("without mounts: %d bytes", got)
	}
}
