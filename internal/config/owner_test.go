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
