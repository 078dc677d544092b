// Package volume owns how full the folders are that the operator shares with every
// sandbox. They are measured for the server, not for a sandbox: one that has
// reached its limit is read-only until something in it was removed, and what is in it
// ends nobody's sandbox.
package volume

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"sandlot/internal/sandbox"
	"sandlot/internal/tree"
)

// Config is what Volumes need.
type Config struct {
	Mounts []sandbox.Mount
	// LimitBytes is what each may hold; 0: any number.
	LimitBytes int64
	// Seal makes the running sandboxes' mounts of a folder read-only, or writable
	// again, as far as it can; it returns how many are not. It is called at each
	// look: sandboxes start, are taken over, and close files. It may be nil.
	Seal func(ctx context.Context, source string, readOnly bool) (left int)
	Log  *slog.Logger
}

// Volumes are the shared folders of one server. Run measures them.
type Volumes struct {
	Config
	measure func(ctx context.Context, source string) (tree.Size, error)
	space   func(source string) space

	mu     sync.Mutex
	states map[string]*state // by source, of those that can be written
}

// state is what is known of a volume.
type state struct {
	used     int64 // bytes, when it was measured last
	measured bool
	full     bool
	why      Why
	failed   bool // to be measured, which was said
}

// Why says why a volume is full.
type Why string

const (
	Limit  Why = "limit"  // its files have more than the limit
	Deep   Why = "deep"   // folders in it are too deep, or move too fast, to be measured
	Closed Why = "closed" // folders in it cannot be read by the server, and sandboxes could have closed them
	Slow   Why = "slow"   // it could not be measured in time
	Disk   Why = "disk"   // its disk has next to nothing free, or loses it faster than is measured
)

// New returns the volumes. None of them is full before Run.
func New(c Config) *Volumes {
	v := &Volumes{Config: c, measure: measureFolder, space: spaceOf, states: map[string]*state{}}
	for _, m := range c.Mounts {
		if !m.ReadOnly && c.LimitBytes > 0 {
			v.states[m.Source] = &state{}
		}
	}
	return v
}

// Mounts returns the volumes as a new sandbox gets them.
func (v *Volumes) Mounts() []sandbox.Mount {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := slices.Clone(v.Config.Mounts)
	for i := range list {
		list[i].Shared = true
		if s := v.states[list[i].Source]; s != nil && s.full {
			list[i].ReadOnly = true
		}
	}
	return list
}

// Usage is how full a volume is.
type Usage struct {
	sandbox.Mount       // as the settings have it
	Measured      bool  // UsedBytes is known
	UsedBytes     int64 // on the disk
	LimitBytes    int64 // 0: none
	Full          bool
	Why           Why // of Full
}

// Usage lists the volumes, in the order of the settings.
func (v *Volumes) Usage() []Usage {
	v.mu.Lock()
	defer v.mu.Unlock()
	var list []Usage
	for _, m := range v.Config.Mounts {
		u := Usage{Mount: m}
		if s := v.states[m.Source]; s != nil {
			u.Measured, u.UsedBytes, u.LimitBytes, u.Full, u.Why = s.measured, s.used, v.LimitBytes, s.full, s.why
		}
		list = append(list, u)
	}
	return list
}

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
	case <-time.After(parting):
		v.Log.Warn("the disk of a volume does not answer; the server ends without it")
	}
}

// enforce has the sandboxes' mounts as they should be, also while the folder is
// measured, which may last.
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
		known, full := s.measured || s.full, s.full
		v.mu.Unlock()
		if known {
			v.Seal(ctx, source, full)
		}
	}
}

// fill makes a volume full for a reason, or, with an empty one, writable again. It
// says so in the log when that changes.
func (v *Volumes) fill(source string, s *state, why Why, err error) {
	v.mu.Lock()
	changed := why != s.why
	s.full, s.why = why != "", why
	used := s.used
	v.mu.Unlock()
	switch {
	case !changed:
	case why == "":
		v.Log.Info("a volume is below its limit and can be written again", "volume", source, "megabytes", used>>20)
	case why == Limit:
		v.Log.Warn("a volume has reached its limit and is read-only; remove something, or raise volume_limit_mb",
			"volume", source, "megabytes", used>>20, "limit", v.LimitBytes>>20)
	case why == Disk:
		v.Log.Warn("the disk of a volume fills up, and the volume is read-only; make room on it", "volume", source)
	default:
		v.Log.Warn("a volume cannot be measured and is read-only", "volume", source, "why", string(why), "error", err)
	}
}
