package hub

import (
	"cmp"
	"context"

	"sandlot/internal/auth"
	"sandlot/internal/builtin"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/session"
	"sandlot/internal/session/property"
)

// sessionKind is the Kind of a policy.Resource that is a session.
const sessionKind = "session"

// SessionID is the id of a session. Both "" and "home" mean the principal's home session.
type SessionID string

// isAlias reports whether an id stands for a session: "home", or "new" for one that the request creates.
func isAlias(id string) bool { return id == "" || id == "home" || id == "new" }

// pin puts the id of the session in place of its name; see isName.
func (id *SessionID) pin(found string) {
	if isName(string(*id), found) {
		*id = SessionID(found)
	}
}

// resource implements resourceInput. The session may be another principal's. A session that is not there yet has the
// id "home" or "new".
func (id SessionID) resource(h *Hub, p auth.Principal) policy.Resource {
	id = cmp.Or(id, "home")
	r := policy.Resource{Kind: sessionKind, ID: string(id)}
	if h.Sessions == nil {
		return r
	}
	found, err := h.Sessions.Find(p, string(id))
	switch {
	case err == nil:
		r.ID, r.Owner = found, p.ID
	case isAlias(r.ID):
		r.Owner = p.ID
	default:
		r.Owner = h.Sessions.OwnerOf(r.ID)
	}
	return r
}

// What users set of a session: of a new one, and of one that is there.
type (
	SessionSettings = property.New
	SessionUpdate   = property.Change
)

// SessionSpec describes the session that a client wants. The ID "" means the principal's home
// session, and "new" a new session. Template and Flavor may be empty, and Env is for a new session.
type SessionSpec struct {
	ID, Template, Flavor string
	Env                  map[string]string
	Set                  SessionSettings // of a new session
}

// SessionChange is what is to change of a session.
type SessionChange struct {
	SessionID `json:"-"`
	SessionUpdate
}

// SessionState is what users have set of a session, and what it does.
type SessionState struct {
	ID     string `json:"session_id"`
	Status string `json:"status" jsonschema:"As in the list of sessions."`
	builtin.Life
	Notice string `json:"notice,omitempty" jsonschema:"Why a session that was resumed is not awake yet."`
}

// session implements sessionAnswer.
func (s SessionState) session() string { return s.ID }

func stateOf(i session.Info) SessionState {
	return SessionState{ID: i.ID, Status: i.Status, Life: builtin.LifeOf(i.Record)}
}

// Session is a session that was created.
type Session struct {
	ID       string `json:"session_id"`
	Template string `json:"template"`
	Flavor   string `json:"flavor"`
}

// session implements sessionAnswer.
func (s Session) session() string { return s.ID }

// MayCreateSession returns nil if scope and rules allow a principal a session of a template, which was asked for by
// another name, or by none. Sessions are created by calls too, not only by CreateSession: session.Sessions asks for
// each.
func (h *Hub) MayCreateSession(ctx context.Context, p auth.Principal, template, asked string) error {
	r := Request{Principal: p, Operation: policy.SessionCreate, Detail: policy.TemplateDetail(template, asked)}
	if h.indifferent(ctx, r) {
		return nil
	}
	_, err := h.permit(ctx, r)
	return err
}

// MaySnapshot returns nil if scope and rules allow a principal a snapshot of a session, which a call makes on the way.
func (h *Hub) MaySnapshot(ctx context.Context, p auth.Principal, id string) error {
	if h.indifferent(ctx, Request{Principal: p, Operation: policy.SnapshotCreate}) {
		return nil
	}
	_, err := h.permit(ctx, h.sessionRequest(policy.SnapshotCreate, p, SessionID(id)))
	return err
}

// MayCopy returns nil if scope and rules allow a principal what a copy of a session brings with it: the values of
// secrets that programs have got there, and, if another session gets what a snapshot has, to restore that of the
// snapshot's session, which may be gone. source is that session; empty: it is the one that the call names.
func (h *Hub) MayCopy(ctx context.Context, p auth.Principal, source string, secrets []string) error {
	if source != "" {
		if _, err := h.permit(ctx, Request{Principal: p, Operation: policy.SnapshotRestore,
			Resource: policy.Resource{Kind: sessionKind, ID: source, Owner: p.ID}}); err != nil {
			return err
		}
	}
	for _, name := range secrets {
		_, err := h.permit(ctx, Request{Principal: p, Operation: policy.SecretUse,
			Resource: SecretName(name).resource(h, p), Detail: name})
		if err != nil {
			f := fault.From(err)
			return fault.Wrap(f.Kind, err, "the copy would have the secret %s in its memory or its files, as "+
				"programs of the session have got it: %v", name, err).
				Advise("Use another session or snapshot", "Ask the operator for a rule that allows secret.use "+name)
		}
	}
	return nil
}

// createSession creates a session. It ignores the spec's ID.
func (h *Hub) createSession(ctx context.Context, p auth.Principal, a SessionSpec) (Session, error) {
	l, err := h.Sessions.Open(ctx, p, session.OpenRequest{ID: "new", Template: a.Template, Flavor: a.Flavor,
		Env: a.Env, Set: a.Set.Change()})
	if err != nil {
		return Session{}, err
	}
	defer l.Release()
	if err := l.UseVariables(ctx, h.revealFor(p)); err != nil {
		return Session{}, err
	}
	return Session{l.ID(), l.Booted.Template.Name, l.Booted.Flavor.Name}, nil
}

func (h *Hub) stopSession(ctx context.Context, p auth.Principal, id SessionID) (None, error) {
	found, err := h.Sessions.End(ctx, p, string(id))
	if found || err != nil {
		return None{}, err
	}
	_, err = h.Sessions.List(ctx, p, string(id)) // its error says why there is nothing to stop
	return None{}, err
}

func (h *Hub) pauseSession(ctx context.Context, p auth.Principal, id SessionID) (SessionState, error) {
	i, err := h.Sessions.Pause(ctx, p, string(id))
	return stateOf(i), err
}

func (h *Hub) resumeSession(ctx context.Context, p auth.Principal, id SessionID) (SessionState, error) {
	i, notice, err := h.Sessions.Resume(ctx, p, string(id))
	s := stateOf(i)
	s.Notice = notice
	return s, err
}

func (h *Hub) changeSession(ctx context.Context, p auth.Principal, c SessionChange) (SessionState, error) {
	if err := h.mayEnd(ctx, p, c); err != nil {
		return SessionState{}, err
	}
	i, err := h.Sessions.Change(ctx, p, string(c.SessionID), c.SessionUpdate)
	return stateOf(i), err
}

// mayEnd returns nil if scope and rules allow a principal what happens at the end that a change gives a session: to stop
// or to pause it.
func (h *Hub) mayEnd(ctx context.Context, p auth.Principal, c SessionChange) error {
	if c.EndsAt == nil && c.EndsIn == nil && c.OnEnd == nil {
		return nil
	}
	for _, o := range []policy.Operation{policy.SessionStop, policy.SessionPause} {
		if h.indifferent(ctx, Request{Principal: p, Operation: o}) {
			continue
		}
		if _, err := h.permit(ctx, h.sessionRequest(o, p, c.SessionID)); err != nil {
			return err
		}
	}
	return nil
}

// stopAllSessions stops the sessions of all principals.
func (h *Hub) stopAllSessions(ctx context.Context, _ auth.Principal, _ None) (None, error) {
	h.Sessions.StopAll(context.WithoutCancel(ctx))
	return None{}, nil
}

// sessionRequest returns the request for an operation on a session.
func (h *Hub) sessionRequest(o policy.Operation, p auth.Principal, id SessionID) Request {
	return Request{Principal: p, Operation: o, Resource: id.resource(h, p)}
}

// openSession opens the session of the request and waits for its sandbox. The lease lasts
// until the request ends.
func (a *ActiveRequest) openSession(ctx context.Context, spec SessionSpec) (*session.Lease, error) {
	wanted := session.OpenRequest{ID: spec.ID, Template: spec.Template, Flavor: spec.Flavor, KeepNotice: true}
	l, err := a.hub.Sessions.Open(ctx, a.request.Principal, wanted)
	if err == nil {
		a.holdLease(l)
	}
	return l, err
}

// holdLease makes the end of the request release the lease.
func (a *ActiveRequest) holdLease(l *session.Lease) {
	a.session = l.ID()
	a.cleanups = append(a.cleanups, l.Release)
}
