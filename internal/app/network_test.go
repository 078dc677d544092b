package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/config"
	"sandlot/internal/sandbox"
)

// A file that appears while the server runs has a say if nobody else wrote it.
func TestMine(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(dir, "shared", "deep")
	if err := os.MkdirAll(shared, 0o700); err != nil {
		t.Fatal(err)
	}
	file := func(path string, mode os.FileMode) string {
		if err := os.WriteFile(path, []byte("port: 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := filepath.Join(dir, "link.yaml")
	if err := os.Symlink(file(filepath.Join(shared, "a.yaml"), 0o600), link); err != nil {
		t.Fatal(err)
	}
	theirs := file(filepath.Join(dir, "theirs.yaml"), 0o600)
	if os.Getuid() == 0 {
		if err := os.Chown(theirs, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	} else {
		theirs = filepath.Join(dir, "no.yaml")
	}
	volume := []sandbox.Mount{{Source: filepath.Join(dir, "shared"), Target: "/data"}}
	readOnly := []sandbox.Mount{{Source: filepath.Join(dir, "shared"), Target: "/data", ReadOnly: true}}
	for _, tt := range []struct {
		file    string
		volumes []sandbox.Mount
		want    string // empty: it is taken up
	}{
		{file(filepath.Join(dir, "own.yaml"), 0o664), volume, ""},
		{file(filepath.Join(dir, "open.yaml"), 0o666), nil, "others"},
		{theirs, nil, "o"},
		{filepath.Join(shared, "a.yaml"), volume, "volume"},
		{filepath.Join(shared, "a.yaml"), readOnly, ""},
		{link, volume, "volume"},
		{filepath.Join(dir, "none.yaml"), nil, "no such file"},
	} {
		err := mine(tt.file, tt.volumes)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s with %v: %v", tt.file, tt.volumes, err)
		}
	}
}

// The file that has appeared is the one that a start would read.
func TestAppeared(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	state := filepath.Join(dir, "state")
	source := config.Source{Env: map[string]string{"SANDLOT_STATE_DIR": "/nowhere"}, Flags: map[string]string{"state_dir": state}}
	if got := appeared(source); got != "" {
		t.Errorf("none: %q", got)
	}
	for _, f := range []string{filepath.Join(state, "sandlot.yaml"), filepath.Join(dir, "sandlot.yaml")} { // the first wins when both are there
		if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte("port: 9000\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got := appeared(source)
		if c, err := config.Load(source); err != nil || got != f || c.File != f {
			t.Errorf("%q has appeared, and a start reads %q (%v); want %s", got, c.File, err, f)
		}
	}
}
