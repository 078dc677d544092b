package auth

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"sandlot/internal/fault"
)

// Principal is the user for whom a call is made, with the rights of the call. The zero value is nobody.
// Two principals are == if no call can have different outcomes for them.
type Principal struct {
	// ID identifies the user as the owner of sessions, secrets and so on: "local", "user:" and the
	// name, or "oidc:", an issuer and a subject; for a user of a service, the service's id, "/" and the
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
	// Expires is the time at which a JWT ends; zero: the token is none, and the store knows when it ends.
	Expires time.Time
	// WithoutToken is set for a request over the network that needed no token.
	WithoutToken bool
	// Roles are rights beyond the principal's own sessions and data. Only a token or the owner's socket
	// gives roles; a name, id or header never does.
	Roles Roles
	// Scope has the operations that the request may be for; empty: all.
	Scope Scope
	// ActsFor is set for a service that may name its user for each request; see ActFor.
	ActsFor bool
}

// HasRole reports whether the principal has a role.
func (p Principal) HasRole(r Role) bool { return p.Roles.Has(r) }

// OfService reports whether the principal is a service or one of a service's users.
func (p Principal) OfService() bool {
	_, isUser := ServiceOf(p.ID)
	return p.Service || isUser
}

// Payer returns the id of the principal whose limit counts what the server asks of others for p: all users of a service are
// one, as a service may name any number of them.
func (p Principal) Payer() string {
	if service, ok := ServiceOf(p.ID); ok {
		return service
	}
	return p.ID
}

// Require returns a fault if p does not have the role. The fault's text is "you may not" and what.
func (p Principal) Require(r Role, what string) error {
	if p.HasRole(r) {
		return nil
	}
	return fault.New(fault.Forbidden, "you may not %s: that needs the role %s", what, r).With("role", string(r)).
		Advise(fmt.Sprintf("The operator makes a token that has it: sandlot token create --user NAME --role %s", r),
			"On the server's machine, who can open the socket api.sock in the state folder needs no token")
}

// Identity returns p without the rights of its token. It is the owner of what outlives a request and is
// shared by all tokens of the user.
func (p Principal) Identity() Principal {
	if p.ID == Local.ID {
		return Local
	}
	if strings.HasPrefix(p.ID, oidcPrefix) { // their names may differ from token to token
		return oidcUser(p.ID)
	}
	return Principal{ID: p.ID, Name: p.Name, Authenticated: p.Authenticated}
}

// Rights returns p without what differs from one token to the next with the same rights: two principals have the same
// if they may do the same.
func (p Principal) Rights() Principal {
	p.Name, p.Token, p.Expires = "", "", time.Time{}
	return p
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

var userNamePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$`)

const userNameRule = "a name has 1 to 64 letters, digits and . _ @ + -, and begins with a letter or digit"

// FromID returns the principal with a stored id. It returns false for an id of another form, which a later
// version may have stored.
func FromID(id string) (Principal, bool) {
	if id == Local.ID {
		return Local, true
	}
	if oidcIDPattern.MatchString(id) {
		return oidcUser(id), true
	}
	name, ok := strings.CutPrefix(id, userPrefix)
	name, user, isServices := strings.Cut(name, ownerSeparator)
	switch {
	case !ok || !userNamePattern.MatchString(name):
		return Principal{}, false
	case !isServices:
		return User(name, false), true
	case !userNamePattern.MatchString(user):
		return Principal{}, false
	}
	return serviceUser(userPrefix+name, user), true
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

// ownerSeparator separates the id of a service from the name of one of its users. No name of a user
// contains it, so the id of a service's user is nobody else's.
const ownerSeparator = "/"

// ServiceOf returns the id of the service that the principal with that id is a user of; false: the
// principal is not a service's user.
func ServiceOf(id string) (service string, ok bool) {
	service, _, ok = strings.Cut(id, ownerSeparator)
	return service, ok && strings.HasPrefix(id, userPrefix)
}

// UnitOf returns the id of the unit to which the principal with that id belongs, for which one server acts: a service and
// its users are one unit, as they share limits. Any other principal is a unit of its own.
func UnitOf(id string) string {
	if service, ok := ServiceOf(id); ok {
		return service
	}
	return id
}

// serviceUser returns the user of a service, who is a person: the user has a home and no roles.
func serviceUser(service, name string) Principal {
	return Principal{ID: service + ownerSeparator + name, Name: name, Authenticated: true}
}

// oidcUser returns the principal of an issuer's user with an id that oidcID has returned. Its name is the subject.
func oidcUser(id string) Principal {
	_, subject, _ := strings.Cut(id, "/")
	if name, err := url.PathUnescape(subject); err == nil {
		subject = displayName(name)
	}
	return Principal{ID: id, Name: subject, Authenticated: true}
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
