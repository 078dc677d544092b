package app

import (
	"os"
	"path/filepath"
	"testing"

	"sandlot/internal/config"
)

// The file that has appeared is the one that a start would read.
func TestAppeared(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	state := filepath.Join(dir, "state")
	source := config.Source{Env: map[string]string{"SANDLOT_STATE_DIR": "/nowhere"},
		Flags: map[string]string{"state_dir": state}}
	if got := settingsFile(source); got != "" {
		t.Errorf("none: %q", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "sandlot.yaml"), []byte("port: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := settingsFile(source); got != "" {
		t.Errorf("the one of the current folder: %q", got)
	}
	f := filepath.Join(state, "sandlot.yaml")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f, []byte("port: 9000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := settingsFile(source)
	if c, err := config.Load(source); err != nil || got != f || c.File != f {
		t.Errorf("%q has appeared, and a start reads %q (%v); want %s", got, c.File, err, f)
	}
}
