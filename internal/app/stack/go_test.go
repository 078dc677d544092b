package stack

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/image"
)

// fakeGo makes a Go whose build writes down its variables, and returns the folder of its program.
func fakeGo(t *testing.T, version string) (bin string) {
	t.Helper()
	root := t.TempDir()
	bin = filepath.Join(root, "bin")
	script := "#!/bin/sh\n[ \"$1\" = build ] || exit 3\nshift; echo \"$*\" > \"$GOCACHE/built\"; env > \"$GOCACHE/env\"\n"
	for name, text := range map[string]string{"VERSION": version + "\ntime 2026\n", "bin/go": script} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// TestGoCache: the build cache of Go is made once for each version, and sandboxes get it by the agent; a Go that cannot
// use it gets none.
func TestGoCache(t *testing.T) {
	log := &bytes.Buffer{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	state, bin := t.TempDir(), fakeGo(t, "go1.26.8")
	template := func(path string) *image.Template {
		return &image.Template{Name: "host", Env: map[string]string{"PATH": path + ":" + image.AgentPrograms}}
	}
	host := template("/nowhere:" + bin)
	s := New(state, Lists{Go: []string{"std", "cmd/vet"}}, logger)
	s.Open(host)
	s.Make(t.Context(), host)
	if s.Version() == "" || s.Describe() != "" {
		t.Fatalf("%q %q\n%s", s.Version(), s.Describe(), log)
	}
	path := host.Env["PATH"]
	s.Add(host)
	if len(host.Binds) != 1 || host.Binds[0].Target != "/opt/sandlot/go" || host.Env["PATH"] != path ||
		host.Env["GOCACHEPROG"] != "/.sandlot/agent gocache /opt/sandlot/go" {
		t.Errorf("%v %v", host.Binds, host.Env)
	}
	built, _ := os.ReadFile(filepath.Join(host.Binds[0].Source, "built"))
	env, _ := os.ReadFile(filepath.Join(host.Binds[0].Source, "env"))
	if string(built) != "std cmd/vet\n" || !strings.Contains(string(env), "GOPROXY=off\n") ||
		!strings.Contains(string(env), "GOTOOLCHAIN=local\n") {
		t.Errorf("built %q with %s", built, env)
	}
	again := New(state, Lists{Go: []string{"std", "cmd/vet"}}, logger)
	if again.Open(host); again.Version() != s.Version() {
		t.Errorf("%q, then %q", s.Version(), again.Version())
	}
	// An upgrade of the machine's Go.
	if err := os.WriteFile(filepath.Join(filepath.Dir(bin), "VERSION"), []byte("go1.26.9\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	upgraded := New(state, Lists{Go: []string{"std", "cmd/vet"}}, logger)
	if upgraded.Open(host); upgraded.Version() != "" {
		t.Error("another version has the same cache")
	}
	for _, path := range []string{fakeGo(t, "go1.23.4"), fakeGo(t, "devel"), "/nowhere", "/workspace/bin", "bin"} {
		none := New(state, Lists{Go: []string{"std"}}, logger)
		other := template(path)
		none.Open(other)
		none.Make(t.Context(), other)
		if none.Add(other); none.Version() != "" || len(other.Binds) != 0 || other.Env["GOCACHEPROG"] != "" {
			t.Errorf("with Go in %s: %q %v", path, none.Version(), other.Binds)
		}
	}
}
