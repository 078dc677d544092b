package servers

import (
	"context"
	"fmt"

	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// loginKey is under which name a server's log-in is stored. Users' connections
// have ids without "=", and those of the operator's servers may change.
func (s *server) loginKey() string {
	if s.Configured {
		return "=" + s.Name
	}
	return s.ID
}

// LoginNeeded implements oauth.Events.
func (s *server) LoginNeeded(ctx context.Context, l *oauth.Login, link string) bool {
	s.mu.Lock()
	if s.account.Current() != l || s.Removed || ctx.Err() != nil { // what runs under that name is another server by now
		s.mu.Unlock()
		return false
	}
	s.apply(state.Event{What: state.AsksLogin, Link: link, Why: oauth.ErrLoginNeeded.Error()})
	s.mu.Unlock()
	s.Changed()
	return true
}

// LoginEnded implements oauth.Events: it starts the server when a log-in is done.
func (s *server) LoginEnded(l *oauth.Login, link string, err error) {
	s.mu.Lock()
	if s.account.Current() != l || s.AuthURL != link { // it was given up
		s.mu.Unlock()
		return
	}
	e := state.Event{What: state.LoggedIn, Running: s.instance != nil}
	if err != nil {
		e.What, e.Why = state.LoginFailed, fmt.Sprintf("the log-in failed: %s", spec.SafeText(err.Error(), 300))
	}
	s.apply(e)
	s.mu.Unlock()
	s.Changed()
}

// forgetLogin gives up the server's log-in, and what it brought: what runs under
// that name is another one, or gone.
func (s *server) forgetLogin() { s.account.DeleteStored(s.dropLogin()) }

// dropLogin gives up the log-in, but for what is stored of it.
func (s *server) dropLogin() *oauth.Login {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on(state.LoginDropped)
	return s.account.EndLogin()
}

// beginReplace takes the log-in from a server that becomes another one.
func (s *server) beginReplace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.account.BeginReplace()
	s.on(state.LoginDropped)
}

// rollBack ends what beginReplace began, as if it had not: l is the log-in that
// there was.
func (s *server) rollBack(l *oauth.Login) {
	link := ""
	if l != nil {
		link = l.Link() // it may not have come to beginReplace
	}
	s.mu.Lock()
	discarded := s.account.RollBack(l)
	s.apply(state.Event{What: state.LoginBack, Link: link})
	s.mu.Unlock()
	s.account.DeleteRolledBack(discarded)
}
