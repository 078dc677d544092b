package session

import (
	"context"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// quota is a number of sessions, without homes, and their memory, as they count against the
// limits.
type quota struct{ sessions, memoryMB int }

func (q quota) plus(r quota) quota { return quota{q.sessions + r.sessions, q.memoryMB + r.memoryMB} }

func (q quota) minus(r quota) quota { return quota{q.sessions - r.sessions, q.memoryMB - r.memoryMB} }

// reserve reserves a quota for one more live session of the owner, and may stop an idle one
// for that. A home counts only by its memory, not as one of the sessions. The error is a
// fault that says which limit is reached.
func (s *Sessions) reserve(ctx context.Context, owner string, home bool, f image.Flavor) (quota, error) {
	want := quota{1, f.MemoryMB}
	if home {
		want.sessions = 0
	}
	for try := 0; ; try++ {
		used, ok := s.tryReserve(owner, want)
		if ok {
			return want, nil
		}
		if try < 3 && s.EvictIdle && s.evict(ctx, owner) {
			continue
		}
		if used.sessions+want.sessions > s.MaxSessions {
			return want, fault.New(fault.ResourceLimit,
				"%d of your %d sessions are live; stop one with stop_session, or use one of them", used.sessions,
				s.MaxSessions).
				With("resource_type", "sessions").With("current_usage", used.sessions).With("limit", s.MaxSessions)
		}
		return want, fault.New(fault.ResourceLimit,
			"the live sessions have %d MB of memory together, and %d MB are allowed; a session of %d MB does not fit",
			used.memoryMB, s.MaxMemoryMB, want.memoryMB).
			With("resource_type", "memory").With("current_usage", used.memoryMB).With("limit", s.MaxMemoryMB).
			With("current_memory_mb", used.memoryMB).With("limit_memory_mb", s.MaxMemoryMB)
	}
}

// tryReserve reserves a quota if the limits allow it. It returns how many sessions of the
// owner, and how much memory of all sessions, were in use before.
func (s *Sessions) tryReserve(owner string, want quota) (used quota, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	used.sessions = s.reserved[owner].sessions
	for _, r := range s.reserved {
		used.memoryMB += r.memoryMB
	}
	for _, session := range s.sessions {
		c := session.current()
		if c.reserved != (quota{}) || !c.hasSandbox() {
			continue // a session with a reservation is counted by that
		}
		if c.rec.Owner == owner && !c.rec.Home {
			used.sessions++
		}
		if f, err := s.flavor(c.rec.Flavor); err == nil {
			used.memoryMB += f.MemoryMB
		}
	}
	all := used.plus(want)
	if all.sessions > s.MaxSessions || s.MaxMemoryMB != 0 && all.memoryMB > s.MaxMemoryMB {
		return used, false
	}
	s.reserved[owner] = s.reserved[owner].plus(want)
	return used, true
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
		if !session.busy(ctx) && s.stopUnused(ctx, session, "it made room for a newer session") {
			return true
		}
	}
	return false
}

// busy says whether something runs in the session.
func (s *Session) busy(ctx context.Context) bool {
	if s.awaitTakeover(ctx) != nil {
		return true // it cannot be known, so the session is left alone
	}
	c := s.current()
	if c.active > 0 {
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
	if u.Idle < 24*time.Hour {
		last := time.Now().Add(-u.Idle).UTC()
		s.mu.Lock()
		if last.After(s.cur.rec.Used) {
			s.cur.rec.Used = last
		}
		s.mu.Unlock()
	}
	return u.Busy
}
