package docker

import (
	"os"
	"path/filepath"
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
	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(bin, "sandlot-agent")
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
	box, _ := boxOf(b)
	return box.name
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
	s.Run(t)
}

// TestSandboxes has the tests of this package's own whose daemon goes on.
func TestSandboxes(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	d := dockertest.Start(t)
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
		t.Run(name, func(t *testing.T) { test(t, d) })
	}
}
