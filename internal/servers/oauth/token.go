package oauth

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
)

// tokenSource holds the token of a log-in, and renews it. It implements
// oauth2.TokenSource.
type tokenSource struct {
	login    *Login
	cfg      *oauth2.Config
	scopes   []string // that were granted
	restored bool     // an earlier process stored it

	mu           sync.Mutex
	token        *oauth2.Token
	renewal      *renewal  // nil: none is in progress
	failingSince time.Time // since when all renewals have failed; zero: the last one worked
}

// renewal is one attempt to renew a token, for which any number of calls wait.
type renewal struct {
	done  chan struct{}
	token *oauth2.Token
	err   error
}

// Token implements oauth2.TokenSource. If a token has expired and has no refresh token, it
// returns the expired token, which the server will refuse.
func (s *tokenSource) Token() (*oauth2.Token, error) {
	s.mu.Lock()
	if t := s.token; t.Valid() || t.RefreshToken == "" {
		s.mu.Unlock()
		return t, nil
	}
	r := s.startRenewal()
	s.mu.Unlock()
	if err := r.wait(s.login.limits().WaitTimeout); err != nil {
		return nil, err
	}
	return r.token, nil
}

// wait waits for the end of the renewal, for at most limit.
func (r *renewal) wait(limit time.Duration) error {
	select {
	case <-r.done:
		return r.err
	case <-time.After(limit):
		return safeError("the authorization server takes long to renew the log-in; try again later")
	}
}

// startRenewal starts a renewal, unless one is in progress, and returns it. The caller
// holds mu.
func (s *tokenSource) startRenewal() *renewal {
	if s.renewal != nil {
		return s.renewal
	}
	r, old := &renewal{done: make(chan struct{})}, s.token
	s.renewal = r
	// Neither the end of the calls that wait nor that of Sandlot's server cancels the
	// renewal: the authorization server may have replaced the old token already.
	if !s.login.account.logins.Spawn(func(serverCtx context.Context) { s.renew(serverCtx, r, old) }) {
		s.renewal, r.err = nil, errors.New("the server is stopping")
		close(r.done)
	}
	return r
}

// renew exchanges an old token for a new one, and stores that before it is used. After
// serverCtx ends, it has Limits.WaitTimeout left.
func (s *tokenSource) renew(serverCtx context.Context, r *renewal, old *oauth2.Token) {
	ctx, cancel := context.WithTimeout(context.Background(), s.login.limits().RenewTimeout)
	defer cancel()
	defer context.AfterFunc(serverCtx, func() { time.AfterFunc(s.login.limits().WaitTimeout, cancel) })()
	c := *s.login.client
	// A redirect could send the refresh token to another server.
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t, err := s.cfg.TokenSource(context.WithValue(ctx, oauth2.HTTPClient, &c),
		&oauth2.Token{RefreshToken: old.RefreshToken}).Token()
	if err == nil {
		s.login.save(s, t, old.RefreshToken)
	}
	s.mu.Lock()
	s.renewal = nil
	switch {
	case err == nil:
		s.token, s.failingSince = t, time.Time{}
	case s.failingSince.IsZero():
		s.failingSince = time.Now()
	}
	s.mu.Unlock()
	if err = redactToken(err); isFinal(err) {
		s.login.endSource(s)
	}
	r.token, r.err = t, err
	close(r.done)
}

// limits returns the timeouts of renewals.
func (l *Login) limits() Limits { return l.account.logins.Limits }

// endIfStuck is Account.EndStuckLogin for the log-in.
func (l *Login) endIfStuck() {
	source := l.currentSource()
	if source == nil {
		return
	}
	source.mu.Lock()
	if source.failingSince.IsZero() || time.Since(source.failingSince) < l.limits().StuckAfter {
		source.mu.Unlock()
		return
	}
	r := source.startRenewal()
	source.mu.Unlock()
	if r.wait(l.limits().WaitTimeout) != nil {
		l.endSource(source)
	}
}

// Renew renews a token that the server refused although it had not expired, and reports
// whether there is a new one. It does so at most once until the server accepts a token. If
// it returns false without an error, the user has to log in; an error means that a later
// renewal may work.
func (l *Login) Renew() (bool, error) {
	l.mu.Lock()
	source, renewed := l.source, l.renewed
	l.mu.Unlock()
	if source == nil {
		return false, nil
	}
	source.mu.Lock()
	if source.token.RefreshToken == "" || renewed && source.renewal == nil {
		source.mu.Unlock()
		return false, nil
	}
	r := source.startRenewal()
	source.mu.Unlock()
	var refused *tokenRefusal
	switch err := r.wait(l.limits().WaitTimeout); {
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

// newTokenSource makes the token source after a log-in. The token is stored before it is used.
func (l *Login) newTokenSource(_ context.Context, cfg *oauth2.Config, t *oauth2.Token) (oauth2.TokenSource, error) {
	source := &tokenSource{login: l, cfg: cfg, scopes: cfg.Scopes, token: t}
	if granted, ok := t.Extra("scope").(string); ok {
		source.scopes = strings.Fields(granted)
	}
	l.account.storeMu.Lock()
	defer l.account.storeMu.Unlock()
	l.store(source, t, "")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.source = source
	return source, nil
}
