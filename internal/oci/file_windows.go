package oci

import (
	"errors"

	"golang.org/x/sys/windows"
)

// nonblock is nothing: folders of Windows have no pipes.
const nonblock = 0

// isDiskFull reports whether a file could not be written because there is no space, or no quota, for it.
func isDiskFull(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) ||
		errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}
