package session

import (
	"context"
	"regexp"
	"strings"
	"unicode/utf8"

	"sandlot/internal/fault"
)

// Sealer seals the variables of sessions, as they are stored.
type Sealer interface {
	SealVariables(owner, session string, env map[string]string) ([]byte, error)
	OpenVariables(owner, session string, sealed []byte) (map[string]string, error)
}

// Limits of a session's variables: their number, and the size of all names and values as they are given, in bytes.
const (
	MaxVariables     = 100
	MaxVariableBytes = 64 << 10
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// checkVariables returns a fault, without a value, if a new session cannot have the variables.
func checkVariables(env map[string]string) error {
	total := 0
	for name, value := range env {
		switch total += len(name) + len(value); {
		case !variableName.MatchString(name):
			return fault.Argument("env", "a variable of a session has a name of 1 to 128 letters, digits and _, which "+
				"does not begin with a digit")
		case strings.ContainsRune(value, 0) || !utf8.ValidString(value):
			return fault.Argument("env", "the variable %s is no text (UTF-8) without NUL", name)
		}
	}
	if len(env) > MaxVariables || total > MaxVariableBytes {
		return fault.Argument("env", "a session has at most %d variables, with at most %d bytes together", MaxVariables,
			MaxVariableBytes)
	}
	return nil
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
	session := s.byID(id)
	if session == nil || session.record().Owner != owner {
		return nil, nil
	}
	return session.Variables()
}

// Reveal returns variables with secrets in place of the references to them.
type Reveal func(ctx context.Context, env map[string]string) (map[string]string, error)

// UseVariables gives the sandbox the session's variables, before a call starts a program in it or runs code. A session
// that was created for the call, and cannot have them, ends.
func (l *Lease) UseVariables(ctx context.Context, reveal Reveal) error {
	err := l.useVariables(ctx, reveal)
	if err != nil && l.Created {
		l.Release()
		l.sessions.endSession(context.WithoutCancel(ctx), l.Session)
	}
	return err
}

func (l *Lease) useVariables(ctx context.Context, reveal Reveal) error {
	env, err := l.Variables()
	if env == nil || err != nil {
		return err
	}
	if reveal != nil {
		if env, err = reveal(ctx, env); err != nil {
			return err
		}
	}
	pushCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), boundTimeout)
	defer cancel()
	if err := l.sessions.Pool.SetVariables(pushCtx, l.Booted, env); err != nil {
		return l.Fault(ctx, err, fault.CommandExecution)
	}
	return nil
}
