package docker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// fakeDaemon answers as a daemon whose containers are made while their client gives up. With failing set it removes
// none.
type fakeDaemon struct {
	onMake   func()
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
	case strings.HasSuffix(path, "/containers/create"):
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

// TestCancelledCreate: a container that is made while its caller gives up is removed; one that cannot be removed is
// listed.
func TestCancelledCreate(t *testing.T) {
	for _, failing := range []bool{false, true} {
		dir := t.TempDir()
		l, err := net.Listen("unix", filepath.Join(dir, "d.sock"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(Config{Host: "unix://" + l.Addr().String(), Agent: "/bin/agent", StateDir: dir,
			Log: sandboxtest.Log(t)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		d := &fakeDaemon{onMake: cancel, failing: failing,
			instance: func() string { id, _ := r.instanceID(); return id }}
		server := &http.Server{Handler: d}
		go server.Serve(l)
		_, err = r.Create(ctx, sandbox.Spec{ID: "a", Secret: make([]byte, 32),
			Template: &image.Template{Name: "t", Image: "i", ImageID: "sha256:i"}})
		if !errors.Is(err, context.Canceled) || d.exists.Load() != failing || len(r.List()) == 1 != failing {
			t.Errorf("with failing %t: %v; the container exists: %t; %d listed", failing, err, d.exists.Load(),
				len(r.List()))
		}
		if err := errors.Join(r.Close(), server.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestSocketsOfDaemons: no folder with the socket of another daemon gets into a sandbox, even before it runs.
func TestSocketsOfDaemons(t *testing.T) {
	r, err := New(Config{Host: "unix:///none/d.sock", Agent: "/bin/agent", StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for source, allowed := range map[string]bool{t.TempDir(): true, "/run": false, "/": false} {
		if err := r.checkMounts([]sandbox.Mount{{Source: source, Target: "/data"}}); (err == nil) != allowed {
			t.Errorf("%s: %v", source, err)
		}
	}
}
