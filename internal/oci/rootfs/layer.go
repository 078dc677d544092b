package rootfs

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strconv"
	"strings"
	"sync"

	"sandlot/internal/fault"
)

// How layers say that they remove something: the names of the OCI image specification.
const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
	reservedPrefix = ".wh..wh." // AUFS's own files
)

// A layer is one archive, read into a tree of its own.
type layer struct {
	number int // from 1, the lowest
	tree
	pending map[*node]*node // hard links into lower layers, with what they are links to
	special bool            // there are whiteouts or pending links

	// The directory of the last entry: in archives, a directory's entries follow each other.
	lastPath string
	last     *node
}

// failed is an error at an entry, which it names.
func (l *layer) failed(entry string, err error) error {
	var f *fault.Error
	if errors.As(err, &f) {
		named := *f
		named.Message = fmt.Sprintf("layer %d, entry %s: %s", l.number, quote(entry), f.Message)
		return &named
	}
	return fmt.Errorf("layer %d, entry %s: %w", l.number, quote(entry), err)
}

// quote returns a hostile name for a message.
func quote(name string) string {
	if len(name) > 100 {
		name = name[:100] + "…"
	}
	return strconv.Quote(name)
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 64<<10) }}

func (l *layer) read(ctx context.Context, open Layer, data *extents) (err error) {
	stream, err := open(ctx)
	if err != nil {
		return fmt.Errorf("open layer %d: %w", l.number, err)
	}
	defer func() {
		if closed := stream.Close(); err == nil && closed != nil {
			err = fmt.Errorf("layer %d: %w", l.number, closed)
		}
	}()
	data.start()
	defer data.release()
	buffered := readers.Get().(*bufio.Reader)
	buffered.Reset(meter{ctx, stream, l.budget})
	defer func() {
		buffered.Reset(nil)
		readers.Put(buffered)
	}()
	archive := tar.NewReader(buffered)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return l.unreadable(err)
		}
		if err := l.add(header, archive, data); err != nil {
			return l.failed(header.Name, err)
		}
	}
	if err := data.flush(); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, buffered); err != nil {
		return l.unreadable(err)
	}
	return nil
}

// unreadable is the error of an archive that ends early, or is none.
func (l *layer) unreadable(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) ||
		errors.Is(err, io.ErrUnexpectedEOF) {
		return l.failed("", invalid("the archive cannot be read: %v", err))
	}
	return fmt.Errorf("read layer %d: %w", l.number, err)
}

// add puts an entry of the archive into the tree.
func (l *layer) add(h *tar.Header, content io.Reader, data *extents) error {
	if h.Typeflag == tar.TypeXGlobalHeader || h.Typeflag == volumeLabel {
		return l.budget.entry(0)
	}
	name := path.Clean("/" + h.Name)
	if err := l.check(h, name); err != nil {
		return err
	}
	if name == "/" {
		if h.Typeflag == tar.TypeDir {
			l.root.setAttributes(attributes(h))
			l.root.flags &^= isImplicit
		}
		return nil
	}
	dir, base := path.Split(name)
	if strings.Contains(dir, "/"+reservedPrefix) {
		return nil
	}
	parent, err := l.parent(dir)
	if err != nil {
		return err
	}
	if removed, is := strings.CutPrefix(base, whiteoutPrefix); is {
		return l.whiteout(parent, base, removed)
	}
	n, err := l.node(h, content, data)
	if err != nil {
		return err
	}
	l.put(parent, base, n)
	return nil
}

// volumeLabel is the type of an entry of GNU tar's that is no file.
const volumeLabel = 'V'

// check holds an entry against the limits, and against what Linux can represent.
func (l *layer) check(h *tar.Header, name string) error {
	limits := l.budget.limits
	switch {
	case len(name) > limits.PathBytes || len(h.Linkname) > limits.PathBytes:
		return invalid("its path or target has more than %d bytes", limits.PathBytes)
	case strings.IndexByte(name, 0) >= 0 || strings.IndexByte(h.Linkname, 0) >= 0:
		return invalid("its path or target has a zero byte")
	case h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= math.MaxUint32 || int64(h.Gid) >= math.MaxUint32:
		return invalid("its owner %d:%d is not one of Linux", h.Uid, h.Gid)
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > maxName {
			return invalid("a name of its path has more than %d bytes", maxName)
		}
	}
	bytes := 0
	for key, value := range h.PAXRecords {
		if attribute, is := strings.CutPrefix(key, "SCHILY.xattr."); is {
			bytes += len(attribute) + len(value)
			l.budget.xattrs.Add(1)
		}
	}
	if bytes > limits.XattrBytes {
		return invalid("it has more than %d bytes of extended attributes", limits.XattrBytes)
	}
	return l.budget.entry(len(path.Base(name)) + len(h.Linkname))
}

// parent returns the directory for an entry.
func (l *layer) parent(dir string) (*node, error) {
	if l.last != nil && dir == l.lastPath {
		return l.last, nil
	}
	found, err := l.resolve(dir, true)
	if err == nil {
		l.lastPath, l.last = dir, found
	}
	return found, err
}

// whiteout removes what lower layers have: only that, wherever in the archive it stands.
func (l *layer) whiteout(parent *node, base, removed string) error {
	switch {
	case base == opaqueName:
		parent.flags |= isOpaque
		l.special = true
		return nil
	case strings.HasPrefix(base, reservedPrefix):
		return nil
	case removed == "" || removed == "." || removed == "..":
		return invalid("it is a whiteout of no name")
	}
	l.special = true
	switch old := parent.dir.entries[removed]; {
	case old == nil:
		parent.dir.entries[strings.Clone(removed)] = &node{flags: isWhiteout}
	case old.isType(typeDirectory):
		old.flags |= isOpaque
	}
	return nil
}

// put gives a node a name. A directory takes over the attributes of another one of this name.
func (l *layer) put(parent *node, base string, n *node) {
	old := parent.dir.entries[base]
	if old != nil && old.isType(typeDirectory) && n.isType(typeDirectory) {
		old.setAttributes(n)
		old.flags &^= isImplicit
		return
	}
	if old == nil {
		base = strings.Clone(base) // it is part of the whole path
	} else {
		if old.is(isWhiteout) && n.isType(typeDirectory) {
			n.flags |= isOpaque
		}
		l.last = nil // the path may have led through what is replaced
	}
	parent.dir.entries[base] = n
}

// types are the types of files by those of entries. Other types are no files, or unknown.
var types = [256]uint16{
	tar.TypeDir: typeDirectory, tar.TypeSymlink: typeSymlink, tar.TypeFifo: typeFIFO,
	tar.TypeChar: typeChar, tar.TypeBlock: typeBlock, tar.TypeReg: typeRegular,
	tar.TypeCont: typeRegular, tar.TypeGNUSparse: typeRegular,
}

// attributes returns a node with the owner, the mode and the time of an entry.
func attributes(h *tar.Header) *node {
	n := &node{uid: uint32(h.Uid), gid: uint32(h.Gid), mode: types[h.Typeflag] | uint16(h.Mode&0o7777)}
	if !h.ModTime.IsZero() {
		n.mtime, n.nsec = h.ModTime.Unix(), uint32(h.ModTime.Nanosecond())
	}
	return n
}

// node makes the node of an entry; it stores the content of a regular file.
func (l *layer) node(h *tar.Header, content io.Reader, data *extents) (*node, error) {
	if h.Typeflag == tar.TypeLink {
		return l.hardLink(path.Clean("/" + h.Linkname))
	}
	n := attributes(h)
	switch n.mode & typeMask {
	case typeRegular:
		if err := l.budget.content(h.Size); err != nil {
			return nil, err
		}
		n.size = h.Size
		return n, data.store(n, content)
	case typeDirectory:
		n.dir = &directory{entries: map[string]*node{}}
	case typeSymlink:
		if h.Linkname == "" {
			return nil, invalid("it is a symbolic link without a target")
		}
		n.target = strings.Clone(h.Linkname)
		n.mode |= 0o777
	case typeChar, typeBlock:
		if h.Devmajor < 0 || h.Devmajor > 0xfff || h.Devminor < 0 || h.Devminor > 0xfffff {
			return nil, invalid("its device number %d:%d is not one of Linux", h.Devmajor, h.Devminor)
		}
		major, minor := uint32(h.Devmajor), uint32(h.Devminor)
		n.block = minor&0xff | major<<8 | minor&^0xff<<12
	case typeFIFO:
	default:
		return nil, invalid("its type %q is unknown", string(rune(h.Typeflag)))
	}
	return n, nil
}

// hardLink returns the node of the link's target. Lower layers are merged later, so for a target
// that this layer does not have it returns a pending node.
func (l *layer) hardLink(target string) (*node, error) {
	n, err := l.lookup(target)
	switch {
	case err != nil:
		return nil, err
	case n == nil:
		if l.pending == nil {
			l.pending = map[*node]*node{}
		}
		l.special = true
		n = &node{flags: isPending, target: strings.Clone(target)}
		l.pending[n] = nil
	case n.isType(typeDirectory):
		return nil, invalid("it is a hard link to the directory %s", quote(target))
	}
	return n, nil
}
