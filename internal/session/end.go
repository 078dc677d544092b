package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
	"sandlot/internal/session/reason"
	"sandlot/internal/session/record"
	"sandlot/internal/session/state"
)

// stopUnused stops a session's sandbox unless a call uses the session, and says whether it did.
// A session without files is removed, unless it is a home.
func (s *Sessions) stopUnused(ctx context.Context, session *Session, why string) bool {
	stopped := false
	_ = session.own(ctx, waits, func() error {
		stopped = s.stopLocked(ctx, session, why)
		return nil
	})
	return stopped
}

// sleepUnused puts a session that no call uses to sleep, or stops its sandbox if it never can and nothing runs in it.
// It reports whether it did. It does not wait for a session that is being started, ended or copied.
func (s *Sessions) sleepUnused(ctx context.Context, session *Session, why string) bool {
	rests := false
	_ = session.own(ctx, atOnce, func() error {
		rests = s.sleepLocked(ctx, session, why)
		return nil
	})
	return rests
}

// sleepLocked is sleepUnused for a session whose turn it is.
func (s *Sessions) sleepLocked(ctx context.Context, session *Session, why string) bool {
	if s.Hibernation.Enabled {
		r := session.record()
		running := session.runsSomething(ctx)
		err := s.putToSleep(context.WithoutCancel(ctx), session) // also if the server is to end
		if err == nil {
			s.limitStopped(ctx, r.Owner)
			return true
		}
		if _, unable := s.Pool.HibernatorNamed(r.Runtime); unable == nil && !errors.Is(err, errInUse) {
			if running || reason.Passes(err) || errors.Is(err, sandbox.ErrReplaced) {
				s.Log.Warn("could not put a session to sleep, which stays awake", "session", r.ID, "running", running,
					"error", err)
				session.stayAwake(time.Now().Add(s.IdleTimeout), err)
				return false
			}
			s.Log.Warn("could not put a session to sleep, and stops it", "session", r.ID, "error", err)
			why += ", and could not be put to sleep: " + reason.State(err)
		}
	}
	return s.stopLocked(ctx, session, why)
}

// runsSomething reports whether background processes run in the session.
func (s *Session) runsSomething(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if b := s.current().booted; b != nil {
		u, err := b.Agent.Usage(ctx)
		return err == nil && u.Busy || err != nil && s.mayBeBusy(b)
	}
	return false
}

// stayAwake lets the session be until then, as it could not be put to sleep. The user is told once what would be lost.
func (s *Session) stayAwake(until time.Time, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cur.awakeUntil = until
	s.cur.notices.warn(cause)
}

// tellReplaced tells the user once that the session could not be put to sleep now, as files were replaced that its
// programs have open: before somebody stops the server, and variables may be lost.
func (s *Session) tellReplaced(b *pool.Booted) {
	if b == nil || s.current().notices.warned || !s.sessions.Hibernation.Enabled {
		return
	}
	freezer := s.sessions.Pool.Capabilities(s.record().Runtime).Freezer
	if freezer == nil {
		return
	}
	err := freezer.Outdated(b.Box)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur.booted == b {
		s.cur.notices.warn(err)
	}
}

// stopLocked is stopUnused for a session whose turn it is.
func (s *Sessions) stopLocked(ctx context.Context, session *Session, why string) bool {
	session.mu.Lock()
	booted := session.cur.booted
	if !session.may(state.Evict) {
		session.mu.Unlock()
		return false
	}
	session.giveUp(state.Evict, why)
	session.mu.Unlock()
	ended := session.destroy(booted)
	session.updateOrLog("that a session stopped", func(r *Record) {
		r.State, r.Lost = record.Stopped, why
		r.EndSandbox(booted.ID, ended)
	})
	r := session.record()
	s.publish(r, event.SessionStopped, why, 0)
	if empty, err := s.Pool.WorkspaceEmpty(ctx, r.Workspace); err == nil && empty && ended && !r.Home {
		s.removeStored(ctx, session, "it had no files, and "+why)
		return true
	}
	s.limitStopped(ctx, r.Owner)
	return true
}

// maxStopped is how many sessions that are stopped and have files, or sleep, a principal may have, for each
// live one that they may have.
const maxStopped = 5

// limitStopped removes the owner's oldest sessions that are stopped or sleep when there are too many, and the oldest of
// those that were paused at their end when too many are paused. What somebody has paused stays.
func (s *Sessions) limitStopped(ctx context.Context, owner string) {
	most := maxStopped * s.MaxSessions
	rests := func(c current) bool {
		return c.rec.Owner == owner && !c.rec.Home && c.rec.State != record.Live && !c.hasSandbox() && !c.State.IsPaused()
	}
	stopped := s.filter(rests)
	for _, session := range stopped[:max(0, len(stopped)-most)] {
		s.removeIfStopped(ctx, session, rests, fmt.Sprintf("of your sessions that are stopped or sleep, the %d that were "+
			"used last are kept", most))
	}
	atEnd := func(c current) bool {
		return c.rec.Owner == owner && !c.rec.Home && c.State.IsPaused() && c.rec.PausedBy == record.ByEnd
	}
	paused, ended := len(s.pausedOf(owner)), s.filter(atEnd)
	for _, session := range ended[:min(len(ended), max(0, paused-most))] {
		s.removeIfStopped(ctx, session, atEnd, fmt.Sprintf("%d of your sessions are paused, at most %d are kept, and it was "+
			"the one used longest ago of those that were paused at their end", paused, most))
	}
}

// removeIfStopped removes a stopped session for which that still holds, unless a call uses it again. why can end a
// sentence.
func (s *Sessions) removeIfStopped(ctx context.Context, session *Session, holds func(current) bool, why string) {
	_ = session.own(ctx, atOnce, func() error {
		if c := session.current(); !c.hasSandbox() && c.Calls == 0 && holds(c) {
			s.removeStored(ctx, session, why)
		}
		return nil
	})
}

// removeStored removes the session's record and workspace. It is the session's turn, and has
// stopped the sandbox. Calls for it are told why, in words that can end a sentence.
func (s *Sessions) removeStored(ctx context.Context, session *Session, why string) {
	session.storing.Lock() // so that no update stores the record after its removal
	defer session.storing.Unlock()
	session.mu.Lock()
	may, r := session.on(state.Remove), session.cur.rec
	session.mu.Unlock()
	if !may {
		return
	}
	s.gone.add(r.ID, r.Owner, why)
	named := r
	r.State, r.Sandbox, r.Name = record.Removed, "", ""
	if err := s.Store.PutSession(context.WithoutCancel(ctx), r); err != nil {
		s.Log.Error("could not store that a session is removed", "session", r.ID, "error", err)
		defer s.dropName(named, session) // after the record, if that can be removed
	} else {
		s.dropName(named, session) // another session may have its name from now on
	}
	s.publish(r, event.SessionRemoved, "", 0)
	s.mu.Lock()
	delete(s.sessions, r.ID)
	if s.homes[r.Owner] == session {
		delete(s.homes, r.Owner)
	}
	s.mu.Unlock()
	if err := s.Pool.RemoveWorkspace(r.Workspace); err != nil {
		s.Log.Error("could not remove a workspace", "session", r.ID, "error", err)
		return // the record stays, so that the next start tries again
	}
	s.removeImage(ctx, r.Runtime, r.Image)
	if err := s.Store.RemoveSession(context.WithoutCancel(ctx), r.ID); err != nil {
		s.Log.Error("could not remove a session's record", "session", r.ID, "error", err)
	}
}

// stoppedByUser is the reason for the loss of a sandbox that the user stopped.
const stoppedByUser = "it was stopped"

// stopSandbox ends the session's sandbox, if it has one, because its user has stopped the session, or its life has
// ended.
func (s *Session) stopSandbox(e ending) {
	s.mu.Lock()
	b := s.cur.booted
	if b != nil {
		s.cur.ended = ended{sandbox: b.ID, atEnd: e.atEnd}
	}
	s.mu.Unlock()
	s.endSandbox(b, state.Stop, e.why)
}

// ending is why a session is ended.
type ending struct {
	why   string
	atEnd bool // it has reached the end of its life
	// may returns an error when the session is not to end after all; nil: it ends in any case.
	may func(*Session) error
}

// byUser ends a session that its user has stopped.
var byUser = ending{why: stoppedByUser}

// endSession stops a session's sandbox, and, unless it is a home, removes its workspace and
// record. A home that is paused stays so. The error is that of may.
func (s *Sessions) endSession(ctx context.Context, session *Session, e ending) error {
	may := func() error {
		if e.may == nil {
			return nil
		}
		return e.may(session)
	}
	if err := may(); err != nil {
		return err
	}
	// What is being done with the session may be waiting for the sandbox: destroy it before.
	if !e.atEnd {
		session.stopSandbox(e)
	}
	first := tries
	if session.current().State.Ends() { // ending it has just failed
		first = waits
	}
	var err error
	_ = session.own(ctx, first, func() error {
		if err = may(); err == nil { // it may have been paused meanwhile
			s.endLocked(ctx, session, e)
		}
		return nil
	})
	return err
}

// endLocked is endSession for a session whose turn it is.
func (s *Sessions) endLocked(ctx context.Context, session *Session, e ending) {
	session.stopSandbox(e)
	session.mu.Lock()
	if session.cur.untaken() {
		session.on(state.Stop)
	}
	c := session.cur
	session.mu.Unlock()
	if c.untaken() && !c.rec.Home {
		s.left.add(s.boxOf(c.rec))
	}
	if !c.rec.Home {
		s.removeStored(ctx, session, e.why)
		return
	}
	if err := session.move(state.Stop, func(r *Record) {
		r.Lost, r.Image = e.why, ""
		if e.atEnd { // a home lives on, without an end
			r.EndsAt, r.OnEnd = time.Time{}, ""
		}
		if r.State != record.Paused {
			r.State = record.Stopped
		}
	}); err != nil {
		s.Log.Error("could not store that a session stopped", "session", c.rec.ID, "error", err)
	}
	s.removeImage(ctx, c.rec.Runtime, c.rec.Image) // if the record still has it, its next use says that it is gone
}

// Stop ends the principal's session with that id. It returns false when there is none. A home is always there, though
// nothing has used it yet.
func (s *Sessions) Stop(ctx context.Context, p auth.Principal, id string) bool {
	found, _ := s.endOwned(ctx, p, id, byUser) // nothing refuses
	return found
}

// End is Stop, but for a session that an operator has paused: it stays until an operator resumes it.
func (s *Sessions) End(ctx context.Context, p auth.Principal, id string) (found bool, err error) {
	e := byUser
	e.may = func(session *Session) error {
		if !mayResume(p, session.record()) {
			return session.pausedFault()
		}
		return nil
	}
	return s.endOwned(ctx, p, id, e)
}

func (s *Sessions) endOwned(ctx context.Context, p auth.Principal, id string, e ending) (found bool, err error) {
	session := s.ownedSession(p, id)
	if session == nil {
		return id == "home", nil
	}
	return true, s.endSession(context.WithoutCancel(ctx), session, e)
}

// closeTimeout is how long Close waits for the store to take what sandboxes have used.
const closeTimeout = 2 * time.Second

// Close detaches all sandboxes. They live on for the next server.
func (s *Sessions) Close(ctx context.Context) {
	for _, session := range s.all() {
		session.sample(ctx, nil) // its traffic: the next server asks the sandbox for all the rest
		if booted := session.current().booted; booted != nil {
			session.persistUse()
			booted.Detach()
		}
	}
	s.storeCounts(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	s.storeHistory(ctx)
}

// StopOwned stops the sandboxes that this process has booted, but not those that it has
// taken over. Sessions with files stay.
func (s *Sessions) StopOwned(ctx context.Context) {
	var wg sync.WaitGroup
	for _, session := range s.all() {
		if c := session.current(); c.State == state.Live && !c.Adopted {
			wg.Go(func() { s.stopUnused(ctx, session, "the program that served it ended") })
		}
	}
	wg.Wait()
}

// StopAll ends all sessions of all principals; homes keep their files.
func (s *Sessions) StopAll(ctx context.Context) {
	var wg sync.WaitGroup
	for _, session := range s.all() {
		wg.Go(func() { _ = s.endSession(ctx, session, byUser) })
	}
	wg.Wait()
}
