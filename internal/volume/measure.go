package volume

import (
	"context"
	"errors"
	"io/fs"
	"math"

	"golang.org/x/sys/unix"

	"sandlot/internal/tree"
)

// Of a volume's disk one part of freeShare must be free so that the volume can be
// written, and no more than maxReserve bytes.
const freeShare, maxReserve = 100, 1 << 30

// lower is how many of 16 parts of its limit a full volume may hold so that it is
// writable again.
const lower = 15

// space is the size of a file system, in bytes; total 0: it did not say.
type space struct{ free, total uint64 }

func (s space) reserve() uint64 { return min(s.total/freeShare, maxReserve) }

func spaceOf(path string) space {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return space{}
	}
	return space{st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize)}
}

// result is the result of a measurement.
type result struct {
	size tree.Size
	err  error
}

func measureFolder(ctx context.Context, source string) (tree.Size, error) {
	return tree.Measure(ctx, source, tree.Limits{Entries: math.MaxInt64, Depth: 4096, Foreign: true})
}

// unmeasurable says which errors may come of how sandboxes have arranged a folder.
func unmeasurable(err error) (Why, bool) {
	switch {
	case errors.Is(err, tree.ErrDepth), errors.Is(err, tree.ErrMoved):
		return Deep, true
	case errors.Is(err, tree.ErrClosed), errors.Is(err, fs.ErrPermission): // the volume itself too
		return Closed, true
	case errors.Is(err, context.DeadlineExceeded):
		return Slow, true
	}
	return "", false
}
