package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A file counts as the operator's if nobody else can write it, replace it, or lead
// its name elsewhere.
func TestTrusted(t *testing.T) {
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
	chmod := func(path string, mode os.FileMode) string {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	into := func(to, name string) string {
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	open := file(filepath.Join(chmod(filepath.Join(dir, "open"), 0o777), "a.yaml"), 0o600)
	sticky := file(filepath.Join(chmod(filepath.Join(dir, "sticky"), 0o777|os.ModeSticky), "a.yaml"), 0o600)
	outside := file(filepath.Join(dir, "outside.yaml"), 0o600)
	// A sandbox may lead the link in the middle to a file of its own.
	chain := into(into(outside, filepath.Join(shared, "link.yaml")), filepath.Join(dir, "chain.yaml"))
	round := into(filepath.Join(dir, "round.yaml"), filepath.Join(dir, "round.yaml"))
	second := file(filepath.Join(dir, "second.yaml"), 0o600)
	if err := os.Link(second, filepath.Join(shared, "second.yaml")); err != nil {
		t.Fatal(err)
	}
	volume := []Volume{{Source: filepath.Join(dir, "shared"), Target: "/data"}}
	readOnly := []Volume{{Source: filepath.Join(dir, "shared"), Target: "/data", ReadOnly: true}}
	for _, tt := range []struct {
		file    string
		volumes []Volume
		want    string // empty: it is taken up
	}{
		{file(filepath.Join(dir, "own.yaml"), 0o664), volume, ""},
		{file(filepath.Join(dir, "open.yaml"), 0o666), nil, "users other"},
		{theirs, nil, "o"},
		{filepath.Join(shared, "a.yaml"), volume, "volume"},
		{filepath.Join(shared, "a.yaml"), readOnly, ""},
		{link, volume, "volume"},
		{filepath.Join(dir, "none.yaml"), nil, "no such file"},
		{dir, nil, "directory"},
		{open, nil, "users other"},
		{sticky, nil, ""},
		{outside, volume, ""},
		{chain, nil, ""},
		{chain, volume, "volume"},
		{round, nil, "too many links"},
		{second, volume, "hard link"},
		{second, readOnly, ""},
	} {
		c := Default()
		c.Volumes = tt.volumes
		err := c.CheckTrusted(tt.file, false)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s with %v: %v", tt.file, tt.volumes, err)
		}
	}
}

// A settings file in a folder that sandboxes write is not used, whoever named it.
func TestSettingsInAVolume(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "sandlot.yaml")
	if err := os.WriteFile(file, []byte("volumes: ["+dir+":/data]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Source{File: file}); err == nil || !strings.Contains(err.Error(), "sandboxes can write it") {
		t.Errorf("error %v", err)
	}
	if err := os.WriteFile(file, []byte("volumes: ["+dir+":/data:ro]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Source{File: file}); err != nil {
		t.Error(err)
	}
}

// Where nobody named the settings or the state folder, nobody else may have put
// them there: not by a link to a file of the user's own either, such as one of a
// folder that was cloned.
func TestSettingsThatOthersLeadTo(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs two users")
	}
	const user, other = 54321, 54322
	dir := t.TempDir()
	cloned := filepath.Join(dir, "cloned.yaml")
	state := filepath.Join(dir, "sandlot-54321")
	place := filepath.Join(state, "sandlot.yaml")
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o1777),
		os.WriteFile(cloned, []byte("port: 9999\n"), 0o644), os.Chown(cloned, user, user),
		os.Mkdir(state, 0o755), os.Chown(state, other, other), os.Symlink(cloned, place),
		os.Lchown(place, other, other)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", "")
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("TMPDIR", dir)
	if err := syscall.Setresuid(user, user, 0); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setresuid(0, 0, 0)
	if c, err := Load(Source{}); err == nil ||
		!strings.Contains(err.Error(), "users other than the server's can write it") ||
		!strings.Contains(err.Error(), "--config") {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := Load(Source{File: cloned}); err != nil || c.Server.Port != 9999 {
		t.Errorf("named: %v", err)
	}
}
