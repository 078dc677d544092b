package servers

import (
	"context"
	"slices"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// Secrets are what principals have stored under names.
type Secrets interface {
	// Reveal returns the value of one of an owner's, or a fault that says what its
	// user does about it.
	Reveal(ctx context.Context, owner, name string) (secret.Value, error)
}

// revealed returns values with the owner's secrets, as they are now, in the place
// of what refers to them.
func (servers *Servers) revealed(ctx context.Context, owner string, v spec.Values) (spec.Values, error) {
	return v.Expand(func(name string) (string, error) {
		if servers.Secrets == nil {
			return "", fault.New(fault.NotFound, "this server stores no secrets")
		}
		s, err := servers.Secrets.Reveal(ctx, owner, name)
		if err != nil {
			return "", err
		}
		return s.Reveal(), nil
	})
}

// unrevealed is in the chain of why a server did not start for want of a secret:
// it did nothing wrong, and is tried again when it is used.
type unrevealed struct{ error }

func (u unrevealed) Unwrap() error { return u.error }

// lacking says in words that a server did not start for want of a secret.
func (s *server) lacking(err error) error {
	why := fault.From(err)
	f := s.fault(fault.Connection, err, "cannot start: %s", why.Message)
	if name, ok := why.Context["secret"]; ok {
		f.With("secret", name)
	}
	f.Advice = why.Data().RecoverySuggestions
	return unrevealed{f}
}

// UsesOf tells which of a principal's connections refer to which stored secrets:
// their names, by those of the secrets.
func (servers *Servers) UsesOf(p auth.Principal) map[string][]string {
	uses := map[string][]string{}
	_ = servers.arrive(p) // what cannot be read is in the log
	for _, s := range servers.all(p.ID) {
		for _, name := range s.record().SecretNames() {
			uses[name] = append(uses[name], s.Name)
		}
	}
	return uses
}

// Stored is called when a principal has stored a secret: what waited for it need
// not say so any more. What runs takes it up at its next start.
func (servers *Servers) Stored(p auth.Principal, name string) {
	_ = servers.arrive(p) // what cannot be read is in the log
	for _, s := range servers.all(p.ID) {
		s.mu.Lock()
		if slices.Contains(s.rec.SecretNames(), name) {
			s.on(state.SecretStored)
		}
		s.mu.Unlock()
	}
}
