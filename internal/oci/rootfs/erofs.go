package rootfs

import (
	"encoding/binary"
	"hash/crc32"
)

// The format of the image: https://docs.kernel.org/filesystems/erofs.html. All numbers are little
// endian. The image uses the part of the format that gVisor reads: blocks of 4,096 bytes, no
// incompatible features, inodes of 64 bytes, no extended attributes, contents of regular files in
// blocks of their own. The last part of a directory and a symbolic link's target stand behind
// their inode if they fit into its block.
const (
	superblockOffset = 1024
	superblockSize   = 128
	superblockMagic  = 0xe0f5e1e2

	featureChecksum = 1 // the superblock has a checksum
	featureMtime    = 2 // the times of inodes are those of the last modification

	inodeSize  = 64
	slotSize   = 32
	rootSlot   = 2 // not 0, which programs take for no inode
	direntSize = 12

	extendedPlain  = 1        // an inode of 64 bytes; the content is in blocks
	extendedInline = 1 | 2<<1 // the same, but the last part of the content is behind the inode
)

// fileTypes are the types of files in directories, by the upper four bits of the mode.
var fileTypes = [16]uint8{
	typeRegular >> 12: 1, typeDirectory >> 12: 2, typeChar >> 12: 3, typeBlock >> 12: 4,
	typeFIFO >> 12: 5, 0xc: 6, typeSymlink >> 12: 7,
}

// A superblock is what Sandlot's images have in theirs.
type superblock struct {
	inodes        uint64
	blocks        uint32 // of the image
	metadataBlock uint32 // where the inodes begin
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns the first block of the image.
func (s superblock) encode() []byte {
	block := make([]byte, blockSize)
	b, le := block[superblockOffset:], binary.LittleEndian
	le.PutUint32(b, superblockMagic)
	le.PutUint32(b[8:], featureChecksum|featureMtime)
	b[12] = 12 // the logarithm of blockSize
	le.PutUint16(b[14:], rootSlot)
	le.PutUint64(b[16:], s.inodes)
	le.PutUint32(b[36:], s.blocks)
	le.PutUint32(b[40:], s.metadataBlock)
	le.PutUint32(b[4:], superblockChecksum(b))
	return block
}

// superblockChecksum is that of the block from the superblock on, whose checksum counts as zero.
func superblockChecksum(b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:4])
	sum = crc32.Update(sum, castagnoli, zeros[:4])
	return ^crc32.Update(sum, castagnoli, b[8:])
}

// encode writes an inode. The number is for programs with inode numbers of 32 bits.
func (n *node) encode(b *[inodeSize]byte, number uint32) {
	le := binary.LittleEndian
	format := uint16(extendedPlain)
	if n.inline() > 0 {
		format = extendedInline
	}
	le.PutUint16(b[0:], format)
	le.PutUint16(b[4:], n.mode)
	le.PutUint64(b[8:], uint64(n.size))
	le.PutUint32(b[16:], n.block)
	le.PutUint32(b[20:], number)
	le.PutUint32(b[24:], n.uid)
	le.PutUint32(b[28:], n.gid)
	le.PutUint64(b[32:], uint64(n.mtime))
	le.PutUint32(b[40:], n.nsec)
	le.PutUint32(b[44:], n.links)
}

// inline returns how many bytes of the content stand behind the inode.
func (n *node) inline() int64 {
	if !n.isType(typeDirectory) && !n.isType(typeSymlink) {
		return 0
	}
	if tail := n.size % blockSize; tail <= blockSize-inodeSize {
		return tail
	}
	return 0
}

// A dirent is an entry of a directory of the image.
type dirent struct {
	name string
	node *node
}

// direntBlocks yields how many of the entries fit into each block of a directory, and the bytes
// that they use there.
func direntBlocks(entries []dirent, yield func(part []dirent, used int)) {
	for first := 0; first < len(entries); {
		used, end := 0, first
		for ; end < len(entries); end++ {
			more := direntSize + len(entries[end].name)
			if used+more > blockSize {
				break
			}
			used += more
		}
		yield(entries[first:end], used)
		first = end
	}
}

// encodeDirents writes the entries of one block of a directory, whose rest is zero.
func encodeDirents(b []byte, part []dirent) {
	clear(b)
	le, offset := binary.LittleEndian, direntSize*len(part)
	for i, entry := range part {
		at := b[i*direntSize:]
		le.PutUint64(at, uint64(entry.node.slot))
		le.PutUint16(at[8:], uint16(offset))
		at[10] = fileTypes[entry.node.mode>>12]
		offset += copy(b[offset:], entry.name)
	}
}
