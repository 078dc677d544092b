//go:build (!linux || mac) && !windows

package egress

import "syscall"

// limitWindow bounds the buffer instead, of which the window is a part.
func limitWindow(fd uintptr) {
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, maxWindow)
}
