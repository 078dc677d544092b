package confine

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPlainFiles tries, in a process of its own, all ways to set the bits, and what is to go on working.
func TestPlainFiles(t *testing.T) {
	if dir := os.Getenv("SANDLOT_TEST_CONFINED"); dir != "" {
		confined(t, dir)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command(self, "-test.run=^TestPlainFiles$", "-test.v")
	cmd.Env = append(os.Environ(), "SANDLOT_TEST_CONFINED="+dir)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "all tried") {
		t.Errorf("%v\n%s", err, out)
	}
}

func confined(t *testing.T, dir string) {
	t.Chdir(dir)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("f", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Chmod("f", unix.S_ISUID|0o755); err != nil { // so what follows shows the filter
		t.Fatal(err)
	}
	if err := os.Chmod("f", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := PlainFiles(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, bits := range []uint32{unix.S_ISUID, unix.S_ISGID, unix.S_ISUID | unix.S_ISGID} {
		mode := bits | 0o755
		for name, try := range map[string]func() error{
			"chmod":     func() error { return unix.Chmod("f", mode) },
			"fchmod":    func() error { return unix.Fchmod(int(f.Fd()), mode) },
			"fchmodat":  func() error { return unix.Fchmodat(unix.AT_FDCWD, "f", mode, 0) },
			"fchmodat2": func() error { return unix.Fchmodat(unix.AT_FDCWD, "f", mode, unix.AT_SYMLINK_NOFOLLOW) },
			"mknod":     func() error { return unix.Mknod("n", unix.S_IFREG|mode, 0) },
			"mknodat":   func() error { return unix.Mknodat(unix.AT_FDCWD, "n", unix.S_IFREG|mode, 0) },
			"open":      func() error { return opened(unix.Open("n", unix.O_CREAT|unix.O_WRONLY, mode)) },
			"openat": func() error {
				return opened(unix.Openat(unix.AT_FDCWD, "n", unix.O_CREAT|unix.O_WRONLY, mode))
			},
			"unnamed": func() error { return opened(unix.Open(".", unix.O_TMPFILE|unix.O_WRONLY, mode)) },
		} {
			if err := try(); !errors.Is(err, unix.EPERM) {
				t.Errorf("%s with %o: %v", name, mode, err)
			}
		}
	}
	for _, kind := range []uint32{unix.S_IFCHR, unix.S_IFBLK} {
		if err := unix.Mknod("n", kind|0o644, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("mknod of a device: %v", err)
		}
	}
	if err := unix.Mkfifo("pipe", 0o644); err != nil {
		t.Error(err)
	}
	how := &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: unix.S_ISUID | 0o755}
	if err := opened(unix.Openat2(unix.AT_FDCWD, "n", how)); !errors.Is(err, unix.ENOSYS) {
		t.Errorf("openat2: %v", err)
	}
	if out, err := exec.Command("sh", "-c", "chmod u+s f").CombinedOutput(); err == nil {
		t.Errorf("a program that was started: %s", out)
	}
	const line = "echo x > g && chmod 1755 g && mkdir -m 755 d && touch d/h && cat g"
	out, err := exec.Command("sh", "-c", line).CombinedOutput()
	if err != nil || string(out) != "x\n" {
		t.Errorf("what is to work: %v %s", err, out)
	}
	files, err := filepath.Glob("*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if st, err := os.Stat(name); err != nil || st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	t.Log("all tried")
}

// opened closes a file that should not have been opened.
func opened(fd int, err error) error {
	if err == nil {
		unix.Close(fd)
	}
	return err
}
