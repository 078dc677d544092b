package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
)

// Recover reads which sessions an earlier server had. It is called once, before
// the first Open, and is quick: each sandbox is taken over by the first call for its
// session, or by Run, which also removes those that belong to nobody.
func (b *Sessions) Recover(ctx context.Context, rt sandbox.Runtime) error {
	ids, err := rt.Left(ctx)
	if err != nil {
		return fmt.Errorf("looking for sandboxes: %w", err)
	}
	unowned := map[string]bool{}
	for _, id := range ids {
		unowned[id] = true
	}
	records, err := b.Store.Sessions(ctx)
	if err != nil {
		return fmt.Errorf("reading the sessions: %w", err)
	}
	owned := map[string]bool{} // workspaces
	for _, r := range records {
		if r.State == Removed { // the last server did not finish
			err = errors.Join(err, b.Pool.Workspaces.Remove(r.Workspace), b.Store.RemoveSession(ctx, r.ID))
			continue
		}
		owned[r.Workspace] = true
		b.recover(r, unowned)
	}
	b.mu.Lock()
	b.unowned = slices.Collect(maps.Keys(unowned))
	b.mu.Unlock()
	if err != nil { // it is tried again at the next start
		b.Log.Error("could not remove what is left of a session", "error", err)
	}
	b.removeWorkspaces(owned)
	return nil
}

// removeWorkspaces removes the workspaces that belong to nobody. The next start finds
// those again that cannot be removed now.
func (b *Sessions) removeWorkspaces(owned map[string]bool) {
	all, err := b.Pool.Workspaces.All()
	for _, id := range all {
		if !owned[id] {
			err = errors.Join(err, b.Pool.Workspaces.Remove(id))
		}
	}
	if err != nil {
		b.Log.Error("could not remove the workspaces that belong to nobody", "error", err)
	}
}

// recover makes the session of a record, and takes its sandbox out of unowned.
func (b *Sessions) recover(r Record, unowned map[string]bool) {
	s := &Session{sessions: b, lock: semaphore.NewWeighted(1), meter: egress.NewMeter(r.Traffic), stored: r.Traffic,
		cur: current{rec: r}}
	c := &s.cur
	if r.Sandbox != "" && unowned[r.Sandbox] {
		if _, _, err := b.resolve(r.Template, r.Flavor); err == nil {
			delete(unowned, r.Sandbox)
			c.left, c.ending = true, r.State == Stopped
		}
	}
	if !c.left && r.Sandbox != "" {
		c.rec.Sandbox, c.rec.Lost = "", cmp.Or(r.Lost, whileAway)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions[r.ID] = s
	if r.Home {
		b.homes[r.Owner] = s
	}
}

// whileAway is why a session has lost a sandbox that ended while no server ran.
const whileAway = "it ended while the server was away"

// adopt takes over the sandbox that an earlier server left to the session, if
// that was not done yet. The lock is held. With an error it can be tried again.
func (s *Session) adopt(ctx context.Context) error {
	c := s.current()
	r := c.rec
	if !c.left {
		return nil
	}
	t, f, err := s.sessions.resolve(r.Template, r.Flavor)
	if err != nil {
		return err
	}
	// A caller that gives up leaves nothing half done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	box, err := s.sessions.Pool.Runtime.Recover(ctx, r.Sandbox)
	if err == nil && c.ending { // the session was stopped while this could not be done
		if err = box.Stop(ctx); err == nil {
			err = sandbox.ErrGone
		}
	}
	if err != nil && !errors.Is(err, sandbox.ErrGone) {
		return fault.Wrap(fault.SandboxCreation, err,
			"the session's sandbox could not be taken over from an earlier server")
	}
	if err != nil {
		s.mu.Lock()
		s.cur.left, s.cur.ending = false, false
		s.mu.Unlock()
		return s.update(func(r *Record) { r.Sandbox, r.Lost = "", cmp.Or(r.Lost, whileAway) })
	}
	booted := s.sessions.Pool.Adopt(box, pool.Request{Workspace: r.Workspace, Template: t, Flavor: f})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions.connect(booted, s.cur.rec, s.meter)
	s.cur.booted, s.cur.found, s.cur.left = booted, booted, false
	return nil
}

// awaitTakeover waits until the session has taken over its sandbox, if one was left.
func (s *Session) awaitTakeover(ctx context.Context) error {
	if !s.current().left {
		return nil
	}
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	if s.current().removed {
		return nil
	}
	return s.adopt(ctx)
}

const (
	// linkTimeout is how long Run waits for one agent before it goes on to the next:
	// longer than an agent pauses.
	linkTimeout = 2 * time.Second
	// headStart is how long calls have the processors to themselves after the start.
	headStart = 500 * time.Millisecond
	// removeTimeout is how long the sandboxes that belong to nobody may take to end.
	removeTimeout = 20 * time.Second
	// adoptAgain is the pause before a sandbox that could not be taken over is
	// tried again.
	adoptAgain = 5 * time.Second
)

// adopting is how many sandboxes Run takes over at once. Most of the time it waits for
// agents to dial, which needs little of a processor.
func adopting() int { return 4 * runtime.NumCPU() }

// adoptAll takes over what an earlier server left to sessions, those first that
// were used last, and then removes what belongs to nobody: that also when ctx
// ends before.
func (b *Sessions) adoptAll(ctx context.Context) {
	defer b.removeUnowned(ctx)
	select {
	case <-time.After(headStart):
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		left := b.where(func(c current) bool { return c.left })
		if len(left) == 0 {
			break
		}
		slices.Reverse(left)
		err := each(ctx, left, b.adoptOne)
		b.removeUnowned(ctx)
		if err == nil {
			continue
		}
		select {
		case <-time.After(adoptAgain):
		case <-ctx.Done():
		}
	}
}

func (b *Sessions) adoptOne(ctx context.Context, s *Session) error {
	if err := s.awaitTakeover(ctx); err != nil {
		if ctx.Err() == nil {
			b.Log.Error("could not take over a session's sandbox; it is tried again", "session", s.record().ID, "error",
				err)
		}
		return err
	}
	if booted := s.current().booted; booted != nil {
		ctx, cancel := context.WithTimeout(ctx, linkTimeout)
		defer cancel()
		_ = booted.Agent.Wait(ctx) // a call that needs it waits longer
	}
	return nil
}

// abandon leaves sandboxes without a session to Run.
func (b *Sessions) abandon(ids ...string) {
	b.mu.Lock()
	b.unowned = append(b.unowned, ids...)
	b.mu.Unlock()
	select {
	case b.orphaned <- struct{}{}:
	default:
	}
}

// endUnowned ends, until ctx does, the sandboxes of sessions that were stopped, and those
// that could not be removed before. It tries again until all are gone.
func (b *Sessions) endUnowned(ctx context.Context) {
	defer b.removeUnowned(ctx)
	for {
		select {
		case <-b.orphaned:
		case <-ctx.Done():
			return
		}
		select { // removing them has just failed
		case <-time.After(adoptAgain):
		case <-ctx.Done():
			return
		}
		b.removeUnowned(ctx)
	}
}

// removeUnowned removes the sandboxes that belong to nobody: the old pool's, those that
// were being made when the server died, and those of sessions that were removed. A server
// that stops does that, too: nobody would use them. A sandbox that cannot be removed is
// tried again, by the next server too.
func (b *Sessions) removeUnowned(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	b.mu.Lock()
	all := b.unowned
	b.unowned = nil
	b.mu.Unlock()
	_ = each(ctx, all, func(ctx context.Context, id string) error {
		box, err := b.Pool.Runtime.Recover(ctx, id)
		if err == nil {
			err = box.Stop(ctx)
		}
		if err != nil && !errors.Is(err, sandbox.ErrGone) {
			b.Log.Error("could not remove an unowned sandbox; it is tried again", "sandbox", id, "error", err)
			b.abandon(id)
		}
		return nil
	})
}

// each calls do for all of a list, a few at a time, until ctx ends, and returns the first
// of the errors.
func each[T any](ctx context.Context, list []T, do func(context.Context, T) error) error {
	var work errgroup.Group
	work.SetLimit(adopting())
	for _, x := range list {
		if ctx.Err() != nil {
			break
		}
		work.Go(func() error { return do(ctx, x) })
	}
	return work.Wait()
}
