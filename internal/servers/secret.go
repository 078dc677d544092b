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

// Secrets has the secrets that principals have stored.
type Secrets interface {
	// Reveal returns the value of a secret, or a fault that tells its owner what to do.
	Reveal(ctx context.Context, owner, name string) (secret.Value, error)
}

// revealed returns the values of variables and headers with their references to secrets replaced by the
// owner's current secrets.
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

// unrevealed marks the error of a start that failed because a secret is missing. Such a failure does
// not count against the server: its next use starts it again without a pause.
type unrevealed struct{ error }

func (u unrevealed) Unwrap() error { return u.error }

// lacking returns the fault for a start that failed because a secret is missing.
func (s *server) lacking(err error) error {
	why := fault.From(err)
	f := s.fault(fault.Connection, err, "cannot start: %s", why.Message)
	if name, ok := why.Context["secret"]; ok {
		f.With("secret", name)
	}
	f.Advice = why.Data().RecoverySuggestions
	return unrevealed{f}
}

// UsesOf returns the names of the principal's servers that refer to each stored secret, by the secret's
// name.
func (servers *Servers) UsesOf(p auth.Principal) map[string][]string {
	uses := map[string][]string{}
	_ = servers.arrive(p) // an error is in the log
	for _, s := range servers.all(p.ID) {
		for _, name := range s.record().SecretNames() {
			uses[name] = append(uses[name], s.Name)
		}
	}
	return uses
}

// Stored is called when a principal has stored a secret: servers that could not start without it can
// be started now. A running server gets the secret with its next start.
func (servers *Servers) Stored(p auth.Principal, name string) {
	_ = servers.arrive(p) // an error is in the log
	for _, s := range servers.all(p.ID) {
		s.mu.Lock()
		if slices.Contains(s.rec.SecretNames(), name) {
			s.on(state.SecretStored)
		}
		s.mu.Unlock()
	}
}
