package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/auth"
	"golang.org/x/oauth2"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
	"sandlot/internal/servers/spec"
)

// Account has the log-ins of one server: the current one, that of the server which is
// being replaced, and which of them is stored. Its owner holds a lock of its own while
// it changes them, so that Events see one or the other.
type Account struct {
	logins *Logins
	server Server
	events Events

	saving sync.Mutex // held while the stored log-in changes
	saved  *Login     // the log-in that is stored; nil: one of an earlier program, or none

	mu        sync.Mutex
	current   *Login
	previous  *Login // of the server that is being replaced
	replacing bool   // the server is being replaced: the stored log-in may be the previous one's
	closed    bool   // nothing is stored any more
}

// Account returns the account of a server, without a log-in.
func (l *Logins) Account(s Server, e Events) *Account {
	return &Account{logins: l, server: s, events: e}
}

// Handler returns the log-in of the server at an address, or nil when there can be none.
// The client reaches the server and the authorization servers that it names.
func (a *Account) Handler(address string, known spec.OAuth, client func() *http.Client) sdk.OAuthHandler {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.logins.Callback == "" {
		return nil
	}
	if a.current != nil {
		return a.current
	}
	if known.ClientSecret != "" && known.Issuer == "" {
		a.logins.Log.Error("log-ins are not possible: a client's secret is sent to its issuer alone, and oauth_issuer "+
			"does not say which that is", "connection", a.server.ID)
		return nil
	}
	l := &Login{account: a, address: address, known: known, client: client(), restored: a.replacing}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if err := l.prepare(); err != nil {
		a.logins.Log.Error("log-ins are not possible", "connection", a.server.ID, "error", err)
		return nil
	}
	a.current = l
	return l
}

// Current returns the current log-in, or nil.
func (a *Account) Current() *Login {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current
}

// Held reports whether there is a log-in in memory.
func (a *Account) Held() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current != nil || a.previous != nil
}

// Close ends storing: the server is gone.
func (a *Account) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
}

// Drop ends the current log-in and returns it. What is stored of it stays.
func (a *Account) Drop() *Login {
	a.mu.Lock()
	l := a.current
	a.current = nil
	a.mu.Unlock()
	if l != nil {
		l.cancel()
	}
	return l
}

// BeginReplace makes the current log-in the previous one, as the server is replaced. Until
// Commit or RollBack nothing of it is lost but a link to log in, as that leads to the
// server that is replaced.
func (a *Account) BeginReplace() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current != nil {
		a.current.giveUp()
	}
	a.previous, a.current, a.replacing = a.current, nil, true
}

// Commit ends a replacement that worked: the previous log-in is removed.
func (a *Account) Commit() {
	a.mu.Lock()
	l := a.previous
	a.previous, a.replacing = nil, false
	a.mu.Unlock()
	if l != nil {
		l.cancel()
	}
	a.Unstore(l)
}

// RollBack ends a replacement that failed: l is the current log-in again. It returns the
// log-in that Discard is to be called with.
func (a *Account) RollBack(l *Login) (discarded *Login) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, other := range []*Login{a.current, a.previous} {
		if other != nil && other != l {
			discarded = other
			other.cancel()
		}
	}
	a.current, a.previous, a.replacing = l, nil, false
	return discarded
}

// Discard removes what is stored of a log-in that was rolled back.
func (a *Account) Discard(l *Login) {
	a.saving.Lock()
	defer a.saving.Unlock()
	if l != nil && a.saved == l {
		a.unstore(l)
	}
}

// Unstore removes what is stored of a log-in, unless another one is stored by now.
// Nil means a log-in of an earlier program.
func (a *Account) Unstore(l *Login) {
	a.saving.Lock()
	defer a.saving.Unlock()
	a.unstore(l)
}

// unstore is Unstore; its caller holds saving.
func (a *Account) unstore(l *Login) {
	if a.logins.Store == nil || a.saved != nil && a.saved != l {
		return
	}
	a.saved = nil
	_ = a.logins.forget(a.server.Owner.ID, a.server.Key) // an error is in the log
}

// Useful is called when the server answers without asking for a log-in.
func (a *Account) Useful() {
	if l := a.Current(); l != nil {
		l.useful()
	}
}

// Unstick ends a log-in that could not be renewed for Limits.Stuck, and cannot be renewed
// now, so that its user logs in again.
func (a *Account) Unstick() {
	if l := a.Current(); l != nil {
		l.unstick()
	}
}

// savedLogin is what is stored of a log-in, to renew it. All of it is secret.
type savedLogin struct {
	Setting string           `json:"setting,omitempty"` // the client id of the settings
	Issuer  string           `json:"issuer,omitempty"`  // the issuer of the settings
	Client  string           `json:"client"`            // the id of the client that is registered
	Secret  string           `json:"secret,omitempty"`  // its secret, unless the settings have it
	Style   oauth2.AuthStyle `json:"style,omitempty"`
	URL     string           `json:"url"` // of the token endpoint
	Scopes  []string         `json:"scopes,omitempty"`
	Access  string           `json:"access"`
	Refresh string           `json:"refresh,omitempty"`
	Type    string           `json:"type,omitempty"`
	Expiry  time.Time        `json:"expiry,omitzero"`
}

// save stores the token that follows k's, unless another log-in has replaced k. Used is
// the refresh token that was exchanged for it.
func (l *Login) save(k *tokenSource, t *oauth2.Token, used string) {
	l.account.saving.Lock()
	defer l.account.saving.Unlock()
	if l.current() == k {
		l.store(k, t, used)
	}
}

// saveLater saves a token again later, as neither it could be stored nor the one that is
// stored, and has been used up, be removed.
func (l *Login) saveLater(k *tokenSource, t *oauth2.Token, used string) {
	l.account.logins.Spawn(func(life context.Context) {
		select {
		case <-life.Done():
			return
		case <-l.ctx.Done():
			return
		case <-time.After(l.account.logins.Limits.Again):
		}
		k.mu.Lock()
		last := k.token == t
		k.mu.Unlock()
		if last {
			l.save(k, t, used)
		}
	})
}

// over removes a token source that cannot be renewed any more.
func (l *Login) over(k *tokenSource) {
	a := l.account
	a.saving.Lock()
	defer a.saving.Unlock()
	a.mu.Lock()
	mine := a.current == l || a.previous == l
	a.mu.Unlock()
	l.mu.Lock()
	last := l.source == k
	if last {
		l.source = nil
	}
	l.mu.Unlock()
	if mine && last {
		a.unstore(l)
	}
}

// store stores k with a token that was given for the refresh token used. When that fails,
// the token is in memory alone, and the stored one is removed if it was used up: a
// refresh token that comes a second time ends the log-in. The account's saving is held.
func (l *Login) store(k *tokenSource, t *oauth2.Token, used string) {
	a, all := l.account, l.account.logins
	a.mu.Lock()
	mine := !a.closed && (a.current == l || a.previous == l && (a.saved == nil || a.saved == l))
	others := a.saved != nil && a.saved != l || a.saved == nil && a.replacing // what is stored
	a.mu.Unlock()
	if !mine || all.Store == nil {
		return
	}
	r := savedLogin{Setting: l.known.ClientID, Issuer: l.known.Issuer, Client: k.cfg.ClientID,
		Style: k.cfg.Endpoint.AuthStyle, URL: k.cfg.Endpoint.TokenURL, Scopes: k.scopes,
		Access: t.AccessToken, Refresh: t.RefreshToken, Type: t.TokenType, Expiry: t.Expiry}
	if l.known.ClientID == "" {
		r.Secret = k.cfg.ClientSecret
	}
	text, err := json.Marshal(r)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), StoreLimit)
		defer cancel()
		err = all.Store.Save(ctx, a.server.Owner.ID, a.server.Key, l.address, secret.Value(text))
	}
	if err == nil {
		a.saved = l
		return
	}
	if !others && (used == "" || t.RefreshToken != used) {
		if all.forget(a.server.Owner.ID, a.server.Key) == nil {
			a.saved = nil
		} else {
			l.saveLater(k, t, used)
		}
	}
	switch {
	case fault.Is(err, fault.Configuration):
		all.memory.Do(func() {
			all.Log.Warn("log-ins at third-party MCP servers are kept in memory alone, and are needed again after "+
				"a restart", "why", err, "error", errors.Unwrap(err))
		})
	default:
		all.Log.Error("could not store a log-in; it is in memory alone, and is needed again after a restart", "owner",
			a.server.Owner.ID, "connection", a.server.ID, "error", err)
	}
}

// restore loads the log-in that an earlier program stored, once.
func (l *Login) restore(ctx context.Context) error {
	l.restoring.Lock()
	defer l.restoring.Unlock()
	a, all := l.account, l.account.logins
	if l.restored || all.Store == nil {
		return nil
	}
	text, err := all.Store.Load(ctx, a.server.Owner.ID, a.server.Key, l.address)
	if err != nil && !fault.Is(err, fault.Configuration) {
		return fmt.Errorf("reading a stored log-in: %w", err)
	}
	l.restored = true
	if err != nil {
		all.unread.Do(func() {
			all.Log.Warn("a log-in at a third-party MCP server is needed again, as all are that were stored like it",
				"owner", a.server.Owner.ID, "connection", a.server.ID, "why", err, "error", errors.Unwrap(err))
		})
		return nil
	}
	var r savedLogin
	if text == "" || json.Unmarshal([]byte(text.Reveal()), &r) != nil || r.Setting != l.known.ClientID ||
		r.Issuer != l.known.Issuer {
		return nil
	}
	if r.Setting != "" && r.Issuer != "" {
		r.Secret = l.known.ClientSecret
	}
	k := &tokenSource{l: l, earlier: true, scopes: r.Scopes,
		cfg: &oauth2.Config{ClientID: r.Client, ClientSecret: r.Secret,
			Endpoint: oauth2.Endpoint{TokenURL: r.URL, AuthStyle: r.Style}},
		token: &oauth2.Token{AccessToken: r.Access, RefreshToken: r.Refresh, TokenType: r.Type, Expiry: r.Expiry}}
	a.saving.Lock()
	defer a.saving.Unlock()
	a.mu.Lock()
	mine := a.current == l && !a.closed
	a.mu.Unlock()
	if !mine {
		return nil
	}
	a.saved = l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.source == nil {
		l.source = k
	}
	return nil
}
