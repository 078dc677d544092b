package docker

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sandlot/internal/image"
	"sandlot/internal/runtime/docker/dockertest"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/secret"
)

// proofFile is a file that only the sandboxes of a test have.
const proofFile = "etc/sandlot-proof"

// subject returns the runtime with that daemon, as the suite wants it, and the configuration of each that it opens.
func subject(t *testing.T, d *dockertest.Daemon, template *image.Template) (*sandboxtest.Subject, Config) {
	t.Helper()
	agent, err := filepath.Abs(cmp.Or(os.Getenv("SANDLOT_TEST_AGENT"), "../../../bin/sandlot-agent"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(agent); err != nil {
		t.Fatalf("%v; run `make build`", err)
	}
	state, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	proof := secret.ID()
	template.AddFiles(map[string][]byte{proofFile: []byte(proof + "\n")}, nil)
	c := Config{Host: d.Host, Agent: agent, StateDir: state, Log: sandboxtest.Log(t)}
	return &sandboxtest.Subject{
		Open: func(t *testing.T) sandbox.Runtime {
			r, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			return r
		},
		Remains: func() []string {
			folders, _ := filepath.Glob(filepath.Join(state, "docker", "sandboxes", "*"))
			return append(folders, d.Remains()...)
		},
		Kill:         func(t *testing.T, b sandbox.Sandbox) { d.Kill(t, nameOf(b)) },
		ProofCommand: "cat /" + proofFile,
		VersionText:  proof,
		SharedKernel: true, NoQuota: true,
		Template: template,
	}, c
}

// nameOf returns the name of a sandbox's container.
func nameOf(b sandbox.Sandbox) string {
	return b.(*box).name
}

// baseTemplate returns a template of the base image.
func baseTemplate() *image.Template {
	t := &image.Template{Name: "base", Image: dockertest.BaseImage, Provides: []string{"python", "node"},
		Env: map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Languages: []image.Language{
			{Name: "python", Driver: "python", Command: []string{"/usr/bin/python3"}, Extension: ".py"},
			{Name: "node", Driver: "node", Command: []string{"/usr/bin/node"}, Extension: ".mjs"},
			{Name: "bash", Driver: "bash", Command: []string{"/bin/bash"}, Extension: ".sh"}}}
	t.AddDefaultEnv()
	return t
}

func needsRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an unprivileged user cannot start Docker's daemon")
	}
}

// The tests of one daemon run one after another, and each leaves nothing on it. Those of other daemons run beside them:
// they mostly wait.

// TestImageSuite passes with sandboxes of an image.
func TestImageSuite(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	s, _ := subject(t, dockertest.Start(t, "--live-restore"), baseTemplate())
	s.Run(t)
}

// TestHostSuite passes with sandboxes of the machine's own programs.
func TestHostSuite(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	host, err := image.Host()
	if err != nil {
		t.Fatal(err)
	}
	s, _ := subject(t, dockertest.Start(t, "--live-restore"), host)
	s.Again = true
	s.Run(t)
}

// TestPodman passes the suite, and this package's own tests, with Podman's service.
func TestPodman(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	d := dockertest.StartPodman(t)
	s, _ := subject(t, d, baseTemplate())
	s.Again = true
	s.Run(t)
	// Podman keeps no labels of volumes without a name, and so not LostContainer.
	runSandboxes(t, d, "LostContainer")
}

// TestRemapped passes the suite, and this package's own tests, with a daemon that maps users.
func TestRemapped(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	d := dockertest.StartRemapped(t)
	s, _ := subject(t, d, baseTemplate())
	s.Again = true
	s.Run(t)
	runSandboxes(t, d, "ForeignContainers", "LostFolder", "LostContainer") // no users are in these
}

// TestRootlessDaemon passes the suite with a rootless daemon, and a server of the same user.
func TestRootlessDaemon(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	d := dockertest.StartRootless(t)
	dir, err := os.MkdirTemp("", "sandlot-rootless-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, agent, tmp := filepath.Join(dir, "suite"), filepath.Join(dir, "sandlot-agent"), filepath.Join(dir, "tmp")
	copyProgram(t, self, program)
	copyProgram(t, "../../../bin/sandlot-agent", agent)
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(tmp, 0o700),
		os.Chown(tmp, dockertest.Nobody, dockertest.Nobody)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestRootlessServer$", "-test.v", "-test.timeout=5m")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp, "SANDLOT_TEST_AGENT=" + agent,
		"SANDLOT_TEST_ROOTLESS=" + d.Host, "SANDLOT_TEST_LOG=" + os.Getenv("SANDLOT_TEST_LOG")}
	cmd.Dir = tmp
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: dockertest.Nobody,
		Gid: dockertest.Nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestRootlessServer/Isolation") {
		t.Errorf("%v\n%s", err, out)
	}
	s, _ := subject(t, d, baseTemplate())
	rt := s.Open(t)
	if err := rt.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "is that of the user 65534") {
		t.Errorf("a server that is another user than the daemon: %v", err)
	}
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRootlessServer runs as the user of a rootless daemon, in a process that TestRootlessDaemon starts.
func TestRootlessServer(t *testing.T) {
	host := os.Getenv("SANDLOT_TEST_ROOTLESS")
	if host == "" {
		t.Skip("TestRootlessDaemon runs it")
	}
	d := dockertest.Use(t, host)
	s, _ := subject(t, d, baseTemplate())
	s.Again = true
	rt := s.Open(t)
	if err := rt.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.NoLimits = !rt.(*Runtime).known().hasLimits
	if w := rt.Capabilities().Doctor.Warning(); s.NoLimits != strings.Contains(w, "the kernel bounds not all") {
		t.Errorf("the warning says %q", w)
	}
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
	s.Run(t)
	for name, test := range map[string]func(*testing.T, *dockertest.Daemon){"LostState": lostState,
		"DaemonSocket": daemonSocket, "DiskLimit": diskLimit, "Save": saveImage} {
		t.Run(name, func(t *testing.T) { test(t, d) })
	}
}

// TestSandboxes has the tests of this package's own whose daemon goes on.
func TestSandboxes(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	runSandboxes(t, dockertest.Start(t))
}

// runSandboxes runs the tests of this package's own whose daemon goes on, but some.
func runSandboxes(t *testing.T, d *dockertest.Daemon, but ...string) {
	for name, test := range map[string]func(*testing.T, *dockertest.Daemon){
		"ForeignContainers": foreignContainers,
		"LostFolder":        lostFolder,
		"LostContainer":     lostContainer,
		"LostState":         lostState,
		"Secret":            secretIsHidden,
		"DaemonSocket":      daemonSocket,
		"DiskLimit":         diskLimit,
		"Save":              saveImage,
		"HostileImages":     imposeImages,
		"Submounts":         mountBelow,
	} {
		if slices.Contains(but, name) {
			continue
		}
		t.Run(name, func(t *testing.T) { test(t, d) })
	}
}
