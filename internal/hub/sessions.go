package hub

import (
	"context"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/policy"
	"sandlot/internal/session"
)

// about is the resource that a session of the principal's is, or somebody else's.
func (h *Hub) about(p auth.Principal, id string) policy.Resource {
	r := policy.Resource{Kind: "session", ID: id}
	if own, err := h.Sessions.Find(p, id); err == nil {
		r.ID, r.Owner = own, p.ID
	} else {
		r.Owner = h.Sessions.OwnerOf(id)
	}
	return r
}

// Ask says which session a client wants: empty is its home, "new" a new one.
type Ask struct{ ID, Template, Flavor string }

// Session is a session that was made.
type Session struct {
	ID       string `json:"session_id"`
	Template string `json:"template"`
	Flavor   string `json:"flavor"`
}

// CreateSession makes a session, whatever the id that is asked for.
func (h *Hub) CreateSession(ctx context.Context, p auth.Principal, a Ask) (Session, error) {
	return Do(ctx, h, Request{Principal: p, Operation: policy.SessionCreate}, func(ctx context.Context) (Session, error) {
		l, err := h.Sessions.Open(ctx, p, session.Ask{ID: "new", Template: a.Template, Flavor: a.Flavor})
		if err != nil {
			return Session{}, err
		}
		defer l.Release()
		return Session{l.ID(), l.Booted.Template.Name, l.Booted.Flavor.Name}, nil
	})
}

// session implements located.
func (s Session) session() string { return s.ID }

// StopSession ends a session of the principal's.
func (h *Hub) StopSession(ctx context.Context, p auth.Principal, id string) error {
	_, err := Do(ctx, h, Request{Principal: p, Operation: policy.SessionStop, Resource: h.about(p, id)}, func(ctx context.Context) (nothing, error) {
		if h.Sessions.Stop(ctx, p, id) {
			return nothing{}, nil
		}
		_, err := h.Sessions.List(ctx, p, id)
		return nothing{}, err
	})
	return err
}

// StopAllSessions ends the sessions of all principals.
func (h *Hub) StopAllSessions(ctx context.Context, p auth.Principal) error {
	_, err := Do(ctx, h, Request{Principal: p, Operation: policy.SessionStopAll}, func(ctx context.Context) (nothing, error) {
		h.Sessions.StopAll(context.WithoutCancel(ctx))
		return nothing{}, nil
	})
	return err
}

// Act is one that lasts, such as a connection: it was let in, and its end is an
// event of its own.
type Act struct {
	act
	session string
	release []func()
	outcome string
}

// Begin lets a request in that lasts until Close.
func (h *Hub) Begin(r Request) (*Act, error) {
	a, err := h.begin(r)
	if err != nil {
		return nil, err
	}
	s := &Act{act: a, outcome: event.OK}
	s.publish("", event.Started, 0)
	return s, nil
}

// Fail says what the act ended with. The first error counts.
func (a *Act) Fail(err error) error {
	if err != nil && a.outcome == event.OK {
		a.outcome = outcomeOf(err)
	}
	return err
}

// Close ends the act. It may be called twice.
func (a *Act) Close() error {
	if a.hub == nil {
		return nil
	}
	for _, release := range slices.Backward(a.release) {
		release()
	}
	a.end(a.session, a.outcome)
	a.hub = nil
	return nil
}

// openSession begins an act on a session with a sandbox that answers.
func (h *Hub) openSession(ctx context.Context, o policy.Operation, p auth.Principal, a Ask) (*Act, *session.Lease, error) {
	begun, err := h.begin(Request{Principal: p, Operation: o, Resource: h.about(p, a.ID)})
	if err != nil {
		return nil, nil, err
	}
	act := &Act{act: begun, outcome: event.OK}
	l, err := h.Sessions.Open(ctx, p, session.Ask{ID: a.ID, Template: a.Template, Flavor: a.Flavor})
	if err != nil {
		act.Fail(err)
		act.Close()
		return nil, nil, err
	}
	act.session, act.release = l.ID(), []func(){l.Release}
	return act, l, nil
}

// started announces an act whose session is known now.
func (a *Act) started() { a.publish(a.session, event.Started, time.Since(a.start)) }
