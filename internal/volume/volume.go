// Package volume owns how full the folders are that the operator shares with every
// sandbox. They are measured for the server, not for a sandbox: one that has
// reached its limit is read-only until something in it was removed, and ends
// nobody's sandbox.
package volume

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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

	mu     sync.Mutex
	states map[string]*state // by source, of those that can be written
}

type state struct {
	used     int64 // bytes, when it was measured last
	measured bool
	full     bool
	odd      bool // full, as it cannot be measured
	failed   bool // to be measured, which was said
	next     time.Time
	free     uint64 // of its file system when it was measured last, in bytes
}

// New returns the volumes. None of them is full before Run.
func New(c Config) *Volumes {
	v := &Volumes{Config: c, states: map[string]*state{}}
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
	Odd           bool // Full, as it is too deep or changes too fast to be measured
}

// Usage lists the volumes, in the order of the settings.
func (v *Volumes) Usage() []Usage {
	v.mu.Lock()
	defer v.mu.Unlock()
	var list []Usage
	for _, m := range v.Config.Mounts {
		u := Usage{Mount: m}
		if s := v.states[m.Source]; s != nil {
			u.Measured, u.UsedBytes, u.LimitBytes, u.Full, u.Odd = s.measured, s.used, v.LimitBytes, s.full, s.odd
		}
		list = append(list, u)
	}
	return list
}

const (
	// tick is how often the free space and the sandboxes are looked at, which costs
	// nothing.
	tick = time.Second
	// often and seldom bound the time between two measurements of a folder, which
	// are a twentieth of the time at most.
	often, seldom, share = 5 * time.Second, 10 * time.Minute, 20
	// lower is how far below its limit, of 16 parts, a full one has to be to be
	// written again.
	lower = 15
)

// Run measures the volumes until ctx ends.
func (v *Volumes) Run(ctx context.Context) {
	if len(v.states) == 0 {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	for source, s := range v.states {
		all.Go(func() { v.watch(ctx, source, s) })
		if v.Seal != nil {
			all.Go(func() { v.enforce(ctx, source, s) })
		}
	}
}

func (v *Volumes) watch(ctx context.Context, source string, s *state) {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		free := freeBytes(source)
		grown := s.free > free && s.free-free > uint64(v.LimitBytes/16)
		if now := time.Now(); now.After(s.next) || grown {
			size, err := tree.Measure(ctx, source, tree.Limits{Entries: math.MaxInt64, Depth: 4096, Foreign: true})
			if ctx.Err() != nil {
				return
			}
			s.free, s.next = free, time.Now().Add(min(max(share*time.Since(now), often), seldom))
			v.measured(source, s, size, err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
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
		known, full := s.measured, s.full
		v.mu.Unlock()
		if known {
			v.Seal(ctx, source, full)
		}
	}
}

// measured takes up what was found. One that cannot be measured as it is too deep,
// or changes too fast, is full: that is what its sandboxes have made of it.
func (v *Volumes) measured(source string, s *state, size tree.Size, err error) {
	hostile := errors.Is(err, tree.ErrDepth) || errors.Is(err, tree.ErrMoved)
	if err != nil && !hostile {
		if !s.failed {
			v.Log.Warn("could not measure a volume", "volume", source, "error", err)
		}
		s.failed = true
		return
	}
	s.failed = false
	full := hostile || size.Bytes > v.LimitBytes || s.full && size.Bytes > v.LimitBytes/16*lower
	v.mu.Lock()
	changed := full != s.full
	s.used, s.measured, s.full, s.odd = size.Bytes, true, full, hostile
	v.mu.Unlock()
	switch {
	case changed && hostile:
		v.Log.Warn("a volume cannot be measured and is read-only", "volume", source, "error", err)
	case changed && full:
		v.Log.Warn("a volume has reached its limit and is read-only; remove something, or raise volume_limit_mb", "volume", source,
			"megabytes", size.Bytes>>20, "limit", v.LimitBytes>>20)
	case changed:
		v.Log.Info("a volume is below its limit and can be written again", "volume", source, "megabytes", size.Bytes>>20)
	}
}

func freeBytes(path string) uint64 {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return 0
	}
	return st.Bavail * uint64(st.Bsize)
}
