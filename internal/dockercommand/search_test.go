//go:build unix

package dockercommand

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// TestPlaces: what is looked for on each system, in its order.
func TestPlaces(t *testing.T) {
	for _, tt := range []struct {
		system, run string
		uid         int
		want        []place
	}{
		{"darwin", "/r", 501, []place{{"Docker", "unix:///var/run/docker.sock"}}},
		{"windows", "", -1, []place{{"Docker", "npipe:////./pipe/docker_engine"}}},
		{"linux", "", 1000, []place{{"Docker", "unix:///var/run/docker.sock"},
			{"rootless Docker", "unix:///run/user/1000/docker.sock"},
			{"Podman", "unix:///run/user/1000/podman/podman.sock"}}},
		{"linux", "/r", 0, []place{{"Docker", "unix:///var/run/docker.sock"},
			{"rootless Docker", "unix:///r/docker.sock"}, {"Podman", "unix:///run/podman/podman.sock"}}},
	} {
		env := map[string]string{"XDG_RUNTIME_DIR": tt.run}
		got := places(machine{tt.system, tt.uid, func(name string) string { return env[name] }})
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.system, got, tt.want)
		}
	}
}

// shortDir makes a folder whose path is short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandlot-dc-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// listen makes a socket below a folder. What connects waits until the test ends, unless a daemon is to answer.
func listen(t *testing.T, dir, name string, answers bool) place {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if answers {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Api-Version", "1.45")
			w.Write([]byte("OK"))
		})}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
	}
	return place{name, "unix://" + path}
}

// TestSearch: the first daemon that answers is found and kept. What does not answer, or is another user's, is not used,
// and is said.
func TestSearch(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("it needs root, to have a socket of another user")
	}
	dir := shortDir(t)
	deaf, theirs := listen(t, dir, "deaf", false), listen(t, dir, "theirs", true)
	good, second := listen(t, dir, "good", true), listen(t, dir, "second", true)
	at := func(name string) place { return place{name, "unix://" + filepath.Join(dir, name)} }
	// The socket's file outlives its program.
	stopped, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "stopped"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stopped.SetUnlinkOnClose(false)
	err = errors.Join(stopped.Close(), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
		os.Symlink("loop", filepath.Join(dir, "loop")), os.Symlink("theirs", filepath.Join(dir, "link")),
		os.Chown(filepath.Join(dir, "theirs"), nobody, nobody))
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string]string{"deaf": "it has not answered within", "theirs": "it is another user's",
		"link": "it is another user's", "file": "it is not a socket", "loop": "too many levels", "stopped": "Cannot connect",
		"good": ""}
	c, tried := look(t.Context(), []place{deaf, theirs, at("link"), at("file"), at("loop"), at("file/x"), at("gone"),
		at("stopped"), good, second})
	if c == nil || c.DaemonHost() != good.address {
		t.Fatalf("found %v: %v", c, tried)
	}
	defer c.Close()
	if len(tried) != len(wants) {
		t.Errorf("tried %v", tried)
	}
	for _, a := range tried {
		if want, known := wants[a.Program]; !known || !strings.Contains(a.Problem, want) ||
			(want == "") != (a.Problem == "") {
			t.Errorf("%s: %q, want %q", a.Program, a.Problem, want)
		}
	}
}

// TestDaemonStartsLater: a daemon is found that is started after the client was made, and stays the one.
func TestDaemonStartsLater(t *testing.T) {
	home := shortDir(t)
	t.Setenv("HOME", home)
	for _, name := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_API_VERSION"} {
		t.Setenv(name, "")
	}
	run := filepath.Join(home, "run")
	m := machine{"linux", 1000, func(string) string { return run }}
	file := filepath.Join(home, "state", "docker", "daemon")
	s, err := newSearch(m, file)
	if err != nil {
		t.Fatal(err)
	}
	s.places = slices.DeleteFunc(s.places, func(p place) bool { return !strings.Contains(p.address, run) })
	c, err := client.New(client.WithHost(m.usual().address), client.WithDialContext(s.dial))
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{c, s}
	defer d.Close()
	ping := func() error {
		_, err := d.Ping(t.Context(), client.PingOptions{})
		return err
	}
	err = ping()
	none, ok := errors.AsType[*NotFoundError](err)
	if !ok || !client.IsErrConnectionFailed(err) || d.DaemonHost() != "unix:///var/run/docker.sock" {
		t.Fatalf("nothing is there: %v, %s", err, d.DaemonHost())
	}
	for system, words := range map[string][]string{"darwin": {"Docker Desktop", "OrbStack", "Colima"},
		"windows": {"wsl --install", "--wsl"}, "linux": {"systemctl start docker", "gvisor"}} {
		for _, w := range words {
			if text := none.advice(system); !strings.Contains(text, w) {
				t.Errorf("%s: %q does not say %q", system, text, w)
			}
		}
	}
	podman := listen(t, run, "podman/podman.sock", true)
	for range 100 {
		if err = ping(); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil || d.DaemonHost() != podman.address || !d.IsSearched() {
		t.Fatalf("Podman runs: %v, %s", err, d.DaemonHost())
	}
	listen(t, run, "docker.sock", true) // which comes before it
	conn, err := d.Dialer()(t.Context())
	if err != nil || ping() != nil || d.DaemonHost() != podman.address {
		t.Errorf("another one runs: %v, %s", err, d.DaemonHost())
	}
	conn.Close()
	// One that has the server's volumes is the only one.
	if err := d.Remember(); err != nil {
		t.Fatal(err)
	}
	last, err := newSearch(m, file)
	if err != nil || !slices.Equal(last.places, []place{{"the one that was used before", podman.address}}) {
		t.Fatalf("%v, %v", last, err)
	}
	if err := os.Remove(strings.TrimPrefix(podman.address, "unix://")); err != nil {
		t.Fatal(err)
	}
	_, err = last.daemon(context.Background())
	if none, ok := errors.AsType[*NotFoundError](err); !ok || !strings.Contains(none.Advice(), "docker.host") {
		t.Errorf("the one before is away: %v", err)
	}
}

// nobody is another user.
const nobody = 65534

// TestTakenOver: the socket of a daemon that was found and has ended is another user's then. Nothing more is sent there.
func TestTakenOver(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("it needs root, to have a socket of another user")
	}
	l := listen(t, shortDir(t), "docker.sock", true)
	s, err := newSearch(machine{getenv: os.Getenv}, "")
	if err != nil {
		t.Fatal(err)
	}
	s.places = []place{l}
	call := func() error {
		conn, err := s.dial(t.Context(), "", "")
		if err == nil {
			conn.Close()
		}
		return err
	}
	if err := call(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(strings.TrimPrefix(l.address, "unix://"), nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if err := call(); err == nil || !strings.Contains(err.Error(), "another user's") {
		t.Errorf("the socket of another user: %v", err)
	}
}
