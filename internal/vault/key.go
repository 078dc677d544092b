package vault

import (
	"crypto/cipher"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// keySize is the size of the key, for AES-256.
const keySize = 32

// secretAdditionalData returns the additional data of a sealed secret: it does not open for another principal or
// another name. The id of a principal cannot contain a NUL.
func secretAdditionalData(owner, name string) []byte {
	return []byte("sandlot secret\x00" + owner + "\x00" + name)
}

// key returns the cipher with the key in the key file. It generates nonces itself. If there is no key
// file, key creates it if create is set, and otherwise returns fs.ErrNotExist.
func (v *Vault) key(create bool) (cipher.AEAD, error) {
	err := checkPrivate(v.KeyFile)
	var b []byte
	if err == nil {
		b, err = os.ReadFile(v.KeyFile)
	}
	if errors.Is(err, fs.ErrNotExist) && create {
		b, err = v.createKey()
	}
	if err == nil && len(b) != keySize {
		err = fmt.Errorf("it has %d bytes, and not %d", len(b), keySize)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && v.CreateKey:
		return nil, err
	case err != nil:
		return nil, fault.Wrap(fault.Configuration, fmt.Errorf("%s: %w", v.KeyFile, err),
			"the server's file with the key of secrets cannot be used").
			Advise("The operator of this server restores the file. If it is lost: remove it, or write a "+
				"new key of 32 random bytes; then each secret has to be stored again",
				"The server's log says what is wrong with the file")
	}
	return secret.NewCipher(b)
}

// Check returns an error if the key file cannot be used, or if it was named in the settings and does not
// exist.
func (v *Vault) Check() error {
	_, err := v.key(false)
	var f *fault.Error
	switch {
	case err == nil, v.CreateKey && errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.As(err, &f):
		return fault.Wrap(fault.Configuration, err,
			"the file with the key of secrets (secrets.key_file) cannot be used: %v", f.Unwrap())
	}
	return err
}

// createKey creates the key file, synced to the disk, and returns the key. If another process has created
// it meanwhile, createKey returns that key.
func (v *Vault) createKey() ([]byte, error) {
	if err := v.writeKey(v.KeyFile, secret.Bytes(keySize)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.ReadFile(v.KeyFile)
}

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
	if st, err := os.Stat(v.KeyFile); err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
			if err := f.Chown(int(sys.Uid), int(sys.Gid)); err != nil {
				return err
			}
		}
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

// syncFolder makes the names of new files in a folder survive a crash, if its file system can do that.
func syncFolder(dir string) { _ = atomicfile.Sync(dir) }

// checkPrivate returns an error if others than its owner can read the key file.
func checkPrivate(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	mode := st.Mode().Perm()
	group := mode&0o070 != 0 && !(ok && (sys.Gid == 0 || int(sys.Gid) == os.Getgid()) && mode&0o030 == 0)
	if mode&0o007 != 0 || group {
		return fmt.Errorf("others can read it (mode %04o): chmod 600 %s, and consider a new key (sandlot secret "+
			"rekey), as this one may be known", mode, path)
	}
	return nil
}
