//go:build linux

package microsandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent"
	"sandlot/internal/image"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/microsandbox/msbtest"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	msbtest.Main()
	os.Exit(m.Run())
}

// programs returns the folder with the built programs.
func programs(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("SANDLOT_TEST_BIN")
	if dir == "" {
		dir, _ = filepath.Abs("../../../bin")
	}
	for _, p := range []string{"sandlot-runsc", "sandlot-agent"} {
		if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
			t.Fatalf("%v; run `make build`", err)
		}
	}
	return dir
}

// stateFolder returns a folder without symbolic links on its way, whose path is short enough for msb.
func stateFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "msb-")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for unix.Unmount(filepath.Join(dir, "msb", "home", "fake-runsc", "null-netns"), unix.MNT_DETACH) == nil {
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// open returns a runtime whose msb is a program.
func open(t *testing.T, state, msb string) *Runtime {
	t.Helper()
	r, err := New(Config{Program: msb, Agent: filepath.Join(programs(t), "sandlot-agent"), StateDir: state,
		Log: sandboxtest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// remains lists what there is of a state folder's sandboxes.
func remains(state string) []string {
	left, _ := filepath.Glob(filepath.Join(state, "msb", "boxes", "*"))
	return append(left, msbtest.Remains(filepath.Join(state, "msb", "home"))...)
}

// ofImage returns a template of the fake's image.
func ofImage(t *testing.T) *image.Template {
	t.Helper()
	host, err := image.Host()
	if err != nil {
		t.Fatal(err)
	}
	template := *host
	template.Name, template.Image = "of-image", msbtest.Image
	template.Binds, template.Links = nil, nil
	template.Files = map[string][]byte{"etc/sandlot-test": []byte("a file of the template\n")}
	return &template
}

func subject(t *testing.T) *sandboxtest.Subject {
	t.Helper()
	state := stateFolder(t)
	msb := msbtest.Install(t, programs(t), msbtest.Options{})
	return &sandboxtest.Subject{
		Open:     func(t *testing.T) sandbox.Runtime { return asRoot{open(t, state, msb)} },
		Remains:  func() []string { return remains(state) },
		Kill:     func(t *testing.T, b sandbox.Sandbox) { kill(t, state, b.Spec().ID) },
		Template: ofImage(t),
		Capable:  true,
		Bridged:  true,
		// Large files go through the agent, as there are no direct connections, which the suite wants of them.
		Again: true,
	}
}

// asRoot is a runtime all of whose programs are root: msb presents a folder's files as another user's, and gVisor, which
// the fake has, does not.
type asRoot struct{ *Runtime }

func (a asRoot) Capabilities() sandbox.Capabilities {
	c := a.Runtime.Capabilities()
	c.Users = rootAlone(a)
	return c
}

type rootAlone struct{ *Runtime }

func (rootAlone) CanRunAs() error { return errors.New("the fake presents no files as another user's") }

// kill kills the process that a machine is.
func kill(t *testing.T, state, id string) {
	t.Helper()
	pid := msbtest.Process(filepath.Join(state, "msb", "home"), machineName(id))
	if pid <= 1 {
		t.Fatalf("the machine of %s has no process", id)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if proc.State(pid) == 'Z' {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("it does not die")
}

// TestSuite: the contract holds for what is this package's and the agent's. The machines are not msb's, so that what
// the suite says of isolation is said of gVisor, in which the attacks are safe.
func TestSuite(t *testing.T) { subject(t).Run(t) }

// TestRealHelp: no flag is used that the real program lacks. The fake reads them of its --help, and refuses others.
func TestRealHelp(t *testing.T) {
	r := open(t, stateFolder(t), msbtest.Real(t))
	defer r.Close()
	if _, err := r.find(t.Context()); err != nil {
		t.Errorf("the version of the tests' msb is not in the range: %v", err)
	}
	if _, err := r.look(t.Context()); err != nil {
		t.Errorf("the real list: %v", err)
	}
	if m, err := r.measure(t.Context()); err != nil || len(m) > 0 {
		t.Errorf("the real metrics: %v, %v", m, err)
	}
	if _, err := r.Find(t.Context(), "python:3.12"); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("an image that the real program does not have: %v", err)
	}
	if err := newBox(r, sandbox.Spec{ID: "none"}).remove(t.Context()); err != nil {
		t.Errorf("removing what the real program does not have: %v", err)
	}
}

// TestRealMachine: the real program says that this machine has no virtual machines, and the error what to do. Where it
// has some, the trial machine has booted.
func TestRealMachine(t *testing.T) {
	state := stateFolder(t)
	r := open(t, state, msbtest.Real(t))
	defer r.Close()
	err := r.Check(t.Context())
	if err == nil {
		t.Log("a real trial machine has booted")
		return
	}
	advice := sandbox.Advice(err)
	if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(advice, "virtual") ||
		!strings.Contains(advice, "runtime: gvisor") || strings.Contains(advice, state) {
		t.Errorf("%v; advice %q", err, advice)
	}
	if left := remains(state); len(left) > 0 {
		t.Errorf("this is left: %q", left)
	}
}

// TestRefusals: another version, another program, no program and a machine without KVM are each told apart, with
// what to do.
func TestRefusals(t *testing.T) {
	bin := programs(t)
	for name, tt := range map[string]struct {
		options msbtest.Options
		want    string
	}{
		"older":  {msbtest.Options{Version: "0.6.18"}, "version 0.6.18, which Sandlot does not know"},
		"newer":  {msbtest.Options{Version: "0.8.0"}, "version 0.8.0, which Sandlot does not know"},
		"server": {msbtest.Options{Version: "server 0.2.6"}, "not microsandbox's, or an old one"},
		"no kvm": {msbtest.Options{Doctor: "CPU virtualization is not available"}, "offers no virtual machines"},
		"lies": {msbtest.Options{Create: "failed\n → run `msb logs --source system x` for full diagnostics",
			Log: "ERROR msb_krun: KVM_EXIT_INTERNAL_ERROR"}, "runs no virtual machine"},
		"library": {msbtest.Options{Create: "libkrunfw not found"}, "libkrunfw, is missing"},
		"flag":    {msbtest.Options{Create: "unexpected argument '--vsock' found"}, "lacks a flag"},
	} {
		t.Run(name, func(t *testing.T) {
			state := stateFolder(t)
			r := open(t, state, msbtest.Install(t, bin, tt.options))
			defer r.Close()
			err := r.Check(t.Context())
			if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(sandbox.Advice(err), tt.want) {
				t.Errorf("%v; advice %q, want %q", err, sandbox.Advice(err), tt.want)
			}
			if left := remains(state); len(left) > 0 {
				t.Errorf("this is left: %q", left)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Setenv("PATH", "/nonexistent")
		t.Setenv("HOME", t.TempDir())
		r := open(t, stateFolder(t), "")
		defer r.Close()
		_, err := r.Create(t.Context(), (&sandboxtest.Subject{Template: ofImage(t)}).Spec())
		if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(sandbox.Advice(err), "msb is missing") {
			t.Errorf("%v", err)
		}
	})
}

// TestErrors: what msb complains of is told in Sandlot's words.
func TestErrors(t *testing.T) {
	full := explain(&complaint{"create", "error: io: No space left on device (os error 28)", errors.New("exit status 1")})
	if e, ok := errors.AsType[*sandbox.Explained](full); !ok || !strings.Contains(e.Words, "disk") {
		t.Errorf("a full disk: %v", full)
	}
	many := explain(&complaint{"create", "error: Too many open files", errors.New("exit status 1")})
	if !errors.Is(many, sandbox.ErrLater) || !errors.Is(many, sandbox.ErrNoProcess) {
		t.Errorf("no descriptors: %v", many)
	}
	other := explain(&complaint{"create", "error: something \x1b[31mnew", errors.New("exit status 1")})
	if errors.Is(other, sandbox.ErrUnavailable) || strings.Contains(other.Error(), "\x1b") {
		t.Errorf("another error: %q", other)
	}
}

// TestFullDisk: on a full disk no machine is made, the error says so, and nothing is left.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root mounts a small disk")
	}
	s := sandboxtest.Subject{Template: ofImage(t)}
	state := stateFolder(t)
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(state, unix.MNT_DETACH)
	r := open(t, state, msbtest.Install(t, programs(t), msbtest.Options{}))
	defer r.Close()
	if _, err := r.Image(t.Context(), msbtest.Image, nil); err != nil {
		t.Fatal(err)
	}
	fill, err := os.Create(filepath.Join(state, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = fill.Write(make([]byte, 1024))
	}
	fill.Close()
	_, err = r.Create(t.Context(), s.Spec())
	e, ok := errors.AsType[*sandbox.Explained](err)
	if !ok || !strings.Contains(e.Words, "disk") {
		t.Errorf("the error: %v", err)
	}
	if left := remains(state); len(left) > 0 {
		t.Errorf("this is left: %q", left)
	}
}

// TestArguments: a machine has no network, no port and no other way out, and its secret and environment are in no
// argument.
func TestArguments(t *testing.T) {
	r := open(t, stateFolder(t), "/bin/true")
	defer r.Close()
	spec := (&sandboxtest.Subject{Template: ofImage(t)}).Spec()
	spec.Secret = []byte(strings.Repeat("s", 32))
	spec.Limits.CPUs = 1.5
	template := *spec.Template
	template.User = image.User{UID: 1000, GID: 1001}
	template.Env = map[string]string{"TOKEN": "treasure"}
	spec.Template = &template
	spec.Mounts = []sandbox.Mount{{Source: "/w", Target: "/workspace"}, {Source: "/r", Target: "/data", ReadOnly: true},
		{Source: "/s", Target: "/shared", Shared: true}}
	b := newBox(r, spec)
	b.agent = "/agent"
	all := strings.Join(b.arguments("image", "instance"), " ")
	for _, want := range []string{"--no-net", "--cpus 2", "--memory 672M", "--root-disk 256M", "--pull never",
		"/sock/agent.sock:5000", "--mount-file /agent:/.sandlot/agent:ro,nosuid,nodev",
		"--mount-dir /w:/workspace:rw,nosuid,nodev,quota=256M,uid=1000,gid=1001",
		"--mount-dir /r:/data:ro,nosuid,nodev", "--mount-dir /s:/shared:rw,nosuid,nodev ",
		"--init-env SANDLOT_AGENT_SOCKET=vsock:5000"} {
		if !strings.Contains(all+" ", want) {
			t.Errorf("%q is missing in %s", want, all)
		}
	}
	for _, never := range []string{"treasure", "7373", "--port", " -p ", "--net-", "--env"} {
		if strings.Contains(all, never) {
			t.Errorf("%q is in %s", never, all)
		}
	}
	for _, bad := range []sandbox.Mount{{Source: "/", Target: "/run/sandlot/x"}, {Source: "/tmp", Target: "/a:b"},
		{Source: "/", Target: "/.msb"}} {
		if err := checkMounts([]sandbox.Mount{bad}); err == nil {
			t.Errorf("%+v is mounted", bad)
		}
	}
	long := "/" + strings.Repeat("x", maxStateDir)
	if _, err := New(Config{StateDir: long[:maxStateDir], Log: sandboxtest.Log(t)}); err != nil {
		t.Error(err)
	}
	if _, err := New(Config{StateDir: long, Log: sandboxtest.Log(t)}); err == nil {
		t.Error("the path of a socket can be longer than the kernel allows")
	}
}

// TestTwenty: twenty machines that start at once all answer, also when the server and some machines are killed, and
// nothing of them is left. The next server takes the others over.
func TestTwenty(t *testing.T) {
	s := subject(t)
	r := s.Open(t)
	boots := map[string]string{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			b, err := r.Create(t.Context(), s.Spec())
			if err != nil {
				t.Error(err)
				return
			}
			c := agent.New(b, sandboxtest.Log(t), nil)
			defer c.Close()
			boot, err := c.Hello(t.Context())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			boots[b.Spec().ID] = boot
		})
	}
	all.Wait()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	dead := []string{}
	for id := range boots {
		if len(dead) < 3 {
			dead = append(dead, id)
			kill(t, r.(asRoot).StateDir, id)
		}
	}
	r = s.Open(t)
	defer r.Close()
	alive := sandboxtest.RecoverAll(t, r)
	if len(alive) != len(boots)-len(dead) {
		t.Errorf("%d of %d were recovered", len(alive), len(boots)-len(dead))
	}
	for _, b := range alive {
		all.Go(func() {
			c := agent.New(b, sandboxtest.Log(t), nil)
			defer c.Close()
			boot, err := c.Hello(t.Context())
			if id := b.Spec().ID; err != nil || boot != boots[id] || slices.Contains(dead, id) {
				t.Errorf("%s: booted as %s, was %s; %v", id, boot, boots[id], err)
			}
			if err := b.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if left := s.Remains(); len(left) > 0 {
		t.Errorf("this is left: %q", left)
	}
}

// TestKilledServer: a server that is killed at any moment of a machine's start leaves one that the next server takes
// over or removes. The test's program is that server.
func TestKilledServer(t *testing.T) {
	state := os.Getenv("MSB_TEST_STATE")
	if state != "" {
		r := open(t, state, os.Getenv("MSB_TEST_MSB"))
		s := sandboxtest.Subject{Template: ofImage(t)}
		if _, err := r.Create(context.Background(), s.Spec()); err != nil {
			t.Fatal(err)
		}
		fmt.Println("created")
		select {}
	}
	state = stateFolder(t)
	msb := msbtest.Install(t, programs(t), msbtest.Options{})
	taken := 0
	const whenCreated = 0
	for _, after := range []time.Duration{20, 60, 100, 150, 220, 300, 400, 600, 1000, whenCreated} {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		said, says, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p, err := os.StartProcess(self, []string{self, "-test.run=^TestKilledServer$"}, &os.ProcAttr{
			Env: append(os.Environ(), "MSB_TEST_STATE="+state, "MSB_TEST_MSB="+msb), Dir: ".",
			Files: []*os.File{nil, says, os.Stderr}, Sys: &syscall.SysProcAttr{Setsid: true}})
		says.Close()
		if err != nil {
			t.Fatal(err)
		}
		if after == whenCreated {
			var line string
			if line, err = bufio.NewReader(said).ReadString('\n'); err == nil && line != "created\n" {
				err = errors.New(line)
			}
		}
		time.Sleep(after * time.Millisecond)
		_ = p.Kill()
		_, _ = p.Wait()
		said.Close()
		if err != nil {
			t.Errorf("the server did not say that it had made a machine: %v", err)
		}
		time.Sleep(200 * time.Millisecond) // a command of msb that runs on may still begin a machine
		r := open(t, state, msb)
		for settled := false; !settled; time.Sleep(20 * time.Millisecond) { // a machine that boots cannot be taken over yet
			m, err := r.listOwn(t.Context())
			settled = err != nil || !slices.Contains(slices.Collect(maps.Values(m)), "Starting")
		}
		for _, b := range sandboxtest.RecoverAll(t, r) {
			taken++
			c := agent.New(b, sandboxtest.Log(t), nil)
			if _, err := c.Hello(t.Context()); err != nil {
				t.Errorf("killed after %dms: %v", after, err)
			}
			c.Close()
			if err := b.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if left := remains(state); len(left) > 0 {
			t.Errorf("killed after %dms, this is left: %q", after, left)
		}
	}
	if taken == 0 {
		t.Error("no machine was taken over")
	}
}
