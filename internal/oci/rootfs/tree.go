package rootfs

import (
	"path"
	"strings"

	"sandlot/internal/fault"
)

// The types of files, as in the mode of an inode.
const (
	typeMask      = 0xf000
	typeFIFO      = 0x1000
	typeChar      = 0x2000
	typeDirectory = 0x4000
	typeBlock     = 0x6000
	typeRegular   = 0x8000
	typeSymlink   = 0xa000
)

// What a node is in the tree of a layer, beside a file.
const (
	isWhiteout = 1 << iota // hides what lower layers have under this name
	isOpaque               // a directory that hides what lower layers have in it
	isImplicit             // a directory that the archive does not list: it has a lower one's attributes
	isPending              // a hard link to target, which is in a lower layer
)

const (
	maxName  = 255  // bytes; Linux's
	maxDepth = 1024 // directories below each other
	maxHops  = 40   // symbolic links of one path; Linux's
)

// A node is a file of any type. Hard links are several entries with one node. There may be a
// million nodes, so no field is there for convenience.
type node struct {
	size   int64 // of the content; of a directory or symbolic link: as it is in the image
	mtime  int64 // seconds since 1970
	dir    *directory
	target string // of a symbolic link, or of a pending hard link
	block  uint32 // the first one of the content; the number of a device
	nsec   uint32 // of mtime
	uid    uint32
	gid    uint32
	links  uint32 // entries of the merged tree that are this node
	slot   uint32 // where the inode is, in units of slotSize from the start of the inodes
	mode   uint16
	flags  uint8
}

// A directory is what a node of typeDirectory has.
type directory struct {
	entries map[string]*node // nil once it is sorted
	sorted  []dirent         // with "." and "..", in the order of the image
}

func newDirectory(flags uint8) *node {
	return &node{mode: typeDirectory | 0o755, flags: flags, dir: &directory{entries: map[string]*node{}}}
}

func (n *node) is(flag uint8) bool   { return n.flags&flag != 0 }
func (n *node) isType(t uint16) bool { return n.mode&typeMask == t }
func (n *node) setAttributes(o *node) {
	n.mode, n.uid, n.gid, n.mtime, n.nsec = o.mode, o.uid, o.gid, o.mtime, o.nsec
}

// A tree is a layer, or layers merged.
type tree struct {
	root   *node
	budget *budget
	stack  []*node // of resolve, kept to be used again
}

func newTree(b *budget) tree { return tree{root: newDirectory(isImplicit), budget: b} }

// resolve returns the directory that an absolute path names for a process whose root directory is
// this tree's: symbolic links are followed, and neither they nor ".." lead out. What is missing is
// nil, or made, as containerd and Docker do: archives need not list parents.
func (t *tree) resolve(dir string, create bool) (*node, error) {
	stack, hops := append(t.stack[:0], t.root), 0
	defer func() { t.stack = stack }()
	for rest := dir; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			stack = stack[:max(1, len(stack)-1)]
			continue
		}
		last := stack[len(stack)-1]
		next := last.dir.entries[name]
		if next == nil || next.is(isWhiteout) {
			if !create {
				return nil, nil
			}
			made, err := t.implicit(name, next != nil)
			if err != nil {
				return nil, err
			}
			last.dir.entries[strings.Clone(name)] = made
			next = made
		}
		switch {
		case next.isType(typeDirectory):
			stack = append(stack, next)
		case next.isType(typeSymlink):
			if hops++; hops > maxHops {
				return nil, invalid("more than %d symbolic links lead to %s", maxHops, quote(dir))
			}
			if strings.HasPrefix(next.target, "/") {
				stack = stack[:1]
			}
			rest = next.target + "/" + rest
		default:
			return nil, invalid("%s is not a directory", quote(name))
		}
		if len(stack) > maxDepth {
			return nil, invalid("more than %d directories are below each other", maxDepth)
		}
	}
	return stack[len(stack)-1], nil
}

// implicit makes a directory that no entry lists.
func (t *tree) implicit(name string, opaque bool) (*node, error) {
	if len(name) > maxName {
		return nil, invalid("the name %s has more than %d bytes", quote(name), maxName)
	}
	if err := t.budget.entry(len(name)); err != nil {
		return nil, err
	}
	if opaque {
		return newDirectory(isImplicit | isOpaque), nil
	}
	return newDirectory(isImplicit), nil
}

// lookup returns what an absolute path names, without following a last symbolic link; nil if
// there is nothing.
func (t *tree) lookup(name string) (*node, error) {
	parent, base := path.Split(name)
	dir, err := t.resolve(parent, false)
	if err != nil || dir == nil {
		return nil, err
	}
	if base == "" {
		return dir, nil
	}
	if n := dir.dir.entries[base]; n != nil && !n.is(isWhiteout) {
		return n, nil
	}
	return nil, nil
}

// apply puts a layer over this tree, by the rules of the OCI image specification and of overlay
// file systems: a directory is merged with a directory, and everything else replaces what has its
// name. So an entry a/b of the layer replaces a symbolic link a of a lower one. The layer cannot
// be used afterwards: nodes of it are part of this tree.
func (t *tree) apply(l *layer) error {
	for n := range l.pending {
		target, err := t.lookup(n.target)
		if err != nil {
			return l.failed(n.target, err)
		}
		if target == nil || target.isType(typeDirectory) {
			return l.failed(n.target, invalid("a hard link leads to it, and neither this layer "+
				"nor a lower one has such a file"))
		}
		l.pending[n] = target
	}
	if l.root.is(isOpaque) {
		clear(t.root.dir.entries)
	}
	if !l.root.is(isImplicit) {
		t.root.setAttributes(l.root)
	}
	l.mergeInto(t.root, l.root)
	return nil
}

func (l *layer) mergeInto(below, above *node) {
	for name, n := range above.dir.entries {
		old := below.dir.entries[name]
		both := n.isType(typeDirectory) && old != nil && old.isType(typeDirectory)
		switch {
		case n.is(isWhiteout):
			delete(below.dir.entries, name)
		case n.is(isPending):
			below.dir.entries[name] = l.pending[n]
		case both && !n.is(isOpaque):
			if !n.is(isImplicit) {
				old.setAttributes(n)
			}
			l.mergeInto(old, n)
		default:
			if both && n.is(isImplicit) {
				n.setAttributes(old)
			}
			if n.isType(typeDirectory) && l.special {
				l.finish(n)
			}
			below.dir.entries[name] = n
		}
	}
}

// finish removes whiteouts from a directory that lies over nothing, and puts the targets of hard
// links in place.
func (l *layer) finish(dir *node) {
	for name, n := range dir.dir.entries {
		switch {
		case n.is(isWhiteout):
			delete(dir.dir.entries, name)
		case n.is(isPending):
			dir.dir.entries[name] = l.pending[n]
		case n.isType(typeDirectory):
			l.finish(n)
		}
	}
}

func invalid(format string, args ...any) error {
	e := fault.New(fault.InvalidParameters, "the image is malformed: "+format, args...)
	e.Advice = []string{"Make the image again, or use another one"}
	return e
}
