//go:build unix

package direct

import "golang.org/x/sys/unix"

// receiveNow reads what a socket has received, without waiting: else the error is EAGAIN.
func receiveNow(fd uintptr, b []byte) (int, error) {
	n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
	return n, err
}
