//go:build !mac

package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Copy copies everything in the folder dir to the folder to, which is empty: contents, links, modes, times, owners and
// users' attributes. Where the file system can, files share their blocks until one of both is changed. Device files
// are left out. Nothing may change in both folders meanwhile. When Copy returns, the copy is on the disk. Size is that
// of the copy, as Measure returns it.
func Copy(ctx context.Context, dir, to string, l Limits) (Size, error) {
	from, err := openAsIs(unix.AT_FDCWD, dir)
	if err != nil {
		return Size{}, err
	}
	defer from.close()
	top, err := openAsIs(unix.AT_FDCWD, to)
	if err != nil {
		return Size{}, err
	}
	defer top.close()
	c := &copying{limits: l, top: top.fd, linked: map[identity]string{}, buffer: make([]byte, copyBufferSize)}
	if err := c.folder(ctx, from.fd, top.fd, nil); err != nil {
		return c.size, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(from.fd, &st); err != nil {
		return c.size, err
	}
	if err := c.attributes(from.fd, top.fd, &st); err != nil {
		return c.size, err
	}
	return c.size, unix.Syncfs(top.fd)
}

const (
	// maxCopiedDepth is how deep the folders may be nested for Copy, which has two descriptors for each level.
	maxCopiedDepth = 200
	copyBufferSize = 1 << 20
	// maxAttributes bounds the names, and each value, of a file's attributes.
	maxAttributes = 64 << 10
)

// maxLinkedPaths is how many bytes the names of files with several links may have together, which are in memory.
const maxLinkedPaths = 32 << 20

// ErrLinks is the error of a tree with too many files that have several links.
var ErrLinks = errors.New("too many of its files have several links (hard links)")

// copying is one call of Copy.
type copying struct {
	limits Limits
	top    int                 // the descriptor of the copy
	linked map[identity]string // where in the copy a file with several names is
	paths  int                 // the bytes of these places
	buffer []byte
	size   Size
}

// folder copies what is in one folder; path is the names that lead to it.
func (c *copying) folder(ctx context.Context, from, to int, path []string) error {
	if len(path) >= min(c.limits.Depth, maxCopiedDepth) {
		return ErrDepth
	}
	source, buffer := folder{fd: from}, make([]byte, dirBufferSize)
	for {
		list, _, err := source.read(buffer)
		if err != nil {
			return fmt.Errorf("reading a folder: %w", err)
		}
		if len(list) == 0 {
			return nil
		}
		for _, e := range list {
			if c.size.Entries++; c.size.Entries >= c.limits.Entries {
				return ErrEntries
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := c.entry(ctx, from, to, append(path, e.name)); err != nil {
				return err
			}
		}
	}
}

// entry copies what has the last name of path.
func (c *copying) entry(ctx context.Context, from, to int, path []string) error {
	name := path[len(path)-1]
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "stat", Path: name, Err: err}
	}
	kind, id := st.Mode&unix.S_IFMT, identity{uint64(st.Dev), st.Ino}
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		if first, ok := c.linked[id]; ok {
			return wrapPath("link", name, unix.Linkat(c.top, first, to, name, 0))
		}
		at := strings.Join(path, "/")
		if c.paths += len(at); c.paths > maxLinkedPaths {
			return ErrLinks
		}
		c.linked[id] = at
	}
	switch kind {
	case unix.S_IFDIR:
		if err := unix.Mkdirat(to, name, 0o700); err != nil {
			return wrapPath("mkdir", name, err)
		}
		return c.opened(from, to, name, &st, unix.O_RDONLY|unix.O_DIRECTORY, func(source, target int) error {
			return c.folder(ctx, source, target, path)
		})
	case unix.S_IFREG:
		return c.opened(from, to, name, &st, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, func(source, target int) error {
			return c.content(ctx, source, target, st.Size)
		})
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(from, name, target)
		if err == nil {
			err = unix.Symlinkat(string(target[:n]), to, name)
		}
		return wrapPath("symlink", name, errors.Join(err, c.own(to, name, &st)))
	case unix.S_IFIFO, unix.S_IFSOCK:
		err := unix.Mknodat(to, name, kind|st.Mode&0o777, 0)
		return wrapPath("mknod", name, errors.Join(err, c.own(to, name, &st)))
	}
	return nil
}

func wrapPath(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: name, Err: err}
}

// opened opens a file or a folder and its copy, calls do, and gives the copy the attributes.
func (c *copying) opened(from, to int, name string, st *unix.Stat_t, flags int,
	do func(source, target int) error) error {
	source, restore, err := openToRead(from, name, st)
	if err != nil {
		return err
	}
	defer unix.Close(source)
	defer restore()
	target, err := unix.Openat(to, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return wrapPath("open", name, err)
	}
	defer unix.Close(target)
	if err := do(source, target); err != nil {
		return err
	}
	var written unix.Stat_t
	if unix.Fstat(target, &written) == nil && flags&unix.O_CREAT != 0 {
		c.size.Bytes += written.Blocks * 512
	}
	return wrapPath("copy", name, c.attributes(source, target, st))
}

// openToRead opens a file that Fstatat has described. One whose mode denies its owner access gets another mode for a
// moment, until restore.
func openToRead(folder int, name string, st *unix.Stat_t) (fd int, restore func(), err error) {
	restore = func() {}
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err = openat(folder, name, flags)
	if errors.Is(err, unix.EACCES) {
		var handle int
		if handle, err = openat(folder, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC); err != nil {
			return -1, restore, wrapPath("open", name, err)
		}
		defer unix.Close(handle)
		if err = unix.Chmod("/proc/self/fd/"+strconv.Itoa(handle), 0o700); err == nil {
			fd, err = openat(folder, name, flags)
		}
		opened := fd
		if err == nil {
			restore = func() { _ = unix.Fchmod(opened, st.Mode&0o7777) }
		}
	}
	if err != nil {
		return -1, restore, wrapPath("open", name, err)
	}
	var now unix.Stat_t
	if err = unix.Fstat(fd, &now); err == nil && (now.Ino != st.Ino || now.Dev != st.Dev) {
		err = fs.ErrNotExist
	}
	if err != nil {
		unix.Close(fd)
		return -1, func() {}, wrapPath("open", name, err)
	}
	return fd, restore, nil
}

// content copies the content of a file, but for its holes.
func (c *copying) content(ctx context.Context, from, to int, size int64) error {
	if size == 0 || unix.IoctlFileClone(to, from) == nil {
		return nil
	}
	if err := unix.Ftruncate(to, size); err != nil {
		return err
	}
	for offset := int64(0); offset < size; {
		data, err := unix.Seek(from, offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // the rest is a hole
		}
		hole := size
		if err != nil {
			data = offset // the file system knows no holes
		} else if end, err := unix.Seek(from, data, unix.SEEK_HOLE); err == nil {
			hole = min(end, size)
		}
		for data < hole {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := unix.Pread(from, c.buffer[:min(int64(len(c.buffer)), hole-data)], data)
			if err != nil {
				return err
			}
			if n == 0 {
				return nil
			}
			for written := 0; written < n; {
				m, err := unix.Pwrite(to, c.buffer[written:n], data+int64(written))
				if err != nil {
					return err
				}
				written += m
			}
			data += int64(n)
		}
		offset = hole
	}
	return nil
}

// own gives what has no descriptor its owner and its times.
func (c *copying) own(folder int, name string, st *unix.Stat_t) error {
	if os.Geteuid() == 0 {
		if err := unix.Fchownat(folder, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(folder, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// attributes gives an open copy what the original has.
func (c *copying) attributes(from, to int, st *unix.Stat_t) error {
	names := make([]byte, maxAttributes)
	if n, err := unix.Flistxattr(from, names); err == nil {
		for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
			if !strings.HasPrefix(name, "user.") {
				continue
			}
			value := make([]byte, maxAttributes)
			n, err := unix.Fgetxattr(from, name, value)
			if err == nil {
				err = unix.Fsetxattr(to, name, value[:n], 0)
			}
			if err != nil {
				return err
			}
		}
	}
	if os.Geteuid() == 0 {
		if err := unix.Fchown(to, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(to, st.Mode&0o7777); err != nil { // after the owner, whose change clears bits
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(to), []unix.Timespec{st.Atim, st.Mtim}, 0)
}
