package rootfs

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// metadata is what stands behind the contents of regular files: blocks of directories and long
// symbolic links, then inodes. Two passes go over the tree in the same order, breadth first: one
// gives everything its place, the other one writes it.
type metadata struct {
	root      *node
	firstOwn  int64 // block
	ownBlocks int64 // of directories and symbolic links
	slots     int64
	inodes    int
	bytes     int64 // of the contents of regular files

	blocks, inodeArea *bufio.Writer // of the second pass
	written           int64         // slots
}

// writeMetadata writes all that the image has beside the contents of regular files.
func writeMetadata(w *os.File, root *node, blocks *allocator) (Summary, error) {
	m := &metadata{root: root, firstOwn: blocks.next.Load(), slots: rootSlot}
	m.arrange()
	firstInode := m.firstOwn + m.ownBlocks
	end := firstInode + blocksOf(m.slots*slotSize)
	if end > math.MaxUint32 || m.slots > math.MaxUint32 {
		return Summary{}, exceeded(math.MaxUint32, "blocks")
	}
	if err := w.Truncate(end * blockSize); err != nil {
		return Summary{}, fmt.Errorf("set the size of the image file: %w", err)
	}
	m.blocks = bufio.NewWriterSize(io.NewOffsetWriter(w, m.firstOwn*blockSize), writeSize)
	m.inodeArea = bufio.NewWriterSize(io.NewOffsetWriter(w, firstInode*blockSize), writeSize)
	m.write() // errors stay in the writers
	first := superblock{uint64(m.inodes), uint32(end), uint32(firstInode)}.encode()
	for _, flush := range []func() error{
		m.blocks.Flush, m.inodeArea.Flush,
		func() error { _, err := w.WriteAt(first, 0); return err },
	} {
		if err := flush(); err != nil {
			return Summary{}, fmt.Errorf("write the image file: %w", err)
		}
	}
	return Summary{Entries: m.inodes, Bytes: m.bytes, Size: end * blockSize}, nil
}

// directories calls f for each directory with its parent, breadth first.
func (m *metadata) directories(f func(dir, parent *node)) {
	type visit struct{ dir, parent *node }
	for queue := []visit{{m.root, m.root}}; len(queue) > 0; {
		at := queue[0]
		queue = queue[1:]
		f(at.dir, at.parent)
		for _, entry := range at.dir.dir.sorted {
			if entry.node != nil && entry.node.isType(typeDirectory) {
				queue = append(queue, visit{entry.node, at.dir})
			}
		}
	}
}

// arrange gives each node a slot, counts its links, and finds out the blocks that it needs.
func (m *metadata) arrange() {
	m.place(m.root)
	m.directories(func(dir, _ *node) {
		dir.links += 2
		for _, entry := range dir.dir.sorted {
			n := entry.node
			switch {
			case n == nil: // "." or ".."
				continue
			case n.isType(typeDirectory):
				dir.links++
			default:
				n.links++
			}
			if n.slot == 0 {
				m.place(n)
			}
		}
	})
}

func (m *metadata) place(n *node) {
	switch {
	case n.isType(typeDirectory):
		n.sort()
	case n.isType(typeSymlink):
		n.size = int64(len(n.target))
	case n.isType(typeRegular):
		m.bytes += n.size
	}
	need := inodeSize + n.inline()
	if at := m.slots * slotSize % blockSize; at+need > blockSize {
		m.slots = blocksOf(m.slots*slotSize) * (blockSize / slotSize)
	}
	n.slot = uint32(m.slots)
	m.slots += (need + inodeSize - 1) / inodeSize * (inodeSize / slotSize)
	m.inodes++
	if n.isType(typeDirectory) || n.isType(typeSymlink) {
		own := blocksOf(n.size - n.inline())
		if own > 0 {
			n.block = uint32(m.firstOwn + m.ownBlocks)
		}
		m.ownBlocks += own
	}
}

// sort puts a directory's entries in the order of the image, and finds out its size there. The
// entries for "." and ".." have no node yet.
func (n *node) sort() {
	entries := make([]dirent, 0, len(n.dir.entries)+2)
	entries = append(entries, dirent{name: "."}, dirent{name: ".."})
	for name, child := range n.dir.entries {
		entries = append(entries, dirent{name, child})
	}
	slices.SortFunc(entries, func(a, b dirent) int { return strings.Compare(a.name, b.name) })
	n.dir.entries, n.dir.sorted = nil, entries
	full, last := 0, 0
	direntBlocks(entries, func(_ []dirent, used int) { full, last = full+1, used })
	n.size = int64(full-1)*blockSize + int64(last)
}

// write writes each node once, in the order of the slots.
func (m *metadata) write() {
	number := uint32(0)
	put := func(n *node, parent *node) {
		if int64(n.slot) < m.written {
			return // another hard link
		}
		number++
		m.writeNode(n, parent, number)
	}
	put(m.root, m.root)
	m.directories(func(dir, _ *node) {
		for _, entry := range dir.dir.sorted {
			if entry.name != "." && entry.name != ".." {
				put(entry.node, dir)
			}
		}
	})
	m.pad(blocksOf(m.slots*slotSize) * blockSize / slotSize)
}

// pad writes zeros up to a slot.
func (m *metadata) pad(slot int64) {
	for left := (slot - m.written) * slotSize; left > 0; {
		n, err := m.inodeArea.Write(zeros[:min(left, blockSize)])
		if err != nil {
			return
		}
		left -= int64(n)
	}
	m.written = slot
}

func (m *metadata) writeNode(n, parent *node, number uint32) {
	m.pad(int64(n.slot))
	var inode [inodeSize]byte
	n.encode(&inode, number)
	m.inodeArea.Write(inode[:])
	inline := n.inline()
	switch {
	case n.isType(typeDirectory):
		m.writeDirectory(n, parent)
	case n.isType(typeSymlink) && inline > 0:
		m.inodeArea.WriteString(n.target)
	case n.isType(typeSymlink):
		block := make([]byte, blockSize)
		copy(block, n.target)
		m.blocks.Write(block)
	}
	used := inodeSize + inline
	padded := (used + inodeSize - 1) / inodeSize * inodeSize
	m.inodeArea.Write(zeros[:padded-used])
	m.written = int64(n.slot) + padded/slotSize
}

// writeDirectory writes the entries of a directory: the last block of them behind the inode, if
// there is room.
func (m *metadata) writeDirectory(n, parent *node) {
	entries := slices.Clone(n.dir.sorted)
	for i := range entries {
		switch entries[i].name {
		case ".":
			entries[i].node = n
		case "..":
			entries[i].node = parent
		}
	}
	left, inline := len(entries), n.inline()
	var block [blockSize]byte
	direntBlocks(entries, func(part []dirent, used int) {
		encodeDirents(block[:], part)
		if left -= len(part); left == 0 && inline > 0 {
			m.inodeArea.Write(block[:used])
		} else {
			m.blocks.Write(block[:])
		}
	})
}
