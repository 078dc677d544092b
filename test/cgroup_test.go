package test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestReadOnlyCgroups: as root where no cgroup can be made, as in a container,
// the server runs, says which limits the kernel does not hold, once, and leaves
// nothing. It runs in a mount namespace of its own, which nobody else sees.
func TestReadOnlyCgroups(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("cgroups need root")
	}
	const apart = "SANDLOT_TEST_APART"
	if os.Getenv(apart) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestReadOnlyCgroups$", "-test.v")
		cmd.Env = append(os.Environ(), apart+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS: TestReadOnlyCgroups")) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; at == "/sys/fs/cgroup" || strings.HasPrefix(at, "/sys/fs/cgroup/") {
			if err := syscall.Mount("none", at, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY,
				""); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := start(t, asShipped...)
	c := s.connect(newer, "", nil)
	first := c.want("new", "6*7", "42")
	s.awaitImage()
	c.want("new", "6*7", "42")
	c.want(first.session(), "_ + 1", "43")
	if n := strings.Count(s.log.String(), "sandboxes have no cgroups"); n != 1 {
		t.Errorf("the log warns %d times\n%s", n, s.log)
	}
	s.kill()
	s.launch()
	c = s.connect(newer, "", nil)
	c.want(first.session(), "_ + 1", "44")
	out, errs, code := s.cli("doctor")
	for _, w := range []string{"WARNING: sandboxes have no cgroups", "read-only file system", "memory", "CPU",
		"writable", "answered 42"} {
		if code != 0 || !strings.Contains(out, w) {
			t.Errorf("doctor (%d) does not say %q: %s%s", code, w, out, errs)
		}
	}
}
