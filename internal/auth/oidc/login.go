package oidc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// Client is this server as a client of an issuer. The zero value is none.
type Client struct {
	ID     string
	Secret secret.Value // empty: the client is public
	// Scopes are asked for beside openid. Some issuers give refresh tokens for "offline_access" alone.
	Scopes []string
}

const (
	// maxExchanges is how many requests to the token endpoint of one issuer are in progress at once.
	maxExchanges = 8
	// vouchedFor is how long an issuer vouches for a log-in at most, and renewAfter the time after which it is asked again
	// where that is possible, whatever its tokens say.
	vouchedFor, renewAfter = 24 * time.Hour, time.Hour
	// maxCode bounds the length of a code in bytes.
	maxCode = 4 << 10
)

// endpoints are an issuer's addresses for log-ins, and what it says about them.
type endpoints struct {
	Authorization string   `json:"authorization_endpoint"`
	Token         string   `json:"token_endpoint"`
	EndSession    string   `json:"end_session_endpoint"`
	AuthMethods   []string `json:"token_endpoint_auth_methods_supported"`
	NamesItself   bool     `json:"authorization_response_iss_parameter_supported"`
}

// Provider is an issuer at which users can log in in a browser.
type Provider struct {
	ID     string // a name for addresses, made of the issuer
	Issuer string
}

// Providers returns the issuers with a client, in the order of their ids.
func (v *Verifier) Providers() (all []Provider) {
	if v == nil {
		return nil
	}
	for _, i := range v.issuers {
		if i.Client.ID != "" {
			all = append(all, Provider{i.id, i.URL})
		}
	}
	slices.SortFunc(all, func(a, b Provider) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// Attempt is what a log-in remembers while its user is at the issuer. All of it is secret.
type Attempt struct {
	Provider string // the id of it
	Redirect string // where the issuer sends the browser back
	State    string
	Nonce    string
	Verifier string // of PKCE
}

// Response is what the browser brings back from an issuer.
type Response struct {
	Provider string // to whose address the browser was sent back
	Code     string
	State    string
	Issuer   string // RFC 9207; empty: not named
	Error    string
}

// provider returns the issuer with an id that has a client; nil: there is none.
func (v *Verifier) provider(id string) *issuer {
	if v == nil {
		return nil
	}
	for _, i := range v.issuers {
		if i.id == id && i.Client.ID != "" {
			return i
		}
	}
	return nil
}

// Begin returns a new attempt to log in, and the address at the issuer where it goes on.
func (v *Verifier) Begin(ctx context.Context, provider, redirect string) (Attempt, string, error) {
	i := v.provider(provider)
	if i == nil {
		return Attempt{}, "", fault.New(fault.NotFound, "there is no log-in at %q here", fault.Printable(provider, 100))
	}
	at, err := i.keys.addresses(ctx)
	if err != nil {
		return Attempt{}, "", i.silent(err)
	}
	a := Attempt{Provider: i.id, Redirect: redirect, State: secret.ID(), Nonce: secret.ID(),
		Verifier: oauth2.GenerateVerifier()}
	return a, i.client(at, redirect).AuthCodeURL(a.State, oauth2.S256ChallengeOption(a.Verifier),
		oauth2.SetAuthURLParam("nonce", a.Nonce)), nil
}

// client returns this server as a client of an issuer.
func (i *issuer) client(at endpoints, redirect string) *oauth2.Config {
	style := oauth2.AuthStyleInHeader
	if i.Client.Secret == "" || len(at.AuthMethods) > 0 && !slices.Contains(at.AuthMethods, "client_secret_basic") {
		style = oauth2.AuthStyleInParams
	}
	return &oauth2.Config{ClientID: i.Client.ID, ClientSecret: i.Client.Secret.Reveal(), RedirectURL: redirect,
		Scopes:   append([]string{"openid"}, slices.DeleteFunc(slices.Clone(i.Client.Scopes), isOpenID)...),
		Endpoint: oauth2.Endpoint{AuthURL: at.Authorization, TokenURL: at.Token, AuthStyle: style}}
}

func isOpenID(scope string) bool { return scope == "openid" }

// Session is a log-in for which an issuer vouches.
type Session struct {
	Claims auth.Claims // Expires is the time until which the issuer vouches

	verifier *Verifier
	issuer   *issuer
	refresh  secret.Value // the refresh token; empty: there is none
}

// Finish exchanges the code of a response to an attempt, once, and returns the session. The session has claims beside an
// error if it is known whose log-in was refused.
func (v *Verifier) Finish(ctx context.Context, a Attempt, r Response) (s Session, err error) {
	i := v.provider(a.Provider)
	switch {
	case i == nil:
		return s, refuse("the log-in is at an issuer that this server does not have any more")
	case a.State == "" || r.State != a.State:
		return s, refuse("this is not the answer to the log-in that this browser has begun: log in again")
	case r.Provider != i.id || r.Issuer != "" && r.Issuer != i.URL:
		return s, refuse("the answer to the log-in is of another issuer than %s: nothing was sent to it", i.URL)
	}
	at, err := i.keys.addresses(ctx)
	switch {
	case err != nil:
		return s, i.silent(err)
	case r.Issuer == "" && at.NamesItself:
		return s, refuse("the answer to the log-in does not name its issuer, as those of %s do", i.URL)
	case r.Error != "":
		return s, i.denied(r.Error)
	case r.Code == "" || len(r.Code) > maxCode:
		return s, refuse("the answer to the log-in has no code: log in again")
	}
	t, err := i.exchange(ctx, func(ctx context.Context) (*oauth2.Token, error) {
		return i.client(at, a.Redirect).Exchange(ctx, r.Code, oauth2.VerifierOption(a.Verifier))
	})
	if err != nil {
		return s, err
	}
	text, _ := t.Extra("id_token").(string)
	if text == "" {
		return s, fault.New(fault.Connection, "%s sent no ID token: its client %q must be one for OpenID Connect", i.URL,
			i.Client.ID)
	}
	s = Session{verifier: v, issuer: i, refresh: secret.Value(t.RefreshToken)}
	c, more, err := v.identify(ctx, i, text)
	if err != nil {
		return s, err
	}
	if nonce, _ := more["nonce"].(string); nonce != a.Nonce {
		return s, refuse("the ID token of %s is not of this log-in: its nonce is another one", i.URL)
	}
	s.Claims = s.bounded(c)
	return s, i.admit(more)
}

// identify returns the claims of an ID token that must be an issuer's, for its client.
func (v *Verifier) identify(ctx context.Context, i *issuer, text string) (auth.Claims, map[string]any, error) {
	if len(text) > maxToken {
		return auth.Claims{}, nil, refuse("the ID token of %s is longer than %d bytes", i.URL, maxToken)
	}
	of, c, more, err := v.open(ctx, text, idToken)
	if err != nil {
		return auth.Claims{}, nil, err
	}
	party, given := more["azp"]
	switch {
	case of != i:
		return auth.Claims{}, nil, refuse("%s sent an ID token of another issuer", i.URL)
	case !slices.Contains(c.Audience, i.Client.ID),
		given && party != i.Client.ID, !given && len(c.Audience) > 1:
		return auth.Claims{}, nil, refuse("the ID token of %s is for another client than %q", i.URL, i.Client.ID)
	}
	now := v.now()
	made, err := i.check(c, more, now)
	if errors.Is(err, errEarly) || errors.Is(err, errLate) {
		return auth.Claims{}, nil, clocks(i, c, now)
	}
	return made, more, err
}

// clocks returns the fault of an ID token that is not valid at the time at which it was made.
func clocks(i *issuer, c claims, now time.Time) error {
	said := c.Expires
	if c.Issued != nil {
		said = c.Issued
	}
	return fault.New(fault.Unauthorized, "the clock of this server (%s) and that of %s (its token is of %s) differ by "+
		"more than %v", now.UTC().Format(time.DateTime), i.URL, said.Time().UTC().Format(time.DateTime), skew).
		Advise("The operator sets the clock of the machine (timedatectl), and logs in again")
}

// admit returns an error if the settings do not let the user in.
func (i *issuer) admit(more map[string]any) error {
	name, want := i.missing(more)
	if name == "" {
		return nil
	}
	return fault.New(fault.Forbidden, "your account at %s has no rights here: it needs %s=%q in its ID token", i.URL,
		name, want).Advise("Ask who runs the issuer to give it to your account", "Log out at "+i.URL+
		" to log in with another account")
}

// bounded returns claims that end when the issuer has to vouch again.
func (s Session) bounded(c auth.Claims) auth.Claims {
	most := vouchedFor
	if s.CanRenew() {
		most = renewAfter
	}
	if end := s.verifier.now().Add(most).UTC(); end.Before(c.Expires) {
		c.Expires = end
	}
	return c
}

// CanRenew reports whether the issuer can be asked again.
func (s Session) CanRenew() bool { return s.refresh != "" }

// Issuer returns the issuer of the session.
func (s Session) Issuer() string { return s.issuer.URL }

// Renew asks the issuer whether it vouches for the same user still. An Unauthorized or Forbidden fault: it does not.
// Another one: it could not be asked.
func (s Session) Renew(ctx context.Context) (Session, error) {
	i := s.issuer
	at, err := i.keys.addresses(ctx)
	if err != nil {
		return s, i.silent(err)
	}
	t, err := i.exchange(ctx, func(ctx context.Context) (*oauth2.Token, error) {
		return i.client(at, "").TokenSource(ctx, &oauth2.Token{RefreshToken: s.refresh.Reveal()}).Token()
	})
	if err != nil {
		return s, err
	}
	s.refresh = secret.Value(t.RefreshToken)
	text, _ := t.Extra("id_token").(string)
	if text == "" { // as is allowed (OpenID Connect Core, 12.2)
		c := s.Claims
		if c.Expires = t.Expiry.UTC(); t.Expiry.IsZero() {
			c.Expires = s.verifier.now().Add(renewAfter).UTC()
		}
		s.Claims = s.bounded(c)
		return s, nil
	}
	c, more, err := s.verifier.identify(ctx, i, text)
	switch {
	case err != nil:
		return s, err
	case c.Subject != s.Claims.Subject:
		return s, refuse("%s vouches for another user now", i.URL)
	}
	s.Claims.Expires = s.bounded(c).Expires
	return s, i.admit(more)
}

// LogoutURL returns the address at which the user logs out at the issuer, and comes back; empty: it has none. No token is
// in the address, so that the issuer asks the user.
func (s Session) LogoutURL(back string) string {
	s.issuer.keys.mu.Lock()
	end := s.issuer.keys.endpoints.EndSession
	s.issuer.keys.mu.Unlock()
	u, err := url.Parse(end)
	if err != nil || s.issuer.keys.checkEndpoint(end) != nil {
		return ""
	}
	q := u.Query()
	q.Set("client_id", s.issuer.Client.ID)
	q.Set("post_logout_redirect_uri", back)
	u.RawQuery = q.Encode()
	return u.String()
}

// exchange makes a request to the token endpoint. Its error has nothing of the request and nothing of the answer but the
// code of an error.
func (i *issuer) exchange(ctx context.Context, ask func(context.Context) (*oauth2.Token, error)) (*oauth2.Token, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	select {
	case i.exchanges <- struct{}{}:
		defer func() { <-i.exchanges }()
	case <-ctx.Done():
		return nil, i.silent(errors.New("too many log-ins at once"))
	}
	t, err := ask(context.WithValue(ctx, oauth2.HTTPClient, i.keys.client))
	if err == nil {
		return t, nil
	}
	answer, isAnswer := errors.AsType[*oauth2.RetrieveError](err)
	if !isAnswer {
		return nil, i.silent(cause(err))
	}
	status := 0
	if answer.Response != nil {
		status = answer.Response.StatusCode
	}
	code := cmp.Or(fault.Printable(answer.ErrorCode, 50), fmt.Sprintf("status %d", status))
	switch {
	case status >= 500 || status == http.StatusTooManyRequests:
		return nil, i.silent(errors.New("its token endpoint answers with " + code))
	case code == "invalid_grant":
		return nil, refuse("%s does not accept this log-in any more (invalid_grant): it was used before, took too long, "+
			"or was ended there; log in again", i.URL)
	case code == "invalid_client" || code == "unauthorized_client" || status == http.StatusUnauthorized:
		return nil, fault.New(fault.Connection, "%s does not know this server (%s): client_id and client_secret_file "+
			"in the settings are not those of a client there", i.URL, code)
	case !slices.Contains(refusals, answer.ErrorCode): // of something between, or about no log-in
		return nil, i.silent(errors.New("its token endpoint answers with " + code))
	}
	return nil, refuse("%s refused the log-in: %q", i.URL, code)
}

// refusals are the codes by which an issuer refuses a log-in: those of RFC 6749, and of OpenID Connect where the user has to
// log in again.
var refusals = []string{"invalid_request", "invalid_grant", "unsupported_grant_type", "invalid_scope", "access_denied",
	"login_required", "interaction_required", "consent_required", "account_selection_required"}

// cause returns what an error is without the address of the request and without the answer.
func cause(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return errors.New("its answer has no token that can be read")
}

// silent returns the fault of an issuer that cannot be asked now.
func (i *issuer) silent(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f
	}
	i.keys.log.Warn("an issuer cannot be asked about a log-in", "issuer", i.URL, "error", err)
	return fault.Wrap(fault.Connection, err, "%s cannot be asked now", i.URL).Advise("Try again in a moment",
		"Log in with a link or a token meanwhile", "The operator finds the cause in the server's log")
}

// denied returns the fault of an answer without a code.
func (i *issuer) denied(code string) error {
	if code == "access_denied" {
		return refuse("%s did not let you in, or you have cancelled the log-in (access_denied)", i.URL)
	}
	return refuse("%s did not log you in: %q", i.URL, fault.Printable(code, 50))
}

// addresses returns the issuer's addresses for log-ins. They are fetched if that was not done for refreshInterval; while
// that fails, the ones before stay.
func (s *keySet) addresses(ctx context.Context) (endpoints, error) {
	s.mu.Lock()
	now := s.now()
	fresh := s.endpoints.Token != "" && now.Sub(s.tried) < refreshInterval
	again := s.tried.IsZero() || now.Sub(s.tried) >= fetchInterval
	s.mu.Unlock()
	if !fresh && again {
		if _, err := s.fetchAll(ctx); ctx.Err() != nil {
			return endpoints{}, err
		}
	}
	s.mu.Lock()
	at, err := s.endpoints, s.err
	s.mu.Unlock()
	if at.Token == "" && err != nil {
		return at, err
	}
	for _, address := range []string{at.Authorization, at.Token} {
		if err := s.checkEndpoint(address); err != nil {
			return endpoints{}, err
		}
	}
	return at, nil
}

// checkEndpoint returns an error if an address cannot be an endpoint of the issuer.
func (s *keySet) checkEndpoint(address string) error {
	u, err := url.Parse(address)
	secure := err == nil && u.Scheme == "https"
	plain := err == nil && u.Scheme == "http" && auth.Loopback(u.Hostname()) && !strings.HasPrefix(s.issuer, "https://")
	if !(secure || plain) || u.Host == "" || u.User != nil || u.Fragment != "" {
		return fault.New(fault.Connection, "the metadata of %s has %q for log-ins, which is no address that can be used",
			s.issuer, fault.Printable(address, 200))
	}
	return nil
}
