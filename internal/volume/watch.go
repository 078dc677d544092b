package volume

import (
	"context"
	"sync"
	"time"
)

const (
	// tick is the time between two looks at the free space and at the sandboxes, which
	// cost nothing.
	tick = time.Second
	// minInterval and maxInterval bound the time between two measurements of a folder,
	// which take at most one part of share of the time.
	minInterval, maxInterval, share = 5 * time.Second, 10 * time.Minute, 20
	// measureTimeout is how long measuring may take, as of a sandbox's own folder. A
	// volume that is not measured by then is full.
	measureTimeout = 10 * time.Minute
	// slow is how long measuring may take before all that the disk loses meanwhile
	// counts against the volume.
	slow = 30 * time.Second
	// closeTimeout is how long Run waits at its end for disks to answer.
	closeTimeout = 2 * time.Second
)

// Run measures the volumes until ctx ends. It does not wait for a disk that does not
// answer.
func (v *Volumes) Run(ctx context.Context) {
	if len(v.states) == 0 {
		return
	}
	var all, disks sync.WaitGroup
	for source, s := range v.states {
		w := &watch{v: v, source: source, s: s, disk: &disks, measured: make(chan result, 1),
			looked: make(chan space, 1)}
		all.Go(func() { w.run(ctx) })
		if v.Seal != nil {
			disks.Go(func() { v.enforce(ctx, source, s) })
		}
	}
	all.Wait()
	answered := make(chan struct{})
	go func() { disks.Wait(); close(answered) }() // ends with the last system call on a disk
	select {
	case <-answered:
	case <-time.After(closeTimeout):
		v.Log.Warn("the disk of a volume does not answer; the server ends without it")
	}
}

// enforce seals and unseals the sandboxes' mounts, also while the folder is measured,
// which may take long.
func (v *Volumes) enforce(ctx context.Context, source string, s *state) {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		v.mu.Lock()
		known, full := s.measured || s.why != "", s.why != ""
		v.mu.Unlock()
		if known {
			v.Seal(ctx, source, full)
		}
	}
}

// watch watches one volume. Goroutines of disk ask its disk, one at a time for each
// question: a disk may answer late, or never, and nothing else waits for it.
type watch struct {
	v      *Volumes
	source string
	s      *state
	disk   *sync.WaitGroup

	measured  chan result // of the measurement that runs
	looked    chan space  // of the look that runs
	measuring bool
	looking   bool
	began     time.Time // when the last measurement did
	next      time.Time // when the next one does
	at        space     // when the last measurement began
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
			w.judgeDisk()
		case r := <-w.measured:
			w.measuring = false
			if ctx.Err() == nil {
				w.judge(r)
			}
		case <-ctx.Done():
			return
		}
	}
}

// ask asks the disk for its free space, and for the folder's size when that is due,
// unless the answer to an earlier question is missing.
func (w *watch) ask(ctx context.Context) {
	if !w.looking {
		w.looking = true
		w.disk.Go(func() { w.looked <- w.v.space(w.source) })
	}
	if w.measuring {
		if time.Since(w.began) > measureTimeout+tick { // it is in the middle of a system call
			w.v.fill(w.source, w.s, Slow, context.DeadlineExceeded)
		}
		return
	}
	if time.Now().Before(w.next) && w.lost() <= w.v.LimitBytes/16 {
		return
	}
	w.measuring, w.began, w.at = true, time.Now(), w.now
	w.disk.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, measureTimeout)
		defer cancel()
		size, err := w.v.measure(ctx, w.source)
		w.measured <- result{size, err}
	})
}

// lost is how many bytes the disk has less free than when the last measurement began.
func (w *watch) lost() int64 { return int64(w.at.free) - int64(w.now.free) }

// judgeDisk judges the free space of the volume's disk.
func (w *watch) judgeDisk() {
	if w.now.total == 0 {
		return
	}
	if w.at.total == 0 {
		w.at = w.now
	}
	reserve := w.now.reserve()
	if w.short {
		reserve *= 2
	}
	w.short = w.now.free < reserve
	outrun := w.measuring && time.Since(w.began) > slow && w.lost() > w.v.LimitBytes
	w.v.mu.Lock()
	full := w.s.why != ""
	w.v.mu.Unlock()
	if (w.short || outrun) && !full {
		w.v.fill(w.source, w.s, Disk, nil)
	}
}

// judge judges a measurement. A volume that cannot be measured is full, as its sandboxes
// may have made it so.
func (w *watch) judge(r result) {
	w.next = time.Now().Add(min(max(share*time.Since(w.began), minInterval), maxInterval))
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
	over := r.size.Bytes > v.LimitBytes || s.why == Limit && r.size.Bytes > v.LimitBytes/16*lower
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
