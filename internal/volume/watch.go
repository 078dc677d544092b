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
	// share is how many times as long as a measurement of a folder the pause after it is,
	// within minInterval and maxInterval: measuring takes less than 1/pauseFactor of the time.
	minInterval, maxInterval, share = 5 * time.Second, 10 * time.Minute, 20
	// measureTimeout is how long measuring may take. A volume that is not measured by then
	// counts as full.
	measureTimeout = 10 * time.Minute
	// slow is how long measuring may take before a loss of free space since its start makes
	// the volume full, if that is more than the limit.
	slow = 30 * time.Second
	// closeTimeout is how long Run waits at its end for system calls on disks.
	closeTimeout = 2 * time.Second
)

// Run measures the volumes until ctx ends. It then waits only for closeTimeout for a disk
// that does not answer.
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
		known, full := s.measured || s.why != "", s.why != ""
		v.mu.Unlock()
		if known {
			v.Seal(ctx, source, full)
		}
	}
}

// watch watches one volume. System calls on its disk may take long, or never return, so they
// are made in goroutines of their own, which diskCalls counts: at most one that measures and
// one that reads the free space.
type watch struct {
	v      *Volumes
	source string
	s      *state
	disk   *sync.WaitGroup

	measured  chan result // results of measurements
	looked    chan space  // results of reading the free space
	measuring bool
	looking   bool
	began     time.Time // when the last measurement began
	next      time.Time // when the next one is due
	at        space     // of the disk, when the last measurement began
	now       space     // of the disk, when it was read last
	short     bool      // the disk had less free than its reserve, and has not had twice that since
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

// ask begins to read the disk's free space, and, when that is due, to measure the folder. It
// begins neither before the last one has ended.
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

// lost is how many bytes of the disk were used up since the last measurement began.
func (w *watch) lost() int64 { return int64(w.at.free) - int64(w.now.free) }

// judgeDisk makes the volume full if its disk has too little free space.
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

// judge applies the result of a measurement. A volume that cannot be measured for a reason
// that sandboxes may have caused is full.
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
