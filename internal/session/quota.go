package session

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/image"
	quotas "sandlot/internal/quota"
	"sandlot/internal/sandbox"
)

// quota is a number of sessions, without homes, with their memory and CPUs, as they count against the
// limits.
type quota struct{ sessions, memoryMB, milliCPUs int }

func (q quota) plus(r quota) quota {
	return quota{q.sessions + r.sessions, q.memoryMB + r.memoryMB, q.milliCPUs + r.milliCPUs}
}

func (q quota) minus(r quota) quota {
	return quota{q.sessions - r.sessions, q.memoryMB - r.memoryMB, q.milliCPUs - r.milliCPUs}
}

// quotaOf returns what a live session of a flavor counts. A home counts by its memory and its CPUs, not as
// one of the sessions.
func quotaOf(home bool, f image.Flavor) quota {
	q := quota{1, f.MemoryMB, milliCPUs(f.CPUs)}
	if home {
		q.sessions = 0
	}
	return q
}

// milliCPUs returns thousandths, whose sums are exact.
func milliCPUs(cpus float64) int { return int(math.Round(cpus * 1000)) }

// usage is what is in use: by one principal, and the memory of the sessions of all.
type usage struct {
	own      quota
	memoryMB int
}

// reserve reserves a quota for one more live session of the owner, and may stop an idle one
// for that. The error is a fault that says which limit is reached.
func (s *Sessions) reserve(ctx context.Context, owner string, home bool, f image.Flavor) (quota, error) {
	want := quotaOf(home, f)
	for try := 0; ; try++ {
		used, ok := s.tryReserve(owner, want)
		if ok {
			return want, nil
		}
		if try < 3 && s.EvictIdle && s.evict(ctx, owner) {
			continue
		}
		return want, s.reached(owner, used, want)
	}
}

// reached returns the fault of the limit that a principal has reached. There is one.
func (s *Sessions) reached(owner string, used usage, want quota) error {
	own, limits := used.own, s.Quotas.Of(owner)
	switch all := own.plus(want); {
	case all.sessions > s.MaxSessions:
		return fault.Limit("sessions", own.sessions, s.MaxSessions,
			"%d of your %d sessions are live; stop one with stop_session, or use one of them", own.sessions,
			s.MaxSessions)
	case limits.Sessions > 0 && all.sessions > limits.Sessions:
		return quotas.Reached("sessions", own.sessions, limits.Sessions,
			"%d of your sessions are live, and your quota is %d; stop one with stop_session, or use one of them",
			own.sessions, limits.Sessions)
	case limits.MemoryMB > 0 && all.memoryMB > limits.MemoryMB:
		return quotas.Reached("memory_mb", own.memoryMB, limits.MemoryMB,
			"your live sessions have %d MB of memory together, and your quota is %d MB; a session of %d MB does "+
				"not fit",
			own.memoryMB, limits.MemoryMB, want.memoryMB)
	case limits.CPUs > 0 && all.milliCPUs > milliCPUs(limits.CPUs):
		return quotas.Reached("cpus", float64(own.milliCPUs)/1000, limits.CPUs,
			"your live sessions have %g CPUs together, and your quota is %g; a session of %g CPUs does not fit",
			float64(own.milliCPUs)/1000, limits.CPUs, float64(want.milliCPUs)/1000)
	}
	return fault.Limit("memory", used.memoryMB, s.MaxMemoryMB,
		"the live sessions have %d MB of memory together, and %d MB are allowed; a session of %d MB does not fit",
		used.memoryMB, s.MaxMemoryMB, want.memoryMB).
		With("current_memory_mb", used.memoryMB).With("limit_memory_mb", s.MaxMemoryMB)
}

// fits reports whether the limits allow a principal so much more.
func (s *Sessions) fits(owner string, used usage, want quota) bool {
	all, limits := used.own.plus(want), s.Quotas.Of(owner)
	within := func(used, limit int) bool { return limit == 0 || used <= limit }
	return all.sessions <= s.MaxSessions && within(all.sessions, limits.Sessions) &&
		within(all.memoryMB, limits.MemoryMB) && within(all.milliCPUs, milliCPUs(limits.CPUs)) &&
		within(used.memoryMB+want.memoryMB, s.MaxMemoryMB)
}

// tryReserve reserves a quota if the limits allow it. It returns what was in use before.
func (s *Sessions) tryReserve(owner string, want quota) (used usage, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	used = s.used(owner)
	if !s.fits(owner, used, want) {
		return used, false
	}
	s.reserved[owner] = s.reserved[owner].plus(want)
	return used, true
}

// used returns what is in use. The caller holds s.mu.
func (s *Sessions) used(owner string) usage {
	used := usage{own: s.reserved[owner]}
	for _, r := range s.reserved {
		used.memoryMB += r.memoryMB
	}
	for _, session := range s.sessions {
		c := session.current()
		if c.reserved != (quota{}) || !c.hasSandbox() {
			continue // a session with a reservation is counted by that
		}
		f, err := s.flavor(c.rec.Flavor)
		if err != nil {
			f = image.Flavor{} // the flavor was removed from the settings
		}
		q := quotaOf(c.rec.Home, f)
		used.memoryMB += q.memoryMB
		if c.rec.Owner == owner {
			used.own = used.own.plus(q)
		}
	}
	return used
}

// QuotaText says how much a principal uses of its quotas of what sessions have; empty: there are none.
func (s *Sessions) QuotaText(owner string) string {
	limits := s.Quotas.Of(owner)
	s.mu.Lock()
	own := s.used(owner).own
	s.mu.Unlock()
	var parts []string
	if limits.Sessions > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d sessions", own.sessions, limits.Sessions))
	}
	if limits.MemoryMB > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d MB of memory", own.memoryMB, limits.MemoryMB))
	}
	if limits.CPUs > 0 {
		parts = append(parts, fmt.Sprintf("%g of %g CPUs", float64(own.milliCPUs)/1000, limits.CPUs))
	}
	if limits.DiskMB > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d MB of disk", megabytes(s.diskOf(owner)), limits.DiskMB))
	}
	if limits.TrafficMBPerDay > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d MB of network today (UTC)", s.trafficMB(owner),
			limits.TrafficMBPerDay))
	}
	return strings.Join(parts, ", ")
}

// QuotaUses returns how much a principal uses of each quota of what sessions have.
func (s *Sessions) QuotaUses(owner string) []quotas.Use {
	limits := s.Quotas.Of(owner)
	s.mu.Lock()
	own := s.used(owner).own
	s.mu.Unlock()
	disk := quotas.Use{Name: "disk_mb"}
	if limits.DiskMB > 0 {
		disk = quotas.NewUse(disk.Name, megabytes(s.diskOf(owner)), limits.DiskMB)
	}
	return []quotas.Use{quotas.NewUse("sessions", own.sessions, limits.Sessions),
		quotas.NewUse("memory_mb", own.memoryMB, limits.MemoryMB),
		{Name: "cpus", Used: new(float64(own.milliCPUs) / 1000), Limit: limits.CPUs}, disk,
		quotas.NewUse("traffic_mb_per_day", s.trafficMB(owner), limits.TrafficMBPerDay)}
}

// hasRoom reports whether the home of a principal can boot without another session's end.
func (s *Sessions) hasRoom(owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := ""
	if home := s.homes[owner]; home != nil {
		c := home.current()
		if c.hasSandbox() {
			return true
		}
		name = c.rec.Flavor
	}
	f, err := s.flavor(name)
	return err == nil && s.fits(owner, s.used(owner), quotaOf(true, f))
}

// unreserve releases a reserved quota.
func (s *Sessions) unreserve(owner string, q quota) {
	s.mu.Lock()
	defer s.mu.Unlock()
	remaining := s.reserved[owner].minus(q)
	if remaining == (quota{}) {
		delete(s.reserved, owner)
		return
	}
	s.reserved[owner] = remaining
}

// commit ends a session's reservation. If the session has a sandbox by now, tryReserve
// counts it without one.
func (s *Sessions) commit(session *Session) {
	session.mu.Lock()
	reserved, owner := session.cur.reserved, session.cur.rec.Owner
	session.cur.reserved = quota{}
	session.mu.Unlock()
	s.unreserve(owner, reserved)
}

// evict stops the idle session of the owner that was used longest ago, but never the home.
func (s *Sessions) evict(ctx context.Context, owner string) bool {
	live := s.filter(func(c current) bool { return c.rec.Owner == owner && !c.rec.Home && c.hasSandbox() })
	for _, session := range live {
		if !session.busy(ctx) && s.sleepUnused(ctx, session, "it made room for a newer session") {
			return true
		}
	}
	return false
}

// busy says whether something runs in the session that keeps it awake.
func (s *Session) busy(ctx context.Context) bool {
	if s.awaitTakeover(ctx) != nil {
		return true // it cannot be known, so the session is left alone
	}
	c := s.current()
	if c.active > 0 || time.Now().Before(c.awakeUntil) {
		return true
	}
	if c.booted == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	u, err := c.booted.Agent.Usage(ctx)
	if err != nil { // an agent that does not answer in time may be busy
		st, serr := c.booted.Box.Status(ctx)
		return serr == nil && st.State == sandbox.Running && c.booted.Agent.Linked()
	}
	idle, busy := s.sessions.idle(c.rec, u)
	if idle < 24*time.Hour {
		last := time.Now().Add(-idle).UTC()
		s.mu.Lock()
		if last.After(s.cur.rec.Used) {
			s.cur.rec.Used = last
		}
		s.mu.Unlock()
	}
	return busy
}
