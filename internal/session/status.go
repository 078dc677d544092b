package session

import (
	"errors"
	"fmt"

	"sandlot/internal/fault"
	"sandlot/internal/pool"
	"sandlot/internal/session/state"
)

// on changes the session's state after an event, and reports whether the table of package state lets it. The caller
// holds mu, and the session's lock but for the end of a sandbox that is live.
func (s *Session) on(e state.Event) bool {
	next, _, err := state.Next(s.cur.Status, e)
	if e.EndsPrograms() {
		s.cur.life++
	}
	if s.cur.Status = next; next.State != state.Live {
		s.cur.booted = nil
	}
	if err != nil && !errors.Is(err, state.ErrRemoved) { // what ends after its removal changes nothing
		s.sessions.unexpected(s.cur.rec.ID, err)
	}
	return err == nil
}

// note is on for a caller that does not hold mu.
func (s *Session) note(e state.Event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on(e)
}

// begin is note for Needed, where a sandbox is about to be made. After an error it must not be.
func (s *Session) begin() error {
	if c := s.current(); !s.note(state.Needed) {
		return fault.New(fault.Internal, "a sandbox cannot be made for a session that is %s", c.State)
	}
	return nil
}

// live is on for an event that gives the session a sandbox.
func (s *Session) live(e state.Event, b *pool.Booted) bool {
	allowed := s.on(e)
	if allowed {
		s.cur.booted = b
	}
	return allowed
}

// unwanted ends a sandbox that was made for the session, which is removed, or in a state that has none.
func (s *Session) unwanted(b *pool.Booted) error {
	if err := b.Destroy(); err != nil {
		s.sessions.Log.Error("could not remove a sandbox", "sandbox", b.ID, "error", err)
		s.sessions.left.add(s.sessions.boxOf(Record{Runtime: s.record().Runtime, Sandbox: b.ID}))
	}
	c := s.current()
	if c.removed() {
		return s.sessions.notFound(c.rec.Owner, c.rec.ID)
	}
	return fault.New(fault.Internal, "a sandbox was made for a session that is %s", c.State)
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
	if _, known := s.logged.LoadOrStore(err.Error(), true); !known {
		s.Log.Warn("something has happened to a session that is not in the table of its states", "session", id, "error",
			err)
	}
}
