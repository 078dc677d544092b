package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/proc"
	"sandlot/internal/runtime/docker/dockertest"
	"sandlot/internal/runtime/docker/volumes"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/secret"
)

// separate makes a subject one whose daemon sees no files of the server: each runtime that it opens has volumes.
func separate(t *testing.T, d *dockertest.Daemon, s *sandboxtest.Subject, c Config) {
	t.Helper()
	c.Files, s.Bridged = FilesSeparate, true
	open := func() *Runtime {
		r, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	s.Open = func(*testing.T) sandbox.Runtime { return open() }
	s.Folder = func(t *testing.T) (sandbox.Mount, string) {
		r := open()
		defer r.Close()
		name := secret.ID()
		if err := r.MakeVolume(t.Context(), name, 0, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			r := open()
			defer r.Close()
			if err := r.RemoveVolume(context.Background(), name); err != nil {
				t.Error(err)
			}
		})
		found, err := d.Client.VolumeInspect(t.Context(), volumes.Name(name), client.VolumeInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return sandbox.Mount{Volume: name}, found.Volume.Mountpoint
	}
}

// TestRemoteSuite passes with a daemon that is reached by TCP with TLS, and sees no files of the server.
func TestRemoteSuite(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	d := dockertest.StartTLS(t, "--live-restore")
	// Only daemons that are reached by TCP heed them, and no other test has one.
	os.Setenv("DOCKER_CERT_PATH", d.Certificates)
	os.Setenv("DOCKER_TLS_VERIFY", "1")
	s, c := subject(t, d.Daemon, baseTemplate())
	c.Host = d.Address
	t.Run("Files", func(t *testing.T) { findsFiles(t, d.Daemon, c) })
	separate(t, d.Daemon, s, c)
	t.Run("Refusals", func(t *testing.T) { refusesFolders(t, s) })
	t.Run("Volumes", func(t *testing.T) { keepsVolumes(t, s); findsLost(t, d.Daemon, s.Open(t).(*Runtime).Config) })
	t.Run("DiskLimit", func(t *testing.T) { volumesFull(t, s) })
	s.Run(t)
}

// volumesFull: a sandbox that writes too much into its volumes is ended. One that began with a full workspace may
// remove files, and gets no others.
func volumesFull(t *testing.T, s *sandboxtest.Subject) {
	rt := s.Open(t)
	rt.(*Runtime).sizes.Interval = time.Second
	m, dir := s.Folder(t)
	m.Target = "/workspace"
	begin := func() (sandbox.Sandbox, *agent.Client) {
		spec := s.Spec()
		spec.Mounts = []sandbox.Mount{m}
		b, err := rt.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		c := agent.New(b, sandboxtest.Log(t), nil)
		t.Cleanup(c.Close)
		return b, c
	}
	const write = "sleep 3; for i in 1 2 3 4; do fallocate -l 100000000 %s/$i; done; exec sleep 100"
	for _, folder := range []string{"/tmp", "/workspace"} {
		b, c := begin()
		endsFull(t, b, c, fmt.Sprintf(write, folder))
	}
	if _, err := os.Stat(filepath.Join(dir, "4")); err != nil {
		t.Errorf("what the sandbox wrote is gone: %v", err)
	}
	b, c := begin()
	if got := shell(t, c, "cd /workspace; sleep 5; rm 1; ls; sleep 3"); got != "2\n3\n4" {
		t.Errorf("in a sandbox whose workspace was full: %q", got)
	}
	endsFull(t, b, c, "cd /workspace; fallocate -l 200000000 5; exec sleep 100")
	if left := rt.List(); len(left) > 0 {
		t.Errorf("%d sandboxes are left", len(left))
	}
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
}

// findsFiles: the runtime finds out whether the daemon sees the server's files.
func findsFiles(t *testing.T, d *dockertest.Daemon, c Config) {
	for _, tt := range []struct {
		host, files string
		separate    bool
	}{{c.Host, FilesAuto, true}, {d.Host, FilesAuto, false}, {d.Host, FilesShared, false}, {d.Host, "", false},
		{d.Host, FilesSeparate, true}} {
		c.Host, c.Files = tt.host, tt.files
		r, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Check(t.Context()); err != nil {
			t.Errorf("%s, files %s: %v", c.Host, c.Files, err)
		}
		if separate, err := r.KeepsVolumes(t.Context()); err != nil || separate != tt.separate {
			t.Errorf("%s, files %s: separate %t, %v", c.Host, c.Files, separate, err)
		}
		sees, err := r.canBind(t.Context(), filepath.Join(t.TempDir(), "missing"))
		if err != nil || sees {
			t.Errorf("%s has a file that does not exist: %t, %v", c.Host, sees, err)
		}
		r.Close()
	}
	c.Host, c.Files = "tcp://127.0.0.1:1", FilesShared
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.checkFiles(t.Context()); err == nil || !strings.Contains(err.Error(), "docker.files") {
		t.Errorf("shared files with a daemon elsewhere: %v", err)
	}
	if left, err := os.ReadDir(r.dir()); err != nil || len(left) > 1 {
		t.Errorf("the state folder has %v, %v", left, err)
	}
}

// refusesFolders: a sandbox that would need folders of the server's machine, a volume that does not exist, or the user
// of `sandlot-agent connect` is refused, and nothing is left of it.
func refusesFolders(t *testing.T, s *sandboxtest.Subject) {
	rt := s.Open(t)
	refused := func(word string, change func(*sandbox.Spec)) {
		t.Helper()
		spec := s.Spec()
		template := *spec.Template
		spec.Template = &template
		change(&spec)
		if b, err := rt.Create(t.Context(), spec); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("want an error about %q: %v", word, err)
			if err == nil {
				b.Stop(t.Context())
			}
		}
	}
	refused("give it an image", func(spec *sandbox.Spec) { spec.Template.Image = "" })
	refused("remove it from the shared folders", func(spec *sandbox.Spec) {
		spec.Mounts = []sandbox.Mount{{Source: t.TempDir(), Target: "/data"}}
	})
	refused("no such volume", func(spec *sandbox.Spec) {
		spec.Mounts = []sandbox.Mount{{Volume: "missing", Target: "/workspace"}}
	})
	refused("another id", func(spec *sandbox.Spec) { spec.Template.User.UID = wire.ConnectUser })
	mustStop(t, s, rt)
}

// keepsVolumes: a volume is made once, with its owner, and tells whether it is empty; those of other instances are not
// touched.
func keepsVolumes(t *testing.T, s *sandboxtest.Subject) {
	m, dir := s.Folder(t)
	rt := s.Open(t).(*Runtime)
	defer rt.Close()
	isEmpty := func(want bool) {
		t.Helper()
		got, err := rt.VolumeEmpty(t.Context(), m.Volume, func(path string, _ fs.FileMode) bool { return path == ".local" })
		if err != nil || got != want {
			t.Errorf("empty: %t, %v", got, err)
		}
	}
	isEmpty(false) // perhaps it could not be read
	if err := os.Mkdir(filepath.Join(dir, ".local"), 0o755); err != nil {
		t.Fatal(err)
	}
	isEmpty(true)
	if err := os.Symlink("x", filepath.Join(dir, ".local/link")); err != nil {
		t.Fatal(err)
	}
	isEmpty(false)
	if err := rt.MakeVolume(t.Context(), m.Volume, 0, 0); err != nil {
		t.Errorf("making it again: %v", err)
	}
	if err := rt.MakeVolume(t.Context(), m.Volume, 7, 7); err == nil || !strings.Contains(err.Error(), "new session") {
		t.Errorf("making it for another user: %v", err)
	}
	isEmpty(false)
	if err := rt.MakeVolume(t.Context(), "owned", 61234, 62345); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	err := unix.Stat(strings.Replace(dir, volumes.Name(m.Volume), volumes.Name("owned"), 1), &st)
	if err != nil || st.Uid != 61234 || st.Gid != 62345 || st.Mode&0o7777 != 0o755 {
		t.Errorf("it belongs to %d:%d, mode %o, %v", st.Uid, st.Gid, st.Mode, err)
	}
	c := rt.Config
	c.StateDir = t.TempDir()
	other, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if names, err := other.Volumes(t.Context()); err != nil || len(names) != 0 {
		t.Errorf("another instance has %q, %v", names, err)
	}
	if err := other.RemoveVolume(t.Context(), "owned"); err == nil {
		t.Error("another instance removed a volume")
	}
	for range 2 {
		if err := rt.RemoveVolume(t.Context(), "owned"); err != nil {
			t.Error(err)
		}
	}
	if names, err := rt.Volumes(t.Context()); err != nil || !slices.Equal(names, []string{m.Volume}) {
		t.Errorf("the volumes are %q, %v", names, err)
	}
}

// findsLost: a sandbox's volume without container and folder, and a helper, are found and removed, also if the state
// folder has no sandboxes. One that never used a daemon does not ask it.
func findsLost(t *testing.T, d *dockertest.Daemon, c Config) {
	c.StateDir = t.TempDir()
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if ids, err := r.Leftovers(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("at first: %q, %v", ids, err)
	}
	if _, err := os.Stat(r.dir()); !os.IsNotExist(err) {
		t.Errorf("the state folder has a folder for Docker: %v", err)
	}
	instance, err := r.instanceID()
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Client.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: "sandlot-lost",
		Labels: map[string]string{labelInstance: instance, labelID: "lost"}})
	if err != nil {
		t.Fatal(err)
	}
	helper, err := d.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config: &container.Config{Image: dockertest.BaseImage, Cmd: []string{"/none"},
			Labels: map[string]string{labelInstance: instance, "dev.sandlot.helper": "sandlot-lost"}}})
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := r.Leftovers(t.Context()); err != nil || !slices.Equal(ids, []string{"lost"}) {
		t.Errorf("found %q, %v", ids, err)
	}
	_, err = d.Client.ContainerInspect(t.Context(), helper.ID, client.ContainerInspectOptions{})
	if !isMissing(err) {
		t.Errorf("the helper: %v", err)
	}
	_, err = r.Recover(t.Context(), "lost")
	if !errors.Is(err, sandbox.ErrGone) || errors.Is(err, sandbox.ErrRemains) {
		t.Errorf("recovering: %v", err)
	}
	_, err = d.Client.VolumeInspect(t.Context(), "sandlot-lost", client.VolumeInspectOptions{})
	if !isMissing(err) {
		t.Errorf("the volume: %v", err)
	}
}

// connects returns the processes of `sandlot-agent connect` in a sandbox.
func connects(t *testing.T, d *dockertest.Daemon, b sandbox.Sandbox) (found []int) {
	t.Helper()
	top, err := d.Client.ContainerTop(t.Context(), nameOf(b), client.ContainerTopOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range top.Processes {
		pid, err := strconv.Atoi(p[slices.Index(top.Titles, "PID")])
		if err != nil {
			t.Fatal(err)
		}
		if slices.Equal(proc.Args(pid), []string{wire.AgentPath, wire.ConnectCommand}) {
			found = append(found, pid)
		}
	}
	return found
}

// TestRemoteRestarts: sessions go on when the daemon is killed and starts again, when the server does, and when the
// process that carries the connections is killed. Each time one such process is left.
func TestRemoteRestarts(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	d := dockertest.Start(t, "--live-restore")
	s, c := subject(t, d, baseTemplate())
	separate(t, d, s, c)
	rt := s.Open(t)
	b, err := rt.Create(t.Context(), s.Spec())
	if err != nil {
		t.Fatal(err)
	}
	link := agent.New(b, sandboxtest.Log(t), nil)
	defer func() { link.Close() }()
	calls := 0
	goesOn := func(what string) {
		t.Helper()
		calls++
		if got := sumWhenLinked(t, link); got != strconv.Itoa(calls) {
			t.Errorf("%s, the interpreter counts %s in place of %d", what, got, calls)
		}
		for range 100 {
			if len(connects(t, d, b)) == 1 {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("%s, these carry connections: %v", what, connects(t, d, b))
	}
	goesOn("at first")
	for _, signal := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		d.Signal(t, signal)
		d.Run(t)
		goesOn("after the daemon's " + signal.String())
	}
	if err := unix.Kill(connects(t, d, b)[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	goesOn("after the process was killed")
	link.Close()
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	rt = s.Open(t)
	all := sandboxtest.RecoverAll(t, rt)
	if len(all) != 1 {
		t.Fatalf("recovered %d", len(all))
	}
	b = all[0]
	link = agent.New(b, sandboxtest.Log(t), nil)
	goesOn("with the next server")
	mustStop(t, s, rt, b)
}

// sumWhenLinked is sum, once the agent has a link: a call in which it breaks fails.
func sumWhenLinked(t *testing.T, c *agent.Client) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 1000 {
		if _, err := c.Hello(ctx); err == nil {
			return sum(t, c)
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the agent has no link")
	return ""
}

// TestOnThisKernel: what a daemon in a virtual machine says of itself is noticed.
func TestOnThisKernel(t *testing.T) {
	t.Parallel()
	var own unix.Utsname
	if err := unix.Uname(&own); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(own.Release[:])
	for _, tt := range []struct {
		info system.Info
		want bool
	}{
		{system.Info{KernelVersion: release, OperatingSystem: "Debian GNU/Linux 12 (bookworm)"}, true},
		{system.Info{KernelVersion: release, OperatingSystem: "Docker Desktop"}, false},
		{system.Info{KernelVersion: "6.10.14-linuxkit", OperatingSystem: "Alpine Linux v3.20"}, false},
	} {
		if got := onThisKernel(tt.info); got != tt.want {
			t.Errorf("%+v: %t", tt.info, got)
		}
	}
}
