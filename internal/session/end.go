package session

import (
	"context"
	"sync"

	"sandlot/internal/auth"
	"sandlot/internal/event"
)

// stopUnused stops a session's sandbox unless a call uses the session, and says whether it did.
// A session without files is removed, unless it is a home.
func (b *Sessions) stopUnused(ctx context.Context, s *Session, why string) bool {
	if s.acquire(ctx) != nil {
		return false
	}
	defer s.release()
	s.mu.Lock()
	booted := s.cur.booted
	if s.cur.active > 0 || s.cur.removed || booted == nil {
		s.mu.Unlock()
		return false
	}
	s.cur.booted = nil
	s.mu.Unlock()
	if err := booted.Destroy(); err != nil {
		b.Log.Error("could not stop an idle sandbox", "sandbox", booted.ID, "error", err)
	}
	r := s.record()
	b.publish(r, event.SessionStopped, why, 0)
	if empty, err := b.Pool.Workspaces.Empty(r.Workspace); err == nil && empty && !r.Home {
		b.removeStored(ctx, s)
		return true
	}
	s.updateOrLog("that a session stopped", func(r *Record) { r.Sandbox, r.State, r.Lost = "", Stopped, why })
	b.limitStopped(ctx, r.Owner)
	return true
}

// maxStopped is how many stopped sessions with files a principal may have, for each
// live one that they may have.
const maxStopped = 5

// limitStopped removes the owner's oldest stopped sessions when there are too many.
func (b *Sessions) limitStopped(ctx context.Context, owner string) {
	stopped := b.filter(func(c current) bool {
		return c.rec.Owner == owner && !c.rec.Home && c.rec.State == Stopped && !c.hasSandbox()
	})
	for _, s := range stopped[:max(0, len(stopped)-maxStopped*b.MaxSessions)] {
		b.removeIfStopped(ctx, s)
	}
}

// removeIfStopped removes a stopped session, unless a call uses it again.
func (b *Sessions) removeIfStopped(ctx context.Context, s *Session) {
	if !s.lock.TryAcquire(1) {
		return
	}
	defer s.release()
	if c := s.current(); c.booted == nil && !c.waiting && c.active == 0 && !c.removed {
		b.removeStored(ctx, s)
	}
}

// removeStored removes the session's record and workspace. The caller holds the lock, and has
// stopped the sandbox.
func (b *Sessions) removeStored(ctx context.Context, s *Session) {
	s.storing.Lock() // so that no update stores the record after its removal
	defer s.storing.Unlock()
	s.mu.Lock()
	s.cur.removed = true
	r := s.cur.rec
	s.mu.Unlock()
	r.State, r.Sandbox = Removed, ""
	b.publish(r, event.SessionRemoved, "", 0)
	if err := b.Store.PutSession(context.WithoutCancel(ctx), r); err != nil {
		b.Log.Error("could not store that a session is removed", "session", r.ID, "error", err)
	}
	b.mu.Lock()
	delete(b.sessions, r.ID)
	if b.homes[r.Owner] == s {
		delete(b.homes, r.Owner)
	}
	b.mu.Unlock()
	if err := b.Pool.Workspaces.Remove(r.Workspace); err != nil {
		b.Log.Error("could not remove a workspace", "session", r.ID, "error", err)
		return // the record stays, so that the next start tries again
	}
	if err := b.Store.RemoveSession(context.WithoutCancel(ctx), r.ID); err != nil {
		b.Log.Error("could not remove a session's record", "session", r.ID, "error", err)
	}
}

// stoppedByUser is the reason for the loss of a sandbox that the user stopped.
const stoppedByUser = "it was stopped"

// endSession stops a session's sandbox, and, unless it is a home, removes its workspace and
// record.
func (b *Sessions) endSession(ctx context.Context, s *Session) {
	// The holder of the lock may be waiting for the sandbox: destroy it before acquire.
	s.dropSandbox(s.current().booted, stoppedByUser)
	if s.acquire(ctx) != nil {
		return
	}
	defer s.release()
	if s.current().removed {
		return // another call has removed it
	}
	if err := s.adopt(ctx); err != nil {
		b.Log.Error("could not take over the sandbox of a session that is stopped; it ends as soon as that can be done",
			"session", s.record().ID, "error", err)
	}
	s.mu.Lock()
	s.cur.stopPending = s.cur.waiting
	c := s.cur
	s.mu.Unlock()
	if c.waiting && !c.rec.Home {
		b.queueRemoval(b.boxOf(c.rec))
	}
	s.dropSandbox(c.booted, stoppedByUser)
	if !c.rec.Home {
		b.removeStored(ctx, s)
		return
	}
	s.updateOrLog("that a session stopped", func(r *Record) { r.State, r.Lost = Stopped, stoppedByUser })
}

// Stop ends the principal's session with that id. It returns false when there is none.
func (b *Sessions) Stop(ctx context.Context, p auth.Principal, id string) bool {
	s := b.ownedSession(p, id)
	if s == nil {
		return false
	}
	b.endSession(context.WithoutCancel(ctx), s)
	return true
}

// Close detaches all sandboxes. They live on for the next server.
func (b *Sessions) Close(ctx context.Context) {
	for _, s := range b.all() {
		if booted := s.current().booted; booted != nil {
			s.persistUse(ctx)
			booted.Detach()
		}
	}
	b.storeTraffic(ctx)
}

// StopOwned stops the sandboxes that this process has booted, but not those that it has
// taken over. Sessions with files stay.
func (b *Sessions) StopOwned(ctx context.Context) {
	var wg sync.WaitGroup
	for _, s := range b.all() {
		if c := s.current(); c.booted != nil && c.booted != c.adopted {
			wg.Go(func() { b.stopUnused(ctx, s, "the program that served it ended") })
		}
	}
	wg.Wait()
}

// StopAll ends all sessions of all principals; homes keep their files.
func (b *Sessions) StopAll(ctx context.Context) {
	var wg sync.WaitGroup
	for _, s := range b.all() {
		wg.Go(func() { b.endSession(ctx, s) })
	}
	wg.Wait()
}
