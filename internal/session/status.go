package session

import (
	"errors"
	"fmt"

	"sandlot/internal/session/state"
)

// on reports an event to the table of states, once the flags say the same. The caller holds mu.
func (s *Session) on(e state.Event) {
	next, _, err := state.Next(s.cur.status, e)
	s.cur.status = next
	switch {
	case errors.Is(err, state.ErrRemoved): // what ends after that changes nothing
		return
	case err == nil && e != state.Leased && e != state.Released:
		err = s.cur.agrees(e)
	}
	if err != nil {
		s.sessions.unexpected(s.cur.rec.ID, err)
	}
}

// agrees returns an error if the flags and the record are not those of the state that an event led to.
func (c *current) agrees(e state.Event) error {
	is := c.status.State
	if is == state.Removed {
		return nil
	}
	type flags struct{ booted, booting, freezing, waiting, stopPending, imageStays, adopted, image bool }
	have := flags{c.booted != nil, c.booting, c.freezing, c.waiting, c.stopPending, c.imageStays,
		c.booted != nil && c.booted == c.adopted, c.rec.Image != ""}
	want := flags{is == state.Live, is.Makes(), is == state.Freezing, is.Untaken(), is.Ends(), is == state.Clearing,
		is == state.Live && c.status.Adopted, is == state.Asleep}
	if is == state.Booting || is.Untaken() || is == state.Waking {
		want.image = have.image
	}
	if have != want {
		return fmt.Errorf("%s led to %s, but the flags are %+v", e, is, have)
	}
	return nil
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
