//go:build !linux

package tree

import (
	"context"
	"errors"
)

// Measure returns the size of a folder. With an error it returns the size of what it has read
// until then.
func Measure(ctx context.Context, dir string, l Limits) (Size, error) {
	return measureByRoot(ctx, dir, l)
}

// Remove removes a folder and everything in it. It returns nil if the folder does not exist.
// When something cannot be removed, Remove goes on with the rest, and returns the first such
// error at the end.
func Remove(ctx context.Context, dir string) error { return removeByRoot(ctx, dir) }

// Copy is for runtimes that are on Linux alone.
func Copy(context.Context, string, string, Limits) (Size, error) {
	return Size{}, errors.ErrUnsupported
}

// SetOwner makes a folder and everything in it belong to a user and a group. It follows no link: the
// owner of a link itself changes. The folder's own owner changes last.
func SetOwner(ctx context.Context, dir string, uid, gid int) error {
	return setOwnerByRoot(ctx, dir, uid, gid)
}
