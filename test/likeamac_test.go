package test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	daemonapi "github.com/moby/moby/client"

	"sandlot/internal/runtime/docker/dockertest"
)

// isLikeAMac reports whether the servers of a test have what a Mac has, and no more.
func isLikeAMac(t testing.TB) bool { return siteOf(t).program != "" }

// TestMac runs the tests of onBoth and onElsewhere with servers that have what a Mac has, and no more: no gVisor, no
// folder that a sandbox could have, and a daemon that is elsewhere, as Docker Desktop is, and that a context names.
// So sandboxes are made of an image, workspaces are volumes, and `sandlot-agent connect` carries the
// connections. What cannot be there checks something else: of shared folders, that the user is told (TestVolumes), or
// nothing (the full volume of TestFolders); ps names no processes; and no server loses an agent by the folder of its
// socket (TestKilledWhileRecovering).
func TestMac(t *testing.T) {
	t.Parallel()
	program := macProgram(t)
	d := dockertest.StartApart(t, "--live-restore")
	// The image of the template that is the default one where there is no template host.
	_, err := d.Client.ImageTag(t.Context(), daemonapi.ImageTagOptions{Source: dockertest.BaseImage,
		Target: "python:3.13-slim"})
	if err != nil {
		t.Fatal(err)
	}
	sites.Store(t.Name(), site{daemon: d, program: program, home: macHome(t, d)})
	t.Run("each", func(t *testing.T) {
		runAll(t, onBoth)
		runAll(t, onBothMore)
		runAll(t, onElsewhere)
		t.Run("a silent daemon", func(t *testing.T) { silentAtFirst(t, d) })
	})
	gone(t, d)
}

// defaultTemplate is what new sessions are made of, with no setting that says it.
func defaultTemplate(t *testing.T) string {
	if isLikeAMac(t) {
		return "python"
	}
	return "host"
}

// noFolders: where sandboxes cannot have folders of the server's machine, a server that is to share some is not ready,
// and says what to do.
func noFolders(t *testing.T) {
	s := prepare(t)
	s.setEnvironment([]string{"SANDLOT_VOLUMES=" + t.TempDir() + ":/data"})
	for _, args := range [][]string{{"doctor"}, {"run", "-"}} {
		out, errs, code := s.cliIn("print(1)", args...)
		if code == 0 || !strings.Contains(out+errs, "remove that setting") {
			t.Errorf("%q: %d %s%s", args, code, out, errs)
		}
	}
}

// silentAtFirst: a server on Linux does not wait for a daemon that takes connections and says nothing. When that
// answers, and sees none of the server's files, sessions are made of an image, without a new start.
func silentAtFirst(t *testing.T, d *dockertest.Daemon) {
	t.Parallel()
	socket := filepath.Join(filepath.Dir(strings.TrimPrefix(d.Host, "unix://")), "silent")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	speaks := make(chan struct{})
	speak := sync.OnceFunc(func() { close(speaks) })
	t.Cleanup(speak)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				<-speaks
				relay(conn, strings.TrimPrefix(d.Host, "unix://"))
			}()
		}
	}()
	s := prepare(t)
	s.program = makeBuilt(t)
	s.docker = d
	s.setEnvironment([]string{"SANDLOT_RUNTIME=docker", "SANDLOT_DOCKER_HOST=unix://" + socket, "SANDLOT_POOL_SIZE=1"})
	s.serve("/healthz")
	c := s.connect(newer, "", nil)
	if !slices.Contains(slices.Collect(maps.Keys(c.toolNames())), "execute_code") {
		t.Error("the server has no tools")
	}
	if out, _, _ := s.cli("template", "list"); !strings.Contains(out, "host") {
		t.Errorf("while nobody knows whether there is the template host, it is not in the list:\n%s", out)
	}
	speak()
	id := c.code("new", "x = 41").session()
	provenContainer(t, c, id)
	c.want(id, "x + 1", "42")
	if r := c.call("execute_code", args{"code": "6*7", "session_id": "new", "template": "host"}); r.Text != "42" {
		t.Errorf("what stands for the template host: %q", r.All)
	}
	if out, _, _ := s.cli("template", "list"); strings.Contains(out, "host") || !strings.Contains(out, "python") {
		t.Errorf("the templates:\n%s", out)
	}
}

// relay carries a connection to a socket and back.
func relay(conn net.Conn, socket string) {
	defer conn.Close()
	to, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		io.Copy(to, conn)
		to.(*net.UnixConn).CloseWrite()
	}()
	io.Copy(conn, to)
}

// macHome makes the home folder of a Mac's user, in which Docker Desktop has its socket and its context.
func macHome(t *testing.T, d *dockertest.Daemon) string {
	t.Helper()
	home, err := os.MkdirTemp("", "sandlot-mac-") // short: the paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	socket := filepath.Join(home, ".docker/run/docker.sock")
	err = errors.Join(os.MkdirAll(filepath.Dir(socket), 0o700),
		os.Symlink(strings.TrimPrefix(d.Host, "unix://"), socket))
	if err != nil {
		t.Fatal(err)
	}
	writeContext(t, home, "desktop-linux", "unix://"+socket)
	return home
}

// volumes lists the volumes of the server's workspaces, by their workspaces.
func (s *server) volumes() (workspaces []string, err error) {
	if s.docker == nil {
		return nil, nil
	}
	instance, err := os.ReadFile(filepath.Join(s.State, "docker/instance"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	list, listErr := s.docker.Client.VolumeList(context.Background(), daemonapi.VolumeListOptions{
		Filters: make(daemonapi.Filters).Add("label", "dev.sandlot.instance="+string(instance))})
	for _, v := range list.Items {
		if id, found := strings.CutPrefix(v.Name, volumePrefix); found {
			workspaces = append(workspaces, id)
		}
	}
	return workspaces, errors.Join(err, listErr)
}

const volumePrefix = "sandlot-workspace-"

// lostVolumes lists the volumes of workspaces that the server has no more.
func (s *server) lostVolumes() (lost []string) {
	all, err := s.volumes()
	if err != nil {
		return []string{"perhaps volumes: " + err.Error()}
	}
	for _, id := range all {
		if _, err := os.Stat(filepath.Join(s.State, "workspaces", id+".volume")); err != nil {
			lost = append(lost, "volume "+volumePrefix+id)
		}
	}
	return lost
}

// removeVolumes removes what a server keeps when it stops: the files of homes, which are not in its state folder.
func (s *server) removeVolumes() {
	all, err := s.volumes()
	for _, id := range all {
		_, failed := s.docker.Client.VolumeRemove(context.Background(), volumePrefix+id,
			daemonapi.VolumeRemoveOptions{})
		err = errors.Join(err, failed)
	}
	if err != nil {
		s.t.Errorf("the volumes of homes: %v", err)
	}
}
