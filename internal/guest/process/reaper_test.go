package process

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLookup(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"tool": 0o755, "plain": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, path, dir, want string }{
		{"tool", dir, "/", dir + "/tool"},
		{"tool", "/nowhere:" + dir, "/", dir + "/tool"},
		{"tool", ".", dir, dir + "/tool"},
		{"./tool", "", dir, "./tool"},
		{"plain", dir, "/", ""},
		{"folder", dir, "/", ""},
		{"none", dir, "/", ""},
		{"", dir, "/", ""},
	}
	for _, tt := range tests {
		got, err := lookup(tt.name, []string{"PATH=" + tt.path}, tt.dir)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("lookup(%q) in %q = %q, %v, want %q", tt.name, tt.path, got, err, tt.want)
		}
	}
}
