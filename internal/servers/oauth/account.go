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

	storeMu sync.Mutex // held while the stored log-in is changed
	stored  *Login     // the log-in that is stored; nil: none, or one that an earlier process stored

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
	l := &Login{account: a, address: address, settings: known, client: client(), restored: a.replacing}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if err := l.initHandler(); err != nil {
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

// HasLogin reports whether the account has a log-in in memory.
func (a *Account) HasLogin() bool {
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

// EndLogin ends the current log-in and returns it. The stored log-in stays.
func (a *Account) EndLogin() *Login {
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
		a.current.cancelAttempt()
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
	a.DeleteStored(l)
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

// DeleteRolledBack removes the stored log-in if it is l, which RollBack returned.
func (a *Account) DeleteRolledBack(l *Login) {
	a.storeMu.Lock()
	defer a.storeMu.Unlock()
	if l != nil && a.stored == l {
		a.deleteStored(l)
	}
}

// DeleteStored removes the stored log-in, unless it is another one than l. It also removes one
// that an earlier process stored.
func (a *Account) DeleteStored(l *Login) {
	a.storeMu.Lock()
	defer a.storeMu.Unlock()
	a.deleteStored(l)
}

// deleteStored is DeleteStored; the caller holds storeMu.
func (a *Account) deleteStored(l *Login) {
	if a.logins.Store == nil || a.stored != nil && a.stored != l {
		return
	}
	a.stored = nil
	_ = a.logins.deleteStored(a.server.Owner.ID, a.server.Key) // it logs an error
}

// ServerAnswered is called when the server answers without asking for a log-in.
func (a *Account) ServerAnswered() {
	if l := a.Current(); l != nil {
		l.serverAnswered()
	}
}

// EndStuckLogin ends a log-in whose renewals have failed for Limits.StuckAfter, if one more
// renewal fails as well, so that the user can log in again.
func (a *Account) EndStuckLogin() {
	if l := a.Current(); l != nil {
		l.endIfStuck()
	}
}

// storedLogin is the stored form of a log-in, as JSON. All of it is secret.
type storedLogin struct {
	SettingsClientID string           `json:"setting,omitempty"` // the client id in the settings
	Issuer           string           `json:"issuer,omitempty"`  // the issuer in the settings
	ClientID         string           `json:"client"`            // the client id that the token was issued to
	ClientSecret     string           `json:"secret,omitempty"`  // the client's secret, unless the settings have it
	AuthStyle        oauth2.AuthStyle `json:"style,omitempty"`
	TokenURL         string           `json:"url"` // of the token endpoint
	Scopes           []string         `json:"scopes,omitempty"`
	AccessToken      string           `json:"access"`
	RefreshToken     string           `json:"refresh,omitempty"`
	TokenType        string           `json:"type,omitempty"`
	Expiry           time.Time        `json:"expiry,omitzero"`
}

// save stores t, the token that a renewal of source brought, unless the log-in has another
// token source by now. used is the refresh token that was exchanged for t.
func (l *Login) save(source *tokenSource, t *oauth2.Token, used string) {
	l.account.storeMu.Lock()
	defer l.account.storeMu.Unlock()
	if l.currentSource() == source {
		l.store(source, t, used)
	}
}

// retrySave calls save again after Limits.StoreRetry. It is called when t could not be
// stored, and the stored token, whose refresh token was used up, could not be removed.
func (l *Login) retrySave(source *tokenSource, t *oauth2.Token, used string) {
	l.account.logins.Spawn(func(serverCtx context.Context) {
		select {
		case <-serverCtx.Done():
			return
		case <-l.ctx.Done():
			return
		case <-time.After(l.account.logins.Limits.StoreRetry):
		}
		source.mu.Lock()
		isLast := source.token == t
		source.mu.Unlock()
		if isLast {
			l.save(source, t, used)
		}
	})
}

// endSource removes a token source that cannot be renewed any more, and the stored log-in.
func (l *Login) endSource(source *tokenSource) {
	a := l.account
	a.storeMu.Lock()
	defer a.storeMu.Unlock()
	a.mu.Lock()
	inUse := a.current == l || a.previous == l
	a.mu.Unlock()
	l.mu.Lock()
	isLast := l.source == source
	if isLast {
		l.source = nil
	}
	l.mu.Unlock()
	if inUse && isLast {
		a.deleteStored(l)
	}
}

// store stores the log-in with the token t, which was exchanged for the refresh token
// used. If that fails, t is only in memory, and store removes the stored token if it was
// used up: authorization servers revoke a log-in whose refresh token is used twice. The
// caller holds Account.storeMu.
func (l *Login) store(source *tokenSource, t *oauth2.Token, used string) {
	a, logins := l.account, l.account.logins
	a.mu.Lock()
	inUse := !a.closed && (a.current == l || a.previous == l && (a.stored == nil || a.stored == l))
	storedByOther := a.stored != nil && a.stored != l || a.stored == nil && a.replacing // the stored log-in
	a.mu.Unlock()
	if !inUse || logins.Store == nil {
		return
	}
	r := storedLogin{SettingsClientID: l.settings.ClientID, Issuer: l.settings.Issuer, ClientID: source.cfg.ClientID,
		AuthStyle: source.cfg.Endpoint.AuthStyle, TokenURL: source.cfg.Endpoint.TokenURL, Scopes: source.scopes,
		AccessToken: t.AccessToken, RefreshToken: t.RefreshToken, TokenType: t.TokenType, Expiry: t.Expiry}
	if l.settings.ClientID == "" {
		r.ClientSecret = source.cfg.ClientSecret
	}
	text, err := json.Marshal(r)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), StoreTimeout)
		defer cancel()
		err = logins.Store.Save(ctx, a.server.Owner.ID, a.server.Key, l.address, secret.Value(text))
	}
	if err == nil {
		a.stored = l
		return
	}
	if !storedByOther && (used == "" || t.RefreshToken != used) {
		if logins.deleteStored(a.server.Owner.ID, a.server.Key) == nil {
			a.stored = nil
		} else {
			l.retrySave(source, t, used)
		}
	}
	switch {
	case fault.Is(err, fault.Configuration):
		logins.warnMemory.Do(func() {
			logins.Log.Warn("log-ins at third-party MCP servers are kept in memory alone, and are needed again after "+
				"a restart", "why", err, "error", errors.Unwrap(err))
		})
	default:
		logins.Log.Error("could not store a log-in; it is in memory alone, and is needed again after a restart",
			"owner",
			a.server.Owner.ID, "connection", a.server.ID, "error", err)
	}
}

// restore loads the log-in that an earlier process stored. It does that once.
func (l *Login) restore(ctx context.Context) error {
	l.restoreMu.Lock()
	defer l.restoreMu.Unlock()
	a, logins := l.account, l.account.logins
	if l.restored || logins.Store == nil {
		return nil
	}
	text, err := logins.Store.Load(ctx, a.server.Owner.ID, a.server.Key, l.address)
	if err != nil && !fault.Is(err, fault.Configuration) {
		return fmt.Errorf("reading a stored log-in: %w", err)
	}
	l.restored = true
	if err != nil {
		logins.warnUnread.Do(func() {
			logins.Log.Warn("a log-in at a third-party MCP server is needed again, as all are that were stored like it",
				"owner", a.server.Owner.ID, "connection", a.server.ID, "why", err, "error", errors.Unwrap(err))
		})
		return nil
	}
	var r storedLogin
	if text == "" || json.Unmarshal([]byte(text.Reveal()), &r) != nil || r.SettingsClientID != l.settings.ClientID ||
		r.Issuer != l.settings.Issuer {
		return nil
	}
	if r.SettingsClientID != "" && r.Issuer != "" {
		r.ClientSecret = l.settings.ClientSecret
	}
	source := &tokenSource{login: l, restored: true, scopes: r.Scopes,
		cfg: &oauth2.Config{ClientID: r.ClientID, ClientSecret: r.ClientSecret,
			Endpoint: oauth2.Endpoint{TokenURL: r.TokenURL, AuthStyle: r.AuthStyle}},
		token: &oauth2.Token{AccessToken: r.AccessToken, RefreshToken: r.RefreshToken, TokenType: r.TokenType,
			Expiry: r.Expiry}}
	a.storeMu.Lock()
	defer a.storeMu.Unlock()
	a.mu.Lock()
	inUse := a.current == l && !a.closed
	a.mu.Unlock()
	if !inUse {
		return nil
	}
	a.stored = l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.source == nil {
		l.source = source
	}
	return nil
}
