package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// oneContainer answers as a daemon with at most one container.
type oneContainer struct {
	address string

	mu       sync.Mutex
	id       string // the daemon's
	instance string // of the container
	state    string // of the container; empty: there is none
	unmade   bool   // the daemon does not answer the request to make it
	stuck    bool   // it cannot be removed
	removals int    // requests to remove it
}

// set changes the daemon.
func (d *oneContainer) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

func (d *oneContainer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/wait") {
		<-r.Context().Done()
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w.Header().Set("Api-Version", "1.41")
	w.Header().Set("Content-Type", "application/json")
	path := r.URL.Path
	switch {
	case strings.HasSuffix(path, "/_ping"):
	case strings.HasSuffix(path, "/version"):
		w.Write([]byte(`{"ApiVersion":"1.41"}`))
	case strings.HasSuffix(path, "/info"):
		w.Write([]byte(`{"ID":"` + d.id + `"}`))
	case strings.HasSuffix(path, "/volumes"):
		w.Write([]byte(`{"Volumes":[]}`))
	case strings.HasSuffix(path, "/containers/create") && d.unmade:
		panic(http.ErrAbortHandler) // closes the connection
	case strings.HasSuffix(path, "/containers/create"):
		d.state = "created"
		w.WriteHeader(http.StatusCreated)
		w.Write([]byte(`{"Id":"c"}`))
	case strings.HasSuffix(path, "/archive"), strings.HasSuffix(path, "/update"): // of a path in the image, of limits
		w.WriteHeader(http.StatusNotFound)
	case strings.Contains(path, "/images/"):
		w.Write([]byte(`{"Id":"sha256:i","Config":{}}`))
	case strings.HasSuffix(path, "/start"):
		d.state = "running"
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodDelete && d.stuck:
		d.removals++
		w.WriteHeader(http.StatusInternalServerError)
		w.Write([]byte(`{"message":"device busy"}`))
	case r.Method == http.MethodDelete:
		d.state = ""
		w.WriteHeader(http.StatusNoContent)
	case strings.Contains(path, "/containers/") && d.state != "":
		fmt.Fprintf(w, `{"Id":"c","State":{"Running":%t},"Config":{"Labels":{"%s":"%s"}}}`, d.state == "running",
			labelInstance, d.instance)
	default:
		w.WriteHeader(http.StatusNotFound)
		w.Write([]byte(`{"message":"none"}`))
	}
}

// serve starts a daemon with that id of its own.
func serve(t *testing.T, id string) *oneContainer {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "d.sock"))
	if err != nil {
		t.Fatal(err)
	}
	d := &oneContainer{address: "unix://" + l.Addr().String(), id: id}
	server := &http.Server{Handler: d}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return d
}

// open returns the runtime with a daemon, as a new server has it.
func (d *oneContainer) open(t *testing.T, stateDir string) *Runtime {
	t.Helper()
	r, err := New(Config{Host: d.address, Agent: "/bin/agent", StateDir: stateDir, Log: sandboxtest.Log(t),
		OCIRuntime: "other"}) // in a sandbox of which nobody looks for the agent
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	instance, err := r.instanceID()
	if err != nil {
		t.Fatal(err)
	}
	d.set(func() { d.instance = instance })
	return r
}

var recordSpec = sandbox.Spec{ID: "a", Secret: make([]byte, wire.SecretLen),
	Template: &image.Template{Name: "t", Image: "i", ImageID: "sha256:i"}}

// leave makes a sandbox as an earlier server did.
func (d *oneContainer) leave(t *testing.T, stateDir string) {
	t.Helper()
	r := d.open(t, stateDir)
	if _, err := r.Create(t.Context(), recordSpec); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func hasFolder(stateDir string) bool {
	_, err := os.Stat(filepath.Join(stateDir, "docker", "sandboxes", recordSpec.ID))
	return err == nil
}

// TestStuckContainer: a sandbox that cannot be removed is not said to be removed: neither one that has ended, nor one
// that may live. It is found again, and removed when that can be done.
func TestStuckContainer(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(d *oneContainer, record string) error{
		"ended":         func(d *oneContainer, _ string) error { d.set(func() { d.state = "exited" }); return nil },
		"broken record": func(_ *oneContainer, record string) error { return os.WriteFile(record, []byte("{"), 0o600) },
		"no record":     func(_ *oneContainer, record string) error { return os.Remove(record) },
	} {
		d, dir := serve(t, "d"), t.TempDir()
		d.leave(t, dir)
		if err := damage(d, filepath.Join(dir, "docker", "sandboxes", recordSpec.ID, specfile.Name)); err != nil {
			t.Fatal(err)
		}
		d.set(func() { d.stuck = true })
		r := d.open(t, dir)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := r.Recover(ctx, recordSpec.ID)
		cancel()
		if ended := name == "ended"; !errors.Is(err, sandbox.ErrRemains) || errors.Is(err, sandbox.ErrGone) != ended {
			t.Errorf("%s: %v", name, err)
		}
		if ids, err := r.Leftovers(t.Context()); len(ids) != 1 || err != nil {
			t.Errorf("%s: leftovers %q, %v", name, ids, err)
		}
		d.set(func() { d.stuck = false })
		if _, err := r.Recover(t.Context(), recordSpec.ID); !sandbox.Removed(err) || d.state != "" || hasFolder(dir) {
			t.Errorf("%s: %v; the container is %q", name, err, d.state)
		}
	}
}

// TestStopRepeated: a daemon that cannot remove a container is asked less and less often. The sandbox is the same when
// it is recovered then, and is stopped when that can be done.
func TestStopRepeated(t *testing.T) {
	t.Parallel()
	d, dir := serve(t, "d"), t.TempDir()
	r := d.open(t, dir)
	b, err := r.Create(t.Context(), recordSpec)
	if err != nil {
		t.Fatal(err)
	}
	d.set(func() { d.stuck = true })
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if err := b.Stop(ctx); err == nil || !strings.Contains(err.Error(), "device busy") {
		t.Errorf("a container that stays: %v", err)
	}
	d.set(func() {
		if d.removals < 2 || d.removals > 10 {
			t.Errorf("in one and a half seconds the daemon was asked %d times to remove a container", d.removals)
		}
		d.stuck = false
	})
	again, err := r.Recover(t.Context(), recordSpec.ID)
	if err != nil || again != b {
		t.Errorf("recovered: %v, another one: %t", err, again != b)
	}
	if err := again.Stop(t.Context()); err != nil || d.state != "" || hasFolder(dir) || len(r.List()) != 0 {
		t.Errorf("%v; the container is %q, %d are listed", err, d.state, len(r.List()))
	}
}

// TestOtherDaemon: that another daemon has no such container says nothing about a sandbox. The same daemon at another
// address has it, and one that has come in the place of the daemon has taken its sandboxes away.
func TestOtherDaemon(t *testing.T) {
	t.Parallel()
	first, dir := serve(t, "first"), t.TempDir()
	first.leave(t, dir)
	other := serve(t, "other")
	r := other.open(t, dir)
	_, err := r.Recover(t.Context(), recordSpec.ID)
	if !errors.Is(err, sandbox.ErrUnavailable) || errors.Is(err, sandbox.ErrGone) || !hasFolder(dir) {
		t.Fatalf("another daemon: %v", err)
	}
	for _, says := range []string{first.address, other.address, dir, "docker.host"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%q does not say %s", err, says)
		}
	}
	again := serve(t, "first")
	again.set(func() { again.state = "running" })
	b, err := again.open(t, dir).Recover(t.Context(), recordSpec.ID)
	if err != nil {
		t.Fatalf("the daemon at another address: %v", err)
	}
	if err := b.Resize(t.Context(), sandbox.Limits{CPUs: 1}); err == nil {
		t.Error("resized what the daemon does not have") // and did not lose the record
	}
	if _, err := first.open(t, dir).Recover(t.Context(), recordSpec.ID); err != nil {
		t.Errorf("the daemon: %v", err)
	}
	first.set(func() { first.id, first.state = "new", "" })
	if _, err := first.open(t, dir).Recover(t.Context(), recordSpec.ID); !sandbox.Removed(err) || hasFolder(dir) {
		t.Errorf("a daemon in its place: %v", err)
	}
}

// TestUnansweredCreate: a container that the daemon makes after it did not answer the request is not forgotten.
func TestUnansweredCreate(t *testing.T) {
	t.Parallel()
	d, dir := serve(t, "d"), t.TempDir()
	r := d.open(t, dir)
	d.set(func() { d.unmade = true })
	if _, err := r.Create(t.Context(), recordSpec); err == nil {
		t.Fatal("made a sandbox")
	}
	list := r.List()
	if len(list) != 1 || !hasFolder(dir) {
		t.Fatalf("%d are listed", len(list))
	}
	if st, err := list[0].Status(t.Context()); st.State != sandbox.Dead || err != nil {
		t.Errorf("status: %+v, %v", st, err)
	}
	d.set(func() { d.state = "created" })
	if err := list[0].Stop(t.Context()); err != nil || d.state != "" || hasFolder(dir) || len(r.List()) != 0 {
		t.Errorf("%v; the container is %q, %d are listed", err, d.state, len(r.List()))
	}
	// One that no daemon was asked for is forgotten.
	away, err := New(Config{Host: "unix:///none/d.sock", Agent: "/bin/agent", StateDir: dir, Log: sandboxtest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	if _, err := away.Create(t.Context(), recordSpec); !errors.Is(err, sandbox.ErrUnavailable) || hasFolder(dir) {
		t.Errorf("without a daemon: %v", err)
	}
}
