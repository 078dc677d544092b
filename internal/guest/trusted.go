package guest

import (
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks bounds the links on the way to a file.
const maxLinks = 16

// readTrusted reads a file of certificates, to copy it to where all programs can read it. Programs of the sandbox,
// which may run as another user than the agent, may have replaced it by anything, such as a link to a file that
// only the agent may read.
func readTrusted(path string) ([]byte, bool) {
	f := openTrusted(path)
	if f == nil {
		return nil, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTrusted))
	return text, err == nil
}

// openTrusted opens a regular file step by step. It follows links only where the agent's own user alone can make them.
// Where others can, the file must be one that all may read, under one name: another one may be that of a file in a
// folder which others cannot read. It returns nil if there is no such file.
func openTrusted(path string) *os.File {
	if !strings.HasPrefix(path, "/") {
		return nil
	}
	w := walk{dir: -1}
	defer w.close()
	if !w.descend("/") {
		return nil
	}
	names, links := steps(path), 0
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		var st unix.Stat_t
		if unix.Fstatat(w.dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return nil
		}
		switch {
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			target := make([]byte, unix.PathMax)
			n, err := unix.Readlinkat(w.dir, name, target)
			if links++; err != nil || links > maxLinks || !w.fixed {
				return nil
			}
			text := string(target[:n])
			if strings.HasPrefix(text, "/") && !w.descend("/") {
				return nil
			}
			names = slices.Concat(steps(text), names)
		case len(names) > 0:
			if !w.descend(name) {
				return nil
			}
		default:
			return w.open(name)
		}
	}
	return nil
}

func steps(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return s == "" || s == "." })
}

// walk is a way to a file.
type walk struct {
	dir int // the descriptor of the folder that it has reached
	// own: others can put neither this folder nor one above it elsewhere; fixed: nor change what is in it.
	own, fixed bool
}

// descend goes into a folder.
func (w *walk) descend(name string) bool {
	dir, err := unix.Openat(w.dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	w.own = w.own || name == "/"
	w.close()
	w.dir = dir
	var st unix.Stat_t
	if unix.Fstat(dir, &st) != nil {
		return false
	}
	others := st.Mode&0o022 != 0
	// In a sticky folder, such as /tmp, others cannot replace the folders of root.
	w.own = w.own && (st.Uid == 0 || int(st.Uid) == os.Geteuid()) && (!others || st.Mode&unix.S_ISVTX != 0)
	w.fixed = w.own && !others
	return true
}

// open opens a file in the folder.
func (w *walk) open(name string) *os.File {
	fd, err := unix.Openat(w.dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxTrusted ||
		!w.fixed && (st.Mode&0o004 == 0 || st.Nlink != 1) {
		f.Close()
		return nil
	}
	return f
}

func (w *walk) close() {
	if w.dir >= 0 {
		unix.Close(w.dir)
	}
	w.dir = -1
}
