//go:build unix

package expand

import (
	"context"
	"os/exec"
	"syscall"
)

// shellCommand returns the program that runs a command. It, and all that it started, are killed when ctx ends.
func shellCommand(ctx context.Context, command string) (*exec.Cmd, error) {
	c := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	return c, nil
}
