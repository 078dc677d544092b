// Package auth authenticates clients. It owns principals, roles and tokens, and decides when a token is
// required.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// Token is a stored token, without its secret.
type Token struct {
	ID      string     `json:"id"`
	Owner   string     `json:"-"`    // the principal's id
	User    string     `json:"user"` // the principal's name
	Service bool       `json:"service,omitempty"`
	Roles   Roles      `json:"roles,omitempty"`
	Scope   Scope      `json:"scope,omitempty"`
	ActsFor bool       `json:"acts_for,omitempty"`
	MadeBy  string     `json:"made_by,omitempty"` // the id of the token with which it was made; empty: on the machine
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires"`
	Used    *time.Time `json:"last_used"` // at most useInterval too early; nil: never
	Hash    string     `json:"-"`
}

// principal returns the principal of the token. It returns false if the stored owner is not a user with
// an id that this version can parse; the local user and users of services have no tokens.
func (t Token) principal() (Principal, bool) {
	p, ok := FromID(t.Owner)
	if _, isServices := ServiceOf(t.Owner); !ok || isServices || p.ID == Local.ID {
		return Principal{}, false
	}
	p.Name, p.Service, p.Roles, p.Token = t.User, t.Service, t.Roles, t.ID
	p.Scope, p.ActsFor = t.Scope, t.ActsFor
	return p, true
}

func (t Token) expired(now time.Time) bool { return t.Expires != nil && !now.Before(*t.Expires) }

// Valid reports whether the token has not expired.
func (t Token) Valid(now time.Time) bool { return !t.expired(now) }

// Store stores tokens. The next call sees a token that another process has created or revoked.
type Store interface {
	AddToken(ctx context.Context, t Token) error
	Tokens(ctx context.Context) ([]Token, error)
	// TokenByHash returns ErrNoToken when there is none.
	TokenByHash(ctx context.Context, hash string) (Token, error)
	// RemoveToken returns ErrNoToken when there is none.
	RemoveToken(ctx context.Context, id string) error
	HasTokens(ctx context.Context) (bool, error)
	// PutTokenUses stores when tokens were last used, by id. It ignores tokens that do not exist.
	PutTokenUses(ctx context.Context, uses map[string]time.Time) error
}

// ErrNoToken is returned by a Store for a token that does not exist.
var ErrNoToken = errors.New("no such token")

// Mode is the setting `auth`.
type Mode string

const (
	Auto     Mode = "auto"
	Required Mode = "required"
	Off      Mode = "off"
)

// Authenticator authenticates requests over the network.
type Authenticator struct {
	mode     Mode
	loopback bool
	store    Store
	issuers  Issuers // of JWTs; nil: there are none
	now      func() time.Time
	uses     tokenUses
}

// NewAuthenticator returns the Door of a server that listens on host. It returns an error for settings with which
// anyone on the network could use the server. issuers verifies JWTs; nil: there are none.
func NewAuthenticator(ctx context.Context, mode Mode, host string, store Store,
	issuers Issuers) (*Authenticator, error) {
	d := &Authenticator{mode: mode, loopback: Loopback(host), store: store, issuers: issuers, now: time.Now}
	if d.loopback {
		return d, nil
	}
	if mode == Off {
		return nil, fault.New(fault.Configuration,
			"auth is off and host is %q: without authentication the server listens on loopback only; set auth to "+
				"auto or required, or host to localhost", host)
	}
	if issuers != nil {
		return d, nil
	}
	has, err := store.HasTokens(ctx)
	if err != nil {
		return nil, err
	}
	if !has {
		return nil, fault.New(fault.Configuration,
			"host %q is not loopback and there is no token yet: make one first with `sandlot token create --user NAME`",
			host)
	}
	return d, nil
}

// Loopback reports whether host is a loopback address, which only this machine can reach.
func Loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}

// TokenRequired reports whether a call over the network needs a token now.
func (d *Authenticator) TokenRequired(ctx context.Context) (bool, error) {
	switch {
	case d.mode == Off:
		return false, nil
	case d.mode == Required || !d.loopback || d.issuers != nil:
		return true, nil
	}
	return d.store.HasTokens(ctx)
}

// Authenticate returns the principal of a request with that Authorization header.
func (d *Authenticator) Authenticate(ctx context.Context, header string) (Principal, error) {
	refuse := func(why string) (Principal, error) { return Principal{}, fault.New(fault.Unauthorized, "%s", why) }
	if header == "" {
		required, err := d.TokenRequired(ctx)
		if err != nil {
			return Principal{}, err
		}
		if required {
			return refuse("this server needs a token")
		}
		p := Local
		p.WithoutToken = true
		return p, nil
	}
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return refuse("the Authorization header must be `Bearer TOKEN`")
	}
	if d.issuers != nil && isJWT(token) {
		return d.authenticateJWT(ctx, token)
	}
	return d.tokenPrincipal(ctx, secret.Hash(token))
}

// tokenPrincipal returns the principal of the token with a hash.
func (d *Authenticator) tokenPrincipal(ctx context.Context, hash string) (Principal, error) {
	refuse := func(why string) (Principal, error) { return Principal{}, fault.New(fault.Unauthorized, "%s", why) }
	t, err := d.store.TokenByHash(ctx, hash)
	if err != nil && !errors.Is(err, ErrNoToken) {
		return Principal{}, err
	}
	if err != nil || subtle.ConstantTimeCompare([]byte(t.Hash), []byte(hash)) != 1 {
		return refuse("the token is unknown or was revoked")
	}
	now := d.now()
	if t.expired(now) {
		return refuse("the token has expired")
	}
	p, ok := t.principal()
	if !ok {
		return refuse("the token is of a user that this version of the server does not know")
	}
	d.uses.record(t.ID, now)
	return p, nil
}

// NewToken describes a token that is to be created.
type NewToken struct {
	User    string
	Service bool
	// ActsFor lets the service name its user for each request.
	ActsFor bool
	Expires time.Duration // 0: never
	Roles   []Role
	Scope   Scope // empty: all operations
	// MadeBy is the id of the token with which it is made; empty: it is made without one.
	MadeBy string
}

// check returns an error if no such token can be created.
func (n *NewToken) check() error {
	if !userNamePattern.MatchString(n.User) {
		return fault.New(fault.InvalidParameters, "user %q: %s", n.User, userNameRule)
	}
	if strings.EqualFold(n.User, Local.Name) { // ParseID takes this name for the local user
		return fault.New(fault.InvalidParameters,
			"user %q: that is what the user of the server's own machine is called; choose another name", n.User)
	}
	if n.Expires < 0 {
		return fault.New(fault.InvalidParameters, "expires %s: must not be negative", n.Expires)
	}
	if n.ActsFor && !n.Service {
		return fault.New(fault.InvalidParameters, "only the token of a service can act for its users: add --service")
	}
	for _, r := range n.Roles {
		if _, err := ParseRole(string(r)); err != nil {
			return err
		}
	}
	return nil
}

// Issue creates and stores a token without a scope. With expires 0, the token does not expire.
func Issue(ctx context.Context, store Store, user string, service bool, expires time.Duration,
	roles ...Role) (Token, secret.Value, error) {
	return IssueToken(ctx, store, NewToken{User: user, Service: service, Expires: expires, Roles: roles})
}

// IssueToken creates and stores a token. Only its hash is stored, so its value cannot be shown again.
func IssueToken(ctx context.Context, store Store, n NewToken) (Token, secret.Value, error) {
	if err := n.check(); err != nil {
		return Token{}, "", err
	}
	value, owner := secret.NewToken(), User(n.User, n.Service)
	t := Token{ID: "tok_" + secret.ID()[:12], Owner: owner.ID, User: owner.Name, Service: owner.Service,
		Roles: NewRoles(n.Roles...), Scope: n.Scope, ActsFor: n.ActsFor, MadeBy: n.MadeBy,
		Created: time.Now().UTC().Truncate(time.Second), Hash: secret.Hash(value.Reveal())}
	if n.Expires > 0 {
		t.Expires = new(t.Created.Add(n.Expires))
	}
	if err := store.AddToken(ctx, t); err != nil {
		return Token{}, "", fmt.Errorf("storing the token: %w", err)
	}
	return t, value, nil
}

// RevokedWith returns the ids of the token with an id and of those that its user has made with it, directly or not. There
// are none if the token does not exist.
func RevokedWith(all []Token, id string) []string {
	i := slices.IndexFunc(all, func(t Token) bool { return t.ID == id })
	if i < 0 {
		return nil
	}
	list, owner := []string{id}, all[i].Owner
	for n := 0; n < len(list); n++ {
		for _, t := range all {
			if t.MadeBy == list[n] && t.Owner == owner && !slices.Contains(list, t.ID) {
				list = append(list, t.ID)
			}
		}
	}
	return list
}

// Revoke removes a token, and those that its user has made with it. It returns ErrNoToken when there is none.
func Revoke(ctx context.Context, s Store, id string) error {
	all, err := s.Tokens(ctx)
	if err != nil {
		return err
	}
	list := RevokedWith(all, id)
	if list == nil {
		return ErrNoToken
	}
	for _, id := range slices.Backward(list) { // the token itself at the end: after an error it can be revoked again
		if err := s.RemoveToken(ctx, id); err != nil && !errors.Is(err, ErrNoToken) {
			return err
		}
	}
	return nil
}

// IsToken reports whether an Authorization header has a token of this server, valid or not. It must not reach
// anybody else, such as a program behind an exposed port.
func (d *Authenticator) IsToken(header string) bool {
	_, token, _ := strings.Cut(strings.TrimSpace(header), " ")
	token = strings.TrimSpace(token)
	return secret.IsToken(token) || d.issuers != nil && isJWT(token) && d.issuers.IsForServer(token)
}

// authenticateJWT returns the principal of a JWT.
func (d *Authenticator) authenticateJWT(ctx context.Context, token string) (Principal, error) {
	c, err := d.issuers.Verify(ctx, token)
	if err != nil {
		return Principal{}, err
	}
	p, hash := c.principal(), sha256.Sum256([]byte(token))
	p.Token = "jwt_" + lowerBase32.EncodeToString(hash[:10])
	return p, nil
}
