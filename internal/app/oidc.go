package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"sandlot/internal/api"
	"sandlot/internal/auth"
	"sandlot/internal/auth/oidc"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/secret"
	"sandlot/internal/vault"
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
		if o.ClientID != "" && c.Server.PublicURL == "" && !auth.Loopback(c.Server.Host) {
			return nil, invalid("client_id: set public_url, below which the issuer sends browsers back")
		}
		client := oidc.Client{ID: o.ClientID, Scopes: o.ClientScopes}
		if o.ClientSecretFile != "" {
			var err error
			if client.Secret, err = clientSecret(o.ClientSecretFile); err != nil {
				return nil, invalid("client_secret_file: %v", err)
			}
		}
		all = append(all, oidc.Issuer{URL: o.Issuer, Audiences: o.Audience, Algorithms: o.Algorithms,
			NameClaim: o.UsernameClaim, Required: o.RequiredClaims, Client: client})
	}
	return all, nil
}

// maxClientSecret bounds the file of a client's secret, in bytes.
const maxClientSecret = 4 << 10

// clientSecret reads a client's secret, which nobody but the file's owner may be able to read.
func clientSecret(path string) (secret.Value, error) {
	if err := vault.CheckPrivate(path); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxClientSecret+1))
	if err != nil {
		return "", err
	}
	text = bytes.TrimSpace(text)
	if len(text) == 0 || len(text) > maxClientSecret {
		return "", fmt.Errorf("%s must have the secret, of 1 to %d bytes", path, maxClientSecret)
	}
	return secret.Value(text), nil
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
