package socket

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"sandlot/internal/sandbox"
)

// TestTools: a tree does not change while it is held, and there is none once the sandbox is removed.
func TestTools(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "box")
	socketDir := filepath.Join(dir, "sock")
	if err := os.MkdirAll(socketDir, 0o755); err != nil {
		t.Fatal(err)
	}
	var tools Tools
	release := tools.Hold()
	done, held := make(chan error), true
	go func() {
		done <- tools.Change(socketDir, func(tree string) error {
			if held {
				t.Error("it changed while it was held")
			}
			return os.Mkdir(tree, 0o755)
		})
	}()
	held = false
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := tools.Remove(dir); err != nil {
		t.Fatal(err)
	}
	err := tools.Change(socketDir, func(tree string) error { return os.MkdirAll(tree, 0o755) })
	if _, statErr := os.Lstat(dir); !errors.Is(err, sandbox.ErrGone) || statErr == nil {
		t.Errorf("after it was removed: %v, and the folder: %v", err, statErr)
	}
}
