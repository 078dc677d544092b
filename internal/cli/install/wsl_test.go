package install

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"sandlot/internal/clientconfig"
)

// windows makes a folder with the drives of a Windows, whose user's folders cmd.exe says.
func windows(t *testing.T, dir string) (root string) {
	t.Helper()
	root = filepath.Join(dir, "mnt") + "/"
	program := root + "c/Windows/System32/cmd.exe"
	const text = "#!/bin/sh\nprintf 'APPDATA=C:\\\\Users\\\\me\\\\AppData\\\\Roaming\\r\\n" +
		"USERPROFILE=C:\\\\Users\\\\me\\r\\n'\n"
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}

// TestWindowsFile: a distribution of WSL finds each client's file where Windows has it.
func TestWindowsFile(t *testing.T) {
	root := windows(t, t.TempDir())
	for id, want := range map[string]string{
		"claude-desktop": "c/Users/me/AppData/Roaming/Claude/claude_desktop_config.json",
		"cursor":         "c/Users/me/.cursor/mcp.json", "vscode": "c/Users/me/AppData/Roaming/Code/User/mcp.json"} {
		k, err := clientconfig.Find(id)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := windowsFile(context.Background(), k, root); err != nil || got != root+want {
			t.Errorf("%s: %s, %v", id, got, err)
		}
	}
}
