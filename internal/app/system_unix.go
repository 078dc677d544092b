//go:build unix

package app

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileOwner returns the user to whom a file belongs.
func fileOwner(st os.FileInfo) int { return int(st.Sys().(*syscall.Stat_t).Uid) }

// makePrivate makes a folder one that only its owner can use.
func makePrivate(dir string) error { return os.Chmod(dir, 0o700) }

// lacksFamily reports whether an error of listening means that this machine has no addresses of that kind.
func lacksFamily(err error) bool {
	return errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)
}

// publish gives the owner's socket its name, for the owner alone.
func publish(temporary, path string) error {
	return errors.Join(os.Chmod(temporary, 0o600), os.Rename(temporary, path))
}

// bindPath returns where to make the owner's socket, which publish then gives its name.
func bindPath(dir, _ string) string { return filepath.Join(dir, "s") }
