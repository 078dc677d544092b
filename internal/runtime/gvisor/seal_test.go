package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// shell runs a shell line in a sandbox and returns what it printed.
func shell(t *testing.T, c *agent.Client, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	d, err := c.Exec(ctx, agent.Exec{Command: agent.Command{Args: []string{"/bin/bash", "-c", line}},
		Timeout: 30 * time.Second,
		Inline:  agent.InlineBounds{Head: 4096, Tail: 4096}}, agent.Observer{})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return strings.TrimSpace(string(d.Stdout.Head) + string(d.Stderr.Head))
}

// pretend starts programs with the command line of a sandbox's file server: one that
// is another program, and gVisor's own name under another user.
func pretend(t *testing.T, rt *Runtime, id string) (pids []int) {
	t.Helper()
	if os.Getuid() != 0 {
		return nil // another user is needed
	}
	dir := t.TempDir()
	named := filepath.Join(dir, filepath.Base(rt.Runsc))
	text, err := os.ReadFile("/bin/bash")
	if err == nil {
		err = errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.WriteFile(named, text, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	for path, uid := range map[string]uint32{"/bin/bash": 0, named: 54321} {
		cmd := exec.Command(path, "-c", "read x", "x", "--root="+rt.runscRoot(), "gofer", id)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close(); cmd.Wait() })
		pids = append(pids, cmd.Process.Pid)
	}
	return pids
}

// A volume that is full is read-only in sandboxes that run, and nothing else is.
func TestSeal(t *testing.T) {
	for name, rootless := range map[string]bool{"as root": false, "without root": true} {
		t.Run(name, func(t *testing.T) {
			if os.Getuid() != 0 && !rootless {
				t.Skip("only root can")
			}
			t.Parallel()
			testSeal(t, subject(t, rootless))
		})
	}
}

func testSeal(t *testing.T, s *sandboxtest.Subject) {
	rt := s.Open(t).(*Runtime)
	spec := s.Spec()
	own, shared := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(shared, "old"), []byte("old\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec.Mounts = []sandbox.Mount{{Source: own, Target: "/workspace"}, {Source: shared, Target: "/share", Shared: true}}
	b, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	c := agent.New(b, sandboxtest.Log(t), nil)
	defer c.Close()
	// Whoever may start a program can give it the file server's command line.
	for _, pid := range pretend(t, rt, spec.ID) {
		if rt.isGofer(goferProcess{pid, spec.ID, b.(*box).started}) {
			t.Errorf("process %d passes for the file server", pid)
		}
		server := goferProcess{pid, spec.ID, b.(*box).started}
		if err := rt.setReadOnly(server, []string{"/share"}, true); !errors.Is(err, unix.ESRCH) {
			t.Errorf("its mounts: %v", err)
		}
	}
	const tries = `cd /share; { echo more >> old; } 2>&1; { echo x > new; } 2>&1; mkdir d 2>&1; rm old 2>&1; cat old 2>/dev/null; echo y > /workspace/f && cat /workspace/f`
	if left := rt.Seal(t.Context(), shared, true); left != 0 {
		t.Fatalf("%d sandboxes are not sealed", left)
	}
	if got := shell(t, c, tries); strings.Count(got, "Read-only file system") != 4 ||
		!strings.HasSuffix(got, "old\ny") {
		t.Errorf("sealed: %s", got)
	}
	if entries, err := os.ReadDir(shared); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v, want one file", entries, err)
	}
	if left := rt.Seal(t.Context(), shared, false); left != 0 {
		t.Fatalf("%d sandboxes are not as they were", left)
	}
	if got := shell(t, c, tries+`; cat new`); !strings.HasSuffix(got, "y\nx") || strings.Contains(got, "Read-only") {
		t.Errorf("not sealed any more: %s", got)
	}
	// What was written and is closed does not stand in the way for ever.
	left := -1
	for range 100 {
		if left = rt.Seal(t.Context(), shared, true); left == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if left != 0 {
		t.Error("a file that was written and closed keeps it writable")
	}
	if got := shell(t, c, `echo more >> /share/new`); !strings.Contains(got, "Read-only file system") {
		t.Errorf("sealed again: %s", got)
	}
	// One that is open for writing does.
	if left := rt.Seal(t.Context(), shared, false); left != 0 {
		t.Error("it is not writable again")
	}
	if got := shell(t, c, `(exec 3>>/share/new; sleep 600) >/dev/null 2>&1 & sleep 0.3; echo begun`); got != "begun" {
		t.Error(got)
	}
	if left := rt.Seal(t.Context(), shared, true); left != 1 {
		t.Errorf("%d are left, want the one that writes", left)
	}
	// One that starts later is sealed, and the next server makes it writable again.
	later := s.Spec()
	later.Mounts = []sandbox.Mount{{Source: shared, Target: "/share", Shared: true}}
	lb, err := rt.Create(t.Context(), later)
	if err != nil {
		t.Fatal(err)
	}
	if left := rt.Seal(t.Context(), shared, true); left != 1 {
		t.Errorf("%d are left, want the one that writes", left)
	}
	lc := agent.New(lb, sandboxtest.Log(t), nil)
	if got := shell(t, lc, `echo more >> /share/new`); !strings.Contains(got, "Read-only file system") {
		t.Errorf("one that started later: %s", got)
	}
	lc.Close()
	c.Close()
	if err := errors.Join(b.Stop(t.Context()), rt.Close()); err != nil {
		t.Error(err)
	}
	next, err := New(rt.Config)
	if err != nil {
		t.Fatal(err)
	}
	again, err := next.Recover(t.Context(), later.ID)
	if err != nil {
		t.Fatal(err)
	}
	if left := next.Seal(t.Context(), shared, false); left != 0 {
		t.Errorf("the next server leaves %d as they were", left)
	}
	ac := agent.New(again, sandboxtest.Log(t), nil)
	defer ac.Close()
	if got := shell(t, ac, `echo more >> /share/new && echo written`); got != "written" {
		t.Errorf("the next server: %s", got)
	}
	if err := errors.Join(again.Stop(t.Context()), next.Close()); err != nil {
		t.Error(err)
	}
}

// Who goes on writing into a full volume that cannot be made read-only ends. Who has
// only a file of it open, and writes elsewhere, does not, whoever writes to that file.
func TestWritersIntoAFullVolume(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root is told who writes")
	}
	t.Parallel()
	s := subject(t, false)
	rt := s.Open(t).(*Runtime)
	shared := t.TempDir()
	var boxes []sandbox.Sandbox
	own := []string{t.TempDir(), t.TempDir()}
	for i, target := range []string{"/share/0", "/workspace/f"} {
		spec := s.Spec()
		spec.Limits.DiskBytes = 1 << 30
		spec.Mounts = []sandbox.Mount{{Source: own[i], Target: "/workspace"},
			{Source: shared, Target: "/share", Shared: true}}
		b, err := rt.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, b)
		c := agent.New(b, sandboxtest.Log(t), nil)
		defer c.Close()
		line := fmt.Sprintf(`(exec 3>>/share/%d; while [ ! -e /workspace/go ]; do sleep 0.1; done
			for i in $(seq 300); do head -c 1000000 /dev/zero >> %s; sleep 0.05; done; sleep 600) >/dev/null 2>&1 &
			sleep 0.3; echo begun`, i, target)
		if got := shell(t, c, line); got != "begun" {
			t.Fatal(got)
		}
	}
	if left := rt.Seal(t.Context(), shared, true); left != 2 {
		t.Errorf("%d are left, want both", left)
	}
	for _, dir := range own {
		if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	line := "head -c 100000000 /dev/zero >> " + filepath.Join(shared, "1")
	if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
		t.Fatal(string(out), err)
	}
	gone := boxes[0].(*box).exited
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		rt.Seal(t.Context(), shared, true)
		if i, err := os.Stat(filepath.Join(own[1], "f")); err != nil || i.Size() < 100000000 {
			continue // the other one has not written yet
		}
		select {
		case <-gone:
		default:
			if time.Now().After(deadline) {
				t.Fatal("the one that writes lives on")
			}
			continue
		}
		break
	}
	for range 2 * maxOverLooks {
		rt.Seal(t.Context(), shared, true)
	}
	for i, want := range []sandbox.Status{{State: sandbox.Dead, Reason: "volume"}, {State: sandbox.Running}} {
		if st, err := boxes[i].Status(t.Context()); err != nil || st.State != want.State || st.Reason != want.Reason {
			t.Errorf("sandbox %d: %+v, %v, want %+v", i, st, err, want)
		}
	}
	if err := errors.Join(boxes[0].Stop(t.Context()), boxes[1].Stop(t.Context()), rt.Close()); err != nil {
		t.Error(err)
	}
	if len(rt.writeWatches) > 0 {
		t.Error("a watch is left")
	}
}

// A sandbox that writes a little into a full volume is not ended for what somebody else
// adds to the same file by a memory mapping, of which the kernel reports nothing.
func TestMappingOfAFullVolume(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root is told who writes")
	}
	t.Parallel()
	s := subject(t, false)
	rt := s.Open(t).(*Runtime)
	spec, shared := s.Spec(), t.TempDir()
	spec.Mounts = []sandbox.Mount{{Source: shared, Target: "/share", Shared: true}}
	b, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	c := agent.New(b, sandboxtest.Log(t), nil)
	defer c.Close()
	if got := shell(t, c, `(exec 3>>/share/f; while echo x >&3; do sleep 0.05; done) >/dev/null 2>&1 &
		sleep 0.3; echo begun`); got != "begun" {
		t.Fatal(got)
	}
	seal := func() {
		for range 2 * maxOverLooks {
			if left := rt.Seal(t.Context(), shared, true); left != 1 {
				t.Errorf("%d are left, want the one that writes", left)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	seal() // it is known as the only writer of the file
	f, err := os.OpenFile(filepath.Join(shared, "f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 2 * slack
	mapped, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err = errors.Join(err, f.Truncate(size)); err != nil {
		t.Fatal(err)
	}
	for i := range size / os.Getpagesize() {
		mapped[i*os.Getpagesize()+1] = 'y'
	}
	seal()
	if st, err := b.Status(t.Context()); err != nil || st.State != sandbox.Running {
		t.Fatalf("the sandbox: %+v, %v", st, err)
	}
	// By the growth of the file alone, it would have ended.
	grown, err := rt.writeWatches[shared].watch.Grown(ownerOf(shared, []*box{b.(*box)}))
	if err != nil || grown[spec.ID] <= slack {
		t.Errorf("the file has grown by %d bytes that count for the sandbox, %v", grown[spec.ID], err)
	}
	if err := errors.Join(unix.Munmap(mapped), b.Stop(t.Context()), rt.Close()); err != nil {
		t.Error(err)
	}
}
