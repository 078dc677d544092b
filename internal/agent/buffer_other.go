//go:build (!linux || mac) && !windows

package agent

import "golang.org/x/sys/unix"

// setSendBuffer sets the size of a socket's send buffer.
func setSendBuffer(fd uintptr, size int) {
	unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, size)
}
