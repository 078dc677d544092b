//go:build unix && !linux

package process

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"sandlot/internal/servers/spec"
)

// attributes are for the start of a program of a user of the host. When the server is killed, the program reads
// the end of its input, but is not killed: only Linux can do that.
func attributes(c *spec.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: credential(c)}
}

// signalText returns nothing: what this system calls a signal is not what Linux, on which sandboxes are, does.
func signalText(int) string { return "" }

// awaitExit waits until a process has ended, and leaves it to be waited for, so that its id is not another one's.
func awaitExit(p *os.Process) {
	queue, err := unix.Kqueue()
	if err != nil {
		return
	}
	defer unix.Close(queue)
	exit := unix.Kevent_t{Fflags: unix.NOTE_EXIT}
	unix.SetKevent(&exit, p.Pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	for events := make([]unix.Kevent_t, 1); ; {
		// ESRCH: it has ended already.
		if _, err := unix.Kevent(queue, []unix.Kevent_t{exit}, events, nil); err != unix.EINTR {
			return
		}
	}
}
