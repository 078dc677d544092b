package session

import (
	"context"
	"fmt"
	"time"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/pool"
	quotas "sandlot/internal/quota"
	"sandlot/internal/sandbox"
	"sandlot/internal/session/usage"
)

// holder is what a ledger knows of the sessions.
type holder struct{ *Sessions }

// Bounds are those of a principal.
func (s holder) Bounds(owner string) usage.Bounds {
	return usage.Bounds{Sessions: s.MaxSessions, MemoryMB: s.MaxMemoryMB, Quota: s.Quotas.Of(owner)}
}

// Live returns what the sessions with sandboxes have. One with a reservation is counted by that.
func (s holder) Live(owner string) (own usage.Amount, memoryMB int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.sessions {
		c := session.current()
		if c.reserved != nil || !c.hasSandbox() {
			continue
		}
		f, _ := s.flavorOf(c.rec.Flavor)
		if c.booted != nil {
			f = c.booted.Flavor // the settings may have another size for it by now
		}
		has := usage.Of(c.rec.Home, f)
		memoryMB += has.MemoryMB
		if c.rec.Owner == owner {
			own = own.Plus(has)
		}
	}
	return own, memoryMB
}

// DiskBytes returns the size of all workspaces of a principal as far as it is known, and of the snapshots.
func (s holder) DiskBytes(owner string) (bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.sessions {
		if session.record().Owner == owner {
			bytes += session.disk.Counts()
		}
	}
	if s.Keeper != nil {
		bytes += s.Keeper.Bytes(owner)
	}
	return bytes
}

// FreeBytes returns how much room the disk of the workspaces has.
func (s holder) FreeBytes() (int64, error) { return s.Pool.Workspaces.Free() }

// Evict puts the idle session of the owner to sleep that was used longest ago, but never the home.
func (s holder) Evict(ctx context.Context, owner string) bool {
	if !s.EvictIdle {
		return false
	}
	live := s.filter(func(c current) bool { return c.rec.Owner == owner && !c.rec.Home && c.hasSandbox() })
	for _, session := range live {
		if !session.busy(ctx) && s.sleepUnused(ctx, session, "it made room for a newer session") {
			return true
		}
	}
	return false
}

// QuotaText says how much a principal uses of its quotas of what sessions have; "": there are none.
func (s *Sessions) QuotaText(owner string) string { return s.usage.Text(owner) }

// QuotaUses returns how much a principal uses of each quota of what sessions have.
func (s *Sessions) QuotaUses(owner string) []quotas.Use { return s.usage.Uses(owner) }

// DiskReached returns a fault if a principal has used up its quota of the disk, and else nil.
func (s *Sessions) DiskReached(owner string) error { return s.CheckDisk(owner, 1) }

// reserveBoot reserves what the session needs with a sandbox of a flavor, or with the one in whose image it sleeps.
func (s *Session) reserveBoot(ctx context.Context, r Record, f image.Flavor) error {
	needs := s.sessions.wakesAs(ctx, r.Runtime, r.Image, f)
	err := s.reserve(ctx, usage.Of(r.Home, needs))
	if err != nil && needs.MemoryMB > f.MemoryMB {
		f := fault.From(err)
		f.Message += fmt.Sprintf(". It fell asleep with more memory in use than its flavor allows now, and needs %d MB "+
			"to wake; nothing of it is lost", needs.MemoryMB)
		return f.With("session_id", r.ID)
	}
	return err
}

// reserve reserves what the session needs, until commit.
func (s *Session) reserve(ctx context.Context, a usage.Amount) error {
	release, err := s.sessions.usage.Reserve(ctx, s.owner(), a)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cur.reserved = release
	return nil
}

// commit ends the session's reservation: from now on its sandbox counts, if it has one.
func (s *Session) commit() {
	s.mu.Lock()
	release := s.cur.reserved
	s.cur.reserved = nil
	s.mu.Unlock()
	if release != nil {
		release()
	}
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
	return s.usage.Fits(owner, usage.Of(true, s.wakesAs(ctx, r.Runtime, r.Image, f)))
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
