//go:build unix

package processgroup

import (
	"os/exec"
	"syscall"
)

// Group is a program and the programs that it has started.
type Group struct{ pid int }

// Start starts a program in a group of its own.
func Start(cmd *exec.Cmd) (*Group, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Group{cmd.Process.Pid}, nil
}

// Terminate asks the group to end.
func (g *Group) Terminate() error { return syscall.Kill(-g.pid, syscall.SIGTERM) }

// Kill ends the group. After the program was waited for, Kill ends those that it has left behind, if there are any.
func (g *Group) Kill() error { return syscall.Kill(-g.pid, syscall.SIGKILL) }

// Close forgets the group.
func (g *Group) Close() {}
