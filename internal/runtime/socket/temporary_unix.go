//go:build unix

package socket

import "golang.org/x/sys/unix"

var temporary = []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EINTR}
