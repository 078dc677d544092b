package docker

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent"
	"sandlot/internal/runtime/docker/dockertest"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// create makes a sandbox and waits for its agent.
func create(t *testing.T, s *sandboxtest.Subject, rt sandbox.Runtime) (sandbox.Sandbox, *agent.Client) {
	t.Helper()
	spec := s.Spec()
	spec.Mounts = []sandbox.Mount{{Source: t.TempDir(), Target: "/workspace"}}
	b, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	c := agent.New(b, sandboxtest.Log(t), nil)
	t.Cleanup(c.Close)
	if _, err := c.Hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b, c
}

// sum runs a cell that counts, so that its result says whether the interpreter is the same.
func sum(t *testing.T, c *agent.Client) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d, err := c.Evaluate(ctx, agent.Code{Language: "python", Source: "n = globals().get('n', 0) + 1; n",
		Timeout: time.Minute, Inline: agent.InlineBounds{Head: 100, Tail: 100}, ThroughAgent: true}, agent.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Value == nil {
		t.Fatalf("no value: %+v", d)
	}
	return string(d.Value.Head)
}

func mustStop(t *testing.T, s *sandboxtest.Subject, rt sandbox.Runtime, boxes ...sandbox.Sandbox) {
	t.Helper()
	for _, b := range boxes {
		if err := b.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
	for range 200 {
		if len(s.Remains()) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("this is left: %q", s.Remains())
}

func deadline(t *testing.T, after time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), after)
	t.Cleanup(cancel)
	return ctx
}

// TestDaemonEnds: without live-restore, sandboxes end with the daemon. Whoever waits is told, and nothing is left.
func TestDaemonEnds(t *testing.T) {
	needsRoot(t)
	d := dockertest.Start(t)
	s, _ := subject(t, d, baseTemplate())
	rt := s.Open(t)
	if w := rt.(sandbox.Warner).Warning(); !strings.Contains(w, "live-restore") {
		t.Errorf("the warning says %q", w)
	}
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		b, c := create(t, s, rt)
		sum(t, c)
		d.Signal(t, signal)
		d.Run(t)
		ctx := deadline(t, time.Minute)
		for {
			if _, err := c.Hello(ctx); errors.Is(err, sandbox.ErrGone) {
				break
			} else if ctx.Err() != nil {
				t.Fatalf("after %v a call ends with %v", signal, err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if st, err := b.Status(t.Context()); err != nil || st.State != sandbox.Dead || st.Reason == "" {
			t.Errorf("status: %+v, %v", st, err)
		}
		if err := b.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	mustStop(t, s, rt)
}

// TestForeignContainers: what others made stays, even if it has the name of a sandbox.
func TestForeignContainers(t *testing.T) {
	needsRoot(t)
	d := dockertest.Start(t)
	s, _ := subject(t, d, baseTemplate())
	other, _ := subject(t, d, baseTemplate())
	theirs := other.Open(t)
	b, _ := create(t, other, theirs)
	made, err := d.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: "sandlot-mine",
		Config:     &container.Config{Image: dockertest.BaseImage, Cmd: []string{"sleep", "1000"}},
		HostConfig: &container.HostConfig{NetworkMode: "none"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Client.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	rt := s.Open(t)
	own, _ := create(t, s, rt)
	ids, err := rt.Leftovers(t.Context())
	if err != nil || !slices.Equal(ids, []string{own.Spec().ID}) {
		t.Errorf("leftovers: %q, %v", ids, err)
	}
	for _, id := range []string{"mine", b.Spec().ID} {
		if _, err := rt.Recover(t.Context(), id); !errors.Is(err, sandbox.ErrGone) {
			t.Errorf("recovering what others made: %v", err)
		}
	}
	spec := s.Spec()
	spec.ID = "mine" // the name is taken
	if _, err := rt.Create(t.Context(), spec); err == nil {
		t.Error("made a container whose name another has")
	}
	if err := errors.Join(own.Stop(t.Context()), rt.Close()); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"sandlot-mine", nameOf(b)} {
		if d.PID(t, name) == 0 {
			t.Errorf("%s was ended", name)
		}
	}
	_, err = d.Client.ContainerRemove(t.Context(), made.ID, client.ContainerRemoveOptions{Force: true})
	if err != nil {
		t.Error(err)
	}
	mustStop(t, other, theirs, b)
}

// TestLostFolder: a container whose folder in the state folder is lost is removed at the next start.
func TestLostFolder(t *testing.T) {
	needsRoot(t)
	d := dockertest.Start(t)
	s, c := subject(t, d, baseTemplate())
	rt := s.Open(t)
	b, _ := create(t, s, rt)
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(c.StateDir, "docker", "sandboxes", b.Spec().ID)); err != nil {
		t.Fatal(err)
	}
	rt = s.Open(t)
	if found := sandboxtest.RecoverAll(t, rt); len(found) != 0 {
		t.Errorf("recovered %d", len(found))
	}
	mustStop(t, s, rt)
}

// TestSecret: the agent's secret is not among what the daemon shows and stores, and its file is gone once the agent
// has dialed.
func TestSecret(t *testing.T) {
	needsRoot(t)
	d := dockertest.Start(t)
	s, c := subject(t, d, baseTemplate())
	rt := s.Open(t)
	b, _ := create(t, s, rt)
	found, err := d.Client.ContainerInspect(t.Context(), nameOf(b), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(found.Container)
	if err != nil || !bytes.Contains(text, []byte("SANDLOT_AGENT_BOOT")) {
		t.Fatalf("%v: %s", err, text)
	}
	if bytes.Contains(text, []byte(hex.EncodeToString(b.Spec().Secret))) {
		t.Error("the daemon shows the secret")
	}
	sock := filepath.Join(c.StateDir, "docker", "sandboxes", b.Spec().ID, "sock")
	if files, err := os.ReadDir(sock); err != nil || len(files) != 1 {
		t.Errorf("in the socket's folder: %v, %v", files, err)
	}
	mustStop(t, s, rt, b)
}

// TestDaemonSocket: no folder with the daemon's socket gets into a sandbox.
func TestDaemonSocket(t *testing.T) {
	needsRoot(t)
	d := dockertest.Start(t)
	s, _ := subject(t, d, baseTemplate())
	rt := s.Open(t)
	dir := filepath.Dir(strings.TrimPrefix(d.Host, "unix://"))
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{dir, filepath.Dir(dir), "/", link} {
		spec := s.Spec()
		spec.Mounts = []sandbox.Mount{{Source: source, Target: "/data", ReadOnly: true}}
		if b, err := rt.Create(t.Context(), spec); err == nil {
			t.Errorf("%s was mounted", source)
			b.Stop(t.Context())
		}
	}
	mustStop(t, s, rt)
}

// TestDiskLimit: a sandbox that writes more than it may into its workspace, or into the folders for temporary files,
// is ended.
func TestDiskLimit(t *testing.T) {
	needsRoot(t)
	d := dockertest.Start(t)
	s, _ := subject(t, d, baseTemplate())
	rt := s.Open(t)
	for _, dir := range []string{"/workspace", "/tmp"} {
		b, c := create(t, s, rt)
		line := "for i in 1 2 3 4 5 6; do head -c 100000000 /dev/zero > " + dir + "/$i; done; sleep 100"
		_, err := c.Exec(t.Context(), agent.Exec{Command: agent.Command{Args: []string{"/bin/bash", "-c", line}},
			Timeout: 2 * time.Minute, Inline: agent.InlineBounds{Head: 100, Tail: 100}}, agent.Observer{})
		if err == nil {
			t.Errorf("600 MB fit into %s, where 256 MB are allowed", dir)
		}
		st, err := b.Status(t.Context())
		for range 200 { // the link breaks before the daemon has noted the end
			if err != nil || st.State == sandbox.Dead {
				break
			}
			time.Sleep(50 * time.Millisecond)
			st, err = b.Status(t.Context())
		}
		if err != nil || st.Reason != "disk" {
			t.Errorf("%s: status %+v, %v", dir, st, err)
		}
		if err := b.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	mustStop(t, s, rt)
}

// TestSave: what a build writes is in the image that is made of it, and nothing else.
func TestSave(t *testing.T) {
	needsRoot(t)
	d := dockertest.Start(t)
	s, _ := subject(t, d, baseTemplate())
	rt := s.Open(t)
	spec := s.Spec()
	spec.Build, spec.OrphanTimeout = true, time.Hour
	b, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	c := agent.New(b, sandboxtest.Log(t), nil)
	got := shell(t, c, "echo built > /opt/built && echo x > /tmp/x && echo w > /workspace/w && cat /opt/built")
	if got != "built" {
		t.Fatalf("in the build: %q", got)
	}
	saved, err := rt.(sandbox.Imager).Save(t.Context(), b, "sandlot-test/built:1")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(saved.Env, "FROM_IMAGE=yes") || slices.ContainsFunc(saved.Env,
		func(kv string) bool { return strings.HasPrefix(kv, agentVariables) }) {
		t.Errorf("the environment of the saved image: %q", saved.Env)
	}
	c.Close()
	if err := b.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	again, err := rt.(sandbox.Imager).Image(t.Context(), "sandlot-test/built:1", nil)
	if err != nil || again.ID != saved.ID {
		t.Errorf("the saved image: %+v, %v", again, err)
	}
	spec = s.Spec()
	template := *spec.Template
	template.Image, template.ImageID = "sandlot-test/built:1", saved.ID
	spec.Template = &template
	if b, err = rt.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	c = agent.New(b, sandboxtest.Log(t), nil)
	got = shell(t, c, "cat /opt/built; ls /tmp/x /workspace/w 2>/dev/null; touch /opt/new 2>/dev/null || echo closed")
	if got != "built\nclosed" {
		t.Errorf("in a sandbox of the saved image: %q", got)
	}
	c.Close()
	mustStop(t, s, rt, b)
}

// shell runs a shell line and returns its output.
func shell(t *testing.T, c *agent.Client, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d, err := c.Exec(ctx, agent.Exec{Command: agent.Command{Args: []string{"/bin/bash", "-c", line}},
		Timeout: time.Minute, Inline: agent.InlineBounds{Head: 4096, Tail: 4096}}, agent.Observer{})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return strings.TrimSpace(string(d.Stdout.Head) + string(d.Stdout.Tail) + string(d.Stderr.Head))
}
