package servers

import (
	"context"
	"fmt"

	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// loginKey returns the key of the server's log-in in the store. For a configured server it is the name:
// the id may be another one after a restart. The "=" distinguishes it from the ids of other servers.
func (s *server) loginKey() string {
	if s.Configured {
		return "=" + s.Name
	}
	return s.ID
}

// LoginNeeded implements oauth.Events.
func (s *server) LoginNeeded(ctx context.Context, l *oauth.Login, link string) bool {
	s.mu.Lock()
	if s.account.Current() != l || s.Removed || ctx.Err() != nil { // the definition has changed since
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
	if s.account.Current() != l || s.AuthURL != link { // the log-in was dropped
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

// forgetLogin ends the server's log-in, and deletes its tokens from the store.
func (s *server) forgetLogin() { s.account.DeleteStored(s.dropLogin()) }

// dropLogin ends the server's log-in. Its tokens stay in the store.
func (s *server) dropLogin() *oauth.Login {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on(state.LoginDropped)
	return s.account.EndLogin()
}

// beginReplace sets the log-in aside while the server gets another definition. Commit of the account
// deletes it, and rollBack restores it.
func (s *server) beginReplace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.account.BeginReplace()
	s.on(state.LoginDropped)
}

// rollBack restores the log-in l of the previous definition.
func (s *server) rollBack(l *oauth.Login) {
	link := ""
	if l != nil {
		link = l.Link() // also if adopt failed before beginReplace
	}
	s.mu.Lock()
	discarded := s.account.RollBack(l)
	s.apply(state.Event{What: state.LoginBack, Link: link})
	s.mu.Unlock()
	s.account.DeleteRolledBack(discarded)
}
