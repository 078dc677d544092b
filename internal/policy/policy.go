// Package policy decides which principal may do which operation. It has the table of all
// operations. Its decisions are pure: they depend on the Question only, and do no I/O.
package policy

import (
	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// Resource is the object of an operation.
type Resource struct {
	// Kind is "session", "connection", "secret", …; empty: the operation has no object.
	Kind string
	// ID is its id, or its name among those of its owner.
	ID string
	// Owner is the id of the principal that owns it. Empty: nobody owns it, it does not
	// exist yet, or the operation looks it up among the principal's own resources.
	Owner string
}

// Question is the input of a decision.
type Question struct {
	Principal auth.Principal // its zero value is nobody
	Operation Operation
	Resource  Resource
	// Detail is what rules compare with their patterns, such as the command of ShellExecute.
	Detail string
	// DetailFollows: the detail is not known yet, and another decision follows when it is.
	DetailFollows bool
}

// Effect is the result of a decision.
type Effect int

const (
	// Refuse is the zero value, so that a missing decision refuses.
	Refuse Effect = iota
	Allow
	Ask // the principal, or an operator, before it is done
)

// Decision is the answer to a Question. Its zero value refuses.
type Decision struct {
	Effect Effect
	// Reason is the fault of a refusal; nil: Err returns a general one.
	Reason *fault.Error
	// Rule is the rule that decided; nil: the table of operations did.
	Rule *Rule
}

// Decider decides, as Decide and Rules.Decide do.
type Decider func(Question) Decision

// Decide decides by the table of operations, the scope and the roles of the principal and the
// owner of the resource.
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
	case !inScope(p, q.Operation):
		return Decision{Reason: outOfScope(p, q.Operation)}
	case r.role != "" && !p.HasRole(r.role):
		return Decision{Reason: fault.From(p.Require(r.role, r.deniedAct))}
	case q.Resource.Owner != "" && q.Resource.Owner != p.ID && !(r.operatorsMayForOthers && p.HasRole(auth.Operator)):
		return Decision{Reason: fault.New(fault.NotFound, "there is no such %s", q.Resource.Kind)}
	}
	return Decision{Effect: Allow}
}

// Err returns the fault of a refusal, or nil when the decision allows.
func (d Decision) Err() error {
	switch {
	case d.Effect == Allow:
		return nil
	case d.Effect == Ask && d.Reason == nil:
		return fault.New(fault.Forbidden, "this needs a person's consent, and there was no one to ask")
	case d.Reason == nil:
		return fault.New(fault.Forbidden, "this server does not allow it")
	}
	return d.Reason
}
