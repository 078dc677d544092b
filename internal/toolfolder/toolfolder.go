// Package toolfolder owns how the files of a tool tree get into a folder, in a sandbox or on the host: each file is
// replaced at once, and nothing is written outside the folder.
package toolfolder

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// ErrPath is returned, wrapped, for a path that is none of a file below the folder.
var ErrPath = errors.New("no path of a file in the tool tree")

// NewPrefix begins the names of files that are not in place yet.
const NewPrefix = ".new-"

// File is a file of a tool tree.
type File struct {
	Path       string // in the tree
	Data       []byte
	Executable bool
	Link       string // if it is a symbolic link: to where
}

// Change is how a tree changes.
type Change struct {
	Files    []File   // that are written
	Removed  []string // paths of files that are removed
	Complete bool     // Files are all of the tree, and all others are removed
	// Other is the name of a file in the folder that is none of the tree, and stays; empty: there is none.
	Other string
}

// Write makes a change of the tree in a folder. A file that is there already stays as it is. After an error the tree
// may have some of the change.
func Write(root *os.Root, c Change) error {
	kept := map[string]bool{}
	if c.Other != "" {
		kept[c.Other] = true
	}
	for i, f := range c.Files {
		if err := c.check(f.Path); err != nil {
			return err
		}
		for p := f.Path; p != "."; p = path.Dir(p) {
			kept[p] = true
		}
		if has(root, f) {
			continue
		}
		if err := put(root, f, fmt.Sprintf("%s%d", NewPrefix, i)); err != nil {
			return fmt.Errorf("writing %s: %w", f.Path, err)
		}
	}
	for _, p := range c.Removed {
		if err := c.check(p); err != nil {
			return err
		}
		if kept[p] {
			continue
		}
		if err := root.RemoveAll(p); err != nil {
			return fmt.Errorf("removing %s: %w", p, err)
		}
	}
	if c.Complete {
		if err := removeOthers(root, kept); err != nil {
			return err
		}
	}
	removeEmpty(root)
	return nil
}

// check returns an error for a path that is none of a file below the folder.
func (c Change) check(p string) error {
	if !fs.ValidPath(p) || p == "." || p == c.Other || strings.HasPrefix(path.Base(p), NewPrefix) {
		return fmt.Errorf("%.100q is %w", p, ErrPath)
	}
	return nil
}

func (f File) mode() fs.FileMode {
	if f.Executable {
		return 0o555
	}
	return 0o444
}

// has reports whether a file is there as it is to be.
func has(root *os.Root, f File) bool {
	st, err := root.Lstat(f.Path)
	if err != nil {
		return false
	}
	if f.Link != "" {
		to, err := root.Readlink(f.Path)
		return err == nil && to == f.Link
	}
	if st.Mode() != f.mode() || st.Size() != int64(len(f.Data)) {
		return false
	}
	data, err := root.ReadFile(f.Path)
	return err == nil && bytes.Equal(data, f.Data)
}

// put writes one file under another name, and then puts it in place.
func put(root *os.Root, f File, temporary string) error {
	if dir := path.Dir(f.Path); dir != "." {
		if err := makeFolder(root, dir); err != nil {
			return err
		}
		temporary = dir + "/" + temporary
	}
	_ = root.RemoveAll(temporary) // who was killed may have left it
	err := write(root, f, temporary)
	if err == nil {
		err = root.Rename(temporary, f.Path)
		if errors.Is(err, syscall.EISDIR) || errors.Is(err, fs.ErrExist) {
			if err = root.RemoveAll(f.Path); err == nil {
				err = root.Rename(temporary, f.Path)
			}
		}
	}
	if err != nil {
		_ = root.RemoveAll(temporary)
	}
	return err
}

// makeFolder makes a folder and those above it. A file in the place of one is removed.
func makeFolder(root *os.Root, dir string) error {
	if above := path.Dir(dir); above != "." {
		if err := makeFolder(root, above); err != nil {
			return err
		}
	}
	if st, err := root.Lstat(dir); err == nil {
		if st.IsDir() {
			return nil
		}
		if err := root.Remove(dir); err != nil {
			return err
		}
	}
	if err := root.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return root.Chmod(dir, 0o755)
}

func write(root *os.Root, f File, name string) error {
	if f.Link != "" {
		return root.Symlink(f.Link, name)
	}
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode())
	if err != nil {
		return err
	}
	_, err = file.Write(f.Data)
	return errors.Join(err, file.Chmod(f.mode()), file.Close())
}

// removeOthers removes the files and folders that are not kept.
func removeOthers(root *os.Root, kept map[string]bool) error {
	var others []string
	err := fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." || kept[p] {
			return err
		}
		others = append(others, p)
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	for _, p := range others {
		err = errors.Join(err, root.RemoveAll(p))
	}
	return err
}

// removeEmpty removes folders without files.
func removeEmpty(root *os.Root) {
	var folders []string
	_ = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && p != "." {
			folders = append(folders, p)
		}
		return nil
	})
	for _, p := range slices.Backward(folders) {
		_ = root.Remove(p) // fails if there is a file in it
	}
}
