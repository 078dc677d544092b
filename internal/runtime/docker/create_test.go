package docker

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/mount"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// fakeDaemon answers as a daemon whose containers are made while their client gives up. With failing set it removes
// none.
type fakeDaemon struct {
	onMake   func()
	machine  string // its processor
	made     []byte // the last request for a container
	instance func() string
	failing  bool
	exists   atomic.Bool
}

func (d *fakeDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Api-Version", "1.41")
	w.Header().Set("Content-Type", "application/json")
	path := r.URL.Path
	switch {
	case strings.HasSuffix(path, "/_ping"):
	case strings.HasSuffix(path, "/version"):
		w.Write([]byte(`{"ApiVersion":"1.41"}`))
	case strings.HasSuffix(path, "/info"):
		w.Write([]byte(`{"Architecture":"` + d.machine + `"}`))
	case strings.HasSuffix(path, "/containers/create"):
		d.made, _ = io.ReadAll(r.Body)
		d.onMake()
		d.exists.Store(true)
		w.WriteHeader(http.StatusCreated)
		w.Write([]byte(`{"Id":"c"}`))
	case r.Method == http.MethodDelete && d.failing:
		w.WriteHeader(http.StatusForbidden)
		w.Write([]byte(`{"message":"not today"}`))
	case r.Method == http.MethodDelete:
		d.exists.Store(false)
	case strings.Contains(path, "/containers/") && d.exists.Load():
		w.Write([]byte(`{"Id":"c","State":{},"Config":{"Labels":{"` + labelInstance + `":"` + d.instance() + `"}}}`))
	default:
		w.WriteHeader(http.StatusNotFound)
		w.Write([]byte(`{"message":"none"}`))
	}
}

// withFake returns a runtime whose daemon answers as a handler does, from serve on. end closes both.
func withFake(t *testing.T, agent string) (r *Runtime, serve func(http.Handler), end func()) {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "d.sock"))
	if err != nil {
		t.Fatal(err)
	}
	r, err = New(Config{Host: "unix://" + l.Addr().String(), Agent: agent, StateDir: dir, Log: sandboxtest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{}
	serve = func(h http.Handler) {
		server.Handler = h
		go server.Serve(l)
	}
	return r, serve, func() {
		t.Helper()
		if err := errors.Join(r.Close(), server.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestCancelledCreate: a container that is made while its caller gives up is removed; one that cannot be removed is
// listed.
func TestCancelledCreate(t *testing.T) {
	for _, failing := range []bool{false, true} {
		r, serve, end := withFake(t, "/bin/agent")
		ctx, cancel := context.WithCancel(t.Context())
		d := &fakeDaemon{onMake: cancel, failing: failing,
			instance: func() string { id, _ := r.instanceID(); return id }}
		serve(d)
		_, err := r.Create(ctx, sandbox.Spec{ID: "a", Secret: make([]byte, 32),
			Template: &image.Template{Name: "t", Image: "i", ImageID: "sha256:i"}})
		if !errors.Is(err, context.Canceled) || d.exists.Load() != failing || len(r.List()) == 1 != failing {
			t.Errorf("with failing %t: %v; the container exists: %t; %d listed", failing, err, d.exists.Load(),
				len(r.List()))
		}
		end()
	}
}

// TestAskedOnce: all who ask at once what the daemon is get one answer, and who gives up does not wait for it.
func TestAskedOnce(t *testing.T) {
	r, serve, end := withFake(t, "")
	var questions atomic.Int64
	begun, answer := make(chan struct{}, 10), make(chan struct{})
	d := &fakeDaemon{machine: "x86_64"}
	serve(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if strings.HasSuffix(q.URL.Path, "/info") {
			questions.Add(1)
			begun <- struct{}{}
			<-answer
		}
		d.ServeHTTP(w, q)
	}))
	hurried, giveUp := context.WithCancel(t.Context())
	errs := make(chan error, 6)
	go func() {
		_, err := r.ask(hurried)
		errs <- err
	}()
	<-begun
	giveUp()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up got %v", err)
	}
	var all sync.WaitGroup
	for range cap(errs) {
		all.Go(func() {
			d, err := r.ask(t.Context())
			if err == nil && d.machine != "x86_64" {
				err = fmt.Errorf("the machine is %q", d.machine)
			}
			errs <- err
		})
	}
	time.Sleep(50 * time.Millisecond) // in which more questions would come
	close(answer)
	all.Wait()
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := questions.Load(); n != 1 {
		t.Errorf("the daemon was asked %d times", n)
	}
	end()
}

// TestAgentOfDaemon: a sandbox has the agent for the processor of the daemon's machine, which no other may be removed
// while it has it.
func TestAgentOfDaemon(t *testing.T) {
	for machine, want := range map[string]elf.Machine{"x86_64": elf.EM_X86_64, "aarch64": elf.EM_AARCH64,
		"arm64": elf.EM_AARCH64} {
		r, serve, end := withFake(t, "")
		ctx, cancel := context.WithCancel(t.Context())
		d := &fakeDaemon{onMake: cancel, failing: true, machine: machine,
			instance: func() string { id, _ := r.instanceID(); return id }}
		serve(d)
		if err := r.agent.Check(machine); err != nil {
			t.Errorf("%s: %v", machine, err)
		}
		if _, err := r.Create(ctx, sandbox.Spec{ID: "a", Secret: make([]byte, 32),
			Template: &image.Template{Name: "t", Image: "i", ImageID: "sha256:i"}}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", machine, err)
		}
		end()
		var made struct {
			HostConfig struct{ Mounts []mount.Mount }
		}
		if err := json.Unmarshal(d.made, &made); err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(made.HostConfig.Mounts, func(m mount.Mount) bool { return m.Target == wire.AgentPath })
		if at < 0 {
			t.Fatalf("%s: no agent is mounted: %s", machine, d.made)
		}
		path := made.HostConfig.Mounts[at].Source
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		used, err := r.agent.InUse()
		if f.Machine != want || err != nil || !slices.Equal(used, []string{filepath.Base(path)}) {
			t.Errorf("%s: the agent is for %s, and these are in use: %q, %v", machine, f.Machine, used, err)
		}
	}
}

// TestRefusedMounts: a sandbox has no folder with the socket of a daemon, of this one or another, even before it runs,
// and none in another folder of the sandbox, where a program could put a link in its place.
func TestRefusedMounts(t *testing.T) {
	own, other, harmless := t.TempDir(), t.TempDir(), t.TempDir()
	const runtimeDir = "/nowhere/user" // of the server's user, who may have a daemon
	t.Setenv("XDG_RUNTIME_DIR", runtimeDir)
	listen := func(path string) {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	if err := os.MkdirAll(filepath.Join(other, "a/b/c"), 0o755); err != nil {
		t.Fatal(err)
	}
	listen(filepath.Join(own, "d.sock"))
	listen(filepath.Join(other, "a/b/c/other daemon.sock"))
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(harmless, "stale")})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false) // as a sandbox may leave it
	stale.Close()
	link := filepath.Join(harmless, "link")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	r, err := New(Config{Host: "unix://" + own + "/d.sock", Agent: "/bin/agent", StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	workspace := sandbox.Mount{Source: harmless, Target: "/workspace"}
	const daemon, place = "the socket of the Docker daemon", "in a folder that the sandbox has for something else"
	const places = "where daemons have their sockets"
	for _, tt := range []struct{ source, target, refusal string }{
		{harmless, "/data", ""}, {harmless, "/root/share", ""}, {harmless, "/workspaces", ""},
		{own, "/data", daemon}, {filepath.Dir(own), "/data", daemon}, {link, "/data", daemon},
		{"/", "/data", places}, {"/run", "/data", places}, {"/var/run", "/data", places}, {"/var/lib", "/data", places},
		{other, "/data", "other daemon.sock, the socket of a program of this machine"},
		{harmless, "/workspace/team/files", place}, {harmless, "/.sandlot/x", place}, {harmless, "/run/sandlot", place},
		{harmless, "/proc/sys", place}, {harmless, "/", place}, {harmless, "/x/../dev/shm", place},
		{filepath.Join(harmless, "missing"), "/data", "is missing"},
	} {
		err := r.checkMounts([]sandbox.Mount{workspace, {Source: tt.source, Target: tt.target}})
		if tt.refusal == "" && err != nil ||
			tt.refusal != "" && (err == nil || !strings.Contains(err.Error(), tt.refusal)) {
			t.Errorf("%s at %s: %v", tt.source, tt.target, err)
		}
	}
	for _, source := range []string{"/run/user/1000/podman", "/run/containerd/s", "/run/crio", "/run/k3s/containerd",
		"/var/lib/lxd", "/var/snap/lxd/common/lxd", filepath.Join(runtimeDir, "docker"), filepath.Dir(runtimeDir)} {
		if err := r.checkSource(source, true); err == nil || !strings.Contains(err.Error(), places) {
			t.Errorf("%s: %v", source, err)
		}
	}
	if os.Getuid() == 0 { // of another user than the server's
		socket := filepath.Join(other, "a/b/c/other daemon.sock")
		if err := os.Chown(socket, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		err := r.checkSource(filepath.Join(other, "a"), false)
		if err == nil || !strings.Contains(err.Error(), socket) {
			t.Errorf("a socket of another user's: %v", err)
		}
	}
}
