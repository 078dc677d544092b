package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/image"
	"sandlot/internal/image/imagetest"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/gvisor/cgroup"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/vault"
)

// programs returns the folder with the built programs.
func programs(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("SANDLOT_TEST_BIN"); dir != "" {
		return dir
	}
	dir, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"sandlot-runsc", "sandlot-agent"} {
		if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
			t.Fatalf("%v; run `make build`", err)
		}
	}
	return dir
}

func subject(t *testing.T, rootless bool) *sandboxtest.Subject {
	t.Helper()
	host, err := image.Host()
	if err != nil {
		t.Fatal(err)
	}
	state, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// The mount that a runtime keeps for its sandboxes, where a failed test closed none, or left a sandbox.
	t.Cleanup(func() {
		for unix.Unmount(filepath.Join(state, "runsc", "null-netns"), unix.MNT_DETACH) == nil {
		}
	})
	bin := programs(t)
	return &sandboxtest.Subject{
		WritableRoot: image.DebianHost(), // a machine without packages of Debian has nothing to install there
		Open: func(t *testing.T) sandbox.Runtime {
			r, err := New(Config{Runsc: filepath.Join(bin, "sandlot-runsc"), Agent: filepath.Join(bin, "sandlot-agent"),
				StateDir: state, Log: sandboxtest.Log(t), Rootless: rootless})
			if err != nil {
				t.Fatal(err)
			}
			// So the suites sleep and are copied both ways.
			r.SealImages(&vault.Vault{KeyFile: filepath.Join(state, "secrets.key"), CreateKey: true}, rootless)
			return r
		},
		Remains: func() []string { return left(state) },
		Kill: func(t *testing.T, b sandbox.Sandbox) {
			pids, err := os.ReadFile(filepath.Join(state, "sandboxes", b.Spec().ID, "pid"))
			if err != nil {
				t.Fatal(err)
			}
			pid := 0
			fmt.Sscan(string(pids), &pid)
			if pid <= 1 {
				t.Fatalf("no process id in %q", pids)
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			for range 500 {
				if state := procState(pid); state == 'Z' || state == 0 {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Fatal("it does not die")
		},
		Template: host,
		Capable:  true,
	}
}

func procState(pid int) byte { return proc.State(pid) }

// left lists what there is of a state folder's sandboxes.
func left(state string) (found []string) {
	add := func(what string, paths ...string) {
		for _, p := range paths {
			found = append(found, what+" "+p)
		}
	}
	folders, _ := filepath.Glob(filepath.Join(state, "sandboxes", "*"))
	add("folder", folders...)
	all, _ := os.ReadDir("/proc")
	for _, e := range all {
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && strings.Contains(string(line), "--root="+state) {
			add("process", e.Name()+" "+string(line[:20])+" … "+string(line[max(0, len(line)-30):]))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		// One mount serves all sandboxes of a runtime, and goes with it.
		if strings.Contains(line, state) && !strings.Contains(line, "/null-netns ") {
			add("mount", line)
		}
	}
	if c := cgroup.Find(state); os.Getuid() == 0 && c.Usable() {
		for _, d := range c.Dirs("*") {
			groups, _ := filepath.Glob(d)
			for _, g := range groups {
				if st, err := os.Stat(g); err == nil && st.IsDir() {
					add("cgroup", g)
				}
			}
		}
	}
	return found
}

// TestSuite passes as root, and, when the process is an unprivileged user's,
// rootless.
func TestSuite(t *testing.T) {
	t.Parallel()
	subject(t, os.Getuid() != 0).Run(t)
}

// TestRootless runs the suite with the machine's programs, and the tests of images, as an unprivileged user.
func TestRootless(t *testing.T) {
	rootless(t, "TestSuite", "TestMemoryFromOutside", "TestImageIsShared", "TestImageDisk", "TestImageIsRemoved",
		"TestFolderIsReadOnly", "TestPrebooted", "TestBadImage", "TestUpgradeAsleep", "TestUpgradedBeforeSleep",
		"TestOrphanAsleep")
}

// TestRootlessImageSuite runs the suite with an OCI image as an unprivileged user.
func TestRootlessImageSuite(t *testing.T) { rootless(t, "TestOCIImageSuite") }

// rootless runs tests as an unprivileged user.
func rootless(t *testing.T, tests ...string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("TestSuite is that already: this is an unprivileged user")
	}
	t.Parallel()
	// The user must reach the programs, wherever this checkout is.
	dir := t.TempDir()
	for up := dir; strings.HasPrefix(up, filepath.Clean(os.TempDir())+"/"); up = filepath.Dir(up) {
		if err := os.Chmod(up, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := programs(t)
	for from, to := range map[string]string{self: "suite", filepath.Join(bin, "sandlot-runsc"): "sandlot-runsc",
		filepath.Join(bin, "sandlot-agent"): "sandlot-agent"} {
		copyFile(t, from, filepath.Join(dir, to))
	}
	const nobody = 65534
	made, base := filepath.Join(dir, "image.erofs"), filepath.Join(dir, "base.tar")
	copyFile(t, testImage(t), made)
	copyFile(t, imagetest.BaseArchive(t), base)
	tmp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(tmp, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "suite"),
		"-test.run=^("+strings.Join(tests, "|")+")$", "-test.v", "-test.timeout=8m")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp, "SANDLOT_TEST_BIN=" + dir, "SANDLOT_TEST_LOG=" +
		os.Getenv("SANDLOT_TEST_LOG"), "SANDLOT_TEST_IMAGE=" + made, "SANDLOT_TEST_BASE=" + base}
	cmd.Dir = tmp
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	for _, name := range tests {
		if strings.HasSuffix(name, "Suite") {
			name += "/Isolation"
		}
		if err != nil || !strings.Contains(string(out), "--- PASS: "+name) {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestRecycledIDs: after the machine, or the container around the server, was
// started again, the process ids of dead sandboxes are those of other programs.
func TestRecycledIDs(t *testing.T) {
	s := subject(t, os.Getuid() != 0)
	rt := s.Open(t).(*Runtime)
	b, err := rt.Create(t.Context(), s.Spec())
	if err != nil {
		t.Fatal(err)
	}
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	s.Kill(t, b)
	bystander := exec.Command("sleep", "600")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer bystander.Wait()
	defer bystander.Process.Kill()
	states, _ := filepath.Glob(filepath.Join(rt.runscRoot(), "*"+b.Spec().ID+"*.state"))
	if len(states) != 1 {
		t.Fatalf("runsc's state is in %q", states)
	}
	text, err := os.ReadFile(states[0])
	if err != nil {
		t.Fatal(err)
	}
	ids := regexp.MustCompile(`"(pid|goferPid)":\s*[0-9]+`)
	if n := len(ids.FindAll(text, -1)); n != 2 {
		t.Fatalf("runsc wrote down %d process ids", n)
	}
	text = ids.ReplaceAll(text, fmt.Appendf(nil, `"$1":%d`, bystander.Process.Pid))
	if err := os.WriteFile(states[0], text, 0o600); err != nil {
		t.Fatal(err)
	}

	rt = s.Open(t).(*Runtime)
	if found := sandboxtest.RecoverAll(t, rt); len(found) != 0 {
		t.Errorf("recovered %d sandboxes", len(found))
	}
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
	if state := procState(bystander.Process.Pid); state == 'Z' || state == 0 {
		t.Error("a program that has nothing to do with sandboxes was killed")
	}
	if rest := s.Remains(); len(rest) != 0 {
		t.Errorf("this is left: %q", rest)
	}
}

// TestCompiledFilters: gVisor's processes find the filters that sandlot-runsc
// holds for them, with the flags that they are given.
func TestCompiledFilters(t *testing.T) {
	t.Parallel()
	s := subject(t, os.Getuid() != 0)
	rt := s.Open(t).(*Runtime)
	defer rt.Close()
	b := newBox(rt, s.Spec())
	var err error
	if b.root, err = rt.roots.For(b.spec.Template); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(b.dir, 0o700), rt.writeBundle(b), b.listen()); err != nil {
		t.Fatal(err)
	}
	defer b.Stop(context.WithoutCancel(t.Context()))
	log := filepath.Join(t.TempDir(), "log") + "/"
	if err := rt.runRunsc(t.Context(), b, "--debug", "--debug-log="+log, "run", "-bundle", b.dir, "-detach",
		b.spec.ID); err != nil {
		t.Fatal(err)
	}
	var said string
	for range 500 {
		files, _ := filepath.Glob(log + "*")
		said = ""
		for _, f := range files {
			text, _ := os.ReadFile(f)
			said += string(text)
		}
		if strings.Count(said, "Loaded precompiled seccomp instructions") >= 2 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := strings.Count(said, "Loaded precompiled seccomp instructions"); n != 2 ||
		strings.Contains(said, "No precompiled program found") {
		t.Errorf("%d of 2 processes found theirs", n)
	}
}

// TestWeight: all sandboxes together weigh as much as a process on each
// processor.
func TestWeight(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an unprivileged user's sandboxes are in no cgroup of theirs")
	}
	s := subject(t, false)
	rt := s.Open(t).(*Runtime)
	if !rt.cgroups.Usable() {
		t.Skip("this machine has no cgroups")
	}
	b, err := rt.Create(t.Context(), s.Spec())
	if err != nil {
		t.Fatal(err)
	}
	name, each, most := "cpu.shares", int64(1024), int64(1<<18)
	if unified() {
		name, each, most = "cpu.weight", 100, 10_000
	}
	number := func(id string) (n int64) {
		for _, dir := range rt.cgroups.Dirs(id) {
			if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				fmt.Sscan(string(text), &n)
			}
		}
		return n
	}
	if got, want := number(""), min(each*int64(goruntime.NumCPU()), most); got != want {
		t.Errorf("%s is %d, not %d", name, got, want)
	}
	if got := number(b.Spec().ID); got != each {
		t.Errorf("a sandbox's %s is %d, not %d", name, got, each)
	}
	if err := errors.Join(b.Stop(t.Context()), rt.Close()); err != nil {
		t.Error(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
}
