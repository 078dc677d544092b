package volume

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/tree"
)

const (
	// tick is how often the free space and the sandboxes are looked at, which costs
	// nothing.
	tick = time.Second
	// often and seldom bound the time between two measurements of a folder, which
	// are a twentieth of the time at most.
	often, seldom, share = 5 * time.Second, 10 * time.Minute, 20
	// longest is how long measuring may take, as of a sandbox's own folder. A volume
	// that is not measured by then is full.
	longest = 10 * time.Minute
	// slow is how long measuring may take before what the disk loses meanwhile, by
	// whomever, counts against the volume.
	slow = 30 * time.Second
	// lower is how far below its limit, of 16 parts, a full one has to be to be
	// written again.
	lower = 15
	// reserve is what has to be free on a volume's disk so that it can be written: a
	// hundredth of the disk, and no more than maxReserve bytes.
	reserve, maxReserve = 100, 1 << 30
	// parting is how long Run waits at its end for disks to answer.
	parting = 2 * time.Second
)

// space is what a file system has, in bytes; total 0: it did not say.
type space struct{ free, total uint64 }

func (s space) reserve() uint64 { return min(s.total/reserve, maxReserve) }

func spaceOf(path string) space {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return space{}
	}
	return space{st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize)}
}

func measureFolder(ctx context.Context, source string) (tree.Size, error) {
	return tree.Measure(ctx, source, tree.Limits{Entries: math.MaxInt64, Depth: 4096, Foreign: true})
}

// result is what came of measuring.
type result struct {
	size tree.Size
	err  error
}

// watch looks at one volume. Its disk is asked by goroutines of disk's, one at a time
// for each question: a disk may answer late, or never, and nothing waits for it.
type watch struct {
	v      *Volumes
	source string
	s      *state
	disk   *sync.WaitGroup

	measured  chan result // of the measuring that runs
	looked    chan space  // of the look that runs
	measuring bool
	looking   bool
	began     time.Time // when measuring did
	next      time.Time // when it does again
	at        space     // when measuring began last
	now       space
	short     bool // the disk had less free than its reserve, and not twice that since
}

func (w *watch) run(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	w.ask(ctx)
	for {
		select {
		case <-t.C:
			w.ask(ctx)
		case w.now = <-w.looked:
			w.looking = false
			w.room()
		case r := <-w.measured:
			w.measuring = false
			if ctx.Err() == nil {
				w.take(r)
			}
		case <-ctx.Done():
			return
		}
	}
}

// ask asks the disk what is to be known now, and nothing that it owes an answer to.
func (w *watch) ask(ctx context.Context) {
	if !w.looking {
		w.looking = true
		w.disk.Go(func() { w.looked <- w.v.space(w.source) })
	}
	if w.measuring {
		if time.Since(w.began) > longest+tick { // it is in the middle of a system call
			w.v.fill(w.source, w.s, Slow, context.DeadlineExceeded)
		}
		return
	}
	grown := w.at.free > w.now.free && w.at.free-w.now.free > uint64(w.v.LimitBytes/16)
	if time.Now().Before(w.next) && !grown {
		return
	}
	w.measuring, w.began, w.at = true, time.Now(), w.now
	w.disk.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, longest)
		defer cancel()
		size, err := w.v.measure(ctx, w.source)
		w.measured <- result{size, err}
	})
}

// room judges the free space of the volume's disk.
func (w *watch) room() {
	if w.now.total == 0 {
		return
	}
	if w.at.total == 0 {
		w.at = w.now
	}
	if w.short {
		w.short = w.now.free < 2*w.now.reserve()
	} else {
		w.short = w.now.free < w.now.reserve()
	}
	lost := w.measuring && time.Since(w.began) > slow && w.at.free > w.now.free && w.at.free-w.now.free > uint64(w.v.LimitBytes)
	w.v.mu.Lock()
	full := w.s.full
	w.v.mu.Unlock()
	if (w.short || lost) && !full {
		w.v.fill(w.source, w.s, Disk, nil)
	}
}

// take takes up what was measured. A volume that cannot be measured, as its
// sandboxes may have made it so, is full.
func (w *watch) take(r result) {
	w.next = time.Now().Add(min(max(share*time.Since(w.began), often), seldom))
	v, s := w.v, w.s
	why, hostile := unmeasurable(r.err)
	if r.err != nil && !hostile {
		if !s.failed {
			v.Log.Warn("could not measure a volume", "volume", w.source, "error", r.err)
		}
		s.failed = true
		return
	}
	s.failed = false
	v.mu.Lock()
	s.used, s.measured = r.size.Bytes, true
	over := r.size.Bytes > v.LimitBytes || s.full && s.why == Limit && r.size.Bytes > v.LimitBytes/16*lower
	v.mu.Unlock()
	switch {
	case hostile:
	case over:
		why = Limit
	case w.short:
		why = Disk
	}
	v.fill(w.source, s, why, r.err)
}

// unmeasurable says which errors tell of what sandboxes may have made of a folder.
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
