package session

import (
	"errors"
	"fmt"

	"sandlot/internal/pool"
	"sandlot/internal/session/state"
)

// on changes the session's state after an event, and reports whether the table of package state lets it. The caller
// holds mu, and the session's lock but for the end of a sandbox that is live.
func (s *Session) on(e state.Event) bool {
	next, _, err := state.Next(s.cur.Status, e)
	if s.cur.Status = next; next.State != state.Live {
		s.cur.booted = nil
	}
	if err != nil && !errors.Is(err, state.ErrRemoved) { // what ends after its removal changes nothing
		s.sessions.unexpected(s.cur.rec.ID, err)
	}
	return err == nil
}

// note is on for a caller that does not hold mu.
func (s *Session) note(e state.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on(e)
}

// live is on for an event that gives the session a sandbox.
func (s *Session) live(e state.Event, b *pool.Booted) {
	if s.on(e) {
		s.cur.booted = b
	}
}

// may reports whether the table of package state lets an event change the session's state. The caller holds mu.
func (s *Session) may(e state.Event) bool {
	_, _, err := state.Next(s.cur.Status, e)
	return err == nil
}

// unexpected reports something that package state does not have.
func (s *Sessions) unexpected(id string, err error) {
	if s.Unexpected != nil {
		s.Unexpected(fmt.Errorf("session %s: %w", id, err))
		return
	}
	s.unexpectedOnce.Do(func() {
		s.Log.Warn("something has happened to a session that is not in the table of its states", "session", id, "error",
			err)
	})
}
