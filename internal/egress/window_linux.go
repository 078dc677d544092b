//go:build !mac

package egress

import "syscall"

func limitWindow(fd uintptr) {
	_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_WINDOW_CLAMP, maxWindow)
}
