package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"sandlot/internal/api"
	"sandlot/internal/auth"
	"sandlot/internal/auth/oidc"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
)

// issuers returns the OIDC issuers of the settings.
func issuers(c *config.Config) ([]oidc.Issuer, error) {
	var all []oidc.Issuer
	for _, o := range c.Server.OIDC {
		invalid := func(format string, args ...any) error {
			return fault.New(fault.Configuration, "%s: oidc: issuer %q: %s", c.File, o.Issuer,
				fmt.Sprintf(format, args...))
		}
		if err := oidc.CheckURL(o.Issuer); err != nil {
			return nil, invalid("it %v", err)
		}
		for _, name := range o.Algorithms {
			if !slices.Contains(oidc.Algorithms, name) {
				return nil, invalid("algorithms: %q must be one of %s", name, strings.Join(oidc.Algorithms, ", "))
			}
		}
		if len(o.Algorithms) == 0 {
			return nil, invalid("algorithms: must name at least one of %s", strings.Join(oidc.Algorithms, ", "))
		}
		all = append(all, oidc.Issuer{URL: o.Issuer, Audiences: o.Audience, Algorithms: o.Algorithms,
			NameClaim: o.UsernameClaim, Required: o.RequiredClaims})
	}
	return all, nil
}

// Verifier returns the verifier of the settings' OIDC issuers; nil: there are none.
func Verifier(c *config.Config, log *slog.Logger) (*oidc.Verifier, error) {
	all, err := issuers(c)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return oidc.New(all, log), nil
}

// access is who may use the server, and how much of it at once.
type access struct {
	verifier      *oidc.Verifier // nil: there are no OIDC issuers
	authenticator *auth.Authenticator
	watch         *auth.TokenWatch
	limits        *limit.Limiter
}

func (m maker) openAccess(ctx context.Context, r records) (ac access, err error) {
	ac, err = authenticating(ctx, m.c, m.log, r.store)
	if ac.verifier != nil {
		m.closing.add(ac.verifier.Close)
	}
	if err != nil {
		return ac, err
	}
	ac.watch = auth.NewTokenWatch(ac.authenticator, m.log, r.events)
	limits := limit.Default
	limits[limit.RequestBytes] = max(limits[limit.RequestBytes], 2*int64(m.c.Server.MaxBodyMB)<<20)
	ac.limits = limit.New(limits)
	return ac, nil
}

// authenticating returns what authenticates requests by the tokens of a database.
func authenticating(ctx context.Context, c *config.Config, log *slog.Logger, db auth.Store) (ac access, err error) {
	if ac.verifier, err = Verifier(c, log); err != nil {
		return ac, err
	}
	var jwts auth.Issuers
	if ac.verifier != nil {
		jwts = ac.verifier
	}
	ac.authenticator, err = auth.NewAuthenticator(ctx, auth.Mode(c.Server.Auth), c.Server.Host, db, jwts)
	return ac, err
}

// tokenRequired reports whether every request over the network needs a token now; false on an error.
func (ac access) tokenRequired(ctx context.Context) bool {
	required, err := ac.authenticator.TokenRequired(ctx)
	return required && err == nil
}

// resource describes the server to OAuth clients.
func resource(c *config.Config) (r api.Resource) {
	for _, o := range c.Server.OIDC {
		r.Issuers = append(r.Issuers, o.Issuer)
		for _, s := range o.Scopes {
			if !slices.Contains(r.Scopes, s) {
				r.Scopes = append(r.Scopes, s)
			}
		}
	}
	return r
}
