package volume

import (
	"context"
	"sync"
	"time"
)

const (
	// tick is the time between two checks of the free space and of the sandboxes' mounts,
	// which are cheap.
	tick = time.Second
	// pauseFactor is how many times as long as a measurement of a folder the pause after it is,
	// within minInterval and maxInterval: measuring takes less than 1/pauseFactor of the time.
	minInterval, maxInterval, pauseFactor = 5 * time.Second, 10 * time.Minute, 20
	// measureTimeout is how long measuring may take. A volume that is not measured by then
	// counts as full.
	measureTimeout = 10 * time.Minute
	// slowMeasure is how long measuring may take before a loss of free space since its start makes
	// the volume full, if that is more than the limit.
	slowMeasure = 30 * time.Second
	// closeTimeout is how long Run waits at its end for system calls on disks.
	closeTimeout = 2 * time.Second
)

// Run measures the volumes until ctx ends. It then waits only for closeTimeout for a disk
// that does not answer.
func (v *Volumes) Run(ctx context.Context) {
	if len(v.states) == 0 {
		return
	}
	var all, diskCalls sync.WaitGroup
	for source, s := range v.states {
		w := &watch{v: v, source: source, s: s, diskCalls: &diskCalls, measurements: make(chan measurement, 1),
			spaces: make(chan diskSpace, 1)}
		all.Go(func() { w.run(ctx) })
		if v.Seal != nil {
			diskCalls.Go(func() { v.enforce(ctx, source, s) })
		}
	}
	all.Wait()
	answered := make(chan struct{})
	go func() { diskCalls.Wait(); close(answered) }() // ends with the last system call on a disk
	select {
	case <-answered:
	case <-time.After(closeTimeout):
		v.Log.Warn("the disk of a volume does not answer; the server ends without it")
	}
}

// enforce makes the sandboxes' mounts of a volume read-only or writable at each tick. It has a
// goroutine of its own, as measuring may take long.
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
		ready, full := s.measured || s.reason != "", s.reason != ""
		v.mu.Unlock()
		if ready {
			v.Seal(ctx, source, full)
		}
	}
}

// watch watches one volume. System calls on its disk may take long, or never return, so they
// are made in goroutines of their own, which diskCalls counts: at most one that measures and
// one that reads the free space.
type watch struct {
	v         *Volumes
	source    string
	s         *state
	diskCalls *sync.WaitGroup

	measurements chan measurement // results of measurements
	spaces       chan diskSpace   // results of reading the free space
	measuring    bool
	readingSpace bool
	began        time.Time // when the last measurement began
	nextMeasure  time.Time // when the next one is due
	startSpace   diskSpace // of the disk, when the last measurement began
	lastSpace    diskSpace // of the disk, when it was read last
	lowSpace     bool      // the disk had less free than its reserve, and has not had twice that since
}

func (w *watch) run(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	w.startReads(ctx)
	for {
		select {
		case <-t.C:
			w.startReads(ctx)
		case w.lastSpace = <-w.spaces:
			w.readingSpace = false
			w.checkDisk()
		case r := <-w.measurements:
			w.measuring = false
			if ctx.Err() == nil {
				w.applyMeasurement(r)
			}
		case <-ctx.Done():
			return
		}
	}
}

// startReads begins to read the disk's free space, and, when that is due, to measure the folder. It
// begins neither before the last one has ended.
func (w *watch) startReads(ctx context.Context) {
	if !w.readingSpace {
		w.readingSpace = true
		w.diskCalls.Go(func() { w.spaces <- w.v.space(w.source) })
	}
	if w.measuring {
		if time.Since(w.began) > measureTimeout+tick { // it is in the middle of a system call
			w.v.setReason(w.source, w.s, Slow, context.DeadlineExceeded)
		}
		return
	}
	if time.Now().Before(w.nextMeasure) && w.consumed() <= w.v.LimitBytes/16 {
		return
	}
	w.measuring, w.began, w.startSpace = true, time.Now(), w.lastSpace
	w.diskCalls.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, measureTimeout)
		defer cancel()
		size, err := w.v.measure(ctx, w.source)
		w.measurements <- measurement{size, err}
	})
}

// consumed is how many bytes of the disk were used up since the last measurement began.
func (w *watch) consumed() int64 { return int64(w.startSpace.free) - int64(w.lastSpace.free) }

// checkDisk makes the volume full if its disk has too little free space.
func (w *watch) checkDisk() {
	if w.lastSpace.total == 0 {
		return
	}
	if w.startSpace.total == 0 {
		w.startSpace = w.lastSpace
	}
	reserve := w.lastSpace.reserve()
	if w.lowSpace {
		reserve *= 2
	}
	w.lowSpace = w.lastSpace.free < reserve
	outrun := w.measuring && time.Since(w.began) > slowMeasure && w.consumed() > w.v.LimitBytes
	w.v.mu.Lock()
	full := w.s.reason != ""
	w.v.mu.Unlock()
	if (w.lowSpace || outrun) && !full {
		w.v.setReason(w.source, w.s, Disk, nil)
	}
}

// applyMeasurement applies the result of a measurement. A volume that cannot be measured for a reason
// that sandboxes may have caused is full.
func (w *watch) applyMeasurement(r measurement) {
	w.nextMeasure = time.Now().Add(min(max(pauseFactor*time.Since(w.began), minInterval), maxInterval))
	v, s := w.v, w.s
	reason, hostile := reasonFor(r.err)
	if r.err != nil && !hostile {
		if !s.errorLogged {
			v.Log.Warn("could not measure a volume", "volume", w.source, "error", r.err)
		}
		s.errorLogged = true
		return
	}
	s.errorLogged = false
	v.mu.Lock()
	s.used, s.measured = r.size.Bytes, true
	over := r.size.Bytes > v.LimitBytes || s.reason == Limit && r.size.Bytes > v.LimitBytes/16*resumeParts
	v.mu.Unlock()
	switch {
	case hostile:
	case over:
		reason = Limit
	case w.lowSpace:
		reason = Disk
	}
	v.setReason(w.source, s, reason, r.err)
}
