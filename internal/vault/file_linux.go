//go:build !mac

package vault

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// writeKey writes a key to a new file, which gets the owner of the key file. It never replaces a file.
func (v *Vault) writeKey(path string, key []byte) error {
	dir := filepath.Dir(path)
	// The file gets its name when it is complete, so a crash leaves neither an incomplete file nor a copy.
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "make a file in", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), "the key of secrets")
	defer f.Close()
	if err := giveToOwner(f, v.KeyFile); err != nil {
		return err
	}
	_, err = f.Write(key)
	if err := errors.Join(err, f.Sync()); err != nil {
		return err
	}
	if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path,
		unix.AT_SYMLINK_FOLLOW); err != nil {
		return &fs.PathError{Op: "link", Path: path, Err: err}
	}
	syncFolder(dir)
	return nil
}
