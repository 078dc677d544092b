package toolfolder

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Link makes a folder with the files of another one, which are hard links if that is possible.
func Link(from, to string) error {
	if _, err := os.Lstat(from); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		switch {
		case d.IsDir():
			if err := os.Mkdir(target, 0o755); err != nil {
				return err
			}
			return os.Chmod(target, 0o755) // whatever the umask is
		case os.Link(path, target) == nil: // also of a symbolic link
			return nil
		case d.Type() == fs.ModeSymlink:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		}
		return Copy(path, target) // such as one that has too many names
	})
}

// Copy copies a file with its mode and its time.
func Copy(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(to, data, 0o600), os.Chmod(to, st.Mode().Perm()),
		os.Chtimes(to, st.ModTime(), st.ModTime()))
}
