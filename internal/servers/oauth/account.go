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

// Account has the log-ins of one server: the current one, and, while the server is being
// replaced, the previous one. It knows which of them is stored. Package servers holds a
// lock of its own when it replaces log-ins, so that its Events see a consistent state.
type Account struct {
	logins *Logins
	server Server
	events Events

	saving sync.Mutex // held while the stored log-in is changed
	saved  *Login     // the log-in that is stored; nil: none, or one that an earlier process stored

	mu        sync.Mutex
	current   *Login
	previous  *Login // the log-in from before BeginReplace
	replacing bool   // the server is being replaced: the stored log-in may be the previous one
	closed    bool   // nothing may be stored any more
}

// Account returns the account of a server, without a log-in.
func (l *Logins) Account(s Server, e Events) *Account {
	return &Account{logins: l, server: s, events: e}
}

// Handler returns the current log-in, as the OAuth handler for the server's URL, or makes
// one; nil: no log-in is possible. The HTTP client that client returns is used for
// requests to the server and its authorization servers.
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

// Held reports whether the account has a log-in in memory.
func (a *Account) Held() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current != nil || a.previous != nil
}

// Close prevents that log-ins are stored any more. It is called when the server is removed.
func (a *Account) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
}

// Drop ends the current log-in and returns it. The stored log-in stays.
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

// BeginReplace is called before the server is replaced: it makes the current log-in the
// previous one, which stays valid until Commit or RollBack. Only an attempt to log in ends,
// as its link is for the server that is being replaced.
func (a *Account) BeginReplace() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current != nil {
		a.current.giveUp()
	}
	a.previous, a.current, a.replacing = a.current, nil, true
}

// Commit ends a successful replacement: it removes the previous log-in.
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

// RollBack ends a failed replacement: l is the current log-in again. The caller has to
// call DeleteRolledBack with the log-in that RollBack returns.
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

// Discard removes the stored log-in if it is l, which RollBack returned.
func (a *Account) Discard(l *Login) {
	a.saving.Lock()
	defer a.saving.Unlock()
	if l != nil && a.saved == l {
		a.unstore(l)
	}
}

// Unstore removes the stored log-in, unless it is another one than l. It also removes one
// that an earlier process stored.
func (a *Account) Unstore(l *Login) {
	a.saving.Lock()
	defer a.saving.Unlock()
	a.unstore(l)
}

// unstore is DeleteStored; the caller holds storeMu.
func (a *Account) unstore(l *Login) {
	if a.logins.Store == nil || a.saved != nil && a.saved != l {
		return
	}
	a.saved = nil
	_ = a.logins.forget(a.server.Owner.ID, a.server.Key) // it logs an error
}

// Useful is called when the server answers without asking for a log-in.
func (a *Account) Useful() {
	if l := a.Current(); l != nil {
		l.useful()
	}
}

// Unstick ends a log-in whose renewals have failed for Limits.StuckAfter, if one more
// renewal fails as well, so that the user can log in again.
func (a *Account) Unstick() {
	if l := a.Current(); l != nil {
		l.unstick()
	}
}

// savedLogin is the stored form of a log-in, as JSON. All of it is secret.
type savedLogin struct {
	Setting string           `json:"setting,omitempty"` // the client id in the settings
	Issuer  string           `json:"issuer,omitempty"`  // the issuer in the settings
	Client  string           `json:"client"`            // the client id that the token was issued to
	Secret  string           `json:"secret,omitempty"`  // the client's secret, unless the settings have it
	Style   oauth2.AuthStyle `json:"style,omitempty"`
	URL     string           `json:"url"` // of the token endpoint
	Scopes  []string         `json:"scopes,omitempty"`
	Access  string           `json:"access"`
	Refresh string           `json:"refresh,omitempty"`
	Type    string           `json:"type,omitempty"`
	Expiry  time.Time        `json:"expiry,omitzero"`
}

// save stores t, the token that a renewal of source brought, unless the log-in has another
// token source by now. used is the refresh token that was exchanged for t.
func (l *Login) save(k *tokenSource, t *oauth2.Token, used string) {
	l.account.saving.Lock()
	defer l.account.saving.Unlock()
	if l.current() == k {
		l.store(k, t, used)
	}
}

// saveLater calls save again after Limits.StoreRetry. It is called when t could not be
// stored, and the stored token, whose refresh token was used up, could not be removed.
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

// over removes a token source that cannot be renewed any more, and the stored log-in.
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

// store stores the log-in with the token t, which was exchanged for the refresh token
// used. If that fails, t is only in memory, and store removes the stored token if it was
// used up: authorization servers revoke a log-in whose refresh token is used twice. The
// caller holds Account.storeMu.
func (l *Login) store(k *tokenSource, t *oauth2.Token, used string) {
	a, all := l.account, l.account.logins
	a.mu.Lock()
	mine := !a.closed && (a.current == l || a.previous == l && (a.saved == nil || a.saved == l))
	others := a.saved != nil && a.saved != l || a.saved == nil && a.replacing // the stored log-in
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

// restore loads the log-in that an earlier process stored. It does that once.
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
