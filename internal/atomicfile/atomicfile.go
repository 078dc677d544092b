// Package atomicfile replaces files at once: who reads a file, even after a crash of the server, sees all of the old
// content or all of the new one.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write replaces a file by one that only this user may read. It is never called twice at a time for a file: the new
// content has a name beside it, which is the same each time, so that a crash leaves no more than one. After a crash of
// the machine the file may be empty.
func Write(path string, content []byte) error { return write(path, content, false) }

// WriteThrough is Write, and returns when the file is on the disk.
func WriteThrough(path string, content []byte) error {
	if err := write(path, content, true); err != nil {
		return err
	}
	return Sync(filepath.Dir(path))
}

func write(path string, content []byte, through bool) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil && through {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Sync writes a file to the disk; of a folder, the names in it.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
