// Package volume owns how full the folders are that the operator shares with every
// sandbox. A folder that has reached its limit is read-only until something in it was
// removed. The server measures the folders for itself: they count for no sandbox, and
// no sandbox ends because of their size.
package volume

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"sandlot/internal/sandbox"
	"sandlot/internal/tree"
)

// Config is what Volumes need.
type Config struct {
	Mounts []sandbox.Mount
	// LimitBytes is what each may hold; 0: any number.
	LimitBytes int64
	// Seal makes the running sandboxes' mounts of a folder read-only, or writable again,
	// and returns how many it could not change. It is called every second, as sandboxes
	// start, are recovered, and close files. It may be nil.
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

// state is the last known state of a volume.
type state struct {
	used     int64 // bytes, by the last measurement
	measured bool
	why      Why  // empty: it is not full
	failed   bool // measuring failed, which was logged; the volume's watch alone uses it
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
		m := &list[i]
		m.Shared = true
		if s := v.states[m.Source]; s != nil && s.why != "" {
			m.ReadOnly = true
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
			u = Usage{m, s.measured, s.used, v.LimitBytes, s.why != "", s.why}
		}
		list = append(list, u)
	}
	return list
}

// fill makes a volume full for a reason, or, with an empty one, writable again. A change
// is logged.
func (v *Volumes) fill(source string, s *state, why Why, err error) {
	v.mu.Lock()
	changed := why != s.why
	s.why = why
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
