package vault

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// keyBytes is the size of the key: AES-256.
const keyBytes = 32

// purpose is what a sealed value is good for: for another principal, or under
// another name, it does not open. No id of a principal has a NUL in it.
func purpose(owner, name string) []byte { return []byte("sandlot secret\x00" + owner + "\x00" + name) }

// key reads the key, which seals with nonces of its own making. Where there is
// none it makes one, or the error is fs.ErrNotExist.
func (v *Vault) key(create bool) (cipher.AEAD, error) {
	b, err := os.ReadFile(v.KeyFile)
	if errors.Is(err, fs.ErrNotExist) && create {
		b, err = v.made()
	}
	if err == nil && len(b) != keyBytes {
		err = fmt.Errorf("it has %d bytes, and not %d", len(b), keyBytes)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && v.Make:
		return nil, err
	case err != nil:
		f := fault.Wrap(fault.Configuration, fmt.Errorf("%s: %w", v.KeyFile, err), "the server's file with the key of secrets cannot be used")
		f.Advice = []string{"The operator of this server puts the file back as it was. Where that is lost: they remove it, or make a new one of 32 random bytes, and secrets are stored again", "The server's log says what is wrong with it"}
		return nil, f
	}
	block, err := aes.NewCipher(b)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// made makes the key, on the disk before it is used, and whole or not at all.
func (v *Vault) made() ([]byte, error) {
	dir := filepath.Dir(v.KeyFile)
	// It has no name before it is whole, so that no crash leaves a part, or a copy.
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "make a file in", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), "the key of secrets")
	defer f.Close()
	_, err = f.Write(secret.Bytes(keyBytes))
	if err := errors.Join(err, f.Sync()); err != nil {
		return nil, err
	}
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, v.KeyFile, unix.AT_SYMLINK_FOLLOW)
	if err != nil && !errors.Is(err, fs.ErrExist) { // never over another one
		return nil, &fs.PathError{Op: "link", Path: v.KeyFile, Err: err}
	}
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync() // not every file system can
		d.Close()
	}
	return os.ReadFile(v.KeyFile)
}
