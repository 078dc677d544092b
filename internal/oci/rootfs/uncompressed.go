package rootfs

import (
	"bufio"
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory that a Zstandard stream may ask for. Tools that make images ask for 8 MiB and less.
const maxWindow = 32 << 20

// Uncompressed returns the content of a layer that is compressed with gzip or Zstandard, or is
// not: its first bytes say which. Closing it does not close r. The content is not bounded.
func Uncompressed(r io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(r, 256<<10)
	first, err := buffered.Peek(4)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("read the beginning of a layer: %w", err)
	}
	switch {
	case bytes.HasPrefix(first, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, invalid("a layer is not a gzip stream: %v", err)
		}
		return z, nil
	case bytes.Equal(first, []byte{0x28, 0xb5, 0x2f, 0xfd}),
		len(first) == 4 && first[0]&0xf0 == 0x50 && bytes.Equal(first[1:], []byte{0x2a, 0x4d, 0x18}):
		z, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(2),
			zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, invalid("a layer is not a Zstandard stream: %v", err)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(buffered), nil
}
