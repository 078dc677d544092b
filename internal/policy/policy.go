// Package policy decides who may do what. It has the table of all operations, and
// its decisions are pure: they depend on the question alone, and do no I/O.
package policy

import (
	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// Resource is what an operation is about.
type Resource struct {
	// Kind is what it is: "session", "connection", "secret", …; empty: nothing
	// that exists by itself.
	Kind string
	// ID is its id, or its name among those of its owner.
	ID string
	// Owner is the id of the principal whose it is. Empty: it is nobody's, it is
	// not there yet, or who carries the operation out finds only what is the
	// principal's own.
	Owner string
}

// Question is what has to be decided.
type Question struct {
	Principal auth.Principal // its zero value is nobody
	Operation Operation
	Resource  Resource
}

// Effect is what a decision is.
type Effect int

const (
	// Refuse is the zero value: what nobody decided is refused.
	Refuse Effect = iota
	Allow
)

// Decision is an answer. Its zero value refuses.
type Decision struct {
	Effect Effect
	// Reason is why it is refused; nil: nothing is said of that.
	Reason *fault.Error
}

// Decider decides; Decide is the one that servers have.
type Decider func(Question) Decision

// Decide answers a question by the table of operations, by the roles of the
// principal, and by whose the resource is.
func Decide(q Question) Decision {
	r, known := table[q.Operation]
	p := q.Principal
	switch {
	case !known:
		return Decision{Reason: fault.New(fault.Internal, "there is no operation %q", q.Operation)}
	case r.anyone:
		return Decision{Effect: Allow}
	case p.ID == "":
		return Decision{Reason: fault.New(fault.Unauthorized, "it is not known who asks")}
	case r.role != "" && !p.HasRole(r.role):
		return Decision{Reason: fault.From(p.Require(r.role, r.what))}
	case q.Resource.Owner != "" && q.Resource.Owner != p.ID && !(r.others && p.HasRole(auth.Operator)):
		return Decision{Reason: fault.New(fault.NotFound, "there is no such %s", q.Resource.Kind)}
	}
	return Decision{Effect: Allow}
}

// Err returns the fault that a refusal is; nil: it is none.
func (d Decision) Err() error {
	switch {
	case d.Effect == Allow:
		return nil
	case d.Reason == nil:
		return fault.New(fault.Forbidden, "this server does not allow it")
	}
	return d.Reason
}
