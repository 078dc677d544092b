// Package pinned owns the files of a frozen sandbox that the machine has replaced while it slept: it puts the kept ones
// where the sandbox had them, in the mount namespace of gVisor's file server, the gofer, before the sandbox goes on.
// gVisor opens what programs have open by its name, and does not notice that it is another file. The sandbox then goes
// on to see the kept files: a program that it has open, and the libraries that belong to it, stay those that it knows.
package pinned

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// File is a file or folder that a frozen sandbox had open.
type File struct {
	Target string `json:"target"` // its path in the sandbox
	Kept   string `json:"-"`      // the path of the kept file; empty: it is a folder
	// Missing: the machine has nothing at the path any more.
	Missing bool `json:"missing,omitempty"`
}

const (
	dir      = "pinned"    // in the folder of the sandbox
	listFile = "list.json" // in dir, like the following
	byNumber = "files"     // the files that the machine has, by their numbers in the list
	byPath   = "missing"   // those that it has not, by their paths in the sandbox
)

// Write writes into the folder of a sandbox, which is on the file system of the kept files, what Open reads.
func Write(sandboxDir string, files []File) error {
	if len(files) == 0 {
		return nil
	}
	into := filepath.Join(sandboxDir, dir)
	err := errors.Join(os.MkdirAll(filepath.Join(into, byNumber), 0o755), os.Mkdir(filepath.Join(into, byPath), 0o755))
	for n, f := range files {
		path := filepath.Join(into, byNumber, fmt.Sprint(n))
		if f.Missing {
			path = filepath.Join(into, byPath, f.Target)
			err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755))
		}
		if f.Kept == "" {
			err = errors.Join(err, os.MkdirAll(path, 0o755))
		} else {
			err = errors.Join(err, os.Link(f.Kept, path))
		}
	}
	list, jsonErr := json.Marshal(files)
	return errors.Join(err, jsonErr, os.WriteFile(filepath.Join(into, listFile), list, 0o600))
}

// Files are the files of one sandbox, in a mount that belongs to no namespace yet.
type Files struct {
	list []File
	fd   int
}

// Open opens what Write has written into the folder of a sandbox. It returns nil if that is nothing.
func Open(sandboxDir string) (*Files, error) {
	text, err := os.ReadFile(filepath.Join(sandboxDir, dir, listFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	f := new(Files)
	if err == nil {
		err = json.Unmarshal(text, &f.list)
	}
	if err == nil {
		f.fd, err = readOnlyCopy(filepath.Join(sandboxDir, dir))
	}
	return f, err
}

// readOnlyCopy returns a mount of what is at a path, which belongs to no namespace.
func readOnlyCopy(path string) (fd int, err error) {
	fd, err = unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, fmt.Errorf("copying the mount of %s: %w", path, err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("making the mount of %s read-only: %w", path, err)
	}
	return fd, nil
}

// Mount puts the files below root, which is the sandbox's root file system in this process's mount namespace. The
// namespace has a root folder of its own in which folders can be made.
func (f *Files) Mount(root string) error {
	at := "/" + dir
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	if err := unix.MoveMount(f.fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting the kept files: %w", err)
	}
	defer unix.Unmount(at, unix.MNT_DETACH)
	unix.Close(f.fd)
	rootFD, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(rootFD)
	for _, d := range f.foldersOfMissing(rootFD) {
		if err := overlay(filepath.Join(at, byPath, d), root+d); err != nil {
			return err
		}
	}
	for n, file := range f.list {
		if file.Missing {
			continue
		}
		if err := bind(filepath.Join(at, byNumber, fmt.Sprint(n)), rootFD, file.Target); err != nil {
			return fmt.Errorf("mounting a kept file at %s: %w", file.Target, err)
		}
	}
	return nil
}

// foldersOfMissing returns the folders of the sandbox that get files which the machine has not, none of them below
// another one.
func (f *Files) foldersOfMissing(rootFD int) (folders []string) {
	for _, file := range f.list {
		if !file.Missing {
			continue
		}
		d := filepath.Dir(file.Target)
		for d != "/" {
			if fd, err := open(rootFD, d, unix.O_DIRECTORY); err == nil {
				unix.Close(fd)
				break
			}
			d = filepath.Dir(d)
		}
		folders = append(folders, d)
	}
	slices.Sort(folders)
	var tops []string
	for _, d := range folders {
		if len(tops) == 0 || d != tops[len(tops)-1] && !strings.HasPrefix(d, tops[len(tops)-1]+"/") {
			tops = append(tops, d)
		}
	}
	return tops
}

// open opens what is at a path of the sandbox, without links on the way.
func open(rootFD int, path string, flags uint64) (int, error) {
	return unix.Openat2(rootFD, strings.TrimPrefix(path, "/"), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
}

// overlay puts what is in one folder beside what another one has.
func overlay(more, folder string) error {
	if strings.ContainsAny(more+folder, `:,\`) {
		return fmt.Errorf("no kept file can be put into %s, for its name", folder)
	}
	err := unix.Mount("overlay", folder, "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV,
		"lowerdir="+more+":"+folder)
	if err != nil {
		return fmt.Errorf("putting kept files into %s: %w", folder, err)
	}
	return nil
}

// bind mounts one file over another one.
func bind(from string, rootFD int, target string) error {
	to, err := open(rootFD, target, 0)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	fd, err := readOnlyCopy(from)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.MoveMount(fd, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}
