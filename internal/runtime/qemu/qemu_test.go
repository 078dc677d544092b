//go:build linux && !mac

package qemu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/image"
	"sandlot/internal/image/imagetest"
	"sandlot/internal/proc"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// kernelOf returns the kernel that test/microvm has fetched: the machine of the tests may have none in /boot.
func kernelOf(t *testing.T) string {
	t.Helper()
	tools := os.Getenv("SANDLOT_TEST_TOOLS")
	if tools == "" {
		var err error
		if tools, err = filepath.Abs("../../../.tools"); err != nil {
			t.Fatal(err)
		}
	}
	found, _ := filepath.Glob(filepath.Join(tools, "kernel/boot/vmlinuz-*"))
	if len(found) == 0 {
		t.Fatal("there is no kernel for virtual machines: run test/microvm")
	}
	return found[0]
}

// testImage is the file with the root file system of all sandboxes of the tests.
var testImage = sync.OnceValue(func() string { return filepath.Join(os.TempDir(), "sandlot-qemu-test.erofs") })

var imageMade sync.Once

// debian returns the template of all tests: a small Debian.
func debian(t *testing.T) *image.Template {
	t.Helper()
	imageMade.Do(func() { imagetest.Write(t, testImage(), imagetest.File(imagetest.BaseArchive(t))) })
	template := &image.Template{Name: "debian", Image: "debian", RootfsImage: testImage(),
		Env: map[string]string{"TERM": "xterm"}, Languages: []image.Language{
			{Name: "python", Driver: "python", Command: []string{"/usr/bin/python3"}, Extension: ".py"},
			{Name: "bash", Driver: "bash", Command: []string{"/bin/bash"}, Extension: ".sh"}}}
	template.AddDefaultEnv()
	return template
}

func TestMain(m *testing.M) {
	code := m.Run()
	os.Remove(testImage())
	os.Exit(code)
}

func config(t *testing.T, state string) Config {
	t.Helper()
	path, err := filepath.Abs("../../../bin/sandlot-agent")
	if err != nil {
		t.Fatal(err)
	}
	return Config{Kernel: kernelOf(t), Emulate: true, Agent: path, StateDir: state, Log: sandboxtest.Log(t)}
}

func open(t *testing.T, c Config) *Runtime {
	t.Helper()
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// subject returns the runtime as the suite tests it.
func subject(t *testing.T) *sandboxtest.Subject {
	t.Helper()
	state := t.TempDir()
	return &sandboxtest.Subject{
		Open:    func(t *testing.T) sandbox.Runtime { return open(t, config(t, state)) },
		Remains: func() []string { return remains(state) },
		Kill: func(t *testing.T, b sandbox.Sandbox) {
			killMachine(t, filepath.Join(state, "qemu/sandboxes", b.Spec().ID))
		},
		VersionText: "cloud-amd64",
		Template:    debian(t),
		Capable:     true,
	}
}

// remains lists the processes and the folders of sandboxes.
func remains(state string) (all []string) {
	for _, pid := range proc.PIDs() {
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, lockFD)); err == nil && proc.State(pid) != 'Z' &&
			strings.HasPrefix(to, state+"/qemu/") {
			all = append(all, fmt.Sprintf("process %d of %s", pid, to))
		}
	}
	for _, pattern := range []string{"qemu/sandboxes/*", "qemu/" + trialPrefix + "*"} {
		found, _ := filepath.Glob(filepath.Join(state, pattern))
		all = append(all, found...)
	}
	return all
}

func killMachine(t *testing.T, dir string) {
	t.Helper()
	pid := findProcess(dir)
	if pid == 0 {
		t.Fatal("no QEMU has the folder", dir)
	}
	kill(pid)
	for range 500 {
		if proc.State(pid) == 'Z' {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("QEMU does not die")
}

// TestLife: a sandbox boots in a machine, runs programs, sees no disk, port and network of its machine, is taken over by the
// next server, and leaves nothing.
func TestLife(t *testing.T) {
	s := subject(t)
	rt := s.Open(t)
	spec := s.Spec()
	spec.Limits.MemoryBytes = 256 << 20
	b, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if left := s.Remains(); len(left) > 0 {
			t.Errorf("this is left: %q", left)
		}
	})
	c := linked(t, b)
	first, err := c.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, c, "cat /proc/version"); !strings.Contains(got, s.VersionText) {
		t.Fatal("this is no machine:", got)
	}
	for line, want := range map[string]string{
		"python3 -c 'print(6*7)'":                                   "42",
		"ls /dev | grep -c '^vd\\|^vport\\|^mem\\|^kmsg' || true":   "0",
		"tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '":        "lo",
		"echo x > /usr/bin/new && cat /usr/bin/new":                 "x",
		"mount -t tmpfs x /mnt 2>/dev/null || echo refused":         "refused",
		"mknod /tmp/d b 254 0 2>/dev/null || echo refused":          "refused",
		"touch /run/sandlot/new 2>/dev/null || echo refused":        "refused",
		"{ echo b > /proc/sysrq-trigger; } 2>/dev/null; echo lives": "lives",
	} {
		if got := shell(t, c, line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	c.Close()
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	rt = s.Open(t)
	defer rt.Close()
	found := sandboxtest.RecoverAll(t, rt)
	if len(found) != 1 {
		t.Fatalf("recovered %d sandboxes", len(found))
	}
	b = found[0]
	c = linked(t, b)
	defer c.Close()
	if again, err := c.Hello(t.Context()); err != nil || again != first {
		t.Errorf("the next server has another agent: %s, was %s, %v", again, first, err)
	}
}

// linked waits for the agent of a sandbox.
func linked(t *testing.T, b sandbox.Sandbox) *agent.Client {
	t.Helper()
	c := agent.New(b, sandboxtest.Log(t), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := c.Wait(ctx); err != nil {
		c.Close()
		t.Fatal(err, b.(*box).console(context.Background()))
	}
	return c
}

// shell runs a line of shell code in a sandbox, and returns its output.
func shell(t *testing.T, c *agent.Client, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	d, err := c.Exec(ctx, agent.Exec{Command: agent.Command{Args: []string{"/bin/bash", "-c", line}}, Timeout: 2 * time.Minute,
		Inline: agent.InlineBounds{Head: 16 << 10, Tail: 1 << 10}}, agent.Observer{})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return string(bytes.TrimSpace(bytes.Join([][]byte{d.Stdout.Head, d.Stdout.Tail, d.Stderr.Head}, nil)))
}
