package rootfs

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
)

const blockSize = 4096

// blocksOf returns the number of blocks that so many bytes need.
func blocksOf(bytes int64) int64 { return (bytes + blockSize - 1) / blockSize }

// An allocator gives out the blocks of the image file.
type allocator struct{ next atomic.Int64 }

// allocate returns the first of n blocks.
func (a *allocator) allocate(n int64) int64 { return a.next.Add(n) - n }

// extents writes the contents of one layer's files to the image file, each in blocks of its own.
// Small files are collected, and written together.
type extents struct {
	file   io.WriterAt
	blocks *allocator
	buffer *[writeSize]byte
	used   int     // bytes of the buffer, a multiple of blockSize
	files  []*node // those in the buffer; their block counts from its beginning
}

const writeSize = 1 << 20

var buffers = sync.Pool{New: func() any { return new([writeSize]byte) }}

func (e *extents) start() { e.buffer = buffers.Get().(*[writeSize]byte) }

func (e *extents) release() {
	buffers.Put(e.buffer)
	e.buffer, e.files = nil, nil
}

// store reads the content of a file, n.size bytes.
func (e *extents) store(n *node, content io.Reader) error {
	if n.size == 0 {
		return nil
	}
	if n.size > int64(writeSize-e.used) {
		if err := e.flush(); err != nil {
			return err
		}
	}
	if n.size > writeSize {
		return e.storeLarge(n, content)
	}
	end := e.used + int(n.size)
	if err := readFull(content, e.buffer[e.used:end]); err != nil {
		return err
	}
	n.block = uint32(e.used / blockSize)
	e.files = append(e.files, n)
	e.used += int(blocksOf(n.size)) * blockSize
	clear(e.buffer[end:e.used])
	return nil
}

// flush writes what is in the buffer, and tells the files in it their blocks.
func (e *extents) flush() error {
	if e.used == 0 {
		return nil
	}
	first := e.blocks.allocate(int64(e.used / blockSize))
	for _, n := range e.files {
		n.block += uint32(first)
	}
	err := e.write(e.buffer[:e.used], first*blockSize)
	clear(e.files)
	e.used, e.files = 0, e.files[:0]
	return err
}

// storeLarge writes a file through the empty buffer.
func (e *extents) storeLarge(n *node, content io.Reader) error {
	first := e.blocks.allocate(blocksOf(n.size))
	n.block = uint32(first)
	for done := int64(0); done < n.size; done += writeSize {
		part := e.buffer[:min(writeSize, n.size-done)]
		if err := readFull(content, part); err != nil {
			return err
		}
		if err := e.write(part, first*blockSize+done); err != nil {
			return err
		}
	}
	return nil
}

// write leaves out zeros: the image file has a hole there, as a sparse file has.
func (e *extents) write(part []byte, offset int64) error {
	if isZero(part) {
		return nil
	}
	if _, err := e.file.WriteAt(part, offset); err != nil {
		return fmt.Errorf("write the image file: %w", err)
	}
	return nil
}

var zeros [blockSize]byte

func isZero(part []byte) bool {
	for len(part) > 0 {
		n := min(len(part), blockSize)
		if !bytes.Equal(part[:n], zeros[:n]) {
			return false
		}
		part = part[n:]
	}
	return true
}

func readFull(content io.Reader, into []byte) error {
	_, err := io.ReadFull(content, into)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return invalid("the archive ends within its content")
	}
	return err
}
