package app

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandlot/internal/config"
)

// TestFormerRuntime: ending all sandboxes ends, and says so, when the runtime that the settings no longer have does not
// say which sandboxes it has.
func TestFormerRuntime(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "d.sock")) // the kernel accepts, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := &config.Config{}
	c.Server.StateDir, c.Docker.Host = dir, "unix://"+l.Addr().String()
	c.Runtime.Name, c.Runtime.Names = "gvisor", []string{"gvisor"}
	c.Runtime.RunscPath, c.Runtime.AgentPath = "/bin/true", "/bin/true"
	var said bytes.Buffer
	end := func() error {
		t.Helper()
		said.Reset()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := EndSandboxes(ctx, c, Logger(&said, "ERROR", false))
			ended <- err
		}()
		select {
		case err := <-ended:
			return err
		case <-time.After(30 * time.Second):
			t.Fatal("it waits for the daemon")
		}
		return nil
	}
	if err := end(); err != nil || said.Len() > 0 {
		t.Errorf("without sandboxes on Docker: %v; %s", err, said.String())
	}
	sandboxes := filepath.Join(dir, "docker", "sandboxes")
	if err := os.MkdirAll(sandboxes, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := end(); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(said.String(), "did not list its containers") {
		t.Errorf("with a daemon that does not answer: %v; %s", err, said.String())
	}
	if err := os.Remove(sandboxes); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sandboxes, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := end(); err == nil || !strings.Contains(err.Error(), "docker, which the settings no longer have") {
		t.Errorf("with a folder that cannot be read: %v", err)
	}
}
