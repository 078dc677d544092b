//go:build !mac

package agent

import "golang.org/x/sys/unix"

// setSendBuffer sets the size of a socket's send buffer, beyond what users may have where this process can.
func setSendBuffer(fd uintptr, size int) {
	if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) != nil {
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, size)
	}
}
