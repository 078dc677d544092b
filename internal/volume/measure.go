package volume

import (
	"context"
	"errors"
	"io/fs"
	"math"

	"sandlot/internal/tree"
)

// A volume is writable only while its disk has its reserve free: a hundredth (1/freeShare) of
// the disk, but at most maxReserve bytes.
const freeShare, maxReserve = 100, 1 << 30

// resumeParts says when a full volume is writable again: when it has at most resumeParts/16 of its limit.
const resumeParts = 15

// diskSpace is the free and the total space of a file system, in bytes; total 0: not known.
type diskSpace struct{ free, total uint64 }

// reserve is how much of the file system must be free.
func (s diskSpace) reserve() uint64 { return min(s.total/freeShare, maxReserve) }

// measurement is the result of a measurement.
type measurement struct {
	size tree.Size
	err  error
}

func measureFolder(ctx context.Context, source string) (tree.Size, error) {
	return tree.Measure(ctx, source, tree.Limits{Entries: math.MaxInt64, Depth: 4096, Foreign: true})
}

// reasonFor returns the reason for a volume whose measurement failed with err; ok is false
// if sandboxes cannot have caused the error by what they wrote.
func reasonFor(err error) (why Reason, ok bool) {
	switch {
	case errors.Is(err, tree.ErrDepth), errors.Is(err, tree.ErrMoved):
		return Deep, true
	case errors.Is(err, tree.ErrUnreadable), errors.Is(err, fs.ErrPermission): // the volume itself too
		return Closed, true
	case errors.Is(err, context.DeadlineExceeded):
		return Slow, true
	}
	return "", false
}
