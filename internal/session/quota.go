package session

import (
	"context"
	"slices"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// place is what sessions take of the limits: their number, without homes, and
// their memory.
type place struct{ n, mb int }

// quota takes a place for a session that boots, unless it has one because it is
// being made. The session's lock is held.
func (b *Sessions) quota(ctx context.Context, s *Session, f image.Flavor) (commit func(), err error) {
	s.mu.Lock()
	has, r := s.reserved, s.rec
	s.mu.Unlock()
	if has {
		return func() {}, nil
	}
	taken := place{1, f.MemoryMB}
	if r.Home {
		taken.n = 0
	}
	if err := b.reserve(ctx, r.Owner, taken); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.reserved = true
	s.mu.Unlock()
	return b.settling(s, taken), nil
}

// counts says whether the session counts towards a limit by itself; one that is
// being made counts by its reservation.
func (s *Session) counts() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.reserved && (s.booted != nil || s.booting || s.left)
}

// settling returns what turns a reservation into a session that counts by itself.
func (b *Sessions) settling(s *Session, taken place) func() {
	return func() {
		s.mu.Lock()
		s.reserved = false
		owner := s.rec.Owner
		s.mu.Unlock()
		b.release(owner, taken)
	}
}

func (s *Session) live() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.booted != nil || s.booting || s.left
}

// reserve makes room for one more session of the owner, or says why there is none. A
// home has its place always, and needs memory alone.
func (b *Sessions) reserve(ctx context.Context, owner string, want place) error {
	for try := 0; ; try++ {
		b.mu.Lock()
		count, memory := b.reserved[owner].n, 0
		for _, r := range b.reserved {
			memory += r.mb
		}
		for _, s := range b.sessions {
			if !s.counts() {
				continue
			}
			r := s.record()
			if r.Owner == owner && !r.Home {
				count++
			}
			if f, err := b.flavor(r.Flavor); err == nil {
				memory += f.MemoryMB
			}
		}
		fits := count+want.n <= b.MaxSessions
		fitsMemory := b.MaxMemoryMB == 0 || memory+want.mb <= b.MaxMemoryMB
		if fits && fitsMemory {
			r := b.reserved[owner]
			b.reserved[owner] = place{r.n + want.n, r.mb + want.mb}
			b.mu.Unlock()
			return nil
		}
		b.mu.Unlock()
		if try < 3 && b.Evict && b.evict(ctx, owner) {
			continue
		}
		if !fits {
			return fault.New(fault.ResourceLimit,
				"%d of your %d sessions are live; stop one with stop_session, or use one of them", count,
				b.MaxSessions).
				With("resource_type", "sessions").With("current_usage", count).With("limit", b.MaxSessions)
		}
		return fault.New(fault.ResourceLimit,
			"the live sessions have %d MB of memory together, and %d MB are allowed; a session of %d MB does not fit",
			memory, b.MaxMemoryMB, want.mb).
			With("resource_type", "memory").With("current_usage", memory).With("limit", b.MaxMemoryMB).
			With("current_memory_mb", memory).With("limit_memory_mb", b.MaxMemoryMB)
	}
}

func (b *Sessions) release(owner string, taken place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.reserved[owner]
	if r = (place{r.n - taken.n, r.mb - taken.mb}); r == (place{}) {
		delete(b.reserved, owner)
		return
	}
	b.reserved[owner] = r
}

// evict stops the owner's session that was not used for the longest time and
// does nothing now. Never the home.
func (b *Sessions) evict(ctx context.Context, owner string) bool {
	var idle []*Session
	for _, s := range b.all() {
		r := s.record()
		if r.Owner == owner && !r.Home && s.live() {
			idle = append(idle, s)
		}
	}
	slices.SortFunc(idle, func(x, y *Session) int { return x.record().Used.Compare(y.record().Used) })
	for _, s := range idle {
		if !s.busy(ctx) && b.expire(ctx, s, "it made room for a newer session") {
			return true
		}
	}
	return false
}

// busy says whether something runs in the session.
func (s *Session) busy(ctx context.Context) bool {
	if s.awaitTakeover(ctx) != nil {
		return true // nobody knows
	}
	s.mu.Lock()
	booted, active := s.booted, s.active
	s.mu.Unlock()
	if active > 0 {
		return true
	}
	if booted == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	u, err := booted.Agent.Usage(ctx)
	if err != nil { // an agent that is slow may have much to do
		st, serr := booted.Box.Status(ctx)
		return serr == nil && st.Life == sandbox.Running && booted.Agent.Linked()
	}
	if u.Idle < 24*time.Hour {
		last := time.Now().Add(-u.Idle).UTC()
		s.mu.Lock()
		if last.After(s.rec.Used) {
			s.rec.Used = last
		}
		s.mu.Unlock()
	}
	return u.Busy
}
