package session

import (
	"context"
	"maps"
	"slices"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/policy"
	"sandlot/internal/pool"
)

// policy returns what a session may reach.
func (s *Sessions) policy(r Record) *egress.Policy {
	return s.policies.Load().Of(r)
}

// TemplatePolicy returns what a session of that template may reach, unless something is set for it
// alone.
func (s *Sessions) TemplatePolicy(template string) *egress.Policy {
	return s.policy(Record{Template: template})
}

// HomePolicy returns what a principal's home may reach. It also applies to connections that
// the server makes on the principal's behalf.
func (s *Sessions) HomePolicy(p auth.Principal) *egress.Policy {
	if session := s.ownedSession(p, "home"); session != nil {
		return s.policy(session.record())
	}
	return s.policy(Record{Template: s.DefaultTemplate})
}

// SetPolicies applies policies to all sessions from now on.
func (s *Sessions) SetPolicies(p Policies) {
	p.Templates = maps.Clone(p.Templates)
	s.policies.Store(&p)
	for _, session := range s.all() {
		session.applyPolicy()
	}
}

// Policies returns the present policies.
func (s *Sessions) Policies() Policies {
	if p := s.policies.Load(); p != nil {
		return *p
	}
	return Policies{}
}

// applyPolicy gives the present policy to the session's sandbox.
func (s *Session) applyPolicy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := &s.cur; c.booted != nil && c.booted.Outlet != nil {
		c.booted.Outlet.SetPolicy(s.sessions.policy(c.rec))
	}
}

// connectOutlet gives a sandbox the session's access to the network, and to tools. No other goroutine uses the
// sandbox yet.
func (s *Sessions) connectOutlet(booted *pool.Booted, r Record, meter *egress.Meter) {
	if s.Egress != nil {
		booted.Connect(s.Egress.Outlet(egress.Owner{Principal: r.Owner, Session: r.ID, Sandbox: booted.ID}, s.policy(r),
			meter))
	}
	if s.OnSandbox != nil {
		s.OnSandbox(r.Owner, r.ID, booted.Agent, booted.Used)
	}
}

// Narrow makes what runs in the background of a session's sandbox have no more than a scope.
func (s *Sessions) Narrow(id string, scope auth.Scope) {
	session := s.byID(id)
	if session == nil || policy.Narrow(session.record().Scope, scope) == session.record().Scope {
		return
	}
	narrow := func(r *Record) { r.Scope = policy.Narrow(r.Scope, scope) }
	session.mu.Lock()
	narrow(&session.cur.rec) // also if it cannot be stored
	session.mu.Unlock()
	session.updateOrLog("the scope of a session", narrow)
}

// ScopeOf returns the scope of what runs in the background of a session's sandbox.
func (s *Sessions) ScopeOf(id string) (scope auth.Scope) {
	if session := s.byID(id); session != nil {
		scope = session.record().Scope
	}
	return scope
}

// Network is what a session may reach, and what it has done with the network.
type Network struct {
	Session string          `json:"session_id"`
	Owner   string          `json:"owner"`
	Change  NetworkOverride `json:"change"`
	Policy  *egress.Policy  `json:"policy"`
	Usage   *egress.Usage   `json:"usage,omitempty"` // of its present sandbox
	// Traffic is that of all its sandboxes. MaxBytes is its limit, both directions together;
	// 0: no limit.
	Traffic  egress.Traffic `json:"traffic"`
	MaxBytes int64          `json:"max_bytes,omitempty"`
}

// Network returns the network of one of the principal's sessions, or, for an operator, of
// anyone's.
func (s *Sessions) Network(p auth.Principal, id string) (Network, error) {
	session, err := s.findAny(p, id)
	if err != nil {
		return Network{}, err
	}
	c := session.current()
	n := Network{Session: c.rec.ID, Owner: c.rec.Owner, Change: c.rec.Network, Policy: s.policy(c.rec),
		Traffic: session.meter.Traffic(), MaxBytes: s.maxBytes()}
	if c.booted != nil && c.booted.Outlet != nil {
		u := c.booted.Outlet.Usage()
		n.Usage = &u
	}
	return n, nil
}

// findAny returns one of the principal's sessions, or, for an operator, anyone's. "home" is
// always the principal's own.
func (s *Sessions) findAny(p auth.Principal, id string) (*Session, error) {
	session := s.ownedSession(p, id)
	if session == nil && p.HasRole(auth.Operator) {
		session = s.byID(id)
	}
	if session == nil {
		return nil, s.notFound(p.ID, id)
	}
	return session, nil
}

// ChangeNetwork changes what one session may reach, and stores the change before it applies
// it. Only operators may call it.
func (s *Sessions) ChangeNetwork(ctx context.Context, p auth.Principal, id string,
	change func(*NetworkOverride)) (Network, error) {
	session, err := s.findAny(p, id)
	if err != nil {
		return Network{}, err
	}
	if err := session.own(ctx, waits, func() error {
		err := session.update(func(r *Record) {
			r.Network.Allow = slices.Clone(r.Network.Allow)
			change(&r.Network)
		})
		if err == nil {
			session.applyPolicy()
		}
		return err
	}); err != nil {
		return Network{}, err
	}
	return s.Network(p, session.record().ID)
}

// Refusals returns what the session's sandbox was not allowed to reach since the last call, without the programs of
// third-party servers in it.
func (l *Lease) Refusals() []egress.Refusal {
	if l.Booted.Outlet == nil {
		return nil
	}
	return l.Booted.Outlet.TakeRefusals()
}

// AddRefusals adds what a third-party server was refused in a call of code in a session, to what Refusals returns there.
func (s *Sessions) AddRefusals(id string, list []egress.Refusal) {
	session := s.byID(id)
	if session == nil || len(list) == 0 {
		return
	}
	session.mu.Lock()
	defer session.mu.Unlock()
	if b := session.cur.booted; b != nil && b.Outlet != nil {
		b.Outlet.AddRefusals(list)
	}
}
