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
	l       *Login
	cfg     *oauth2.Config
	scopes  []string // that were granted
	earlier bool     // an earlier process stored it

	mu      sync.Mutex
	token   *oauth2.Token
	renewal *renewal  // nil: none is in progress
	failing time.Time // since when all renewals have failed; zero: the last one worked
}

// renewal is one attempt to renew a token, for which any number of calls wait.
type renewal struct {
	done  chan struct{}
	token *oauth2.Token
	err   error
}

// Token implements oauth2.TokenSource. If a token has expired and has no refresh token, it
// returns the expired token, which the server will refuse.
func (k *tokenSource) Token() (*oauth2.Token, error) {
	k.mu.Lock()
	if t := k.token; t.Valid() || t.RefreshToken == "" {
		k.mu.Unlock()
		return t, nil
	}
	r := k.startRenewal()
	k.mu.Unlock()
	if err := r.wait(k.l.limits().Wait); err != nil {
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
func (k *tokenSource) startRenewal() *renewal {
	if k.renewal != nil {
		return k.renewal
	}
	r, old := &renewal{done: make(chan struct{})}, k.token
	k.renewal = r
	// Neither the end of the calls that wait nor that of Sandlot's server cancels the
	// renewal: the authorization server may have replaced the old token already.
	if !k.l.account.logins.Spawn(func(life context.Context) { k.renew(life, r, old) }) {
		k.renewal, r.err = nil, errors.New("the server is stopping")
		close(r.done)
	}
	return r
}

// renew exchanges an old token for a new one, and stores that before it is used. After
// serverCtx ends, it has Limits.WaitTimeout left.
func (k *tokenSource) renew(life context.Context, r *renewal, old *oauth2.Token) {
	ctx, cancel := context.WithTimeout(context.Background(), k.l.limits().Renew)
	defer cancel()
	defer context.AfterFunc(life, func() { time.AfterFunc(k.l.limits().Wait, cancel) })()
	c := *k.l.client
	// A redirect could send the refresh token to another server.
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t, err := k.cfg.TokenSource(context.WithValue(ctx, oauth2.HTTPClient, &c),
		&oauth2.Token{RefreshToken: old.RefreshToken}).Token()
	if err == nil {
		k.l.save(k, t, old.RefreshToken)
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
	if err = redactToken(err); final(err) {
		k.l.over(k)
	}
	r.token, r.err = t, err
	close(r.done)
}

// limits returns the timeouts of renewals.
func (l *Login) limits() Limits { return l.account.logins.Limits }

// unstick implements Account.Unstick.
func (l *Login) unstick() {
	k := l.current()
	if k == nil {
		return
	}
	k.mu.Lock()
	if k.failing.IsZero() || time.Since(k.failing) < l.limits().Stuck {
		k.mu.Unlock()
		return
	}
	r := k.startRenewal()
	k.mu.Unlock()
	if r.wait(l.limits().Wait) != nil {
		l.over(k)
	}
}

// Renew renews a token that the server refused although it had not expired, and reports
// whether there is a new one. It does so at most once until the server accepts a token. If
// it returns false without an error, the user has to log in; an error means that a later
// renewal may work.
func (l *Login) Renew() (bool, error) {
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
	r := k.startRenewal()
	k.mu.Unlock()
	var refused *tokenRefusal
	switch err := r.wait(l.limits().Wait); {
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

// brought makes the token source after a log-in. The token is stored before it is used.
func (l *Login) brought(_ context.Context, cfg *oauth2.Config, t *oauth2.Token) (oauth2.TokenSource, error) {
	k := &tokenSource{l: l, cfg: cfg, scopes: cfg.Scopes, token: t}
	if granted, ok := t.Extra("scope").(string); ok {
		k.scopes = strings.Fields(granted)
	}
	l.account.saving.Lock()
	defer l.account.saving.Unlock()
	l.store(k, t, "")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.source = k
	return k, nil
}
