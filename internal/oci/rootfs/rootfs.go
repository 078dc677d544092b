// Package rootfs makes the root file system of an OCI image: it owns the merging of the image's
// layers, which are tar archives, into one EROFS file that gVisor mounts.
//
// The layers are hostile. Nothing of them becomes a file of the host: their entries are kept as a
// tree in memory, the contents of their regular files go into the one file that the caller has
// opened, and what the tree has in the end is written behind them.
// So names, links, device nodes, owners and modes cannot affect the host, and no privileges are
// needed.
//
// gVisor reads a part of EROFS alone: no compression, no chunks, blocks of 4,096 bytes, and no regular files
// behind their inodes, since it maps them. mkfs.erofs would have to be installed, and needs an unpacked
// folder (as root, to keep owners) or an index of chunks. github.com/erofs/go-erofs (0.3.1) puts small files
// behind their inodes, so that programs in the sandbox get SIGBUS. Extended attributes are bounded, counted
// and left out: gVisor cannot open a file that has any. gVisor does not tell the numbers of device nodes, so
// character devices are taken for whiteouts, and not seen.
//
// Layers lie over each other as in an overlay file system, and within one layer symbolic links are followed.
// A whiteout hides what lower layers have and nothing of its own layer, wherever it stands. A hard link may
// lead to a file of a lower layer, which Docker refuses: some builders make such layers. What an upper layer
// replaces stays in the file. Where contents stand depends on which layer is read first, unless
// Limits.Parallel is 1.
package rootfs

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"sandlot/internal/fault"
)

// A Layer opens the uncompressed tar archive of one layer. It is called once. The archive is read
// to the end of the stream, so a reader that compares digests sees every byte; an error of Close
// counts.
type Layer func(context.Context) (io.ReadCloser, error)

// Limits bound what an image may use. A field that is zero has its default.
type Limits struct {
	Entries    int   // of all archives, and directories that they do not list; 1,048,576
	Bytes      int64 // of all archives uncompressed, and of all files; 64 GiB
	PathBytes  int   // of one path, and of the target of one link; 4,095
	NameBytes  int64 // of all names and targets of links, which are in memory; 256 MiB
	XattrBytes int   // of the extended attributes of one entry; 64 KiB
	Parallel   int   // layers that are read at the same time; the number of CPUs, and at least 2
}

// maxBytes is below what block numbers of 32 bits can address.
const maxBytes = 8 << 40

func (l Limits) withDefaults() Limits {
	set := func(field *int, value int) {
		if *field <= 0 {
			*field = value
		}
	}
	set(&l.Entries, 1<<20)
	set(&l.PathBytes, 4095)
	set(&l.XattrBytes, 64<<10)
	set(&l.Parallel, max(2, runtime.GOMAXPROCS(0)))
	if l.Bytes <= 0 {
		l.Bytes = 64 << 30
	}
	if l.NameBytes <= 0 {
		l.NameBytes = 256 << 20
	}
	l.Bytes = min(l.Bytes, maxBytes)
	l.PathBytes = min(l.PathBytes, 4095) // a longer path or target cannot be used on Linux
	return l
}

// Summary says what was written.
type Summary struct {
	Entries int   // files, directories and others of the merged tree; hard links count once
	Bytes   int64 // of the contents of its regular files
	Size    int64 // of the image file; what only lower layers had is a part of it
	Xattrs  int   // extended attributes that the archives have and the image has not
}

// Write merges layers, the lowest first, into an EROFS image, and writes it to a file, whose
// former content is lost. After an error the content is undefined. The caller syncs and closes.
// Layers are read in parallel, so only the order of the files' contents depends on chance.
func Write(ctx context.Context, w *os.File, layers []Layer, l Limits) (Summary, error) {
	if err := w.Truncate(0); err != nil {
		return Summary{}, fmt.Errorf("empty the image file: %w", err)
	}
	b := &budget{limits: l.withDefaults()}
	blocks := &allocator{}
	blocks.next.Store(1) // block 0 has the superblock
	read := make([]*layer, len(layers))
	group, readContext := errgroup.WithContext(ctx)
	group.SetLimit(b.limits.Parallel)
	for i, open := range layers {
		read[i] = &layer{number: i + 1, tree: newTree(b)}
		group.Go(func() error { return read[i].read(readContext, open, &extents{file: w, blocks: blocks}) })
	}
	if err := group.Wait(); err != nil {
		return Summary{}, err
	}
	merged := newTree(b)
	for i, l := range read {
		if err := merged.apply(l); err != nil {
			return Summary{}, err
		}
		read[i] = nil
	}
	if err := ctx.Err(); err != nil {
		return Summary{}, err
	}
	s, err := writeMetadata(w, merged.root, blocks)
	s.Xattrs = int(b.xattrs.Load())
	return s, err
}

// budget counts what all layers use together.
type budget struct {
	limits                                   Limits
	entries, names, stored, streamed, xattrs atomic.Int64
}

// exceeded is the fault of an image that is over a limit.
func exceeded(limit int64, what string) error {
	e := fault.New(fault.ResourceLimit, "the image has more than %d %s", limit, what)
	e.Advice = []string{"Use a smaller image"}
	return e.With("resource_type", "image").With("limit", limit)
}

func add(counter *atomic.Int64, n, limit int64, what string) error {
	if n < 0 || n > limit || counter.Add(n) > limit {
		return exceeded(limit, what)
	}
	return nil
}

// entry counts an entry, with the bytes of its name and of its target.
func (b *budget) entry(bytes int) error {
	if err := add(&b.entries, 1, int64(b.limits.Entries), "entries"); err != nil {
		return err
	}
	return add(&b.names, int64(bytes), b.limits.NameBytes, "bytes of names")
}

// content counts the content of a file: of a sparse one with its holes.
func (b *budget) content(size int64) error {
	return add(&b.stored, size, b.limits.Bytes, "bytes of files")
}

// A meter counts the bytes of an archive, and ends it when its context ends.
type meter struct {
	ctx    context.Context
	source io.Reader
	budget *budget
}

func (m meter) Read(into []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.source.Read(into)
	if over := add(&m.budget.streamed, int64(n), m.budget.limits.Bytes, "bytes of archives"); over != nil {
		return 0, over
	}
	return n, err
}
