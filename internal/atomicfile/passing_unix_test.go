//go:build unix

package atomicfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"testing"
)

// TestTemporary: which errors say that a file may be read or written later, and which that it is gone or damaged.
func TestTemporary(t *testing.T) {
	t.Parallel()
	damaged := errors.New("another checksum")
	for err, want := range map[error]bool{
		syscall.EIO: true, syscall.EMFILE: true, syscall.ENFILE: true, syscall.ENOMEM: true, syscall.EACCES: true,
		syscall.EPERM: true, syscall.ENOSPC: true, syscall.EDQUOT: true, syscall.EROFS: true, syscall.ESTALE: true,
		syscall.ETIMEDOUT: true, context.DeadlineExceeded: true, context.Canceled: true, os.ErrDeadlineExceeded: true,
		syscall.ENOENT: false, syscall.ENOTDIR: false, syscall.EISDIR: false, syscall.EINVAL: false, io.EOF: false,
		io.ErrUnexpectedEOF: false, fs.ErrNotExist: false, damaged: false,
	} {
		for _, e := range []error{err, &os.PathError{Op: "read", Path: "/x", Err: err}, fmt.Errorf("reading: %w", err),
			errors.Join(damaged, err)} {
			if got := IsPassing(e); got != want {
				t.Errorf("%v (%T): %v", e, e, got)
			}
		}
	}
	if IsPassing(nil) {
		t.Error("no error passes")
	}
}
