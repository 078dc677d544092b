//go:build unix

package pathwalk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks is the maximum number of symbolic links in a path, as in the kernel.
const maxLinks = 40

// Walk resolves an absolute path component by component. It calls folder with each folder, before it looks into it, and
// link with each symbolic link, before it follows it; their errors end it. It returns the path without links, and what
// is there.
func Walk(abs string, folder func(path string) error, link func(path string, st os.FileInfo) error) (string,
	os.FileInfo, error) {
	dir, names := "/", strings.Split(abs, "/")
	if err := folder(dir); err != nil {
		return "", nil, err
	}
	for links := 0; len(names) > 0; {
		name := names[0]
		names = names[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			dir = filepath.Dir(dir)
			continue
		}
		next := filepath.Join(dir, name)
		st, err := os.Lstat(next)
		if err != nil {
			return "", nil, err
		}
		if st.Mode()&os.ModeSymlink != 0 {
			if links++; links > maxLinks {
				return "", nil, errors.New("its name leads through too many links")
			}
			if err := link(next, st); err != nil {
				return "", nil, err
			}
			destination, err := os.Readlink(next)
			if err != nil {
				return "", nil, err
			}
			if filepath.IsAbs(destination) {
				dir = "/"
			}
			names = append(strings.Split(destination, "/"), names...)
			continue
		}
		if strings.Join(names, "") == "" {
			return next, st, nil
		}
		if err := folder(next); err != nil {
			return "", nil, err
		}
		dir = next
	}
	return "", nil, errors.New("it is a directory")
}

// IsOwn reports whether a file belongs to this process's user or to root.
func IsOwn(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && (sys.Uid == 0 || int(sys.Uid) == os.Getuid())
}
