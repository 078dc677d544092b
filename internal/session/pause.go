package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/sandbox"
	"sandlot/internal/session/reason"
	"sandlot/internal/session/record"
	"sandlot/internal/session/state"
)

// Pause freezes one of the principal's sessions, or, for an operator, anyone's, with all that it has: nothing wakes it
// before Resume. It waits for calls that use the session.
func (s *Sessions) Pause(ctx context.Context, p auth.Principal, id string) (Info, error) {
	session, err := s.findAny(p, id)
	if err != nil {
		return Info{}, err
	}
	err = session.own(ctx, unused|adopts, func() error {
		if p.ID == session.owner() { // an operator may always
			if err := s.mayPauseMore(session); err != nil {
				return err
			}
		}
		return s.pauseLocked(ctx, session, p.ID)
	})
	if err != nil {
		return Info{}, err
	}
	return session.info(ctx), nil
}

// mayPauseMore returns a fault if the session's owner has as many paused sessions as are kept.
func (s *Sessions) mayPauseMore(session *Session) error {
	c := session.current()
	paused, most := len(s.pausedOf(c.rec.Owner)), maxStopped*s.MaxSessions
	if paused < most || c.State.IsPaused() || c.rec.Home {
		return nil
	}
	return fault.Limit("paused_sessions", paused, most, "%d sessions are paused, and at most %d are kept", paused, most).
		Advise("Resume or stop one that is paused (get_sessions lists them)")
}

// pausedOf returns the sessions of an owner that are paused, without the home, the one used longest ago first.
func (s *Sessions) pausedOf(owner string) []*Session {
	return s.filter(func(c current) bool { return c.rec.Owner == owner && !c.rec.Home && c.State.IsPaused() })
}

// pauseLocked pauses a session that no call uses, for whom by names. At the end of its life, what cannot be frozen is
// stopped. It is the session's turn.
func (s *Sessions) pauseLocked(ctx context.Context, session *Session, by string) error {
	c := session.current()
	if c.State.IsPaused() && (by == c.rec.Owner || by == record.ByEnd && c.rec.PausedByOperator()) {
		return nil // whoever has paused it first may resume it
	}
	if c.booted != nil {
		err := s.canPause(c.rec)
		if err == nil {
			err = s.pauseLive(ctx, session, by)
		}
		if err == nil || by != record.ByEnd || mayPass(err) {
			return err
		}
		s.Log.Warn("could not freeze a session at its end, and stops it", "session", c.rec.ID, "error", err)
		session.endSandbox(c.booted, state.Stop, "it reached its end, and could not be frozen")
	}
	if c = session.current(); c.State.HasSandbox() {
		return fault.New(fault.SessionState, "the session's sandbox has not ended yet: try again later").
			With("session_id", c.rec.ID)
	}
	if err := session.move(state.Pause, func(r *Record) { r.Pause(by, time.Now().UTC()) }); err != nil {
		return err
	}
	if !c.State.IsPaused() {
		s.publish(session.record(), event.SessionPaused, "", 0)
	}
	return nil
}

// mayPass reports whether a session that could not be frozen may be frozen later.
func mayPass(err error) bool {
	return !errors.Is(err, sandbox.ErrReplaced) && (reason.Passes(err) || errors.Is(err, errInUse) ||
		errors.Is(err, context.Canceled))
}

// pauseLive pauses a session with a sandbox. After an error the session goes on, unless its sandbox has died. It is
// the session's turn.
func (s *Sessions) pauseLive(ctx context.Context, session *Session, by string) error {
	err := s.freezeFor(ctx, session, by)
	id := session.record().ID
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errInUse):
		return inUse(id)
	case ctx.Err() != nil:
		return fault.From(ctx.Err())
	}
	return reason.StateFault(err, "the session could not be paused").With("session_id", id)
}

// canPause returns a fault if sessions of that runtime cannot be frozen on this server.
func (s *Sessions) canPause(r Record) error {
	_, unable := s.Pool.HibernatorNamed(r.Runtime)
	why := "the memory of sessions is not written to the disk on this server (hibernate.enabled is false)"
	switch {
	case unable != nil:
		why = unable.Error()
	case s.Hibernation.Enabled:
		return nil
	}
	return fault.Wrap(fault.Configuration, unable, "the session cannot be paused: %s", why).
		Advise(fmt.Sprintf("Save what matters to files in /workspace and leave the session idle: after %s its sandbox "+
			"stops, and its files stay", s.IdleTimeout),
			"Ask the operator for the runtime gvisor with hibernate.enabled, which pauses with variables and processes")
}

// Resume makes one of the principal's sessions usable again, and wakes it. A session that an operator has paused, an
// operator alone resumes. The error of a session that cannot be woken now is in notice: it sleeps, and its next use
// wakes it.
func (s *Sessions) Resume(ctx context.Context, p auth.Principal, id string) (i Info, notice string, err error) {
	session, err := s.findAny(p, id)
	if err != nil {
		return i, "", err
	}
	if notice, err = s.resumeLeased(ctx, p, session); err != nil {
		return i, "", err
	}
	return session.info(ctx), notice, nil
}

// resumeLeased is Resume of a session that nothing removes meanwhile.
func (s *Sessions) resumeLeased(ctx context.Context, p auth.Principal, session *Session) (notice string, err error) {
	session.note(state.Leased)
	defer (&Lease{Session: session}).Release()
	asleep, err := s.resume(ctx, p, session)
	if err != nil || !asleep {
		return "", err
	}
	if _, _, err = session.ensureSandbox(ctx, true); err != nil {
		return "It can be used again, and was not woken yet: " + fault.From(err).Text(), nil
	}
	return "", nil
}

// resume ends the pause of a session, and reports whether that sleeps now. It does nothing to one that is not paused.
func (s *Sessions) resume(ctx context.Context, p auth.Principal, session *Session) (asleep bool, err error) {
	err = session.own(ctx, waits, func() error {
		c := session.current()
		switch {
		case !c.State.IsPaused():
			return nil
		case !mayResume(p, c.rec):
			return session.pausedFault()
		}
		if err := session.move(state.Resume, func(r *Record) { r.Resume(time.Now().UTC()) }); err != nil {
			return err
		}
		s.publish(session.record(), event.SessionResumed, "", 0)
		asleep = c.State == state.Paused
		return nil
	})
	return asleep, err
}

// mayResume reports whether a principal may resume a session: its owner may not what an operator has paused.
func mayResume(p auth.Principal, r Record) bool {
	return !r.PausedByOperator() || p.HasRole(auth.Operator)
}

// pausedFault returns the fault for a use of a session that is paused.
func (s *Session) pausedFault() *fault.Error {
	r := s.record()
	how := []string{fmt.Sprintf("To go on with it, call resume_session with session_id %q (or: sandlot sessions resume "+
		"%[1]s)", r.ID), "Use session_id \"new\" for another one"}
	who := "its user paused it"
	switch r.PausedFor() {
	case "end":
		who = "it reached its end, and was paused"
	case "operator":
		who = "an operator of this server paused it"
		how[0] = "Only an operator of this server can resume it: ask one"
	}
	at := r.PausedAt.UTC().Format(time.RFC3339)
	return fault.New(fault.SessionPaused, "%s: %s at %s. No call wakes it, and it keeps all that it has", r.ID, who, at).
		With("session_id", r.ID).With("paused_by", r.PausedFor()).With("paused_at", at).Advise(how...)
}
