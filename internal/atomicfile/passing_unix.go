//go:build unix

package atomicfile

import "golang.org/x/sys/unix"

// passing are the errors of a machine that lacks something for a moment, or whose disk or network does not answer.
var passing = []error{unix.EIO, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, unix.EINTR, unix.EBUSY,
	unix.EROFS, unix.ESTALE, unix.ETIMEDOUT, unix.ENOTCONN, unix.ECONNABORTED, unix.EHOSTDOWN, unix.EHOSTUNREACH,
	unix.ENETDOWN, unix.ENETUNREACH, unix.ENXIO, unix.ENODEV, unix.ENOLCK}
