package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestRead: of what another user has put in the place of a file, only a regular file is read, and of that no more than
// the limit. Nothing makes the reader wait.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(os.WriteFile(at("file"), []byte("content"), 0o600), os.Symlink(at("file"), at("link")),
		os.Symlink("/dev/zero", at("endless")), os.Mkdir(at("folder"), 0o700), syscall.Mkfifo(at("pipe"), 0o600),
		syscall.Mkfifo(at("held pipe"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(at("held pipe"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	for _, tt := range []struct {
		name  string
		limit int64
		want  string // empty: it is refused
	}{
		{"file", 100, "content"}, {"file", 3, "con"}, {"link", 100, ""}, {"endless", 100, ""}, {"folder", 100, ""},
		{"pipe", 100, ""}, {"held pipe", 100, ""}, {"missing", 100, ""},
	} {
		done := make(chan error, 1)
		go func() {
			got, err := Read(at(tt.name), tt.limit)
			if string(got) != tt.want || (err != nil) != (tt.want == "") ||
				errors.Is(err, fs.ErrNotExist) != (tt.name == "missing") {
				t.Errorf("%s: %q, %v", tt.name, got, err)
			}
			done <- err
		}()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the reader waits", tt.name)
		}
	}
}
