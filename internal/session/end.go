package session

import (
	"context"
	"slices"
	"sync"

	"sandlot/internal/auth"
	"sandlot/internal/event"
)

// expire stops a session's sandbox unless a call uses it. What is worth keeping
// of it is kept. It says whether it did.
func (b *Sessions) expire(ctx context.Context, s *Session, why string) bool {
	if s.acquire(ctx) != nil {
		return false
	}
	defer s.release()
	s.mu.Lock()
	booted := s.booted
	if s.active > 0 || s.removed || booted == nil {
		s.mu.Unlock()
		return false
	}
	s.booted = nil
	s.mu.Unlock()
	if err := booted.Destroy(); err != nil {
		b.Log.Error("could not stop an idle sandbox", "sandbox", booted.ID, "error", err)
	}
	r := s.record()
	b.publish(r, event.SessionStopped, why, 0)
	if empty, err := b.Pool.Workspaces.Empty(r.Workspace); err == nil && empty && !r.Home {
		b.forget(ctx, s)
		return true
	}
	if err := s.update(func(r *Record) { r.Sandbox, r.State, r.Lost = "", Stopped, why }); err != nil {
		b.Log.Error("could not store that a session stopped", "session", r.ID, "error", err)
	}
	b.thin(ctx, r.Owner)
	return true
}

// keptFor is how many stopped sessions with files a principal may have, for each
// live one that they may have.
const keptFor = 5

// thin forgets the principal's oldest stopped sessions when there are too many.
func (b *Sessions) thin(ctx context.Context, owner string) {
	var stopped []*Session
	for _, s := range b.all() {
		if r := s.record(); r.Owner == owner && !r.Home && r.State == Stopped && !s.live() {
			stopped = append(stopped, s)
		}
	}
	slices.SortFunc(stopped, func(x, y *Session) int { return x.record().Used.Compare(y.record().Used) })
	for _, s := range stopped[:max(0, len(stopped)-keptFor*b.MaxSessions)] {
		b.lapse(ctx, s)
	}
}

// lapse forgets a stopped session, unless a call has woken it.
func (b *Sessions) lapse(ctx context.Context, s *Session) {
	if !s.lock.TryAcquire(1) {
		return
	}
	defer s.release()
	s.mu.Lock()
	awake := s.booted != nil || s.left || s.active > 0 || s.removed
	s.mu.Unlock()
	if !awake {
		b.forget(ctx, s)
	}
}

// forget removes the record and the workspace. The lock is held, and no sandbox
// is left.
func (b *Sessions) forget(ctx context.Context, s *Session) {
	s.storing.Lock() // no change that is being stored comes after the removal
	defer s.storing.Unlock()
	s.mu.Lock()
	s.removed = true
	r := s.rec
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
		return // the record stays, so that it is tried again at the next start
	}
	if err := b.Store.RemoveSession(context.WithoutCancel(ctx), r.ID); err != nil {
		b.Log.Error("could not remove a session's record", "session", r.ID, "error", err)
	}
}

// remove ends a session: sandbox, and, but for a home, workspace and record.
func (b *Sessions) remove(ctx context.Context, s *Session) {
	s.mu.Lock()
	booted := s.booted
	s.mu.Unlock()
	// Whoever holds the lock waits for this sandbox: end it first.
	if booted != nil {
		s.drop(booted, "it was stopped")
	}
	if s.acquire(ctx) != nil {
		return
	}
	defer s.release()
	if s.gone() {
		return // another call was faster
	}
	if err := s.adopt(ctx); err != nil {
		b.Log.Error("could not take over the sandbox of a session that is stopped; it ends as soon as that can be done",
			"session", s.record().ID, "error", err)
	}
	s.mu.Lock()
	booted, home, left, sandbox := s.booted, s.rec.Home, s.left, s.rec.Sandbox
	s.ending = left
	s.mu.Unlock()
	if left && !home {
		b.abandon(sandbox)
	}
	if booted != nil {
		s.drop(booted, "it was stopped")
	}
	if !home {
		b.forget(ctx, s)
		return
	}
	if err := s.update(func(r *Record) { r.State, r.Lost = Stopped, "it was stopped" }); err != nil {
		b.Log.Error("could not store that a session stopped", "session", s.record().ID, "error", err)
	}
}

// Stop ends the caller's session. It returns false when they have none of that id.
func (b *Sessions) Stop(ctx context.Context, p auth.Principal, id string) bool {
	s := b.mine(p, id)
	if s == nil {
		return false
	}
	b.remove(context.WithoutCancel(ctx), s)
	return true
}

// Close lets go of all sandboxes; they live on, for the next server.
func (b *Sessions) Close(ctx context.Context) {
	for _, s := range b.all() {
		s.mu.Lock()
		booted := s.booted
		s.mu.Unlock()
		if booted != nil {
			s.persistUse(ctx)
			booted.Detach()
		}
	}
	b.storeTraffic(ctx)
}

// StopOwned stops the sandboxes that this process booted, and keeps what is worth
// keeping of their sessions.
func (b *Sessions) StopOwned(ctx context.Context) {
	var wg sync.WaitGroup
	for _, s := range b.all() {
		s.mu.Lock()
		booted, found := s.booted, s.found
		s.mu.Unlock()
		if booted != nil && booted != found {
			wg.Go(func() { b.expire(ctx, s, "the program that served it ended") })
		}
	}
	wg.Wait()
}

// StopAll ends all sessions of all principals; homes keep their files.
func (b *Sessions) StopAll(ctx context.Context) {
	var wg sync.WaitGroup
	for _, s := range b.all() {
		wg.Go(func() { b.remove(ctx, s) })
	}
	wg.Wait()
}
