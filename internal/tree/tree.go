// Package tree measures and removes folders that hostile code has written, and may change at
// the same time. It opens each folder by its name in the descriptor of its parent and
// follows no link, so no path is longer than one name. The time is linear in the number of
// files. Descriptors and memory are bounded, whatever the depth and width.
package tree

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// identity identifies a folder on this machine.
type identity struct{ device, inode uint64 }

// folder is an open folder.
type folder struct {
	fd int
	identity
	mode uint32
}

// batch is the size of the buffer for getdents(2), in bytes. A walk has at most the names of
// one such buffer in memory for each level.
const batch = 4 << 10

const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// open opens the folder of that name in the folder dirFD, which may be unix.AT_FDCWD. If the
// folder's mode denies its owner access, open changes the mode: a sandbox's files belong to
// the server's user.
func open(at int, name string) (folder, error) {
	f, err := openAsIs(at, name)
	if errors.Is(err, unix.EACCES) && unlock(at, name) == nil {
		f, err = openAsIs(at, name)
	}
	return f, err
}

// openAsIs is the same, but does not change the folder's mode.
func openAsIs(at int, name string) (folder, error) {
	fd, err := openat(at, name, flags)
	if err != nil {
		return folder{}, &os.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return folder{}, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return folder{fd, identity{st.Dev, st.Ino}, st.Mode}, nil
}

func openat(at int, name string, how int) (fd int, err error) {
	for {
		if fd, err = unix.Openat(at, name, how, 0); err != unix.EINTR {
			return fd, err
		}
	}
}

// unlock makes a folder accessible to its owner. It looks the name up only once, so that it
// cannot change the mode of a file that replaces the folder meanwhile.
func unlock(at int, name string) error {
	fd, err := openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700)
}

func (f folder) close() { unix.Close(f.fd) }

// entry is one name in a folder; kind is one of unix.DT_*.
type entry struct {
	name string
	kind uint8
}

// read returns the next names of a folder, and the offset of those after them. It returns no
// names at the end.
func (f folder) read(buffer []byte) (list []entry, next int64, err error) {
	for {
		var n int
		for {
			if n, err = unix.Getdents(f.fd, buffer); err != unix.EINTR {
				break
			}
		}
		if err != nil || n == 0 {
			return nil, 0, err
		}
		list, next = entries(buffer[:n])
		if len(list) > 0 {
			return list, next, nil
		}
	}
}

// entries parses structs linux_dirent64: inode, offset, length, type, name.
func entries(b []byte) (list []entry, next int64) {
	const head = 19
	for len(b) >= head {
		length := int(binary.NativeEndian.Uint16(b[16:]))
		if length < head || length > len(b) {
			return list, next
		}
		next = int64(binary.NativeEndian.Uint64(b[8:]))
		name := unix.ByteSliceToString(b[head:length])
		if name != "." && name != ".." {
			list = append(list, entry{name, b[18]})
		}
		b = b[length:]
	}
	return list, next
}

// stat returns the lstat(2) result of an entry, and sets its kind.
func (f folder) stat(e *entry) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(f.fd, e.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		e.kind = uint8(st.Mode >> 12 & 0xf)
	}
	return st, err
}

// gone says whether an error means that a name was removed or replaced since it was read.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
