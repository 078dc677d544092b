package dockertest

import (
	"os"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandlot/internal/proc"
)

// TestRemove: the containers of a daemon that was killed end with its test.
func TestRemove(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an unprivileged user cannot start Docker's daemon")
	}
	pid := 0
	t.Run("Daemon", func(t *testing.T) {
		d := Start(t, "--live-restore")
		made, err := d.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: "sleeps",
			Config:     &container.Config{Image: BaseImage, Cmd: []string{"sleep", "1000"}},
			HostConfig: &container.HostConfig{NetworkMode: "none"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Client.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{}); err != nil {
			t.Fatal(err)
		}
		pid = d.PID(t, "sleeps")
		d.Signal(t, unix.SIGKILL)
		if proc.State(pid) == 'Z' {
			t.Fatal("the container ended with its daemon, and the test proves nothing")
		}
	})
	if proc.State(pid) != 'Z' {
		unix.Kill(pid, unix.SIGKILL)
		t.Errorf("the container's process %d lives on", pid)
	}
}
