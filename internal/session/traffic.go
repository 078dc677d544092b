package session

import (
	"context"
	"fmt"
	"maps"
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
	changed := Counts{Traffic: map[string]egress.Traffic{}, DiskBytes: map[string]int64{}, Days: s.changedDays()}
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
	maps.Copy(s.storedDays, changed.Days)
}

// changedDays returns the traffic of principals on this day, where it is another one than in the store. The caller
// holds s.storedMu.
func (s *Sessions) changedDays() map[string]egress.Day {
	s.mu.Lock()
	meters := maps.Clone(s.days)
	s.mu.Unlock()
	changed := map[string]egress.Day{}
	for owner, m := range meters {
		if d := m.Day(); d != s.storedDays[owner] && d.Traffic != (egress.Traffic{}) {
			changed[owner] = d
		}
	}
	return changed
}

// dayMeter returns the meter of what a principal's sandboxes move on each day.
func (s *Sessions) dayMeter(owner string) *egress.DayMeter {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.days[owner]
	if m == nil {
		m = s.newDayMeter(owner, egress.Day{})
		s.days[owner] = m
	}
	return m
}

// trafficMB returns what a principal's sandboxes have moved on this day, in MB.
func (s *Sessions) trafficMB(owner string) int {
	s.mu.Lock()
	m := s.days[owner]
	s.mu.Unlock()
	if m == nil {
		return 0
	}
	d := m.Day()
	return megabytes(int64(d.Up + d.Down))
}

func (s *Sessions) newDayMeter(owner string, d egress.Day) *egress.DayMeter {
	return egress.NewDayMeter(d, func() int64 { return int64(s.Quotas.Of(owner).TrafficMBPerDay) << 20 })
}

// recoverDays makes the meters of the principals who have moved something on this day.
func (s *Sessions) recoverDays(ctx context.Context) error {
	days, err := s.Store.Days(ctx, egress.Today())
	if err != nil {
		return fmt.Errorf("reading the traffic of this day: %w", err)
	}
	s.storedMu.Lock()
	defer s.storedMu.Unlock()
	maps.Copy(s.storedDays, days)
	s.mu.Lock()
	defer s.mu.Unlock()
	for owner, d := range days {
		s.days[owner] = s.newDayMeter(owner, d)
	}
	return nil
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
