package auth

import (
	"context"
	"strings"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// Grant is the authentication of a request, for what outlives the request, such as the log-in of a browser. It does not
// contain the token. The zero value is nobody's.
type Grant struct {
	principal Principal
	hash      string   // of a stored token; empty: the request had none, or a JWT
	users     []string // the request's values of UserHeader
}

// NewGrant returns the grant of a request that has authenticated p, with that Authorization header and those values of
// UserHeader.
func NewGrant(p Principal, header string, users []string) Grant {
	g := Grant{principal: p, users: users}
	if _, token, _ := strings.Cut(header, " "); p.Token != noTokenID && p.Expires.IsZero() {
		g.hash = secret.Hash(token)
	}
	return g
}

// NewLoginGrant returns the grant of the log-in with an id at the issuer of claims: for the user whom the issuer's tokens
// name as well, until the claims expire.
func NewLoginGrant(c Claims, id string) Grant {
	p := c.principal()
	p.Token = "login_" + id
	return Grant{principal: p}
}

// Until returns the same grant with another end. It must be one of NewLoginGrant.
func (g Grant) Until(end time.Time) Grant {
	g.principal.Expires = end
	return g
}

// Principal returns the principal that the request had.
func (g Grant) Principal() Principal { return g.principal }

// Renew returns the principal that the grant has now. It returns an error when the token has ended or, without a token,
// when a token is required now.
func (d *Authenticator) Renew(ctx context.Context, g Grant) (Principal, error) {
	p := g.principal
	switch {
	case p.ID == "":
		return Principal{}, fault.New(fault.Unauthorized, "it is not known who asks")
	case g.hash != "":
		now, err := d.tokenPrincipal(ctx, g.hash)
		if err != nil {
			return Principal{}, err
		}
		return now.ActFor(g.users)
	case !p.Expires.IsZero() && !d.now().Before(p.Expires):
		return Principal{}, ErrEnded
	case p.WithoutToken:
		required, err := d.TokenRequired(ctx)
		if err != nil {
			return Principal{}, err
		}
		if required {
			return Principal{}, ErrEnded
		}
	}
	return p, nil
}
