package rootfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sort"
	"strings"
	"time"
)

// An Image reads an image that Write has made. It holds nothing in memory, checks all that it
// reads, and follows symbolic links inside the image only. It implements [fs.FS], [fs.StatFS],
// [fs.ReadDirFS] and [fs.ReadLinkFS]; FileInfo.Sys returns a *Stat, and files are [io.ReaderAt]
// and [io.Seeker].
type Image struct {
	source io.ReaderAt
	size   int64 // bytes of the image
	inodes int64 // where they begin, in bytes
	root   uint64
}

// Stat is what a FileInfo of an image has beyond the methods of [fs.FileInfo].
type Stat struct {
	Inode        uint64
	Mode         uint16 // as in struct stat: the type and the permissions
	UID, GID     uint32
	Links        uint32
	Major, Minor uint32 // of a device
}

var errCorrupt = errors.New("the image file is corrupt: remove the image, and pull or import it again")

// OpenImage checks the superblock of an image.
func OpenImage(r io.ReaderAt) (*Image, error) {
	block := make([]byte, blockSize)
	if _, err := r.ReadAt(block, 0); err != nil {
		return nil, fmt.Errorf("read the superblock of the image: %w", err)
	}
	b, le := block[superblockOffset:], binary.LittleEndian
	switch {
	case le.Uint32(b) != superblockMagic || b[12] != 12:
		return nil, fmt.Errorf("no EROFS superblock: %w", errCorrupt)
	case le.Uint32(b[80:]) != 0:
		return nil, fmt.Errorf("features %#x: %w", le.Uint32(b[80:]), errCorrupt)
	case le.Uint32(b[4:]) != superblockChecksum(b):
		return nil, fmt.Errorf("checksum of the superblock: %w", errCorrupt)
	}
	return &Image{
		source: r,
		size:   int64(le.Uint32(b[36:])) * blockSize,
		inodes: int64(le.Uint32(b[40:])) * blockSize,
		root:   uint64(le.Uint16(b[14:])),
	}, nil
}

// Size returns how many bytes the image has, as its superblock says.
func (i *Image) Size() int64 { return i.size }

// bytes reads a part of the image.
func (i *Image) bytes(into []byte, offset int64) error {
	if offset < 0 || offset > i.size-int64(len(into)) {
		return errCorrupt
	}
	if n, err := i.source.ReadAt(into, offset); n < len(into) {
		return fmt.Errorf("read the image file: %w", err)
	}
	return nil
}

// An inode of an image; it implements fs.FileInfo.
type inode struct {
	node
	name   string
	number uint64
	inline bool
}

func (i *Image) inode(name string, number uint64) (*inode, error) {
	if number > uint64(i.size/slotSize) {
		return nil, errCorrupt
	}
	var b [inodeSize]byte
	if err := i.bytes(b[:], i.inodes+int64(number)*slotSize); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	format := le.Uint16(b[0:])
	n := &inode{name: name, number: number, inline: format == extendedInline, node: node{
		mode: le.Uint16(b[4:]), size: int64(le.Uint64(b[8:])), block: le.Uint32(b[16:]),
		uid: le.Uint32(b[24:]), gid: le.Uint32(b[28:]), mtime: int64(le.Uint64(b[32:])),
		nsec: le.Uint32(b[40:]), links: le.Uint32(b[44:]),
	}}
	if format != extendedPlain && !n.inline || le.Uint16(b[2:]) != 0 || n.size < 0 || n.size > i.size {
		return nil, errCorrupt
	}
	return n, nil
}

// content reads a part of a file's content.
func (i *Image) content(n *inode, into []byte, offset int64) error {
	if offset < 0 || offset > n.size-int64(len(into)) {
		return errCorrupt
	}
	if tail := n.size / blockSize * blockSize; n.inline && offset+int64(len(into)) > tail {
		if offset < tail {
			return errCorrupt // nobody here reads across this border
		}
		return i.bytes(into, i.inodes+int64(n.number)*slotSize+inodeSize+offset-tail)
	}
	return i.bytes(into, int64(n.block)*blockSize+offset)
}

// target returns that of a symbolic link.
func (i *Image) target(n *inode) (string, error) {
	if !n.isType(typeSymlink) || n.size == 0 || n.size >= blockSize {
		return "", errCorrupt
	}
	b := make([]byte, n.size)
	err := i.content(n, b, 0)
	return string(b), err
}

// A rawDirent is an entry of a directory.
type rawDirent struct {
	name   []byte
	number uint64
}

// dirents reads one block of a directory.
func (i *Image) dirents(n *inode, block int64) ([]rawDirent, error) {
	b := make([]byte, min(blockSize, n.size-block*blockSize))
	if err := i.content(n, b, block*blockSize); err != nil {
		return nil, err
	}
	if len(b) < direntSize {
		return nil, errCorrupt
	}
	le := binary.LittleEndian
	start := int(le.Uint16(b[8:])) // of the first name, which is the end of the entries
	if start%direntSize != 0 || start == 0 || start > len(b) {
		return nil, errCorrupt
	}
	entries := make([]rawDirent, start/direntSize)
	for k := range entries {
		at := b[k*direntSize:]
		from, to := int(le.Uint16(at[8:])), len(b)
		if k+1 < len(entries) {
			to = int(le.Uint16(at[direntSize+8:]))
		}
		if from < start || from >= to || to > len(b) {
			return nil, errCorrupt
		}
		name := b[from:to]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		if len(name) == 0 || len(name) > maxName || bytes.IndexByte(name, '/') >= 0 {
			return nil, errCorrupt
		}
		entries[k] = rawDirent{name, le.Uint64(at)}
	}
	return entries, nil
}

// child looks a name up in a directory.
func (i *Image) child(dir *inode, name string) (*inode, error) {
	if !dir.isType(typeDirectory) {
		return nil, fs.ErrNotExist
	}
	var failed error
	block := int64(sort.Search(int(blocksOf(dir.size)), func(k int) bool {
		entries, err := i.dirents(dir, int64(k))
		if err != nil {
			failed = err
			return true
		}
		return string(entries[0].name) > name
	})) - 1
	if failed != nil {
		return nil, failed
	}
	if block < 0 {
		return nil, fs.ErrNotExist
	}
	entries, err := i.dirents(dir, block)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if string(e.name) == name {
			return i.inode(name, e.number)
		}
	}
	return nil, fs.ErrNotExist
}

// resolve returns what a path names.
func (i *Image) resolve(op, name string, follow bool) (*inode, error) {
	fail := func(err error) (*inode, error) { return nil, &fs.PathError{Op: op, Path: name, Err: err} }
	if !fs.ValidPath(name) {
		return fail(fs.ErrInvalid)
	}
	root, err := i.inode(".", i.root)
	if err != nil {
		return fail(err)
	}
	stack, hops := []*inode{root}, 0
	for rest := name; rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		switch part {
		case "", ".":
			continue
		case "..":
			stack = stack[:max(1, len(stack)-1)]
			continue
		}
		next, err := i.child(stack[len(stack)-1], part)
		if err != nil {
			return fail(err)
		}
		if next.isType(typeSymlink) && (follow || rest != "") {
			target, err := i.target(next)
			if hops++; err == nil && hops > maxHops {
				err = errors.New("too many symbolic links")
			}
			if err != nil {
				return fail(err)
			}
			if strings.HasPrefix(target, "/") {
				stack = stack[:1]
			}
			rest = target + "/" + rest
			continue
		}
		stack = append(stack, next)
	}
	found := *stack[len(stack)-1]
	found.name = path.Base(name)
	return &found, nil
}

// Open opens a file or directory, following symbolic links.
func (i *Image) Open(name string) (fs.File, error) {
	n, err := i.resolve("open", name, true)
	if err != nil {
		return nil, err
	}
	switch {
	case n.isType(typeDirectory):
		return &openDirectory{image: i, inode: n}, nil
	case n.isType(typeRegular) && !n.inline && int64(n.block)*blockSize <= i.size-n.size:
		return &openFile{io.NewSectionReader(i.source, int64(n.block)*blockSize, n.size), n}, nil
	case n.isType(typeRegular):
		return nil, &fs.PathError{Op: "open", Path: name, Err: errCorrupt}
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("it is not a regular file")}
}

// Stat describes a file, following symbolic links.
func (i *Image) Stat(name string) (fs.FileInfo, error) { return info(i.resolve("stat", name, true)) }

// Lstat describes a file, or the symbolic link itself.
func (i *Image) Lstat(name string) (fs.FileInfo, error) { return info(i.resolve("lstat", name, false)) }

// info keeps a nil *inode from becoming an fs.FileInfo that is not nil.
func info(n *inode, err error) (fs.FileInfo, error) {
	if err != nil {
		return nil, err
	}
	return n, nil
}

// ReadLink returns the target of a symbolic link.
func (i *Image) ReadLink(name string) (string, error) {
	n, err := i.resolve("readlink", name, false)
	if err == nil && !n.isType(typeSymlink) {
		err = &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	if err != nil {
		return "", err
	}
	return i.target(n)
}

// ReadDir returns the entries of a directory, sorted by name.
func (i *Image) ReadDir(name string) ([]fs.DirEntry, error) {
	f, err := i.Open(name)
	if err != nil {
		return nil, err
	}
	d, is := f.(*openDirectory)
	if !is {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errors.New("it is not a directory")}
	}
	return d.ReadDir(-1)
}

func (n *inode) Name() string       { return n.name }
func (n *inode) Size() int64        { return n.size }
func (n *inode) IsDir() bool        { return n.isType(typeDirectory) }
func (n *inode) ModTime() time.Time { return time.Unix(n.mtime, int64(n.nsec)) }

func (n *inode) Mode() fs.FileMode {
	mode := fs.FileMode(n.mode & 0o777)
	for bit, flag := range map[uint16]fs.FileMode{
		0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky,
	} {
		if n.mode&bit != 0 {
			mode |= flag
		}
	}
	switch n.node.mode & typeMask {
	case typeRegular:
	case typeDirectory:
		mode |= fs.ModeDir
	case typeSymlink:
		mode |= fs.ModeSymlink
	case typeFIFO:
		mode |= fs.ModeNamedPipe
	case typeChar:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case typeBlock:
		mode |= fs.ModeDevice
	default:
		mode |= fs.ModeIrregular
	}
	return mode
}

// Sys returns a *Stat.
func (n *inode) Sys() any {
	s := &Stat{Inode: n.number, Mode: n.mode, UID: n.uid, GID: n.gid, Links: n.links}
	if n.isType(typeChar) || n.isType(typeBlock) {
		s.Major, s.Minor = n.block>>8&0xfff, n.block&0xff|n.block>>12&0xfff00
	}
	return s
}

type openFile struct {
	*io.SectionReader
	inode *inode
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.inode, nil }
func (f *openFile) Close() error               { return nil }

// An openDirectory reads one block of its entries after the other.
type openDirectory struct {
	image *Image
	inode *inode
	block int64
	rest  []rawDirent // of the block before
}

func (d *openDirectory) Stat() (fs.FileInfo, error) { return d.inode, nil }
func (d *openDirectory) Close() error               { return nil }

func (d *openDirectory) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.inode.name, Err: errors.New("it is a directory")}
}

// ReadDir implements fs.ReadDirFile.
func (d *openDirectory) ReadDir(n int) ([]fs.DirEntry, error) {
	var found []fs.DirEntry
	for n <= 0 || len(found) < n {
		if len(d.rest) == 0 {
			if d.block >= blocksOf(d.inode.size) {
				break
			}
			entries, err := d.image.dirents(d.inode, d.block)
			if err != nil {
				return found, &fs.PathError{Op: "readdir", Path: d.inode.name, Err: err}
			}
			d.block, d.rest = d.block+1, entries
			continue
		}
		next := d.rest[0]
		d.rest = d.rest[1:]
		if name := string(next.name); name != "." && name != ".." {
			child, err := d.image.inode(name, next.number)
			if err != nil {
				return found, &fs.PathError{Op: "readdir", Path: name, Err: err}
			}
			found = append(found, fs.FileInfoToDirEntry(child))
		}
	}
	if n > 0 && len(found) == 0 {
		return nil, io.EOF
	}
	return found, nil
}
