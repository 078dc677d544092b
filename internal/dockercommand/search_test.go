//go:build unix

package dockercommand

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// TestPlaces: what is looked for on each system, in its order.
func TestPlaces(t *testing.T) {
	none := map[string]string{}
	for _, tt := range []struct {
		system string
		uid    int
		env    map[string]string
		want   []string // "program address"
	}{
		{"darwin", 501, map[string]string{"TMPDIR": "/var/folders/x/T/"}, []string{
			"Docker unix:///var/run/docker.sock", "Docker Desktop unix:///Users/me/.docker/run/docker.sock",
			"Colima unix:///Users/me/.colima/default/docker.sock", "Colima unix:///Users/me/.colima/docker.sock",
			"Colima unix:///Users/me/.config/colima/default/docker.sock",
			"OrbStack unix:///Users/me/.orbstack/run/docker.sock", "Rancher Desktop unix:///Users/me/.rd/docker.sock",
			"Podman unix:///var/folders/x/T/podman/podman-machine-default-api.sock",
			"Podman unix:///Users/me/.local/share/containers/podman/machine/podman.sock",
			"Podman unix:///Users/me/.local/share/containers/podman/machine/applehv/podman.sock",
			"Podman unix:///Users/me/.local/share/containers/podman/machine/libkrun/podman.sock",
			"Podman unix:///Users/me/.local/share/containers/podman/machine/qemu/podman.sock",
			"Podman unix:///Users/me/.local/share/containers/podman/machine/podman-machine-default/podman.sock",
			"Lima unix:///Users/me/.lima/docker/sock/docker.sock",
			"Lima unix:///Users/me/.lima/default/sock/docker.sock",
			"Lima unix:///Users/me/.lima/podman/sock/podman.sock"}},
		{"linux", 1000, none, []string{"Docker unix:///var/run/docker.sock",
			"rootless Docker unix:///run/user/1000/docker.sock",
			"Docker Desktop unix:///Users/me/.docker/desktop/docker.sock",
			"Docker Desktop unix:///Users/me/.docker/run/docker.sock",
			"Colima unix:///Users/me/.colima/default/docker.sock", "Colima unix:///Users/me/.colima/docker.sock",
			"Colima unix:///Users/me/.config/colima/default/docker.sock",
			"Rancher Desktop unix:///Users/me/.rd/docker.sock", "Podman unix:///run/user/1000/podman/podman.sock",
			"Lima unix:///Users/me/.lima/docker/sock/docker.sock",
			"Lima unix:///Users/me/.lima/default/sock/docker.sock",
			"Lima unix:///Users/me/.lima/podman/sock/podman.sock"}},
		{"windows", -1, none, []string{"Docker npipe:////./pipe/docker_engine",
			"Docker Desktop npipe:////./pipe/dockerDesktopLinuxEngine",
			"Podman npipe:////./pipe/podman-machine-default"}},
	} {
		m := machine{tt.system, "/Users/me", tt.uid, func(name string) string { return tt.env[name] }}
		var got []string
		for _, p := range places(m) {
			got = append(got, p.program+" "+p.address)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %s\nwant %s", tt.system, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
		}
	}
	env := map[string]string{"COLIMA_HOME": "/c", "LIMA_HOME": "/l", "XDG_RUNTIME_DIR": "/r"}
	m := machine{"linux", "", 0, func(name string) string { return env[name] }}
	want := []place{{"Docker", "unix:///var/run/docker.sock"}, {"rootless Docker", "unix:///r/docker.sock"},
		{"Colima", "unix:///c/default/docker.sock"}, {"Podman", "unix:///run/podman/podman.sock"},
		{"Lima", "unix:///l/docker/sock/docker.sock"}, {"Lima", "unix:///l/default/sock/docker.sock"},
		{"Lima", "unix:///l/podman/sock/podman.sock"}}
	if got := places(m); !slices.Equal(got, want) {
		t.Errorf("root without a home folder, with variables: %v", got)
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

// TestSearch: the first daemon that answers is found and kept. What does not answer, or may be another user's, is not
// used, and is said.
func TestSearch(t *testing.T) {
	dir := shortDir(t)
	deaf := listen(t, dir, "deaf", false)
	stale := listen(t, dir, "stale", true)
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	everyones := listen(t, dir, "open/socket", true)
	groups := listen(t, dir, "group/socket", true)
	sticky := listen(t, dir, "sticky/socket", true)
	for name, mode := range map[string]os.FileMode{"open": 0o777, "group": 0o775, "sticky": 0o777 | os.ModeSticky} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	good, second := listen(t, dir, "good", true), listen(t, dir, "second", true)
	link := place{"link", "unix://" + filepath.Join(dir, "link")}
	loop := place{"loop", "unix://" + filepath.Join(dir, "loop")}
	err := errors.Join(os.Symlink("good", filepath.Join(dir, "link")), os.Symlink("loop", filepath.Join(dir, "loop")))
	if err != nil {
		t.Fatal(err)
	}
	// The socket's file outlives its program.
	stopped, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "stopped"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stopped.SetUnlinkOnClose(false)
	stopped.Close()
	file, gone := place{"file", "unix://" + filepath.Join(dir, "file")}, place{"gone", "unix://" + dir + "/file/x"}
	wants := map[string]string{"deaf": "it has not answered within", "open/socket": "everyone can write",
		"file": "it is not a socket", "stopped": "", "loop": "too many links", "good": "", "second": ""}
	theirs := place{"theirs", stale.address}
	if os.Getuid() == 0 {
		err = errors.Join(os.Chown(filepath.Join(dir, "stale"), 65534, 65534),
			os.Chown(filepath.Join(dir, "group"), 0, 65534))
		if err != nil {
			t.Fatal(err)
		}
		wants["theirs"], wants["group/socket"] = "it is another user's", "others can write"
	}
	c, tried := look(t.Context(), []place{deaf, theirs, file, everyones, groups, loop, gone,
		{"stopped", "unix://" + dir + "/stopped"}, good, link, second})
	if c == nil || os.Getuid() == 0 && c.DaemonHost() != good.address {
		t.Fatalf("found %v: %v", c, tried)
	}
	defer c.Close()
	seen := map[string]string{}
	for _, a := range tried {
		seen[a.Program] = a.Problem
		if a.Program == "gone" || a.Program == "link" {
			t.Errorf("%s: %v", a.Program, a)
		}
	}
	for program, want := range wants {
		if problem, found := seen[program]; !found || !strings.Contains(problem, want) || want == "" &&
			(problem == "") != (program != "stopped") {
			t.Errorf("%s: %q, want %q", program, problem, want)
		}
	}
	if c, tried := look(t.Context(), []place{sticky}); c == nil {
		t.Errorf("in a folder with the sticky bit: %v", tried)
	} else {
		c.Close()
	}
}

// TestDaemonStartsLater: a daemon is found that is started after the client was made, and stays the one.
func TestDaemonStartsLater(t *testing.T) {
	home := shortDir(t)
	t.Setenv("HOME", home)
	for _, name := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_API_VERSION"} {
		t.Setenv(name, "")
	}
	m := machine{"darwin", home, os.Getuid(), func(string) string { return "" }}
	file := filepath.Join(home, "state", "docker", "daemon")
	s, err := newSearch(m, file)
	if err != nil {
		t.Fatal(err)
	}
	s.places = slices.DeleteFunc(s.places, func(p place) bool { return !strings.Contains(p.address, home) })
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
	colima := listen(t, home, ".colima/default/docker.sock", true)
	for range 100 {
		if err = ping(); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil || d.DaemonHost() != colima.address || !d.IsSearched() {
		t.Fatalf("Colima runs: %v, %s", err, d.DaemonHost())
	}
	listen(t, home, ".docker/run/docker.sock", true) // which comes before it
	conn, err := d.Dialer()(t.Context())
	if err != nil || ping() != nil || d.DaemonHost() != colima.address {
		t.Errorf("another one runs: %v, %s", err, d.DaemonHost())
	}
	conn.Close()
	// One that has the server's volumes is the only one.
	if err := d.Remember(); err != nil {
		t.Fatal(err)
	}
	last, err := newSearch(m, file)
	if err != nil || !slices.Equal(last.places, []place{{"the one that was used before", colima.address}}) {
		t.Fatalf("%v, %v", last, err)
	}
	if err := os.Remove(strings.TrimPrefix(colima.address, "unix://")); err != nil {
		t.Fatal(err)
	}
	_, err = last.daemon(context.Background())
	if none, ok := errors.AsType[*NotFoundError](err); !ok || !strings.Contains(none.Advice(), "docker.host") {
		t.Errorf("the one before is away: %v", err)
	}
}

// nobody is the user of TestListenAsNobody's process.
const nobody = 65534

// TestListenAsNobody is another user's process that answers as a Docker daemon does. TestTakenOver starts it.
func TestListenAsNobody(t *testing.T) {
	path := os.Getenv("SANDLOT_TEST_SOCKET")
	if path == "" {
		return
	}
	listen(t, filepath.Dir(path), filepath.Base(path), true)
	fmt.Println("listening")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// TestTakenOver: the socket of a daemon that was found and has ended is made again by another user. Nothing more is
// sent there: neither when its file shows whose it is, nor when only the connection does.
func TestTakenOver(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("it needs root, to be another user too")
	}
	dir := shortDir(t)
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "run", "docker.sock")
	l := listen(t, filepath.Dir(path), "docker.sock", true)
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
	if err := errors.Join(os.RemoveAll(filepath.Dir(path)), os.Mkdir(filepath.Dir(path), 0o777),
		os.Chmod(filepath.Dir(path), 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "test") // which another user can run
	text, err := os.ReadFile(os.Args[0])
	if err := errors.Join(err, os.WriteFile(program, text, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run=^TestListenAsNobody$")
	cmd.Env = append(os.Environ(), "SANDLOT_TEST_SOCKET="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, outErr := cmd.StdoutPipe()
	in, inErr := cmd.StdinPipe()
	if err := errors.Join(outErr, inErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "listening\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := call(); err == nil || !strings.Contains(err.Error(), "another user's") {
		t.Errorf("the socket of another user: %v", err)
	}
	if err := os.Chown(path, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := call(); err == nil || !strings.Contains(err.Error(), "another user answers") {
		t.Errorf("another user listens at a socket of this one: %v", err)
	}
}
