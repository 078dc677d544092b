package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"sandlot/internal/filelock"
)

// How a file is locked: by one holder, or by several that share it.
const (
	exclusive = true
	shared    = false
)

// lockInterval is how often a lock that somebody else holds is tried again: flock itself cannot be cancelled.
const lockInterval = 20 * time.Millisecond

// lock opens a file, makes it where it is missing, and waits until it is locked. Closing the file unlocks it.
func lock(ctx context.Context, path string, alone bool) (*os.File, error) {
	for {
		f, err := tryLock(path, alone)
		if f != nil || err != nil {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lockInterval):
		}
	}
}

// tryLock is lock without waiting: it returns nil when somebody else holds the lock.
func tryLock(path string, alone bool) (*os.File, error) {
	f, err := filelock.Open(path, 0o644)
	if err != nil {
		return nil, err
	}
	if locked, err := filelock.Try(f, alone); err != nil {
		return nil, errors.Join(err, f.Close())
	} else if !locked {
		return nil, f.Close()
	}
	// Whoever held the lock may have renamed or removed the file.
	mine, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if there, err := os.Lstat(path); err != nil || !os.SameFile(mine, there) {
		return nil, f.Close()
	}
	return f, nil
}

// lockUsers keeps blobs from being removed until the file is closed.
func (s *Store) lockUsers(ctx context.Context) (*os.File, error) {
	if err := s.makeFolders(); err != nil {
		return nil, err
	}
	f, err := lock(ctx, filepath.Join(s.dir, "users"), shared)
	if err != nil && ctx.Err() == nil {
		err = s.diskError(err)
	}
	return f, err
}
