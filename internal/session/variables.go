package session

import (
	"context"
	"slices"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
)

// Sealer seals the variables of sessions, as they are stored.
type Sealer interface {
	SealVariables(owner, session string, env map[string]string) ([]byte, error)
	OpenVariables(owner, session string, sealed []byte) (map[string]string, error)
}

// sealVariables returns the variables of a new session as they are stored; nil: it has none.
func (s *Sessions) sealVariables(owner, id string, env map[string]string) ([]byte, error) {
	if len(env) == 0 {
		return nil, nil
	}
	if s.Sealer == nil {
		return nil, fault.Argument("env", "this server stores no variables of sessions")
	}
	return s.Sealer.SealVariables(owner, id, env)
}

// Variables returns the session's variables as they were given, with references to secrets; nil: it has none.
func (s *Session) Variables() (map[string]string, error) {
	r := s.record()
	if r.Variables == nil {
		return nil, nil
	}
	return s.sessions.Sealer.OpenVariables(r.Owner, r.ID, r.Variables)
}

// VariablesOf returns the variables of one of a principal's sessions; nil: it has none, or there is no such session.
func (s *Sessions) VariablesOf(owner, id string) (map[string]string, error) {
	session := s.owned(owner, id)
	if session == nil {
		return nil, nil
	}
	return session.Variables()
}

// Reveal returns variables with secrets in place of the references to them.
type Reveal func(ctx context.Context, env map[string]string) (map[string]string, error)

// UseVariables gives the sandbox the session's variables, before a call starts a program in it or runs code. Those of
// the program alone are given too, for NoteSecrets. A session that was made for the call ends if it cannot have them.
func (l *Lease) UseVariables(ctx context.Context, reveal Reveal, own ...map[string]string) error {
	err := l.NoteSecrets(own...)
	if err == nil {
		err = l.useVariables(ctx, reveal)
	}
	if err != nil && l.Created {
		l.Release()
		_ = l.sessions.endSession(context.WithoutCancel(ctx), l.Session, byUser)
	}
	return err
}

// NoteSecrets stores that a program of the session gets the secrets to which variables refer, before it does: whoever
// has a copy of the session then has them too.
func (l *Lease) NoteSecrets(env ...map[string]string) error {
	names := slices.DeleteFunc(spec.References(env...), func(name string) bool {
		return slices.Contains(l.record().Secrets, name)
	})
	if len(names) == 0 {
		return nil
	}
	return l.update(func(r *Record) {
		all := slices.Concat(r.Secrets, names)
		slices.Sort(all)
		r.Secrets = slices.Compact(all)
	})
}

// SecretsOf returns the names of the secrets that one of a principal's sessions may have.
func (s *Sessions) SecretsOf(p auth.Principal, id string) []string {
	if session := s.ownedSession(p, id); session != nil {
		return session.record().Secrets
	}
	return nil
}

func (l *Lease) useVariables(ctx context.Context, reveal Reveal) error {
	env, err := l.Variables()
	if env == nil || err != nil {
		return err
	}
	given := env
	if reveal != nil {
		if env, err = reveal(ctx, env); err != nil {
			return err
		}
	}
	if err := l.NoteSecrets(given); err != nil {
		return err
	}
	pushCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), boundTimeout)
	defer cancel()
	if err := l.sessions.Pool.SetVariables(pushCtx, l.Booted, env); err != nil {
		return l.Fault(ctx, err, fault.CommandExecution)
	}
	return nil
}
