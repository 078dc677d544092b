package atomicfile

import (
	"context"
	"errors"
	"os"
)

// IsPassing reports whether an error of reading or writing a file says nothing about the file: the machine could not do
// it at that moment, such as for a full disk, a fault of the disk, too few descriptors, or permissions that somebody has
// changed. A file that is gone, or has another content, is no such case.
func IsPassing(err error) bool {
	if err == nil {
		return false
	}
	if IsDiskFull(err) || errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	for _, e := range passing {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
