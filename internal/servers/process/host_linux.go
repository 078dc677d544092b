package process

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"sandlot/internal/servers/spec"
)

// attributes are for the start of a program of a user of the host. It ends with the server.
func attributes(c *spec.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: credential(c)}
}

// signalText returns what a signal of Linux, on which sandboxes are, means.
func signalText(signal int) string { return " (" + syscall.Signal(signal).String() + ")" }

// awaitExit waits until a process has ended, and leaves it to be waited for.
func awaitExit(p *os.Process) {
	_ = unix.Waitid(unix.P_PID, p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
}
