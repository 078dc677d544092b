package docker

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/runtime/docker/dockertest"
)

// startRunsc starts a daemon whose default runtime is gVisor, with these arguments.
func startRunsc(t *testing.T, arguments ...string) *dockertest.Daemon {
	t.Helper()
	program, err := filepath.Abs("../../../bin/sandlot-runsc")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := json.Marshal(map[string]any{"default-runtime": "runsc", "runtimes": map[string]any{
		"runsc": map[string]any{"path": program, "runtimeArgs": arguments}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "daemon.json")
	if err := os.WriteFile(file, settings, 0o600); err != nil {
		t.Fatal(err)
	}
	return dockertest.Start(t, "--config-file", file)
}

// TestRunsc passes the suite with gVisor as the daemon's runtime.
func TestRunsc(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	d := startRunsc(t, rawSockets, daemonFiles)
	s, c := subject(t, d, baseTemplate())
	separate(t, d, s, c)
	if w := s.Open(t).Capabilities().Doctor.Warning(); strings.Contains(w, rawSockets) {
		t.Errorf("the warning says %q", w)
	}
	s.Run(t)
	t.Run("Save", func(t *testing.T) { saveImage(t, d) })
}

// TestRunscArguments: what gVisor cannot do without arguments is said.
func TestRunscArguments(t *testing.T) {
	needsRoot(t)
	t.Parallel()
	d := startRunsc(t)
	s, c := subject(t, d, baseTemplate())
	c.Files = FilesShared
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "another kernel") {
		t.Errorf("shared files: %v", err)
	}
	c.Files = FilesAuto
	separate(t, d, s, c)
	rt := s.Open(t)
	defer rt.Close()
	if err := rt.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if w := rt.Capabilities().Doctor.Warning(); !strings.Contains(w, rawSockets) {
		t.Errorf("the warning says %q", w)
	}
	b, err := rt.Create(t.Context(), s.Spec())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Stop(t.Context())
	if _, err := rt.Capabilities().Images.Save(t.Context(), b, "sandlot-test/built:9"); err == nil ||
		!strings.Contains(err.Error(), daemonFiles) {
		t.Errorf("saving what is in memory: %v", err)
	}
}
