package session

import (
	"context"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/session/state"
)

// template returns the session's template, or a fault that says why there is none.
func (s *Session) template(ctx context.Context) (*image.Template, error) {
	r := s.record()
	t, exists, err := s.sessions.Templates.Of(ctx, r.Template)
	if exists {
		return t, err
	}
	return nil, fault.New(fault.InvalidParameters,
		"session %s was made of the template %q, which this server does not have any more. Its files in /workspace "+
			"are kept: name another template in the call, such as %q, to go on with them there, or ask the operator "+
			"to bring the template back", r.ID, r.Template, s.sessions.DefaultTemplate).
		With("argument", "template").With("session_id", r.ID).With("template", r.Template)
}

// mayCreate returns an error if a principal may not have a session of a template; see Permits.
func (s *Sessions) mayCreate(ctx context.Context, p auth.Principal, template, asked string) error {
	if s.Permits == nil {
		return nil
	}
	return s.Permits.MayCreateSession(ctx, p, template, asked)
}

// replaceTemplate gives a session whose template was removed another one, with the same workspace.
func (s *Session) replaceTemplate(ctx context.Context, p auth.Principal, name string) error {
	t, err := s.sessions.Templates.Find(ctx, name)
	if err != nil {
		return err
	}
	if err := s.sessions.mayCreate(ctx, p, t.Name, name); err != nil {
		return err
	}
	return s.own(ctx, waits, func() error { return s.replaceLocked(t) })
}

// replaceLocked gives the session the template, if it has none.
func (s *Session) replaceLocked(t *image.Template) error {
	before := s.record().Template
	if s.sessions.Templates.Exists(before) { // another call was faster
		return nil
	}
	s.endSandbox(s.current().booted, state.Stop, "its template was removed")
	if err := s.update(func(r *Record) { r.Template = t.Name }); err != nil {
		return err
	}
	s.sessions.Log.Info("a session whose template was removed goes on with another", "session", s.record().ID, "before",
		before, "template", t.Name)
	s.applyPolicy()
	return nil
}
