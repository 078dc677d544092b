//go:build !mac

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

// dirBufferSize is the size of the buffer for getdents(2), in bytes. A walk has at most the names of
// one such buffer in memory for each level.
const dirBufferSize = 4 << 10

const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// openFolder opens the folder of that name in the folder dirFD, which may be unix.AT_FDCWD. If the
// folder's mode denies its owner access, open changes the mode: a sandbox's files belong to
// the server's user.
func openFolder(dirFD int, name string) (folder, error) {
	f, err := openAsIs(dirFD, name)
	if errors.Is(err, unix.EACCES) && makeAccessible(dirFD, name) == nil {
		f, err = openAsIs(dirFD, name)
	}
	return f, err
}

// openAsIs is the same, but does not change the folder's mode.
func openAsIs(dirFD int, name string) (folder, error) {
	fd, err := openat(dirFD, name, openFlags)
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

func openat(dirFD int, name string, flags int) (fd int, err error) {
	for {
		if fd, err = unix.Openat(dirFD, name, flags, 0); err != unix.EINTR {
			return fd, err
		}
	}
}

// makeAccessible makes a folder accessible to its owner. It looks the name up only once, so that it
// cannot change the mode of a file that replaces the folder meanwhile.
func makeAccessible(dirFD int, name string) error {
	fd, err := openat(dirFD, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
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
		list, next = parseEntries(buffer[:n])
		if len(list) > 0 {
			return list, next, nil
		}
	}
}

// parseEntries parses structs linux_dirent64: inode, offset, length, type, name.
func parseEntries(b []byte) (list []entry, next int64) {
	const headerSize = 19
	for len(b) >= headerSize {
		length := int(binary.NativeEndian.Uint16(b[16:]))
		if length < headerSize || length > len(b) {
			return list, next
		}
		next = int64(binary.NativeEndian.Uint64(b[8:]))
		name := unix.ByteSliceToString(b[headerSize:length])
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

// isGone reports whether an error means that a name was removed or replaced since it was read.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
