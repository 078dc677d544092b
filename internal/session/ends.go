package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/session/property"
	"sandlot/internal/session/record"
)

const (
	// endsSoon is how long before its end the results of a session's calls say that it ends.
	endsSoon = 5 * time.Minute
	// endRetry is the pause before it is tried again to end a session.
	endRetry = 5 * time.Second
	// endLook is the longest time between two looks at which sessions end: somebody may have set the clock.
	endLook = 30 * time.Second
)

// runEnds ends the sessions that reach the end of their life, until ctx ends.
func (s *Sessions) runEnds(ctx context.Context) {
	for {
		s.endDue(ctx)
		timer := time.NewTimer(s.nextEnd(time.Now()))
		select {
		case <-timer.C:
		case <-s.endsChanged:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// endDue ends the sessions that have reached the end of their life. What fails is tried again.
func (s *Sessions) endDue(ctx context.Context) {
	now := time.Now()
	var work errgroup.Group
	work.SetLimit(sleepAtOnce())
	for _, session := range inTurns(s.filter(func(c current) bool { return c.rec.Ends(now) }), (*Session).owner) {
		work.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			if err := s.reachEnd(ctx, session); err != nil && ctx.Err() == nil {
				s.Log.Warn("a session has reached its end, and could not be ended; it is tried again", "session",
					session.record().ID, "error", err)
			}
			return nil
		})
	}
	_ = work.Wait() // there are no errors
}

// nextEnd returns the time until the next session reaches its end.
func (s *Sessions) nextEnd(now time.Time) time.Duration {
	next := endLook
	for _, session := range s.all() {
		r := session.record()
		switch {
		case r.Ends(now):
			next = min(next, endRetry)
		case !r.EndsAt.IsZero() && r.EndsAt.After(now):
			next = min(next, r.EndsAt.Sub(now))
		}
	}
	return next
}

// reachEnd ends a session that has reached the end of its life, or pauses it, as its user has wanted. It does nothing
// to others. A session that sleeps is not woken for that.
func (s *Sessions) reachEnd(ctx context.Context, session *Session) error {
	r := session.record()
	if !r.Ends(time.Now()) {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	if r.OnEnd != record.PauseOnEnd {
		e := ending{why: "it reached its end (ends_at)", atEnd: true}
		e.may = func(session *Session) error {
			if r := session.record(); !r.Ends(time.Now()) { // somebody has changed it meanwhile
				return errEndMoved
			}
			return nil
		}
		_ = s.endSession(ctx, session, e)
		return nil
	}
	if c := session.current(); time.Now().Before(c.endAgain) {
		return c.endErr
	}
	err := session.own(ctx, unused|adopts, func() error {
		if r := session.record(); !r.Ends(time.Now()) {
			return nil
		}
		return s.pauseLocked(ctx, session, record.ByEnd)
	})
	if err == nil {
		s.limitStopped(ctx, r.Owner)
		return nil
	}
	if !errors.Is(err, errInUse) { // it has written an image, perhaps, and would do so again and again
		session.mu.Lock()
		session.cur.endAgain, session.cur.endErr = time.Now().Add(endPause), err
		session.mu.Unlock()
	}
	return err
}

var errEndMoved = errors.New("the session ends later")

// endPause is for how long a session is left alone that could not be paused at its end.
const endPause = time.Minute

// openEnded returns the fault for a call of a session that has reached the end of its life, which ends; nil: it has
// not, or goes on, as homes do.
func (s *Sessions) openEnded(ctx context.Context, session *Session) error {
	r := session.record()
	if !r.Ends(time.Now()) {
		return nil
	}
	err := s.reachEnd(ctx, session)
	switch {
	case session.current().removed():
		return s.notFound(r.Owner, r.ID)
	case errors.Is(err, errInUse):
		return fault.Wrap(fault.SessionPaused, err, "%s: it has reached its end, and is paused as soon as the calls that "+
			"use it have ended", r.ID).With("session_id", r.ID).With("paused_by", "end")
	}
	return err
}

// endNotice says that a session ends soon; empty: it does not.
func endNotice(r Record, now time.Time) string {
	left := r.EndsAt.Sub(now)
	if r.EndsAt.IsZero() || left > endsSoon || left < 0 {
		return ""
	}
	what := "then it is gone, with its variables, processes and files"
	switch {
	case r.OnEnd == record.PauseOnEnd:
		what = "then it is paused with all that it has"
	case r.Home:
		what = "then its variables and processes are gone, and its files stay"
	}
	return fmt.Sprintf("This session ends in %s, at %s: %s. `sandlot sessions set %s --ends-in 1h` changes that.",
		max(left, time.Second).Round(time.Second), r.EndsAt.Format(time.RFC3339), what, r.ID)
}

// Change changes what a principal has set of one of their sessions.
func (s *Sessions) Change(ctx context.Context, p auth.Principal, id string, c property.Change) (Info, error) {
	session := s.ownedSession(p, id)
	if session == nil {
		return Info{}, s.notFound(p.ID, id)
	}
	if err := session.own(ctx, waits, func() error { return s.changeLocked(session, c) }); err != nil {
		return Info{}, err
	}
	s.announceEnd()
	return session.info(ctx), nil
}

// changeLocked is Change for a session whose turn it is.
func (s *Sessions) changeLocked(session *Session, c property.Change) error {
	before := session.record()
	now, after := time.Now(), before
	if err := c.Apply(&after, now); err != nil {
		return err
	}
	if err := s.checkEnd(before, after); err != nil {
		return err
	}
	if err := s.takeName(after, session); err != nil {
		return err
	}
	err := session.update(func(r *Record) {
		r.Name, r.Labels, r.EndsAt, r.OnEnd = after.Name, after.Labels, after.EndsAt, after.OnEnd
	})
	if err != nil {
		before, after = after, before
	}
	if before.Name != after.Name {
		s.dropName(before, session)
	}
	return err
}

// checkEnd returns a fault if a session cannot be paused at its end, as it is to be.
func (s *Sessions) checkEnd(before, after Record) error {
	if after.OnEnd != record.PauseOnEnd || before.OnEnd == record.PauseOnEnd {
		return nil
	}
	return s.canPause(after)
}

// announceEnd tells runEnds that the ends of sessions have changed.
func (s *Sessions) announceEnd() {
	select {
	case s.endsChanged <- struct{}{}:
	default:
	}
}

// nameKey is an owner, and a name that one session of theirs has.
type nameKey struct{ owner, name string }

// takeName makes the name of a record that of the session alone.
func (s *Sessions) takeName(r Record, session *Session) error {
	if r.Name == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := nameKey{r.Owner, r.Name}
	if other := s.names[key]; other != nil && other != session {
		return fault.Argument("name", "you have a session %s already, which has the id %s", r.Name, other.record().ID).
			Advise("Use another name", "Rename that session, or end it with stop_session")
	}
	s.names[key] = session
	return nil
}

// dropName takes the name of a record from the session, if the session has it.
func (s *Sessions) dropName(r Record, session *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key := (nameKey{r.Owner, r.Name}); s.names[key] == session {
		delete(s.names, key)
	}
}
