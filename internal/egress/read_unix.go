//go:build unix

package egress

import "syscall"

// readable returns a connection's descriptor; nil: it has none.
func readable(c syscall.Conn) syscall.RawConn {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// readNow reads what a connection has received, without waiting: else the error is EAGAIN.
func readNow(fd uintptr, b []byte) (n int, err error) {
	for {
		if n, err = syscall.Read(int(fd), b); err != syscall.EINTR {
			return n, err
		}
	}
}

// errConnRefused is the system's error for a port without a listener.
const errConnRefused = syscall.ECONNREFUSED
