// Package auth says who is asking. It owns principals, tokens and the rule of
// when a token is required.
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

// Principal is who is asking. Its zero value is nobody. Two are == when no call can
// come out differently for them.
type Principal struct {
	// ID is what everything belongs to: "local", or "user:" and the name. Ids are
	// made and read in this package alone.
	ID string
	// Name is what people read. It decides nothing: two may have one.
	Name string
	// Service marks a token that many people stand behind: calls without a
	// session id get a session of their own.
	Service bool
	// Authenticated is false for the local user on loopback.
	Authenticated bool
	// Token is the id of the token that was brought; empty: none was.
	Token string
	// Open says that none was required of who came over the network.
	Open bool
	// Roles are what the token, or the socket, lets the principal do beside what is
	// their own. No name, id or header gives one.
	Roles Roles
}

// Has says whether the principal has a role.
func (p Principal) Has(r Role) bool { return p.Roles.Has(r) }

// Identity returns who p is, without what their token adds: who owns what outlives
// a request, and is used by all tokens of one user.
func (p Principal) Identity() Principal {
	if p.ID == Local.ID {
		return Local
	}
	return Principal{ID: p.ID, Name: p.Name, Authenticated: p.Authenticated}
}

// Local is the one user of a server without authentication. Who reaches such a
// server is trusted with what it counts and says, and not to be its operator: that
// every program of the machine, and who is led to it by a browser, would be.
var Local = Principal{ID: "local", Name: "local", Roles: NewRoles(Metrics, Logs)}

// Owner returns the principal of who opened the socket in the state folder: the
// local user, as operator.
func Owner() Principal {
	p := Local
	p.Roles |= NewRoles(Operator)
	return p
}

// User returns the principal of a named user.
func User(name string, service bool) Principal {
	return Principal{ID: userPrefix + name, Name: name, Service: service, Authenticated: true}
}

// userPrefix begins the id of a user.
const userPrefix = "user:"

// Known returns the principal that has a stored id. An id of another form belongs
// to nobody here, such as one that a later version has stored.
func Known(id string) (Principal, bool) {
	if id == Local.ID {
		return Local, true
	}
	if name, ok := strings.CutPrefix(id, userPrefix); ok && userName.MatchString(name) {
		return User(name, false), true
	}
	return Principal{}, false
}

// InNameOf returns the principal that has a stored id, for what somebody else has done
// in their name, such as who brings the link of a port: it reaches what is theirs, and
// has no role. Of an id that is not known it is nobody.
func InNameOf(id string) Principal {
	p, _ := Known(id)
	p.Roles = 0
	return p
}

// ParseID reads who is meant in the settings: local, a user's name, or an id. It
// returns the id.
func ParseID(text string) (string, error) {
	if p, ok := Known(text); ok {
		return p.ID, nil
	}
	if p, ok := Known(userPrefix + text); ok {
		return p.ID, nil
	}
	return "", fmt.Errorf("%q must be local, or the name of a user", text)
}

type key struct{}

// With returns a context that carries p.
func With(ctx context.Context, p Principal) context.Context { return context.WithValue(ctx, key{}, p) }

// From returns the principal that ctx carries.
func From(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(key{}).(Principal)
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

// principal returns who brings the token. A token whose stored owner is not a user
// that this version knows is nobody's: the local user has none.
func (t Token) principal() (Principal, bool) {
	p, ok := Known(t.Owner)
	if !ok || p.ID == Local.ID {
		return Principal{}, false
	}
	p.Name, p.Service, p.Roles, p.Token = t.User, t.Service, t.Roles, t.ID
	return p, true
}

func (t Token) expired(now time.Time) bool { return t.Expires != nil && !now.Before(*t.Expires) }

// Store keeps tokens. A token that was created or revoked by another process
// is seen by the next call.
type Store interface {
	AddToken(ctx context.Context, t Token) error
	Tokens(ctx context.Context) ([]Token, error)
	// TokenByHash returns ErrNoToken when there is none.
	TokenByHash(ctx context.Context, hash string) (Token, error)
	// RemoveToken returns ErrNoToken when there is none.
	RemoveToken(ctx context.Context, id string) error
	HasTokens(ctx context.Context) (bool, error)
}

// ErrNoToken is returned by a Store for a token that is not there.
var ErrNoToken = errors.New("no such token")

// Mode is the setting `auth`.
type Mode string

const (
	Auto     Mode = "auto"
	Required Mode = "required"
	Off      Mode = "off"
)

// Door decides who comes in.
type Door struct {
	mode     Mode
	loopback bool
	store    Store
	now      func() time.Time
}

// NewDoor returns the rule for a server that listens on host. It refuses
// settings that would leave a server open.
func NewDoor(ctx context.Context, mode Mode, host string, store Store) (*Door, error) {
	d := &Door{mode: mode, loopback: Loopback(host), store: store, now: time.Now}
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

// Loopback says whether host names this machine alone.
func Loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}

// Required says whether a call over the network needs a token now.
func (d *Door) Required(ctx context.Context) (bool, error) {
	switch {
	case d.mode == Off:
		return false, nil
	case d.mode == Required || !d.loopback:
		return true, nil
	}
	return d.store.HasTokens(ctx)
}

// Admit returns the principal of a request with that Authorization header.
func (d *Door) Admit(ctx context.Context, header string) (Principal, error) {
	if header == "" {
		need, err := d.Required(ctx)
		if err != nil {
			return Principal{}, err
		}
		if need {
			return Principal{}, fault.New(fault.Unauthorized, "this server needs a token")
		}
		p := Local
		p.Open = true
		return p, nil
	}
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return Principal{}, fault.New(fault.Unauthorized, "the Authorization header must be `Bearer TOKEN`")
	}
	hash := secret.Hash(token)
	t, err := d.store.TokenByHash(ctx, hash)
	if errors.Is(err, ErrNoToken) {
		return Principal{}, fault.New(fault.Unauthorized, "the token is unknown or was revoked")
	}
	if err != nil {
		return Principal{}, err
	}
	if subtle.ConstantTimeCompare([]byte(t.Hash), []byte(hash)) != 1 {
		return Principal{}, fault.New(fault.Unauthorized, "the token is unknown or was revoked")
	}
	if t.expired(d.now()) {
		return Principal{}, fault.New(fault.Unauthorized, "the token has expired")
	}
	p, ok := t.principal()
	if !ok {
		return Principal{}, fault.New(fault.Unauthorized,
			"the token is of a user that this version of the server does not know")
	}
	return p, nil
}

var userName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$`)

// Issue makes and stores a token. It is shown once: only its hash is kept.
// Expires zero means never.
func Issue(ctx context.Context, store Store, user string, service bool, expires time.Duration,
	roles ...Role) (Token, secret.Value, error) {
	if !userName.MatchString(user) {
		return Token{}, "", fault.New(fault.InvalidParameters,
			"user %q: a name has 1 to 64 letters, digits and . _ @ + -, and begins with a letter or digit", user)
	}
	if strings.EqualFold(user, Local.Name) { // in the settings it is the local user
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
		e := t.Created.Add(expires)
		t.Expires = &e
	}
	if err := store.AddToken(ctx, t); err != nil {
		return Token{}, "", fmt.Errorf("storing the token: %w", err)
	}
	return t, value, nil
}
