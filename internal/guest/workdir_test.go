package guest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// TestWorkdirOfImage: an agent whose programs could not start where the image says refuses its first settings, and not
// later ones: a program may remove the folder.
func TestWorkdirOfImage(t *testing.T) {
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "file"), filepath.Join(dir, "folder")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{file, filepath.Join(dir, "none"), filepath.Join(file, "x"), "/proc/self/fd/7",
		"/proc/self/cwd", "/proc", "/dev/fd/3", "/sys", "/opt/../proc/self"} {
		a := New(Config{Workdir: bad})
		_, err := a.Configure(t.Context(), &agentv1.ConfigureRequest{})
		if connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), bad) {
			t.Errorf("WORKDIR %s: %v", bad, err)
		}
	}
	for _, good := range []string{"", folder} {
		a := New(Config{Workdir: good})
		for range 2 {
			if _, err := a.Configure(t.Context(), &agentv1.ConfigureRequest{}); err != nil {
				t.Errorf("WORKDIR %s: %v", good, err)
			}
			if good != "" {
				os.Remove(good)
			}
		}
	}
}

// TestGoVariables: what the runtime of the agent reads reaches the programs of the sandbox alone.
func TestGoVariables(t *testing.T) {
	t.Setenv(wire.EnvSecret, strings.Repeat("00", wire.SecretLen))
	for _, name := range wire.GoVariables {
		t.Setenv(name, "")
		t.Setenv(wire.EnvProgram+name, "x"+name)
	}
	c, err := FromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range wire.GoVariables {
		if _, has := os.LookupEnv(name); has {
			t.Errorf("the agent has %s", name)
		}
		if !slices.Contains(c.Env, name+"=x"+name) || slices.Contains(c.Env, name+"=") {
			t.Errorf("programs have no %s: %q", name, c.Env)
		}
	}
	if slices.ContainsFunc(c.Env, func(kv string) bool { return strings.HasPrefix(kv, wire.EnvPrefix) }) {
		t.Errorf("programs have %q", c.Env)
	}
}
