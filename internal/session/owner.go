package session

import (
	"context"
	"errors"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/session/state"
)

// turn says when something is done with a session, and what is done before.
type turn int

const (
	waits  turn = 0         // until nothing else is being done with it
	atOnce turn = 1 << iota // or not at all
	unused                  // waits until no call uses it, too
	adopts                  // the sandbox of an earlier server is taken over before
	tries                   // as adopts, and goes on without
)

// errBusy is the error of own with atOnce when something else is being done with the session.
var errBusy = errors.New("something else is being done with the session")

// own does what changes a session's sandbox or its record. This is the one place where that is done one thing at a time, in
// the order of the callers, and never with a session that is removed. The error is that of do, or a fault.
func (s *Session) own(ctx context.Context, t turn, do func() error) error {
	if err := s.take(ctx, t); err != nil {
		return err
	}
	defer s.release()
	ended := false
	defer func() {
		if !ended { // a panic
			s.abandon()
		}
	}()
	err := s.ready(ctx, t)
	if err == nil {
		err = do()
	}
	ended = true
	return err
}

// take waits for the session's turn.
func (s *Session) take(ctx context.Context, t turn) error {
	if t&atOnce != 0 {
		if !s.lock.TryAcquire(1) {
			return errBusy
		}
		return nil
	}
	for deadline := time.Now().Add(idleTimeout); ; {
		if err := s.acquire(ctx); err != nil {
			return err
		}
		if t&unused == 0 || s.current().Calls == 0 {
			return nil
		}
		s.release()
		if time.Now().After(deadline) {
			return inUse(s.record().ID)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fault.From(ctx.Err())
		}
	}
}

// ready returns a fault for a session that is removed, and takes over what an earlier server has left of others.
func (s *Session) ready(ctx context.Context, t turn) error {
	if c := s.current(); c.removed() {
		return s.sessions.notFound(c.rec.Owner, c.rec.ID)
	}
	if t&(adopts|tries) == 0 {
		return nil
	}
	err := s.adopt(ctx)
	if err != nil && t&tries != 0 {
		s.sessions.Log.Error("could not take over a session's sandbox, which lives on", "session", s.record().ID, "error",
			err)
		return nil
	}
	return err
}

// abandon is called after a panic: a sandbox that stands still may go on, or not. Those that were being made are unmade's.
func (s *Session) abandon() {
	s.mu.Lock()
	frozen := s.cur.State == state.Freezing && s.on(state.StandsStill)
	s.mu.Unlock()
	if frozen {
		s.sessions.left.add() // Run takes it over
	}
}

// acquire waits for the session's lock.
func (s *Session) acquire(ctx context.Context) error {
	if err := s.lock.Acquire(ctx, 1); err != nil {
		return fault.From(err)
	}
	return nil
}

func (s *Session) release() { s.lock.Release(1) }
