package test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	daemonapi "github.com/moby/moby/client"

	"sandlot/internal/runtime/docker/dockertest"
)

// contained is a settings file with a template whose sandboxes are containers, beside those of gVisor.
const contained = "runtimes: [gvisor, docker]\ntemplates: {contained: {image: \"" + dockertest.BaseImage +
	"\", runtime: docker, pool: 1}}\n"

// startBoth starts a server with both runtimes, whose template contained is ready.
func startBoth(t *testing.T) *server {
	t.Helper()
	s := startConfigured(t, contained, "SANDLOT_RUNTIME=gvisor", "SANDLOT_POOL_SIZE=1", "SANDLOT_ON_STOP=keep")
	if out, errs, code := s.cli("template", "build", "contained"); code != 0 {
		t.Fatalf("code %d, %s%s", code, out, errs)
	}
	return s
}

// in runs Python in a session of a template.
func (c *client) in(template, session, code string) *result {
	c.t.Helper()
	return c.call("execute_code", args{"template": template, "session_id": session, "code": code})
}

// bothRuntimes: one server has sandboxes of gVisor and of Docker. It is killed and started again, and both kinds go
// on; ps, stop and get_sessions know them.
func bothRuntimes(t *testing.T) {
	s := startBoth(t)
	c := s.connect(older, "", nil)
	const count = "import os\nopen('/workspace/f', 'w').write('kept')\nx = 41; os.getpid()"
	onGVisor, onDocker := c.in("host", "new", count), c.in("contained", "new", count)
	sessions := map[string]string{"gvisor": onGVisor.session(), "docker": onDocker.session()}
	if r := c.shell(sessions["gvisor"], "dmesg 2>/dev/null | grep -c gVisor"); r.Text != "1" {
		t.Errorf("the template host has not gVisor: %q", r.All)
	}
	provenContainer(t, c, sessions["docker"])
	check := func(held bool) { t.Helper(); s.shows(sessions, held) }
	check(true)
	ended := make(chan error, len(sessions))
	for _, session := range sessions {
		go func() {
			_, err := c.try(context.Background(), "execute_command", args{"command": "sleep 20", "session_id": session})
			ended <- err
		}()
	}
	until(t, "both work", func() bool { return s.count(c, sessions, "processing") == 2 })
	s.kill()
	for range sessions {
		if err := <-ended; err == nil {
			t.Error("a call survived the server")
		}
	}
	check(false)
	transport.CloseIdleConnections()
	s.launch()
	c = s.connect(older, "", nil)
	for runtime, r := range map[string]*result{"gvisor": onGVisor, "docker": onDocker} {
		c.want(sessions[runtime], "x + 1, os.getpid()", fmt.Sprintf("(42, %s)", r.Text))
	}
	check(true)
	if out, errs, code := s.cli("stop"); code != 0 || !strings.Contains(out, "sandboxes live on") {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
	s.cmd.Wait()
	check(false)
	// With the settings of today stop ends the sandboxes of those of yesterday, too.
	env := s.env
	s.env = append(s.env[:len(s.env):len(s.env)], "SANDLOT_CONFIG=")
	if out, errs, code := s.cli("stop", "--sessions"); code != 0 || !strings.Contains(out, "sandboxes were ended") {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
	s.env = env
	if left := s.left(); len(left) > 0 {
		t.Errorf("this is left: %q", left)
	}
	transport.CloseIdleConnections()
	s.launch()
	c = s.connect(older, "", nil)
	for runtime, session := range sessions {
		if r := c.code(session, "open('/workspace/f').read() + str('x' in globals())"); !strings.Contains(r.All,
			"keptFalse") || !strings.Contains(r.All, "while the server was away") {
			t.Errorf("%s: %q", runtime, r.All)
		}
	}
	check(true)
	if n := s.count(c, sessions, "ready"); n != 2 {
		t.Errorf("get_sessions shows %d of both as ready", n)
	}
}

// shows looks whether ps shows one sandbox of each session, by its runtime. Held: the server runs.
func (s *server) shows(sessions map[string]string, held bool) {
	s.t.Helper()
	for runtime, session := range sessions {
		found := 0
		for _, b := range s.ps(false).Sandboxes {
			if b.Session != session {
				continue
			}
			found++
			if b.Runtime != runtime || b.Held != held || b.MemoryBytes < 1<<20 || syscall.Kill(b.PID, 0) != nil {
				s.t.Errorf("the session on %s is shown as %+v", runtime, b)
			}
		}
		if found != 1 {
			s.t.Errorf("%d sandboxes of the session on %s are shown", found, runtime)
		}
	}
}

// count returns how many of these sessions get_sessions shows in that state.
func (s *server) count(c *client, sessions map[string]string, status string) (n int) {
	s.t.Helper()
	list, _ := c.call("get_sessions", nil).Fields["sessions"].([]any)
	for _, e := range list {
		row, _ := e.(map[string]any)
		for _, session := range sessions {
			if row["session_id"] == session && row["status"] == status {
				n++
			}
		}
	}
	return n
}

// canary makes a container, a volume and a network of others, and returns what the daemon shows of them.
func canary(t *testing.T, d *dockertest.Daemon) (shown []string) {
	t.Helper()
	ctx := t.Context()
	if _, err := d.Client.VolumeCreate(ctx, daemonapi.VolumeCreateOptions{Name: "canary-volume"}); err != nil {
		t.Fatal(err)
	}
	made, err := d.Client.ContainerCreate(ctx, daemonapi.ContainerCreateOptions{Name: "sandlot-canary",
		Config: &container.Config{Image: dockertest.BaseImage, Cmd: []string{"sleep", "10000"},
			Labels: map[string]string{"dev.sandlot.instance": "another", "dev.sandlot.sandbox": "canary"}},
		HostConfig: &container.HostConfig{NetworkMode: "none", Binds: []string{"canary-volume:/kept"}}})
	if err == nil {
		_, err = d.Client.ContainerStart(ctx, made.ID, daemonapi.ContainerStartOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Client.NetworkCreate(ctx, "canary-network", daemonapi.NetworkCreateOptions{Driver: "bridge",
		Internal: true, IPAM: &network.IPAM{Config: []network.IPAMConfig{
			{Subnet: netip.MustParsePrefix("203.0.113.0/29")}}}}) // an address of no machine
	if err != nil {
		t.Fatal(err)
	}
	return []string{"container [/sandlot-canary] running", "volume canary-volume", "network canary-network",
		"containerd-shim"}
}

// counter counts in a session without a pause, until stop is closed, and notes what calls said that did not count.
type counter struct {
	c       *client
	session string
	calls   int
	renewed []string // what results said of a new sandbox
	failed  []string // what faults said
}

func (n *counter) run(t *testing.T, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		r, err := n.c.try(ctx, "execute_code", args{"code": "n = globals().get('n', 0) + 1; n",
			"session_id": n.session, "timeout": 30})
		cancel()
		switch {
		case err != nil:
			n.failed = append(n.failed, err.Error())
			time.Sleep(50 * time.Millisecond)
		case r.Fields["notice"] != nil:
			n.renewed = append(n.renewed, r.All)
		case r.IsError:
			t.Errorf("a result: %q", r.All)
		default:
			n.calls++
		}
	}
}

// whileCounting lets three sessions count while f runs, and returns what happened to them.
func whileCounting(t *testing.T, s *server, sessions []string, f func()) []*counter {
	t.Helper()
	stop := make(chan struct{})
	var all sync.WaitGroup
	var counters []*counter
	for _, session := range sessions {
		n := &counter{c: s.connect(newer, "", nil), session: session}
		counters = append(counters, n)
		all.Go(func() { n.run(t, stop) })
	}
	time.Sleep(300 * time.Millisecond)
	f()
	time.Sleep(time.Second)
	close(stop)
	all.Wait()
	return counters
}

// TestDaemonRestarts: with live-restore the daemon is restarted in the middle of calls, also while the server is
// killed, and while the pool may be starting a sandbox. What others have on the daemon stays, and nothing of Sandlot is
// left.
func TestDaemonRestarts(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "--live-restore")
	others := canary(t, d)
	t.Run("server", func(t *testing.T) {
		s := startBoth(t)
		c := s.connect(older, "", nil)
		var sessions []string
		for range 3 {
			sessions = append(sessions, c.in("contained", "new", "n = 0").session())
		}
		counted := func(what string, f func()) {
			t.Helper()
			for i, n := range whileCounting(t, s, sessions, f) {
				t.Logf("%s, session %d: %d calls, %d failed", what, i, n.calls, len(n.failed))
				if n.calls < 10 || len(n.renewed) > 0 {
					t.Errorf("%s, session %d: %d calls, renewed %q, failed %q", what, i, n.calls, n.renewed, n.failed)
				}
			}
		}
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			counted(fmt.Sprint("the daemon is ", signal), func() { d.Signal(t, signal); d.Run(t) })
		}
		counted("the daemon and the server are killed", func() {
			d.Signal(t, syscall.SIGKILL)
			s.kill()
			transport.CloseIdleConnections()
			s.launch()
			d.Run(t)
		})
		whileAway(t, d, s, sessions)
	})
	goneBut(t, d.RemainsOfKilled, others...)
}

// whileAway is what users see while the daemon is away, of which the server has sandboxes.
func whileAway(t *testing.T, d *dockertest.Daemon, s *server, sessions []string) {
	t.Helper()
	c := s.connect(older, "", nil)
	before := c.code(sessions[0], "n").Text
	stopped := 0
	for _, b := range s.ps(false).Sandboxes {
		if b.Session == sessions[2] {
			stopped = b.PID
		}
	}
	if stopped <= 1 {
		t.Fatalf("ps does not show the sandbox of %s", sessions[2])
	}
	d.Signal(t, syscall.SIGKILL)
	c.want(sessions[0], "n == "+before, "True")
	refused := func(what, want string, a args) {
		t.Helper()
		var err error
		for range 3 { // the pool may have had some
			if _, err = c.try(t.Context(), "execute_code", a); err != nil {
				break
			}
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a new session", "`sandlot doctor`", args{"template": "contained", "session_id": "new", "code": "1"})
	if out, errs, _ := s.cli("ps"); !strings.Contains(errs, "the Docker daemon does not say") {
		t.Errorf("ps: %s%s", out, errs)
	}
	s.kill()
	transport.CloseIdleConnections()
	s.launch()
	c = s.connect(older, "", nil)
	if r := c.in("host", "new", "6*7"); r.Text != "42" {
		t.Errorf("on gVisor: %q", r.All)
	}
	refused("a session whose runtime is away", "as soon as the runtime answers: try again later",
		args{"session_id": sessions[0], "code": "n"})
	began := time.Now()
	if r := c.call("stop_session", args{"session_id": sessions[2]}); r.Fields["success"] != true ||
		time.Since(began) > 2*time.Minute {
		t.Errorf("stopping a session whose runtime is away: %v after %v", r.Fields, time.Since(began))
	}
	_, err := c.try(t.Context(), "execute_code", args{"session_id": sessions[2], "code": "n"})
	wantFault(t, err, -32602, "SESSION_NOT_FOUND")
	if syscall.Kill(stopped, 0) != nil {
		t.Error("a sandbox ended without its daemon, and the test proves nothing")
	}
	d.Run(t)
	until(t, "the sandbox of the session that was stopped ends", func() bool {
		return syscall.Kill(stopped, 0) != nil && !slices.ContainsFunc(s.ps(false).Sandboxes,
			func(b shownSandbox) bool { return b.PID == stopped })
	})
	for _, session := range sessions[:2] {
		until(t, "the session is back", func() bool {
			r, err := c.try(t.Context(), "execute_code", args{"session_id": session, "code": "n > 0"})
			return err == nil && r.Text == "True" && r.Fields["notice"] == nil
		})
	}
	c.want(sessions[0], "n == "+before, "True")
}
