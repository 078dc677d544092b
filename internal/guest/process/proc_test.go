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

// TestKernelThreads: threads of a virtual machine's kernel are not processes of the sandbox.
func TestKernelThreads(t *testing.T) {
	for stat, want := range map[string]bool{
		"S 2 0 0 0 -1 2129984 0 0":        true,  // a worker of the kernel
		"S 1 77 77 0 -1 4194304 0 0":      false, // a program
		"S 1 77 77 0 -1 4194560 0 0":      false, // one that root has started
		"R 2 0 0 0 -1 69238880 0 0":       true,  // one that is bound to a processor
		"S 1 77 77 0 -1 not-a-number 0 0": false,
	} {
		if got := isKernels(strings.Fields(stat)); got != want {
			t.Errorf("%q: %t", stat, got)
		}
	}
}
