//go:build unix

package process

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"sandlot/internal/servers/spec"
)

// credential returns the system's form of a user's ids.
func credential(c *spec.Credential) *syscall.Credential {
	if c == nil {
		return nil
	}
	return &syscall.Credential{Uid: c.UID, Gid: c.GID, Groups: c.Groups}
}

// endSignal returns the signal that has ended a process; 0: none.
func endSignal(st *os.ProcessState) int {
	if w, ok := st.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return int(w.Signal())
	}
	return 0
}

// readNow reads what a socket has received. The sockets of the net package do not wait.
func readNow(fd uintptr, buf []byte) (int, error) { return unix.Read(int(fd), buf) }
