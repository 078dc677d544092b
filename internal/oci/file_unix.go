//go:build unix

package oci

import (
	"errors"

	"golang.org/x/sys/unix"
)

// nonblock opens a pipe without waiting for its other end.
const nonblock = unix.O_NONBLOCK

// isDiskFull reports whether a file could not be written because there is no space, or no quota, for it.
func isDiskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
