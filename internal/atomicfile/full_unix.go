//go:build unix

package atomicfile

import (
	"errors"

	"golang.org/x/sys/unix"
)

// IsDiskFull reports whether a file could not be written because there is no space, or no quota, for it.
func IsDiskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
