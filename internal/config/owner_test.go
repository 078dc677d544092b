//go:build unix

package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/fault"
)

// Root uses no state folder of another user, however it is named, and runs nothing of its settings. The same holds for
// a settings file of another user in a folder of root's.
func TestForeignStateFolder(t *testing.T) {
	if os.Getuid() != 0 {
		return // nobody else can run what is in folders of others: they cannot make them private
	}
	const other = 65534
	dir := t.TempDir()
	settings := func(folder string, folderOwner, fileOwner int) (canary string) {
		canary = filepath.Join(dir, filepath.Base(folder)+"-ran")
		text := "mcp:\n  h: {command: \"$(touch " + canary + ")\"}\n"
		file := filepath.Join(folder, "sandlot.yaml")
		for _, err := range []error{os.MkdirAll(folder, 0o700), os.WriteFile(file, []byte(text), 0o600),
			os.Chown(file, fileOwner, fileOwner), os.Chown(folder, folderOwner, folderOwner)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return canary
	}
	theirs, mixed, own := filepath.Join(dir, "theirs"), filepath.Join(dir, "mixed"), filepath.Join(dir, "own.yaml")
	link := filepath.Join(dir, "link")
	canaries := []string{settings(theirs, other, other), settings(mixed, 0, other)}
	for _, err := range []error{os.WriteFile(own, []byte("state_dir: "+theirs+"\n"), 0o600), os.Symlink(theirs, link)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for what, s := range map[string]Source{
		"by the flag":         {Flags: map[string]string{"state_dir": theirs}},
		"by the variable":     {Env: map[string]string{"SANDLOT_STATE_DIR": theirs}},
		"by a link":           {Flags: map[string]string{"state_dir": link}},
		"by root's settings":  {File: own},
		"with root's file":    {File: own, Flags: map[string]string{"state_dir": theirs}},
		"the file in root's":  {Flags: map[string]string{"state_dir": mixed}},
		"the file, variable ": {Env: map[string]string{"SANDLOT_STATE_DIR": mixed}},
	} {
		if c, err := Load(s); !fault.Is(err, fault.Configuration) || c != nil ||
			!strings.Contains(err.Error(), "another user's") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := foreignFolder("/x", other).Error(); !strings.Contains(err, "sudo -u nobody") ||
		!strings.Contains(err, " --state-dir /x ") {
		t.Error(err)
	}
	for _, canary := range canaries {
		if _, err := os.Stat(canary); err == nil {
			t.Errorf("a command of the settings ran: %s", canary)
		}
	}
}

// Root uses no state folder into which others can put what it then runs: one for all users, by whatever link, and one in
// which somebody else has put something already. An empty volume that everybody could write is one of root's.
func TestSharedStateFolder(t *testing.T) {
	if os.Getuid() != 0 {
		return
	}
	folder := func(mode os.FileMode, entry string, uid int) string {
		dir := t.TempDir()
		path := filepath.Join(dir, entry)
		err := os.Mkdir(path, 0o755)
		for _, err := range []error{err, os.Chown(path, uid, uid), os.Chmod(dir, mode)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(folder(0o777|os.ModeSticky, "x", 0), link); err != nil {
		t.Fatal(err)
	}
	for what, dir := range map[string]string{"sticky, by a link": link, "sticky": folder(0o777|os.ModeSticky, "x", 0),
		"everybody's": folder(0o777, "programs", 65534), "a group's": folder(0o770, "programs", 65534),
		"a group's, sticky": folder(0o770|os.ModeSticky, "x", 0)} {
		if c, err := Load(Source{Flags: map[string]string{"state_dir": dir}}); !fault.Is(err, fault.Configuration) ||
			c != nil || !strings.Contains(err.Error(), "--state-dir") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, dir := range map[string]string{"a volume": folder(0o777, "lost+found", 0), "a group's": folder(0o2775, "x", 0)} {
		if _, err := Load(Source{Flags: map[string]string{"state_dir": dir}}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
