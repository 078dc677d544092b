package app

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/config"
)

// TestForeignStateFolder: what another user has in a state folder makes nobody wait who looks at it, as `sandlot ps` of
// root does.
func TestForeignStateFolder(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(path string) error{
		"pipe": func(path string) error {
			if err := unix.Mkfifo(path, 0o644); err != nil {
				return err
			}
			writer, err := os.OpenFile(path, os.O_RDWR, 0)
			t.Cleanup(func() { writer.Close() })
			return err
		},
		"closed pipe": func(path string) error { return unix.Mkfifo(path, 0o644) },
		"endless":     func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		for _, file := range []string{"lock", "docker/instance", "sandboxes/a/sandbox.json"} {
			dir := t.TempDir()
			path := filepath.Join(dir, file)
			err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
				os.MkdirAll(filepath.Join(dir, "docker/sandboxes/a"), 0o755), put(path))
			if err != nil {
				t.Fatal(err)
			}
			c := &config.Config{}
			c.Server.StateDir, c.Docker.Host = dir, "unix://"+filepath.Join(dir, "none")
			c.Runtime.Names = []string{"gvisor", "docker"}
			done := make(chan error, 1)
			var said bytes.Buffer
			go func() {
				_, err := InspectStateFolder(context.Background(), c, Logger(&said, "ERROR", false), dir)
				done <- err
			}()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("%s at %s: %v", name, file, err)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%s at %s: it hangs", name, file)
			}
		}
	}
}
