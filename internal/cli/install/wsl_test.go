package install

import (
	"os"
	"path/filepath"
	"testing"
)

// windows makes a folder with the drives of a Windows, whose user's folders cmd.exe says.
func windows(t *testing.T, dir string) (root string) {
	t.Helper()
	root = filepath.Join(dir, "mnt") + "/"
	program := root + "c/Windows/System32/cmd.exe"
	const text = "#!/bin/sh\nprintf 'APPDATA=C:\\\\Users\\\\me\\\\AppData\\\\Roaming\\r\\n" +
		"LOCALAPPDATA=C:\\\\Users\\\\me\\\\AppData\\\\Local\\r\\nUSERPROFILE=C:\\\\Users\\\\me\\r\\n'\n"
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}
