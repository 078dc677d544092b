//go:build !mac

package tree

import (
	"context"
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// SetOwner makes a folder and everything in it belong to a user and a group. It follows no link: the
// owner of a link itself changes. The folder's own owner changes last.
func SetOwner(ctx context.Context, dir string, uid, gid int) error {
	var err error
	for range maxAttempts {
		w := walk{limits: Limits{Entries: math.MaxInt64, Depth: maxOwnedDepth}, buffer: make([]byte, dirBufferSize),
			visit: func(folder int, name string) error { return setOwner(folder, name, uid, gid) }}
		if _, err = w.run(ctx, dir); !errors.Is(err, ErrMoved) {
			break
		}
	}
	if err != nil {
		return err
	}
	return setOwner(unix.AT_FDCWD, dir, uid, gid)
}

// setOwner changes the owner of one file, folder or link. One that is gone is none.
func setOwner(folder int, name string, uid, gid int) error {
	err := unix.Fchownat(folder, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && !isGone(err) {
		return &os.PathError{Op: "chown", Path: name, Err: err}
	}
	return nil
}
