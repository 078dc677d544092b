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
	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/docker/dockertest"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/tree"
)

// create makes a sandbox and waits for its agent.
func create(t *testing.T, s *sandboxtest.Subject, rt sandbox.Runtime) (sandbox.Sandbox, *agent.Client) {
	t.Helper()
	spec := s.Spec()
	spec.Mounts = []sandbox.Mount{{Source: t.TempDir(), Target: "/workspace"}}
	giveTo(t, rt, spec.Template.User, spec.Mounts[0].Source)
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

// giveTo makes a workspace belong to a user of sandboxes, as the pool does.
func giveTo(t *testing.T, rt sandbox.Runtime, u image.User, dir string) {
	t.Helper()
	uid, gid := sandboxtest.HostUser(t, rt, u)
	if err := tree.SetOwner(t.Context(), dir, uid, gid); err != nil {
		t.Fatal(err)
	}
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

// TestDaemonKilled: with live-restore, calls go on while the daemon is away, and nobody takes the sandbox for dead.
// The next daemon has the sandbox with its variables, and tells when it ends.
func TestDaemonKilled(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	d := dockertest.Start(t, "--live-restore")
	s, _ := subject(t, d, baseTemplate())
	rt := s.Open(t)
	b, c := create(t, s, rt)
	first := sum(t, c)
	for _, signal := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		d.Signal(t, signal)
		for range 20 {
			sum(t, c)
		}
		if _, err := b.Status(t.Context()); err == nil || errors.Is(err, sandbox.ErrGone) {
			t.Errorf("status while the daemon is away: %v", err)
		}
		d.Run(t)
		if st, err := b.Status(t.Context()); err != nil || st.State != sandbox.Running {
			t.Errorf("status after the daemon's restart: %+v, %v", st, err)
		}
	}
	if last := sum(t, c); first != "1" || last != "42" {
		t.Errorf("the interpreter is another: it counts %s, and %s at the end", first, last)
	}
	d.Kill(t, nameOf(b))
	awaitGone(t, c)
	if st, err := b.Status(t.Context()); err != nil || st.State != sandbox.Dead || st.Reason != "killed" {
		t.Errorf("status of the sandbox that was killed: %+v, %v", st, err)
	}
	mustStop(t, s, rt, b)
}

// awaitGone waits until calls end with sandbox.ErrGone.
func awaitGone(t *testing.T, c *agent.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		_, err := c.Hello(ctx)
		if errors.Is(err, sandbox.ErrGone) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("a call ends with %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestDaemonEnds: without live-restore, sandboxes end with the daemon. Whoever waits is told, and nothing is left.
func TestDaemonEnds(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	d := dockertest.Start(t)
	s, _ := subject(t, d, baseTemplate())
	rt := s.Open(t)
	if w := rt.Capabilities().Doctor.Warning(); !strings.Contains(w, "live-restore") {
		t.Errorf("the warning says %q", w)
	}
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		b, c := create(t, s, rt)
		sum(t, c)
		d.Signal(t, signal)
		d.Run(t)
		awaitGone(t, c)
		if st, err := b.Status(t.Context()); err != nil || st.State != sandbox.Dead || st.Reason == "" {
			t.Errorf("status: %+v, %v", st, err)
		}
		if err := b.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	mustStop(t, s, rt)
}

// foreignContainers: what others made stays, even if it has the name of a sandbox.
func foreignContainers(t *testing.T, d *dockertest.Daemon) {
	s, _ := subject(t, d, baseTemplate())
	other, _ := subject(t, d, baseTemplate())
	theirs := other.Open(t)
	b, _ := create(t, other, theirs)
	made, err := d.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: "sandlot-mine",
		Config: &container.Config{Image: dockertest.BaseImage, Cmd: []string{"sleep", "1000"}},
		HostConfig: &container.HostConfig{NetworkMode: "none", // Podman's own limits may be more than it may set
			Resources: container.Resources{Ulimits: []*container.Ulimit{{Name: "nofile", Soft: 1024, Hard: 1024},
				{Name: "nproc", Soft: proc.MaxProcesses(), Hard: proc.MaxProcesses()}}}}})
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

// lostFolder: a container whose folder in the state folder is lost is removed at the next start.
func lostFolder(t *testing.T, d *dockertest.Daemon) {
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

// lostState: a sandbox whose state folder was deleted is found, and ended. One whose folder only cannot be seen from
// here is not, nor one of another folder.
func lostState(t *testing.T, d *dockertest.Daemon) {
	other, otherConfig := subject(t, d, baseTemplate())
	theirs := other.Open(t)
	kept, _ := create(t, other, theirs)
	s, c := subject(t, d, baseTemplate())
	rt := s.Open(t)
	b, client := create(t, s, rt)
	client.Close()
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	lost := func(when string, want ...string) {
		t.Helper()
		all, err := Lost(t.Context(), c)
		if err != nil || len(all[otherConfig.StateDir]) > 0 || len(all[c.StateDir]) != len(want) {
			t.Errorf("%s: %+v, %v", when, all, err)
		}
		for i, p := range all[c.StateDir] {
			if p.ID != want[i] || p.PID != d.PID(t, nameOf(b)) || p.Template != "base" || p.MemoryBytes == 0 ||
				p.Since.IsZero() {
				t.Errorf("%s: %+v", when, p)
			}
		}
	}
	end := func(when string, c Config, want int) {
		t.Helper()
		if n, err := EndLost(t.Context(), c); n != want || err != nil {
			t.Errorf("%s: %d were ended, %v", when, n, err)
		}
	}
	lost("with its folder")
	elsewhere := c.StateDir + "-elsewhere" // as the folder of a server in another mount namespace
	if err := os.Rename(c.StateDir, elsewhere); err != nil {
		t.Fatal(err)
	}
	lost("with a folder that cannot be seen")
	end("with a folder that cannot be seen", c, 0)
	if err := os.RemoveAll(elsewhere); err != nil {
		t.Fatal(err)
	}
	lost("without its folder", b.Spec().ID)
	end("of another folder", otherConfig, 0)
	lost("without its folder", b.Spec().ID)
	end("without its folder", c, 1)
	lost("after its end")
	if d.PID(t, nameOf(kept)) == 0 {
		t.Error("a sandbox with a folder was ended")
	}
	mustStop(t, other, theirs, kept)
}

// lostContainer: the volumes of a container that the daemon has forgotten go with the sandbox, and no others.
func lostContainer(t *testing.T, d *dockertest.Daemon) {
	s, _ := subject(t, d, baseTemplate())
	rt := s.Open(t)
	b, _ := create(t, s, rt)
	other, _ := create(t, s, rt)
	// As a daemon does that is killed while it removes a container.
	_, err := d.Client.ContainerRemove(t.Context(), nameOf(b), client.ContainerRemoveOptions{Force: true})
	if err != nil {
		t.Fatal(err)
	}
	volumes := func() int {
		list, err := d.Client.VolumeList(t.Context(), client.VolumeListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	before := volumes()
	if err := b.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if after := volumes(); before == 0 || after != before/2 {
		t.Errorf("%d volumes of two sandboxes, and %d without the first", before, after)
	}
	mustStop(t, s, rt, other)
}

// secretIsHidden: the agent's secret is not among what the daemon shows and stores, and its file is gone once the agent
// has dialed.
func secretIsHidden(t *testing.T, d *dockertest.Daemon) {
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

// daemonSocket: no folder with the daemon's socket gets into a sandbox.
func daemonSocket(t *testing.T, d *dockertest.Daemon) {
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
		b, err := rt.Create(t.Context(), spec)
		if err == nil {
			b.Stop(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), "the folder "+source) ||
			!strings.Contains(err.Error(), "a sandbox would be root on this machine") {
			t.Errorf("%s: %v", source, err)
		}
	}
	mustStop(t, s, rt)
}

// diskLimit: a sandbox that writes more than it may into its workspace, or into the folders for temporary files,
// is ended, also if it uses no processor time. One that finds too much in its workspace can remove it.
func diskLimit(t *testing.T, d *dockertest.Daemon) {
	s, _ := subject(t, d, baseTemplate())
	rt := s.Open(t)
	rt.(*Runtime).idleInterval = time.Second
	for _, dir := range []string{"/workspace", "/tmp"} {
		b, c := create(t, s, rt)
		// After the start it uses next to no processor time.
		line := "sleep 3; for i in 1 2 3 4 5 6; do fallocate -l 100000000 " + dir + "/$i; done; exec sleep 100"
		if dir == "/tmp" {
			line = strings.ReplaceAll(line, "fallocate -l 100000000 ", "head -c 100000000 /dev/zero > ")
		}
		endsFull(t, b, c, line)
	}
	workspace := t.TempDir()
	deep, err := unix.Open(workspace, unix.O_PATH|unix.O_CLOEXEC, 0)
	for range tree.SandboxLimits.Depth + 10 {
		if err != nil {
			t.Fatal(err)
		}
		next := -1
		if err = unix.Mkdirat(deep, "d", 0o777); err == nil {
			next, err = unix.Openat(deep, "d", unix.O_PATH|unix.O_CLOEXEC, 0)
		}
		unix.Close(deep)
		deep = next
	}
	defer unix.Close(deep)
	f, err := os.Create(filepath.Join(workspace, "large"))
	if err = errors.Join(err, unix.Fallocate(int(f.Fd()), 0, 0, 400_000_000), f.Close()); err != nil {
		t.Fatal(err)
	}
	spec := s.Spec()
	spec.Mounts = []sandbox.Mount{{Source: workspace, Target: "/workspace"}}
	giveTo(t, rt, spec.Template.User, workspace)
	b, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	c := agent.New(b, sandboxtest.Log(t), nil)
	defer c.Close()
	// The pauses are for several looks.
	got := shell(t, c, "cd /workspace; sleep 3; rm -r d && ls; sleep 3; rm large; ls -A")
	if got != "large\n.local" {
		t.Errorf("in a sandbox whose workspace was full: %q", got)
	}
	endsFull(t, b, c, "cd /workspace; for i in 1 2 3; do fallocate -l 200000000 $i; done; exec sleep 100")
	mustStop(t, s, rt)
}

// endsFull runs a shell line in a sandbox that is ended for what the line writes.
func endsFull(t *testing.T, b sandbox.Sandbox, c *agent.Client, line string) {
	t.Helper()
	_, err := c.Exec(t.Context(), agent.Exec{Command: agent.Command{Args: []string{"/bin/bash", "-c", line}},
		Timeout: time.Minute, Inline: agent.InlineBounds{Head: 100, Tail: 100}}, agent.Observer{})
	if err == nil {
		t.Errorf("more than 256 MB are allowed: %s", line)
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
		t.Errorf("%s: status %+v, %v", line, st, err)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// saveImage: what a build writes is in the image that is made of it, and nothing else.
func saveImage(t *testing.T, d *dockertest.Daemon) {
	s, _ := subject(t, d, baseTemplate())
	rt := s.Open(t)
	images := rt.Capabilities().Images
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
	if got := shell(t, c, s.ProofCommand+" && "+sandboxtest.OtherSockets); got != s.VersionText+"\nno others" {
		t.Errorf("sockets in the build: %q", got)
	}
	saved, err := images.Save(t.Context(), b, "sandlot-test/built:1")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(saved.Env, "FROM_IMAGE=yes") || slices.ContainsFunc(saved.Env,
		func(kv string) bool { return strings.HasPrefix(kv, wire.EnvPrefix) }) {
		t.Errorf("the environment of the saved image: %q", saved.Env)
	}
	hostile := saveHostile(t, rt.(*Runtime), b)
	c.Close()
	if err := b.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	checkEnvironment(t, d, s, rt, hostile)
	again, err := images.Image(t.Context(), "sandlot-test/built:1", nil)
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
	for _, theirs := range []string{"sandlot-test/built:theirs", "sandlot-test/other:1"} {
		if _, err := d.Client.ImageTag(t.Context(), client.ImageTagOptions{Source: dockertest.BaseImage,
			Target: theirs}); err != nil {
			t.Fatal(err)
		}
	}
	var told []string
	remove := func(why string, removed bool, keep ...string) {
		t.Helper()
		if err := images.RemoveSaved(t.Context(), func(name, id string) bool {
			told = append(told, name)
			return slices.Contains(keep, id)
		}); err != nil {
			t.Error(err)
		}
		if _, err := d.Client.ImageInspect(t.Context(), saved.ID); isMissing(err) != removed {
			t.Errorf("%s: %v", why, err)
		}
	}
	theirs := saveOthers(t, rt.(*Runtime), b)
	lost, err := images.Save(t.Context(), b, "sandlot-test/built:2")
	if err == nil {
		_, err = images.Save(t.Context(), b, "sandlot-test/built:2")
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := images.Find(t.Context(), "sandlot-test/theirs:1"); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("the image of another instance: %v", err)
	}
	if found, err := images.Find(t.Context(), "sandlot-test/built:1"); err != nil || found.ID != saved.ID {
		t.Errorf("the saved image by its name: %+v, %v", found, err)
	}
	remove("with a sandbox of it", false)
	if _, err := d.Client.ImageInspect(t.Context(), lost.ID); !isMissing(err) {
		t.Errorf("an image that has lost its name: %v", err)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	remove("one to keep", false, saved.ID)
	for _, id := range theirs { // while there are these, the daemon keeps the image that they are made of
		if _, err := d.Client.ImageRemove(t.Context(), id, client.ImageRemoveOptions{}); err != nil {
			t.Errorf("an image of others: %v", err)
		}
	}
	remove("an earlier build", true)
	slices.Sort(told)
	if !slices.Equal(slices.Compact(told), []string{"sandlot-test/built:1", "sandlot-test/built:2"}) {
		t.Errorf("names of what was saved: %q", told)
	}
	for _, theirs := range []string{"sandlot-test/built:theirs", "sandlot-test/other:1"} {
		if _, err := d.Client.ImageInspect(t.Context(), theirs); err != nil {
			t.Errorf("an image of others: %v", err)
		}
	}
	_, err = images.Image(t.Context(), saved.ID, nil)
	if !errors.Is(err, sandbox.ErrNoImage) { // and not an error of a registry that was asked
		t.Errorf("an ID that is not there: %v", err)
	}
	mustStop(t, s, rt)
}

// saveOthers makes images of a sandbox of a saved image, with its labels, as others may: with a name, without one, and
// as another instance does. It returns their ids.
func saveOthers(t *testing.T, r *Runtime, b sandbox.Sandbox) (ids []string) {
	t.Helper()
	for name, labels := range map[string]map[string]string{"mine:1": nil, "": nil,
		"sandlot-test/theirs:1": {labelSaved: "another", labelName: "sandlot-test/theirs:1"}} {
		id, err := r.commit(t.Context(), nameOf(b), name, "somebody's", &container.Config{Labels: labels})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// saveHostile makes an image of a sandbox, which has variables of the agent.
func saveHostile(t *testing.T, r *Runtime, b sandbox.Sandbox) (id string) {
	t.Helper()
	config := &container.Config{Env: []string{"PATH=/usr/bin:/bin", wire.EnvPrefix + "NEW=hostile"}}
	for _, name := range wire.EnvNames {
		config.Env = append(config.Env, name+"=hostile")
	}
	id, err := r.commit(t.Context(), nameOf(b), "", "", config)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// checkEnvironment makes a sandbox of an image that has variables of the agent: none of them reaches the agent, nor
// programs.
func checkEnvironment(t *testing.T, d *dockertest.Daemon, s *sandboxtest.Subject, rt sandbox.Runtime, id string) {
	t.Helper()
	spec := s.Spec()
	template := *spec.Template
	template.ImageID, spec.Template = id, &template
	b, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	found, err := d.Client.ContainerInspect(t.Context(), nameOf(b), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	has := false
	for _, kv := range found.Container.Config.Env {
		name, value, _ := strings.Cut(kv, "=")
		has = has || value == "hostile"
		if value == "hostile" && slices.Contains(wire.EnvNames, name) {
			t.Errorf("the agent gets %s of its image", name)
		}
	}
	if !has {
		t.Error("the image has no variables: nothing was tested")
	}
	c := agent.New(b, sandboxtest.Log(t), nil)
	const look = "env | grep SANDLOT_AGENT_; id -u; grep CapBnd /proc/self/status"
	if got := shell(t, c, look); got != "0\nCapBnd:\t0000000000000000" {
		t.Errorf("in the sandbox: %q", got)
	}
	c.Close()
	if err := b.Stop(t.Context()); err != nil {
		t.Error(err)
	}
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
