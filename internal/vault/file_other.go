//go:build !linux || mac

package vault

import (
	"errors"
	"os"
	"path/filepath"
)

// writeKey writes a key to a new file, which gets the owner of the key file. It never replaces a file. A crash may
// leave a second file beside it, with the key, which nobody else can read either.
func (v *Vault) writeKey(path string, key []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".key-*") // with the mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	err = giveToOwner(f, v.KeyFile)
	if err == nil {
		_, err = f.Write(key)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	// The file gets its name when it is complete. A link replaces no file.
	if err := os.Link(f.Name(), path); err != nil {
		return err
	}
	syncFolder(dir)
	return nil
}
