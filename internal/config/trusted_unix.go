//go:build unix

package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// With O_NONBLOCK, opening a named pipe does not block.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOFOLLOW

// maxLinks is the maximum number of symbolic links in a path, as in the kernel.
const maxLinks = 40

// resolve resolves a path component by component, as the kernel does, and checks each folder and each
// link on the way.
func (t *fileChecker) resolve(abs string) (string, os.FileInfo, error) {
	dir, names := "/", strings.Split(abs, "/")
	if err := t.checkFolder(dir); err != nil {
		return "", nil, err
	}
	for len(names) > 0 {
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
			destination, err := t.readLink(next, st)
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
		if err := t.checkFolder(next); err != nil {
			return "", nil, err
		}
		dir = next
	}
	return "", nil, errors.New("it is a directory")
}

func (t *fileChecker) readLink(path string, st os.FileInfo) (string, error) {
	if t.linkCount++; t.linkCount > maxLinks {
		return "", errors.New("its name leads through too many links")
	}
	if t.checkUsers && !ownedByServer(st) {
		return "", fmt.Errorf("others than the server's user can write it: the link %s is another user's; name the "+
			"file itself", path)
	}
	return os.Readlink(path)
}

// ownedByServer reports whether a file belongs to the server's user or to root.
func ownedByServer(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && (sys.Uid == 0 || int(sys.Uid) == os.Getuid())
}

// otherWriters returns a text that says who besides the server's user and root can write a file; empty:
// nobody.
func (t *fileChecker) otherWriters(st os.FileInfo) string {
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch mode := st.Mode().Perm(); {
	case !ok || mode&0o002 != 0:
		return "everyone can"
	case mode&0o020 != 0:
		return t.otherMembers(int(sys.Gid), os.Getuid())
	}
	return ""
}

// privateFolder reports whether nobody besides the server's user and root can move what is in a folder; else the
// reason. In a folder with the sticky bit, only a file's owner can move or remove it.
func (t *fileChecker) privateFolder(_ string, st os.FileInfo) (reason string, private bool) {
	reason = t.otherWriters(st)
	return reason, ownedByServer(st) && (reason == "" || st.Mode()&os.ModeSticky != 0)
}

// privateFile reports whether nobody besides the server's user and root can write a file; else the reason.
func (t *fileChecker) privateFile(_ string, st os.FileInfo) (reason string, private bool) {
	reason = t.otherWriters(st)
	return reason, ownedByServer(st) && reason == ""
}

// hasSecondName reports whether a file has another name, a hard link.
func hasSecondName(_ string, st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && sys.Nlink > 1
}

// isServersFile reports whether a settings file belongs to the server's user or to root.
func isServersFile(_ string, st os.FileInfo) bool { return ownedByServer(st) }
