package servers

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	sdk "github.com/modelcontextprotocol/go-sdk/auth"

	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/spec"
)

// loginKey is under which name a server's log-in is stored. Users' connections
// have ids without "=", and those of the operator's servers may change.
func (s *server) loginKey() string {
	if s.configured {
		return "=" + s.name
	}
	return s.id
}

// login returns how the server's user logs in, or nil when they cannot.
func (b *Servers) login(s *server, settings spec.Configured) sdk.OAuthHandler {
	return s.account.Handler(settings.URL, settings.OAuth, func() *http.Client { return b.client(s, settings) })
}

// Asked implements oauth.Events.
func (s *server) Asked(ctx context.Context, l *oauth.Login, link string) bool {
	s.mu.Lock()
	if s.account.Current() != l || s.removed || ctx.Err() != nil { // what runs under that name is another server by now
		s.mu.Unlock()
		return false
	}
	s.on(event{what: asksLogin, link: link, why: oauth.ErrAsked.Error()})
	s.mu.Unlock()
	s.book.changed(s.owner.ID)
	return true
}

// Ended implements oauth.Events: it starts the server when a log-in is done.
func (s *server) Ended(l *oauth.Login, link string, err error) {
	s.mu.Lock()
	if s.account.Current() != l || s.authURL != link { // it was given up
		s.mu.Unlock()
		return
	}
	e := event{what: loggedIn, running: s.instance != nil}
	if err != nil {
		e.what, e.why = loginFailed, fmt.Sprintf("the log-in failed: %s", spec.Text(err.Error(), 300))
	}
	s.on(e)
	s.mu.Unlock()
	s.book.changed(s.owner.ID)
}

// forgetLogin gives up the server's log-in, and what it brought: what runs under
// that name is another one, or gone.
func (s *server) forgetLogin() { s.account.Unstore(s.dropLogin()) }

// dropLogin gives up the log-in, but for what is stored of it.
func (s *server) dropLogin() *oauth.Login {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on(event{what: loginDropped})
	return s.account.Drop()
}

// beginReplace takes the log-in from a server that becomes another one.
func (s *server) beginReplace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.account.BeginReplace()
	s.on(event{what: loginDropped})
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
	s.on(event{what: loginBack, link: link})
	s.mu.Unlock()
	s.account.Discard(discarded)
}

// ConsentPage returns what the page says that the link to log in with that id leads
// to; see oauth.Logins.
func (b *Servers) ConsentPage(id string, cookies []string) (oauth.ConsentPage, error) {
	return b.logins.ConsentPage(id, cookies)
}

// Redirect returns where the user logs in, when the browser has shown them what
// for; see oauth.Logins.
func (b *Servers) Redirect(id string, cookies []string, proof string) (string, error) {
	return b.logins.Redirect(id, cookies, proof)
}

// Returned is called when a browser comes back from a log-in; see oauth.Logins.
func (b *Servers) Returned(query url.Values, cookies func(id string) []string) (string, error) {
	return b.logins.Returned(query, cookies)
}
