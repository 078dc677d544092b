package volumes

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/runtime/docker/dockertest"
)

// daemon is a Docker daemon behind a proxy in which a test can change what happens.
type daemon struct {
	*dockertest.Daemon
	behind *client.Client // calls by the proxy

	mu   sync.Mutex
	on   func(w http.ResponseWriter, method, path string) (answered bool) // is called before a request
	made int                                                              // requests that make a container
	open sync.WaitGroup                                                   // requests
}

func start(t *testing.T) *daemon {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	d := &daemon{Daemon: dockertest.Start(t)}
	socket := strings.TrimPrefix(d.Host, "unix://")
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "docker"})
	to.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	to.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.open.Add(1)
		defer d.open.Done()
		body, err := io.ReadAll(r.Body) // the daemon has the whole request, also if it is given up
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		d.mu.Lock()
		on := d.on
		if strings.HasSuffix(r.URL.Path, "/containers/create") {
			d.made++
		}
		d.mu.Unlock()
		if on != nil && on(w, r.Method, r.URL.Path) {
			return
		}
		to.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
	}))
	t.Cleanup(server.Close)
	var err error
	d.behind, err = client.New(client.WithHost("tcp://"+strings.TrimPrefix(server.URL, "http://")),
		client.WithAPIVersion("1.41"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.behind.Close() })
	return d
}

// store returns the store of one more server with the same state folder.
func (d *daemon) store(t *testing.T) *Store {
	t.Helper()
	program := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(program, bytes.Repeat([]byte("agent"), 1000), 0o755); err != nil {
		t.Fatal(err)
	}
	return &Store{Daemon: d.behind, Log: slog.New(slog.DiscardHandler),
		Agent:    func() (string, error) { return program, nil },
		Instance: func() (string, error) { return "this", nil }, Import: d.load}
}

// load makes an image of an archive.
func (d *daemon) load(ctx context.Context, archive []byte) (string, error) {
	const name = "sandlot-test/helper:1"
	answer, err := d.Client.ImageImport(context.WithoutCancel(ctx),
		client.ImageImportSource{Source: bytes.NewReader(archive), SourceName: "-"}, name, client.ImageImportOptions{})
	if err != nil {
		return "", err
	}
	defer answer.Close()
	var m struct{ Error string }
	if err := json.NewDecoder(answer).Decode(&m); err != nil || m.Error != "" {
		return "", errors.Join(err, errors.New(m.Error))
	}
	_, err = io.Copy(io.Discard, answer)
	return name, err
}

// at sets what happens before requests; nil: nothing.
func (d *daemon) at(on func(w http.ResponseWriter, method, path string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.on = on
}

// folder returns the folder of a volume.
func (d *daemon) folder(t *testing.T, name string) string {
	t.Helper()
	found, err := d.Client.VolumeInspect(t.Context(), name, client.VolumeInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return found.Volume.Mountpoint
}

// owner returns the user and the mode of a workspace's folder.
func (d *daemon) owner(t *testing.T, name string) (uid, mode uint32) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(d.folder(t, Name(name)), &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid, st.Mode & 0o7777
}

// helpers returns how many containers were to be made.
func (d *daemon) helpers() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.made
}

// containers returns how many containers there are.
func (d *daemon) containers(t *testing.T) int {
	t.Helper()
	list, err := d.Client.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// TestVolumes passes with one daemon.
func TestVolumes(t *testing.T) {
	t.Parallel()
	d := start(t)
	t.Run("GivenUp", func(t *testing.T) { survivesGivingUp(t, d) })
	t.Run("Killed", func(t *testing.T) { repairsOwner(t, d) })
	t.Run("Helpers", func(t *testing.T) { removesHelpers(t, d) })
	t.Run("Agent", func(t *testing.T) { repairsAgent(t, d) })
	t.Run("Empty", func(t *testing.T) { doubtsArchives(t, d) })
}

// survivesGivingUp: after a call that its caller gave up while the daemon made something, no helper is left, and the
// next call has what it needs.
func survivesGivingUp(t *testing.T, d *daemon) {
	s := d.store(t)
	for name, at := range map[string]string{"helper": "/containers/create", "volume": "/volumes/create",
		"fill": "/archive"} {
		calls := map[string]func(ctx context.Context) error{
			"workspace": func(ctx context.Context) error { return s.MakeVolume(ctx, name, 1234, 1234) },
			"agent": func(ctx context.Context) error {
				s = d.store(t)
				if err := s.RemoveAll(t.Context(), labelVolume, agentVolume); err != nil {
					t.Error(err)
				}
				_, err := s.ProvideAgent(ctx)
				if err != nil {
					s.Close()
				}
				return err
			},
			"sandbox": func(ctx context.Context) error {
				v, err := s.Make(ctx, "sandlot-"+name, map[string]string{"id": name})
				if err == nil {
					err = s.Fill(ctx, v, make([]byte, 1024))
				}
				if err != nil {
					err = errors.Join(err, s.RemoveAll(context.WithoutCancel(ctx), "id", name))
				}
				return err
			},
		}
		for what, call := range calls {
			ctx, cancel := context.WithCancel(t.Context())
			d.at(func(_ http.ResponseWriter, method, path string) bool {
				if method != http.MethodGet && method != http.MethodHead && strings.HasSuffix(path, at) {
					cancel()
					time.Sleep(300 * time.Millisecond)
				}
				return false
			})
			if err := call(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("%s given up at %s: %v", what, at, err)
			}
			d.open.Wait()
			d.at(nil)
			if n := d.containers(t); n > 0 {
				t.Errorf("%s given up at %s has left %d containers", what, at, n)
			}
			if err := call(t.Context()); err != nil {
				t.Errorf("%s after it was given up at %s: %v", what, at, err)
			}
		}
		if uid, _ := d.owner(t, name); uid != 1234 {
			t.Errorf("a workspace that was given up at %s belongs to %d", at, uid)
		}
	}
	list, err := d.Client.VolumeList(t.Context(), client.VolumeListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range list.Items {
		if v.Labels[LabelInstance] != "this" {
			t.Errorf("the volume %s has the labels %v", v.Name, v.Labels)
		}
	}
}

// repairsOwner: a volume whose server was killed before it gave it to its owner gets the owner, once for each process,
// and keeps its mode.
func repairsOwner(t *testing.T, d *daemon) {
	_, err := d.Client.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: Name("killed"),
		Labels: map[string]string{LabelInstance: "this", labelVolume: keptVolume, labelKept: "killed",
			labelOwner: "1234:1234"}})
	if err != nil {
		t.Fatal(err)
	}
	s := d.store(t)
	again := func(helpers int) {
		t.Helper()
		before := d.helpers()
		if err := s.MakeVolume(t.Context(), "killed", 1234, 1234); err != nil {
			t.Error(err)
		}
		if d.helpers() != before+helpers {
			t.Errorf("%d helpers in place of %d", d.helpers()-before, helpers)
		}
	}
	again(1)
	if uid, mode := d.owner(t, "killed"); uid != 1234 || mode != 0o755 {
		t.Errorf("it belongs to %d, mode %o", uid, mode)
	}
	again(0)
	if err := os.Chmod(d.folder(t, Name("killed")), 0o700|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	s = d.store(t)
	again(1)
	if uid, mode := d.owner(t, "killed"); uid != 1234 || mode != 0o2700 {
		t.Errorf("later it belongs to %d, mode %o", uid, mode)
	}
	if err := s.RemoveVolume(t.Context(), "killed"); err != nil {
		t.Fatal(err)
	}
	again(1)
	if uid, _ := d.owner(t, "killed"); uid != 1234 {
		t.Errorf("made anew it belongs to %d", uid)
	}
}

// removesHelpers: a helper that is left does not keep its volume from being removed, and goes when it is old. One that
// is in use stays, and so does a young one that another process may use.
func removesHelpers(t *testing.T, d *daemon) {
	s := d.store(t)
	if err := s.MakeVolume(t.Context(), "left", 1234, 1234); err != nil {
		t.Fatal(err)
	}
	before := d.containers(t)
	leaveHelper(t, d)
	s.removeOldHelpers(t.Context(), -time.Hour) // no clocks differ by as much
	if n := d.containers(t); n != before {
		t.Errorf("%d old helpers", n-before)
	}
	leaveHelper(t, d)
	if _, err := s.Volumes(t.Context()); err != nil || d.containers(t) != before+1 {
		t.Errorf("a young helper: %d containers, %v", d.containers(t)-before, err)
	}
	if err := s.RemoveVolume(t.Context(), "left"); err != nil || d.containers(t) != before {
		t.Errorf("%d containers are left, %v", d.containers(t)-before, err)
	}
	v, err := s.Make(t.Context(), "sandlot-used", map[string]string{})
	if err != nil {
		t.Fatal(err)
	}
	err = s.withHelper(t.Context(), v, func(string) error {
		s.removeOldHelpers(t.Context(), -time.Hour)
		if err := s.Remove(t.Context(), v.Name); err == nil {
			t.Error("a volume with a helper in use was removed")
		}
		if d.containers(t) != before+1 {
			t.Error("a helper in use was removed")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// leaveHelper makes a helper that no process uses for the workspace "left".
func leaveHelper(t *testing.T, d *daemon) {
	t.Helper()
	_, err := d.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config: &container.Config{Image: dockertest.BaseImage, Cmd: []string{"/none"},
			Labels: map[string]string{LabelInstance: "this", labelHelper: Name("left")}},
		HostConfig: &container.HostConfig{Binds: []string{Name("left") + ":/mnt"}}})
	if err != nil {
		t.Fatal(err)
	}
}

// repairsAgent: a program of the agent's size that is another one, or a part of it, is replaced, once for each process.
func repairsAgent(t *testing.T, d *daemon) {
	s := d.store(t)
	name, err := s.ProvideAgent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	path, err := s.Agent()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(d.folder(t, name), filepath.Base(wire.AgentPath))
	for _, broken := range [][]byte{make([]byte, len(program)), program[:100], {}} {
		if err := os.WriteFile(file, broken, 0o755); err != nil {
			t.Fatal(err)
		}
		s = d.store(t)
		for range 2 {
			before := d.helpers()
			if again, err := s.ProvideAgent(t.Context()); err != nil || again != name {
				t.Errorf("again: %q, %v", again, err)
			}
			if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, program) {
				t.Errorf("after %d bytes the program has %d, %v", len(broken), len(got), err)
			}
			if again := d.helpers() == before; again != (broken == nil) {
				t.Errorf("%d helpers", d.helpers()-before)
			}
			broken = nil
		}
	}
	s.Close()
	_, err = d.Client.VolumeInspect(t.Context(), name, client.VolumeInspectOptions{})
	if !isMissing(err) {
		t.Errorf("after Close: %v", err)
	}
}

// doubtsArchives: an archive in which something is missing that a used workspace has does not count as empty.
func doubtsArchives(t *testing.T, d *daemon) {
	s := d.store(t)
	isEmpty := func() (bool, error) {
		return s.IsEmpty(t.Context(), "doubted", func(path string, _ fs.FileMode) bool {
			return path == ".local" || path == ".local/bin"
		})
	}
	if empty, err := isEmpty(); err != nil || !empty {
		t.Errorf("a workspace that does not exist: %t, %v", empty, err)
	}
	if err := s.MakeVolume(t.Context(), "doubted", 1234, 1234); err != nil {
		t.Fatal(err)
	}
	if empty, err := isEmpty(); err != nil || empty {
		t.Errorf("a workspace that was never used: %t, %v", empty, err)
	}
	if err := os.MkdirAll(filepath.Join(d.folder(t, Name("doubted")), ".local/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if empty, err := isEmpty(); err != nil || !empty {
		t.Errorf("a workspace that was used: %t, %v", empty, err)
	}
	defer d.at(nil)
	for _, tt := range []struct {
		names []string
		whole bool
		want  bool
	}{{nil, true, false}, {[]string{"volume/"}, true, false}, {[]string{"volume/.local/"}, true, false},
		{[]string{"volume/", "volume/.local/"}, true, true}, {[]string{"volume/", "volume/.local/"}, false, false},
		{[]string{"volume/", "volume/.local/", "volume/x/"}, true, false}} {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, name := range tt.names {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if !tt.whole {
			archive.Truncate(512*len(tt.names) - 100)
		}
		d.at(func(w http.ResponseWriter, method, path string) bool {
			if method != http.MethodGet || !strings.HasSuffix(path, "/archive") {
				return false
			}
			w.Header().Set("X-Docker-Container-Path-Stat", base64.StdEncoding.EncodeToString([]byte("{}")))
			_, _ = w.Write(archive.Bytes())
			return true
		})
		empty, err := isEmpty()
		if empty != tt.want || (err == nil) != tt.whole {
			t.Errorf("an archive with %q: %t, %v", tt.names, empty, err)
		}
	}
}
