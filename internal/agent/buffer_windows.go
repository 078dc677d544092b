package agent

import "golang.org/x/sys/windows"

// setSendBuffer sets the size of a socket's send buffer.
func setSendBuffer(fd uintptr, size int) {
	windows.SetsockoptInt(windows.Handle(fd), windows.SOL_SOCKET, windows.SO_SNDBUF, size)
}
