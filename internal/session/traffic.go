package session

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
)

// countInterval is how often counts are stored. A server that is killed loses at most what was counted in one
// interval.
const countInterval = 2 * time.Second

// runCountStore stores counts at each interval until ctx ends.
func (s *Sessions) runCountStore(ctx context.Context) {
	tick := time.NewTicker(countInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.storeCounts(context.WithoutCancel(ctx))
		case <-ctx.Done():
			return
		}
	}
}

// storeCounts stores the counts that have changed, in one write. If that fails, the next call stores them.
func (s *Sessions) storeCounts(ctx context.Context) {
	s.storedMu.Lock()
	defer s.storedMu.Unlock()
	changed := Counts{Traffic: map[string]egress.Traffic{}, DiskBytes: map[string]int64{}, Days: s.usage.Changed()}
	all := s.all()
	for _, session := range all {
		id, size := session.record().ID, session.disk.Bytes()
		if t := session.meter.Traffic(); t != session.stored {
			changed.Traffic[id] = t
		}
		if size != session.storedDisk {
			changed.DiskBytes[id] = size
		}
	}
	if len(changed.Traffic) == 0 && len(changed.DiskBytes) == 0 && len(changed.Days) == 0 {
		return
	}
	if err := s.Store.PutCounts(ctx, changed); err != nil {
		s.Log.Error("could not store what sessions moved over the network and have on the disk", "error", err)
		return
	}
	for _, session := range all {
		id := session.record().ID
		if t, ok := changed.Traffic[id]; ok {
			session.stored = t
		}
		if size, ok := changed.DiskBytes[id]; ok {
			session.storedDisk = size
		}
	}
	s.usage.Stored(changed.Days)
}

// recoverDays makes the meters of the principals who have moved something on this day.
func (s *Sessions) recoverDays(ctx context.Context) error {
	stored, err := s.Store.Days(ctx, egress.Today())
	if err != nil {
		return fmt.Errorf("reading the traffic of this day: %w", err)
	}
	s.usage.Recover(stored)
	return nil
}

// AddDays makes the meters of the principals of a unit (auth.UnitOf), for which this server acts from now on.
func (s *Sessions) AddDays(ctx context.Context, unit string) error {
	stored, err := s.Store.Days(ctx, egress.Today())
	if err != nil {
		return fmt.Errorf("reading the traffic of this day: %w", err)
	}
	maps.DeleteFunc(stored, func(owner string, _ egress.Day) bool { return auth.UnitOf(owner) != unit })
	s.usage.Recover(stored)
	return nil
}

// Units returns the units (auth.UnitOf) that have sessions.
func (s *Sessions) Units() map[string]bool {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	units := map[string]bool{}
	for _, session := range all {
		units[auth.UnitOf(session.record().Owner)] = true
	}
	return units
}

// ResetTraffic sets a session's traffic to zero, first in the store, so that the session may
// transfer as much as a new one. What its principal moved on this day stays. Only operators may call it.
func (s *Sessions) ResetTraffic(ctx context.Context, p auth.Principal, id string) (Network, error) {
	session, err := s.findAny(p, id)
	if err != nil {
		return Network{}, err
	}
	id = session.record().ID
	s.storedMu.Lock()
	defer s.storedMu.Unlock()
	if err := s.Store.PutCounts(ctx, Counts{Traffic: map[string]egress.Traffic{id: {}}}); err != nil {
		return Network{}, err
	}
	session.meter.Reset()
	session.stored = egress.Traffic{}
	return s.Network(p, id)
}

// maxBytes is how much a session may transfer; 0: no limit.
func (s *Sessions) maxBytes() int64 {
	if s.Egress == nil {
		return 0
	}
	return s.Egress.MaxBytes()
}
