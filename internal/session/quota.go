package session

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/pool"
	quotas "sandlot/internal/quota"
	"sandlot/internal/sandbox"
	"sandlot/internal/session/room"
)

// reserve reserves a quota for one more live session of the owner, and may stop an idle one
// for that. The error is a fault that says which limit is reached.
func (s *Sessions) reserve(ctx context.Context, owner string, home bool, f image.Flavor) (room.Quota, error) {
	want := room.Of(home, f)
	return want, s.reserveQuota(ctx, owner, want)
}

// reserveBoot reserves what the session needs with a sandbox of a flavor, or with the one in whose image it sleeps.
func (s *Session) reserveBoot(ctx context.Context, r Record, f image.Flavor) error {
	needs := s.sessions.wakesAs(ctx, r.Runtime, r.Image, f)
	reserved, err := s.sessions.reserve(ctx, r.Owner, r.Home, needs)
	switch {
	case err != nil && needs.MemoryMB > f.MemoryMB:
		f := fault.From(err)
		f.Message += fmt.Sprintf(". It fell asleep with more memory in use than its flavor allows now, and needs %d MB "+
			"to wake; nothing of it is lost", needs.MemoryMB)
		return f.With("session_id", r.ID)
	case err != nil:
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cur.reserved = reserved
	return nil
}

// wakesAs returns the size of the sandbox that is made of an image, for a session with that flavor: it may keep the memory
// that it had. Without an image it is f.
func (s *Sessions) wakesAs(ctx context.Context, runtime, image string, f image.Flavor) image.Flavor {
	h, err := s.Pool.HibernatorNamed(runtime)
	if err != nil || image == "" {
		return f
	}
	return s.Pool.WakesAs(ctx, h, image, f)
}

// reserveQuota is reserve for any quota.
func (s *Sessions) reserveQuota(ctx context.Context, owner string, want room.Quota) error {
	for try := 0; ; try++ {
		used, ok := s.tryReserve(owner, want)
		if ok {
			return nil
		}
		if try < 3 && s.EvictIdle && s.evict(ctx, owner) {
			continue
		}
		return s.bounds(owner).Reached(used, want)
	}
}

// bounds are those of a principal.
func (s *Sessions) bounds(owner string) room.Bounds {
	return room.Bounds{Sessions: s.MaxSessions, MemoryMB: s.MaxMemoryMB, Quota: s.Quotas.Of(owner)}
}

// tryReserve reserves a quota if the limits allow it. It returns what was in use before.
func (s *Sessions) tryReserve(owner string, want room.Quota) (used room.Usage, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	used = s.used(owner)
	if !s.bounds(owner).Fit(used, want) {
		return used, false
	}
	s.reserved[owner] = s.reserved[owner].Plus(want)
	return used, true
}

// used returns what is in use. The caller holds s.mu.
func (s *Sessions) used(owner string) room.Usage {
	used := room.Usage{Own: s.reserved[owner]}
	for _, r := range s.reserved {
		used.MemoryMB += r.MemoryMB
	}
	for _, session := range s.sessions {
		c := session.current()
		if c.reserved != (room.Quota{}) || !c.hasSandbox() {
			continue // a session with a reservation is counted by that
		}
		f, _ := s.flavorOf(c.rec.Flavor)
		if c.booted != nil {
			f = c.booted.Flavor // the settings may have another size for it by now
		}
		q := room.Of(c.rec.Home, f)
		used.MemoryMB += q.MemoryMB
		if c.rec.Owner == owner {
			used.Own = used.Own.Plus(q)
		}
	}
	return used
}

// QuotaText says how much a principal uses of its quotas of what sessions have; empty: there are none.
func (s *Sessions) QuotaText(owner string) string {
	limits := s.Quotas.Of(owner)
	s.mu.Lock()
	own := s.used(owner).Own
	s.mu.Unlock()
	var parts []string
	if limits.Sessions > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d sessions", own.Sessions, limits.Sessions))
	}
	if limits.MemoryMB > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d MB of memory", own.MemoryMB, limits.MemoryMB))
	}
	if limits.CPUs > 0 {
		parts = append(parts, fmt.Sprintf("%g of %g CPUs", float64(own.MilliCPUs)/1000, limits.CPUs))
	}
	if limits.DiskMB > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d MB of disk", megabytes(s.diskOf(owner)), limits.DiskMB))
	}
	if limits.TrafficMBPerDay > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d MB of network today (UTC)", megabytes(s.days.Bytes(owner)),
			limits.TrafficMBPerDay))
	}
	return strings.Join(parts, ", ")
}

// QuotaUses returns how much a principal uses of each quota of what sessions have.
func (s *Sessions) QuotaUses(owner string) []quotas.Use {
	limits := s.Quotas.Of(owner)
	s.mu.Lock()
	own := s.used(owner).Own
	s.mu.Unlock()
	disk := quotas.Use{Name: "disk_mb"}
	if limits.DiskMB > 0 {
		disk = quotas.NewUse(disk.Name, megabytes(s.diskOf(owner)), limits.DiskMB)
	}
	return []quotas.Use{quotas.NewUse("sessions", own.Sessions, limits.Sessions),
		quotas.NewUse("memory_mb", own.MemoryMB, limits.MemoryMB),
		{Name: "cpus", Used: new(float64(own.MilliCPUs) / 1000), Limit: limits.CPUs}, disk,
		quotas.NewUse("traffic_mb_per_day", megabytes(s.days.Bytes(owner)), limits.TrafficMBPerDay)}
}

// hasRoom reports whether the home of a principal can boot without another session's end.
func (s *Sessions) hasRoom(ctx context.Context, owner string) bool {
	s.mu.Lock()
	home, r := s.homes[owner], Record{}
	s.mu.Unlock()
	if home != nil {
		c := home.current()
		if c.hasSandbox() {
			return true
		}
		r = c.rec
	}
	f, err := s.flavorOf(r.Flavor)
	if err != nil {
		return false
	}
	f = s.wakesAs(ctx, r.Runtime, r.Image, f)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bounds(owner).Fit(s.used(owner), room.Of(true, f))
}

// unreserve releases a reserved quota.
func (s *Sessions) unreserve(owner string, q room.Quota) {
	s.mu.Lock()
	defer s.mu.Unlock()
	remaining := s.reserved[owner].Minus(q)
	if remaining == (room.Quota{}) {
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
	session.cur.reserved = room.Quota{}
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
	if c.Calls > 0 || time.Now().Before(c.awakeUntil) {
		return true
	}
	if c.booted == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	u, err := c.booted.Agent.Usage(ctx)
	if err != nil {
		return s.mayBeBusy(c.booted)
	}
	idle, busy := s.sessions.idle(c.rec, u)
	busy = busy || u.Busy && time.Now().Before(c.jobsUntil)
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

// mayBeBusy reports whether a sandbox may be busy whose agent does not say what it does in time. Its runtime may not answer
// either: a daemon that carries the link is away. Else its agent has a link, or can have none at the moment.
func (s *Session) mayBeBusy(b *pool.Booted) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	st, err := b.Box.Status(ctx)
	if err == nil && st.State == sandbox.Dead {
		return false
	}
	return isSilent(st, err) || b.Agent.Linked() || atomicfile.IsPassing(s.sessions.canOpen())
}
