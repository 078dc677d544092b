package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// Logins keep what log-ins brought, so that it can be read for the same owner,
// connection and address alone.
type Logins interface {
	// Keep stores it, in the place of what was there for that connection. It
	// returns when that cannot be lost any more. A fault of the kind Configuration
	// says that it cannot be sealed.
	Keep(ctx context.Context, owner, connection, address string, login secret.Value) error
	// Kept returns it; empty: there is none. A fault of the kind Configuration says
	// that what is there cannot be read.
	Kept(ctx context.Context, owner, connection, address string) (secret.Value, error)
	// Forget removes it, if it is there.
	Forget(ctx context.Context, owner, connection string) error
	// All lists owner and connection of all that are there.
	All(ctx context.Context) ([][2]string, error)
}

const storeLimit = 10 * time.Second

// Time limits of renewals, which tests shorten.
var (
	renewLimit = 2 * time.Minute  // for a new token, whoever waits for it
	renewWait  = 15 * time.Second // for those who wait, and after the end of the server
	storeAgain = time.Minute      // until what could not be stored is stored again
	stuckAfter = 10 * time.Minute // without a renewal that works, a restart gives the log-in up
)

// keptLogin is what is stored of a log-in: all that is needed to renew it. It is
// secret as a whole.
type keptLogin struct {
	Setting string           `json:"setting,omitempty"` // the settings' client id
	Issuer  string           `json:"issuer,omitempty"`  // and its issuer
	Client  string           `json:"client"`            // as which Sandlot is registered
	Secret  string           `json:"secret,omitempty"`  // unless the settings have it
	Style   oauth2.AuthStyle `json:"style,omitempty"`
	URL     string           `json:"url"` // of tokens, at the authorization server
	Scopes  []string         `json:"scopes,omitempty"`
	Access  string           `json:"access"`
	Refresh string           `json:"refresh,omitempty"`
	Type    string           `json:"type,omitempty"`
	Expiry  time.Time        `json:"expiry,omitzero"`
}

// loginKey is under which name a server's log-in is stored. Users' connections
// have ids without "=", and those of the operator's servers may change.
func (s *server) loginKey() string {
	if s.configured {
		return "=" + s.name
	}
	return s.id
}

// source is what one log-in brought. It renews its token, one time after the
// other. It implements oauth2.TokenSource.
type source struct {
	l       *login
	cfg     *oauth2.Config
	scopes  []string // that were granted
	earlier bool     // an earlier server of ours got it

	mu      sync.Mutex
	token   *oauth2.Token
	renewal *renewal  // that is on its way
	failing time.Time // since when none has worked; zero: the last one has
}

// renewal is one attempt to renew a token, for which any number of calls wait.
type renewal struct {
	done  chan struct{}
	token *oauth2.Token
	err   error
}

// Token implements oauth2.TokenSource. A token that is too old and cannot be
// renewed is for the server to refuse.
func (k *source) Token() (*oauth2.Token, error) {
	k.mu.Lock()
	if t := k.token; t.Valid() || t.RefreshToken == "" {
		k.mu.Unlock()
		return t, nil
	}
	r := k.begin()
	k.mu.Unlock()
	if err := r.wait(); err != nil {
		return nil, err
	}
	return r.token, nil
}

// wait waits for the renewal, but not for as long as it may take.
func (r *renewal) wait() error {
	select {
	case <-r.done:
		return r.err
	case <-time.After(renewWait):
		return ours("the authorization server takes long to renew the log-in; try again later")
	}
}

// begin begins to renew the token, unless that is on its way. The lock is held.
func (k *source) begin() *renewal {
	if k.renewal != nil {
		return k.renewal
	}
	r, old := &renewal{done: make(chan struct{})}, k.token
	k.renewal = r
	// Neither who waits nor the end of the server breaks it off: the authorization
	// server may have given a new token for the old one by then.
	if !k.l.s.book.spawn(func(life context.Context) { k.renew(life, r, old) }) {
		k.renewal, r.err = nil, errors.New("the server is stopping")
		close(r.done)
	}
	return r
}

// renew gets a new token for an old one, and stores it before anyone uses it.
// When life ends it has a little time left.
func (k *source) renew(life context.Context, r *renewal, old *oauth2.Token) {
	ctx, cancel := context.WithTimeout(context.Background(), renewLimit)
	defer cancel()
	defer context.AfterFunc(life, func() { time.AfterFunc(renewWait, cancel) })()
	c := *k.l.client
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // tokens go where they belong
	t, err := k.cfg.TokenSource(context.WithValue(ctx, oauth2.HTTPClient, &c), &oauth2.Token{RefreshToken: old.RefreshToken}).Token()
	if err == nil {
		k.l.keep(k, t, old.RefreshToken)
	}
	k.mu.Lock()
	k.renewal = nil
	switch {
	case err == nil:
		k.token, k.failing = t, time.Time{}
	case k.failing.IsZero():
		k.failing = time.Now()
	}
	k.mu.Unlock()
	if err = told(err); final(err) {
		k.l.over(k)
	}
	r.token, r.err = t, err
	close(r.done)
}

// unstick gives up what could not be renewed for long, and cannot be now, so that
// its user logs in anew.
func (l *login) unstick() {
	k := l.current()
	if k == nil {
		return
	}
	k.mu.Lock()
	if k.failing.IsZero() || time.Since(k.failing) < stuckAfter {
		k.mu.Unlock()
		return
	}
	r := k.begin()
	k.mu.Unlock()
	if r.wait() != nil {
		l.over(k)
	}
}

// renew has the token renewed that a server refused although it should be good,
// and says whether there is a new one. It does that once, until the server does
// what it is asked to again: then its user has to log in, as when the token is
// refused with a code that says why. An error means that it may go on, but not now.
func (l *login) renew() (bool, error) {
	l.mu.Lock()
	k, renewed := l.source, l.renewed
	l.mu.Unlock()
	if k == nil {
		return false, nil
	}
	k.mu.Lock()
	if k.token.RefreshToken == "" || renewed && k.renewal == nil {
		k.mu.Unlock()
		return false, nil
	}
	r := k.begin()
	k.mu.Unlock()
	var refused *tokenRefusal
	switch err := r.wait(); {
	case err == nil:
		l.mu.Lock()
		l.renewed = true
		l.mu.Unlock()
		return true, nil
	case errors.As(err, &refused) && refused.code != "":
		return false, nil
	default:
		return false, err
	}
}

// brought takes what a log-in has brought. It is stored before it is used.
func (l *login) brought(_ context.Context, cfg *oauth2.Config, t *oauth2.Token) (oauth2.TokenSource, error) {
	k := &source{l: l, cfg: cfg, scopes: cfg.Scopes, token: t}
	if granted, ok := t.Extra("scope").(string); ok {
		k.scopes = strings.Fields(granted)
	}
	s := l.s
	s.keeping.Lock()
	defer s.keeping.Unlock()
	l.store(k, t, "")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.source = k
	return k, nil
}

// keep stores a token in the place of the one that k has, unless another log-in
// has taken k's place. Used is the refresh token for which it was given.
func (l *login) keep(k *source, t *oauth2.Token, used string) {
	l.s.keeping.Lock()
	defer l.s.keeping.Unlock()
	if l.current() == k {
		l.store(k, t, used)
	}
}

// keepLater is for a token that could neither be stored nor have what is stored
// removed, which is good for nothing any more.
func (l *login) keepLater(k *source, t *oauth2.Token, used string) {
	l.s.book.spawn(func(life context.Context) {
		select {
		case <-life.Done():
			return
		case <-l.ctx.Done():
			return
		case <-time.After(storeAgain):
		}
		k.mu.Lock()
		last := k.token == t
		k.mu.Unlock()
		if last {
			l.keep(k, t, used)
		}
	})
}

// over forgets what a log-in brought: it is good for nothing any more.
func (l *login) over(k *source) {
	s := l.s
	s.keeping.Lock()
	defer s.keeping.Unlock()
	s.mu.Lock()
	mine := s.auth == l || s.aside == l
	s.mu.Unlock()
	l.mu.Lock()
	last := l.source == k
	if last {
		l.source = nil
	}
	l.mu.Unlock()
	if mine && last {
		s.unstore(l)
	}
}

// store stores what k is with a token that was given for the refresh token used.
// Where that cannot be done it is in memory alone, and what is stored is removed
// if it is of no more use: a refresh token that comes a second time ends the
// log-in. The server's keeping is held.
func (l *login) store(k *source, t *oauth2.Token, used string) {
	s := l.s
	b := s.book
	s.mu.Lock()
	mine := !s.removed && (s.auth == l || s.aside == l && (s.kept == nil || s.kept == l))
	others := s.kept != nil && s.kept != l || s.kept == nil && s.anew // what is stored
	s.mu.Unlock()
	if !mine || b.Logins == nil {
		return
	}
	r := keptLogin{Setting: l.known.ClientID, Issuer: l.known.Issuer, Client: k.cfg.ClientID, Style: k.cfg.Endpoint.AuthStyle, URL: k.cfg.Endpoint.TokenURL, Scopes: k.scopes,
		Access: t.AccessToken, Refresh: t.RefreshToken, Type: t.TokenType, Expiry: t.Expiry}
	if l.known.ClientID == "" {
		r.Secret = k.cfg.ClientSecret
	}
	text, err := json.Marshal(r)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), storeLimit)
		defer cancel()
		err = b.Logins.Keep(ctx, s.owner.ID, s.loginKey(), l.address, secret.Value(text))
	}
	if err == nil {
		s.kept = l
		return
	}
	if !others && (used == "" || t.RefreshToken != used) {
		if b.forget(s.owner.ID, s.loginKey()) == nil {
			s.kept = nil
		} else {
			l.keepLater(k, t, used)
		}
	}
	switch {
	case fault.Is(err, fault.Configuration):
		b.memory.Do(func() {
			b.Log.Warn("log-ins at third-party MCP servers are kept in memory alone, and are needed again after a restart", "why", err, "error", errors.Unwrap(err))
		})
	default:
		b.Log.Error("could not store a log-in; it is in memory alone, and is needed again after a restart", "owner", s.owner.ID, "connection", s.id, "error", err)
	}
}

// restore takes up what an earlier server stored of the log-in, once.
func (l *login) restore(ctx context.Context) error {
	l.restoring.Lock()
	defer l.restoring.Unlock()
	b := l.s.book
	if l.restored || b.Logins == nil {
		return nil
	}
	text, err := b.Logins.Kept(ctx, l.s.owner.ID, l.s.loginKey(), l.address)
	if err != nil && !fault.Is(err, fault.Configuration) {
		return fmt.Errorf("reading a stored log-in: %w", err)
	}
	l.restored = true
	if err != nil {
		b.unread.Do(func() {
			b.Log.Warn("a log-in at a third-party MCP server is needed again, as all are that were stored like it", "owner", l.s.owner.ID, "connection", l.s.id, "why", err, "error", errors.Unwrap(err))
		})
		return nil
	}
	var r keptLogin
	if text == "" || json.Unmarshal([]byte(text.Reveal()), &r) != nil || r.Setting != l.known.ClientID || r.Issuer != l.known.Issuer {
		return nil
	}
	if r.Setting != "" && r.Issuer != "" {
		r.Secret = l.known.ClientSecret
	}
	k := &source{l: l, earlier: true, scopes: r.Scopes, cfg: &oauth2.Config{ClientID: r.Client, ClientSecret: r.Secret, Endpoint: oauth2.Endpoint{TokenURL: r.URL, AuthStyle: r.Style}},
		token: &oauth2.Token{AccessToken: r.Access, RefreshToken: r.Refresh, TokenType: r.Type, Expiry: r.Expiry}}
	l.s.keeping.Lock()
	defer l.s.keeping.Unlock()
	l.s.mu.Lock()
	mine := l.s.auth == l && !l.s.removed
	l.s.mu.Unlock()
	if !mine {
		return nil
	}
	l.s.kept = l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.source == nil {
		l.source = k
	}
	return nil
}

// forgetLogin gives up the server's log-in, and what it brought: what runs under
// that name is another one, or gone.
func (s *server) forgetLogin() { s.unkeep(s.dropLogin()) }

// dropLogin gives up the log-in, but for what is stored of it.
func (s *server) dropLogin() *login {
	s.mu.Lock()
	l := s.auth
	s.auth, s.authURL = nil, ""
	s.mu.Unlock()
	if l != nil {
		l.cancel()
	}
	return l
}

// unkeep removes what is stored of a log-in, unless another one is stored by now.
// Nil is one of an earlier server.
func (s *server) unkeep(l *login) {
	s.keeping.Lock()
	defer s.keeping.Unlock()
	s.unstore(l)
}

// unstore is unkeep for who holds keeping.
func (s *server) unstore(l *login) {
	if s.book.Logins == nil || s.kept != nil && s.kept != l {
		return
	}
	s.kept = nil
	s.book.forget(s.owner.ID, s.loginKey())
}

// forget removes what is stored of a log-in. An error is in the log.
func (b *Book) forget(owner, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), storeLimit)
	defer cancel()
	err := b.Logins.Forget(ctx, owner, key)
	if err != nil {
		b.Log.Error("could not remove a stored log-in", "owner", owner, "connection", key, "error", err)
	}
	return err
}

// setAside takes the log-in from a server that becomes another one. Until it is
// known whether that works, nothing of it is lost but a link to log in: whoever
// had that would log in at what is there no more.
func (s *server) setAside() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.auth != nil {
		s.auth.giveUp()
	}
	s.aside, s.auth, s.authURL, s.anew = s.auth, nil, "", true
}

// putBack ends what setAside began, as if it had not: l is the log-in that there
// was.
func (s *server) putBack(l *login) {
	link := ""
	if l != nil {
		link = l.link() // it may not have come to setAside
	}
	s.mu.Lock()
	var fresh *login
	for _, other := range []*login{s.auth, s.aside} {
		if other != nil && other != l {
			fresh = other
			fresh.cancel()
		}
	}
	s.auth, s.authURL, s.aside, s.anew = l, link, nil, false
	s.mu.Unlock()
	s.keeping.Lock()
	defer s.keeping.Unlock()
	if fresh != nil && s.kept == fresh {
		s.unstore(fresh)
	}
}

// settle ends what setAside began: the server is another one.
func (s *server) settle() {
	s.mu.Lock()
	l := s.aside
	s.aside, s.anew = nil, false
	s.mu.Unlock()
	if l != nil {
		l.cancel()
	}
	s.unkeep(l)
}

// strays removes stored log-ins at what is not there any more: those that gone
// says, of an owner and a key.
func (b *Book) strays(gone func(owner, key string) bool) {
	if b.Logins == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeLimit)
	defer cancel()
	all, err := b.Logins.All(ctx)
	if err != nil {
		b.Log.Error("could not read which log-ins are stored", "error", err)
		return
	}
	for _, l := range all {
		if _, known := auth.Known(l[0]); known && gone(l[0], l[1]) {
			b.forget(l[0], l[1])
		}
	}
}
