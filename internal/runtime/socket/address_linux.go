//go:build !mac

package socket

import (
	"fmt"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

// address returns the address of the socket in a folder, which is valid until done is called. The folder's path may be
// too long for the address of a socket, so the address goes through /proc/self/fd.
func address(dir string) (name string, done func(), err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, wire.Socket), func() { unix.Close(fd) }, nil
}
