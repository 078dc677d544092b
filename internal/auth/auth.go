// Package auth authenticates clients. It owns principals, roles and tokens, and decides when a token is
// required.
package auth

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// Principal is the user for whom a call is made, with the rights of the call. The zero value is nobody.
// Two principals are == if no call can have different outcomes for them.
type Principal struct {
	// ID identifies the user as the owner of sessions, secrets and so on: "local", or "user:" and the
	// name. Only this package creates and parses ids.
	ID string
	// Name is for people only: it is not unique, and must not decide anything.
	Name string
	// Service marks a token that a service uses for many people: each call without a session id gets a
	// new session.
	Service bool
	// Authenticated is false for the local user on loopback.
	Authenticated bool
	// Token is the id of the request's token; empty: it had none.
	Token string
	// WithoutToken is set for a request over the network that needed no token.
	WithoutToken bool
	// Roles are rights beyond the principal's own sessions and data. Only a token or the owner's socket
	// gives roles; a name, id or header never does.
	Roles Roles
}

// HasRole reports whether the principal has a role.
func (p Principal) HasRole(r Role) bool { return p.Roles.Has(r) }

// Identity returns p without the rights of its token. It is the owner of what outlives a request and is
// shared by all tokens of the user.
func (p Principal) Identity() Principal {
	if p.ID == Local.ID {
		return Local
	}
	return Principal{ID: p.ID, Name: p.Name, Authenticated: p.Authenticated}
}

// Local is the only user of a server without authentication. Its clients may read metrics and logs. They
// do not have the role Operator: otherwise every program on the machine would have it, and every web page
// that makes a browser send a request.
var Local = Principal{ID: "local", Name: "local", Roles: NewRoles(Metrics, Logs)}

// SocketOwner returns the principal of clients on the socket in the state folder: the local user with the role
// Operator.
func SocketOwner() Principal {
	p := Local
	p.Roles |= NewRoles(Operator)
	return p
}

// User returns the principal of a named user.
func User(name string, service bool) Principal {
	return Principal{ID: userPrefix + name, Name: name, Service: service, Authenticated: true}
}

// userPrefix is the prefix of the ids of users with tokens.
const userPrefix = "user:"

// FromID returns the principal with a stored id. It returns false for an id of another form, which a later
// version may have stored.
func FromID(id string) (Principal, bool) {
	if id == Local.ID {
		return Local, true
	}
	if name, ok := strings.CutPrefix(id, userPrefix); ok && userNamePattern.MatchString(name) {
		return User(name, false), true
	}
	return Principal{}, false
}

// OnBehalfOf returns the principal with a stored id for an action of somebody else on its behalf, such as a
// visitor with the link of an exposed port. It can access what the principal owns, and has no roles. For
// an unknown id it returns nobody.
func OnBehalfOf(id string) Principal {
	p, _ := FromID(id)
	p.Roles = 0
	return p
}

// ParseID returns the id of a principal in the settings, which is given as local, a user's name, or an
// id.
func ParseID(text string) (string, error) {
	if p, ok := FromID(text); ok {
		return p.ID, nil
	}
	if p, ok := FromID(userPrefix + text); ok {
		return p.ID, nil
	}
	return "", fmt.Errorf("%q must be local, or the name of a user", text)
}

type contextKey struct{}

// NewContext returns a context that carries p.
func NewContext(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, contextKey{}, p)
}

// FromContext returns the principal that ctx carries.
func FromContext(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(contextKey{}).(Principal)
	return p, ok
}

// Token is a stored token, without its secret.
type Token struct {
	ID      string     `json:"id"`
	Owner   string     `json:"-"`    // the principal's id
	User    string     `json:"user"` // the principal's name
	Service bool       `json:"service,omitempty"`
	Roles   Roles      `json:"roles,omitempty"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires"`
	Hash    string     `json:"-"`
}

// principal returns the principal of the token. It returns false if the stored owner is not a user with
// an id that this version can parse; the local user has no tokens.
func (t Token) principal() (Principal, bool) {
	p, ok := FromID(t.Owner)
	if !ok || p.ID == Local.ID {
		return Principal{}, false
	}
	p.Name, p.Service, p.Roles, p.Token = t.User, t.Service, t.Roles, t.ID
	return p, true
}

func (t Token) expired(now time.Time) bool { return t.Expires != nil && !now.Before(*t.Expires) }

// Store stores tokens. The next call sees a token that another process has created or revoked.
type Store interface {
	AddToken(ctx context.Context, t Token) error
	Tokens(ctx context.Context) ([]Token, error)
	// TokenByHash returns ErrNoToken when there is none.
	TokenByHash(ctx context.Context, hash string) (Token, error)
	// RemoveToken returns ErrNoToken when there is none.
	RemoveToken(ctx context.Context, id string) error
	HasTokens(ctx context.Context) (bool, error)
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
	now      func() time.Time
}

// NewAuthenticator returns the Door of a server that listens on host. It returns an error for settings with which
// anyone on the network could use the server.
func NewAuthenticator(ctx context.Context, mode Mode, host string, store Store) (*Authenticator, error) {
	d := &Authenticator{mode: mode, loopback: Loopback(host), store: store, now: time.Now}
	if d.loopback {
		return d, nil
	}
	if mode == Off {
		return nil, fault.New(fault.Configuration,
			"auth is off and host is %q: without authentication the server listens on loopback only; set auth to "+
				"auto or required, or host to localhost", host)
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
	case d.mode == Required || !d.loopback:
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
	hash := secret.Hash(token)
	t, err := d.store.TokenByHash(ctx, hash)
	if err != nil && !errors.Is(err, ErrNoToken) {
		return Principal{}, err
	}
	if err != nil || subtle.ConstantTimeCompare([]byte(t.Hash), []byte(hash)) != 1 {
		return refuse("the token is unknown or was revoked")
	}
	if t.expired(d.now()) {
		return refuse("the token has expired")
	}
	p, ok := t.principal()
	if !ok {
		return refuse("the token is of a user that this version of the server does not know")
	}
	return p, nil
}

var userNamePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$`)

// Issue creates and stores a token. Only its hash is stored, so its value cannot be shown again. With
// expires 0, the token does not expire.
func Issue(ctx context.Context, store Store, user string, service bool, expires time.Duration,
	roles ...Role) (Token, secret.Value, error) {
	if !userNamePattern.MatchString(user) {
		return Token{}, "", fault.New(fault.InvalidParameters,
			"user %q: a name has 1 to 64 letters, digits and . _ @ + -, and begins with a letter or digit", user)
	}
	if strings.EqualFold(user, Local.Name) { // ParseID takes this name for the local user
		return Token{}, "", fault.New(fault.InvalidParameters,
			"user %q: that is what the user of the server's own machine is called; choose another name", user)
	}
	if expires < 0 {
		return Token{}, "", fault.New(fault.InvalidParameters, "expires %s: must not be negative", expires)
	}
	for _, r := range roles {
		if _, err := ParseRole(string(r)); err != nil {
			return Token{}, "", err
		}
	}
	value, owner := secret.NewToken(), User(user, service)
	t := Token{ID: "tok_" + secret.ID()[:12], Owner: owner.ID, User: owner.Name, Service: owner.Service,
		Roles:   NewRoles(roles...),
		Created: time.Now().UTC().Truncate(time.Second), Hash: secret.Hash(value.Reveal())}
	if expires > 0 {
		t.Expires = new(t.Created.Add(expires))
	}
	if err := store.AddToken(ctx, t); err != nil {
		return Token{}, "", fmt.Errorf("storing the token: %w", err)
	}
	return t, value, nil
}
