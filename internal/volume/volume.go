// Package volume measures the volumes: the folders that the operator shares with every
// sandbox. A volume that has reached its limit is read-only until something in it is
// removed. Volumes do not count against a sandbox's disk limit, and their size alone ends
// no sandbox.
package volume

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"sandlot/internal/sandbox"
	"sandlot/internal/tree"
)

// Config configures Volumes.
type Config struct {
	Mounts []sandbox.Mount
	// LimitBytes is the limit of each volume; 0: none.
	LimitBytes int64
	// Seal makes the running sandboxes' mounts of a folder read-only, or writable again,
	// and returns how many it could not change. It is called every second, as meanwhile
	// sandboxes start, are recovered, or close files that prevented it. It may be nil.
	Seal func(ctx context.Context, source string, readOnly bool) (left int)
	Log  *slog.Logger
}

// Volumes are the shared folders of one server. Run measures them.
type Volumes struct {
	Config
	measure func(ctx context.Context, source string) (tree.Size, error)
	space   func(source string) diskSpace

	mu     sync.Mutex
	states map[string]*state // by source, of the volumes that have a limit and are not read-only
}

// state is the last known state of a volume.
type state struct {
	used        int64 // bytes, by the last measurement
	measured    bool
	reason      Reason // why it is full; empty: it is not
	errorLogged bool   // a failed measurement was logged; only the volume's watch uses it
}

// Reason is the reason why a volume is full, which means read-only.
type Reason string

const (
	Limit  Reason = "limit"  // its files take more than the limit
	Deep   Reason = "deep"   // it has folders that are nested too deeply, or moved too often, to be measured
	Closed Reason = "closed" // the server cannot read folders in it, and sandboxes may have caused that
	Slow   Reason = "slow"   // it could not be measured in time
	Disk   Reason = "disk"   // its disk is nearly full, or fills up faster than the volume is measured
)

// New returns the volumes. None of them is full before Run.
func New(c Config) *Volumes {
	v := &Volumes{Config: c, measure: measureFolder, space: readDiskSpace, states: map[string]*state{}}
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
		if s := v.states[m.Source]; s != nil && s.reason != "" {
			m.ReadOnly = true
		}
	}
	return list
}

// Usage is how full a volume is.
type Usage struct {
	sandbox.Mount       // as the settings have it
	Measured      bool  // whether UsedBytes is known
	UsedBytes     int64 // on the disk
	LimitBytes    int64 // 0: none
	Full          bool
	Reason        Reason // why it is full
}

// Usage lists the volumes, in the order of the settings.
func (v *Volumes) Usage() []Usage {
	v.mu.Lock()
	defer v.mu.Unlock()
	var list []Usage
	for _, m := range v.Config.Mounts {
		u := Usage{Mount: m}
		if s := v.states[m.Source]; s != nil {
			u = Usage{m, s.measured, s.used, v.LimitBytes, s.reason != "", s.reason}
		}
		list = append(list, u)
	}
	return list
}

// setReason sets the reason why a volume is full; with an empty one it is writable again. A change
// is logged.
func (v *Volumes) setReason(source string, s *state, reason Reason, err error) {
	v.mu.Lock()
	changed := reason != s.reason
	s.reason = reason
	used := s.used
	v.mu.Unlock()
	switch {
	case !changed:
	case reason == "":
		v.Log.Info("a volume is below its limit and can be written again", "volume", source, "megabytes", used>>20)
	case reason == Limit:
		v.Log.Warn("a volume has reached its limit and is read-only; remove something, or raise volume_limit_mb",
			"volume", source, "megabytes", used>>20, "limit", v.LimitBytes>>20)
	case reason == Disk:
		v.Log.Warn("the disk of a volume fills up, and the volume is read-only; make room on it", "volume", source)
	default:
		v.Log.Warn("a volume cannot be measured and is read-only", "volume", source, "why", string(reason), "error",
			err)
	}
}
