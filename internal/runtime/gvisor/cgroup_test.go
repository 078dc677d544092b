package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent"
	"sandlot/internal/runtime/gvisor/cgroup"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// nested says in which mount namespace of its own a test runs.
const nested = "SANDLOT_TEST_CGROUPS"

// apart runs the test again in a mount namespace of its own, in which it may
// change the mounts of cgroups: nobody else sees that. There it returns true, and
// of the test's own tests those run that are named, or all.
func apart(t *testing.T, inner ...string) bool {
	t.Helper()
	if os.Getuid() != 0 || !hasSysAdmin() {
		t.Skip("cgroups and mounts need root")
	}
	if os.Getenv(nested) == t.Name() {
		return true
	}
	if !cgroup.Find("any").Usable() {
		t.Skip("this machine has no cgroups")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$/^("+strings.Join(inner, "|")+
		")", "-test.v", "-test.timeout=8m")
	cmd.Env = append(os.Environ(), nested+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // private, by os/exec
	out, err := cmd.CombinedOutput()
	for _, name := range append([]string{""}, inner...) {
		if name != "" {
			name = "/" + name
		}
		if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name()+name+" ")) {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	return false
}

// remount makes mounts of cgroups read-only in this namespace, or writable: all
// of them, or those of the controllers.
func remount(t *testing.T, readOnly bool, only ...string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		at := strings.Fields(line)[1]
		if at != cgroup.Root && !strings.HasPrefix(at, cgroup.Root+"/") ||
			len(only) > 0 && !slices.Contains(only, filepath.Base(at)) {
			continue
		}
		flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT)
		if readOnly {
			flags |= unix.MS_RDONLY
		}
		if err := unix.Mount("none", at, "", flags, ""); err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		n++
	}
	if n < max(1, len(only)) {
		t.Skipf("%d of the mounts %q are here", n, only)
	}
}

func open(t *testing.T, s *sandboxtest.Subject) *Runtime {
	t.Helper()
	return s.Open(t).(*Runtime)
}

// TestReadOnlyCgroups runs the suite as root where no cgroup can be made, but for
// what has nothing to do with that.
func TestReadOnlyCgroups(t *testing.T) {
	t.Parallel()
	if apart(t, "Life", "Recover", "Death", "Cancel", "Commands", "Memory", "Disk", "Isolation", "SurvivesHost") {
		remount(t, true)
		s := subject(t, false)
		r := open(t, s)
		if w := r.Warning(); r.cgroups.Usable() || !strings.Contains(w, "read-only file system") ||
			!strings.Contains(w, "memory") || !strings.Contains(w, "CPU") {
			t.Errorf("usable: %v; it warns %q", r.cgroups.Usable(), w)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		s.Run(t)
	}
}

// TestWithoutCgroups: where no cgroup can be made a sandbox is what it is for an
// unprivileged user: its limits change, its cost is told, too much memory ends
// it. That goes for it too when the next server has cgroups.
func TestWithoutCgroups(t *testing.T) {
	t.Parallel()
	if !apart(t) {
		return
	}
	s := subject(t, false)
	remount(t, true)
	r := open(t, s)
	spec := s.Spec()
	b, err := r.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	check := func(b sandbox.Sandbox, grow int64) {
		t.Helper()
		c := agent.New(b, sandboxtest.Log(t), nil)
		defer c.Close()
		if got := run(t, c, "6*7"); got != "42" {
			t.Errorf("it says %q", got)
		}
		st, err := b.Status(t.Context())
		if err != nil || st.State != sandbox.Running || st.MemoryBytes < 1<<20 || st.CPU <= 0 {
			t.Errorf("its status is %+v, %v", st, err)
		}
		l := b.Spec().Limits
		l.MemoryBytes += grow
		if err := b.Resize(t.Context(), l); err != nil || b.Spec().Limits != l {
			t.Errorf("resizing: %v; limits %+v", err, b.Spec().Limits)
		}
	}
	check(b, 64<<20)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}

	remount(t, false)
	r = open(t, s)
	if !r.cgroups.Usable() || r.Warning() != "" {
		t.Fatalf("where cgroups can be made they are not used: %q", r.Warning())
	}
	if r.cgroups.Has(spec.ID) {
		t.Error("the sandbox has a cgroup")
	}
	found := sandboxtest.RecoverAll(t, r)
	if len(found) != 1 || found[0].Spec().Limits.MemoryBytes != spec.Limits.MemoryBytes+64<<20 {
		t.Fatalf("recovered %d sandboxes", len(found))
	}
	b = found[0]
	check(b, -64<<20)
	fill(t, b)
	other, err := r.Create(t.Context(), s.Spec())
	if err != nil {
		t.Fatal(err)
	}
	if !r.cgroups.Has(other.Spec().ID) {
		t.Error("a new sandbox has no cgroup")
	}
	for _, b := range []sandbox.Sandbox{b, other} {
		if err := b.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if left := s.Remains(); len(left) > 0 {
		t.Errorf("this is left: %q", left)
	}
}

// TestWithoutSysAdmin: root without CAP_SYS_ADMIN, as in a container, has the
// sandboxes of an unprivileged user, and is told.
func TestWithoutSysAdmin(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("this is an unprivileged user")
	}
	if hasSysAdmin() {
		failed := make(chan error, 1)
		go func() {
			goruntime.LockOSThread() // the thread ends with the goroutine, and what it dropped with it
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0); err != nil {
				failed <- err
				return
			}
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe",
				"-test.run=^(TestWithoutSysAdmin|TestSuite|TestMemoryFromOutside)$/^(|Life|Recover|Mounts|Isolation)$",
				"-test.v", "-test.timeout=4m")
			out, err := cmd.CombinedOutput()
			for _, name := range []string{"TestWithoutSysAdmin", "TestMemoryFromOutside", "TestSuite/Isolation"} {
				if err == nil && !bytes.Contains(out, []byte("--- PASS: "+name+" ")) {
					err = errors.New(name + " did not pass")
				}
			}
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, out)
			}
			failed <- err
		}()
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
		return
	}
	r := open(t, subject(t, false))
	if w := r.Warning(); !r.Rootless || r.cgroups.Usable() || r.CanPreboot() == nil ||
		!strings.Contains(w, "CAP_SYS_ADMIN") || !strings.Contains(w, "memory") {
		t.Errorf("rootless: %v; it warns %q", r.Rootless, w)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// fill has a sandbox use more memory than it may, of which its agent knows
// nothing: what is around it has to end it.
func fill(t *testing.T, b sandbox.Sandbox) {
	t.Helper()
	c := agent.New(b, sandboxtest.Log(t), nil)
	defer c.Close()
	run(t, c, "x = b'x' * (64 << 20)")
	st, err := b.Status(t.Context())
	if err != nil || st.MemoryBytes < 64<<20 || st.MemoryBytes > 192<<20 {
		t.Errorf("with 64 MB in use its status is %+v, %v", st, err)
	}
	l := b.Spec().Limits
	l.MemoryBytes = 64 << 20
	if err := b.Resize(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	go c.Evaluate(t.Context(), agent.Code{Language: "python",
		Source: "import time; y = b'y' * (320 << 20); time.sleep(20)", Timeout: 20 * time.Second}, agent.Observer{})
	select {
	case <-b.(*box).exited:
	case <-time.After(15 * time.Second):
		t.Error("it has more memory than it may, and nothing ends it")
	}
	if st, err := b.Status(t.Context()); err != nil || st.State != sandbox.Dead || st.Reason != "memory" {
		t.Errorf("it ended as %+v, %v", st, err)
	}
}

// TestMemoryFromOutside: the memory of a sandbox is bounded by the kernel, or by
// the server where there are no cgroups, whatever its agent does.
func TestMemoryFromOutside(t *testing.T) {
	t.Parallel()
	s := subject(t, os.Getuid() != 0)
	r := open(t, s)
	b, err := r.Create(t.Context(), s.Spec())
	if err != nil {
		t.Fatal(err)
	}
	fill(t, b)
	if err := errors.Join(b.Stop(t.Context()), r.Close()); err != nil {
		t.Error(err)
	}
}

// TestTryCgroups: what decides is whether groups can be made where limits are
// set. A want that may pass is no reason to do without them.
func TestTryCgroups(t *testing.T) {
	if !apart(t) {
		return
	}
	c := cgroup.Find(t.TempDir())
	if err := c.Probe(); err != nil {
		t.Fatalf("as it is: %v", err)
	}
	if left := tries(c); len(left) > 0 {
		t.Errorf("this is left: %q", left)
	}
	if unified() {
		remount(t, true)
		if err := c.Probe(); !cgroup.IsPermanent(err) {
			t.Errorf("read-only: %v", err)
		}
		return
	}
	remount(t, true, "freezer", "blkio")
	if err := c.Probe(); err != nil {
		t.Errorf("without what sandboxes can do without: %v", err)
	}
	// One that was killed at it leaves its group to the next one.
	if err := os.Mkdir(filepath.Join(cgroup.Root, "memory", filepath.Clean(c.OCIPath(""))+".try"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.Probe(); err != nil {
		t.Errorf("after one that was killed: %v", err)
	}
	remount(t, true, "pids")
	if err := c.Probe(); !cgroup.IsPermanent(err) || !strings.Contains(err.Error(), "/pids/") {
		t.Errorf("one controller is read-only: %v", err)
	}
	remount(t, false, "pids")
	// A folder with room for nothing more stands in for a limit of cgroups.
	if err := unix.Mount("none", filepath.Join(cgroup.Root, "cpu"), "tmpfs", 0, "nr_inodes=1"); err != nil {
		t.Fatal(err)
	}
	s := subject(t, false)
	r := open(t, s)
	defer r.Close()
	if err := r.cgroups.Probe(); !errors.Is(err, unix.ENOSPC) || cgroup.IsPermanent(err) {
		t.Errorf("without room: %v", err)
	}
	if !r.cgroups.Usable() || r.Warning() != "" {
		t.Errorf("for want of room limits are given up: %q", r.Warning())
	}
	if b, err := r.Create(t.Context(), s.Spec()); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("a boot: %v", err)
		if err == nil {
			b.Stop(t.Context())
		}
	}
	if left := append(tries(c), s.Remains()...); len(left) > 0 {
		t.Errorf("this is left: %q", left)
	}
}

// tries are the groups that try left.
func tries(c cgroup.Groups) []string {
	name := filepath.Clean(c.OCIPath("")) + ".try"
	all, _ := filepath.Glob(filepath.Join(cgroup.Root, "*", name))
	unified, _ := filepath.Glob(filepath.Join(cgroup.Root, name))
	return append(all, unified...)
}

// unified says whether the machine has version 2 of cgroups.
func unified() bool {
	_, err := os.Stat(filepath.Join(cgroup.Root, "cgroup.controllers"))
	return err == nil
}
