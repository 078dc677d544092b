package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

// TestWrite: a file is replaced whole, and a failure leaves the old content and nothing else.
func TestWrite(t *testing.T) {
	for name, write := range map[string]func(string, []byte) error{"Write": Write, "WriteThrough": WriteThrough} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			if err := os.WriteFile(path+".new", []byte("what a crash has left, which is longer"), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, content := range []string{"first", "2nd"} {
				if err := write(path, []byte(content)); err != nil {
					t.Fatal(err)
				}
				if got, err := os.ReadFile(path); err != nil || string(got) != content {
					t.Errorf("%q, %v, want %q", got, err, content)
				}
			}
			if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
				t.Errorf("%v, %v", st.Mode(), err)
			}
			taken := filepath.Join(dir, "folder")
			if err := os.MkdirAll(filepath.Join(taken, "full"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := write(taken, nil); err == nil {
				t.Error("replaced a folder")
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
				t.Errorf("in the folder: %v, %v", left, err)
			}
		})
	}
}
