package tool

import (
	"context"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// Door is how a call that runs asks the hub on its way; see Call.Door.
//
// The door is in the call and not a parameter of Callable.Call, as few tools and no third-party one use it;
// an edge cannot set it by accident, and until the hub has the call it is closed, so that an edge which goes
// around the hub can do nothing. Tools that know better what they do ask policy first and a person later,
// with a text of their own. A route that does what a tool does calls the tool, so that a rule, a quota, the
// check of arguments and the event are one, whoever asks; the price is that the output of such an operation
// has the type any.
type Door interface {
	// Ask asks policy about an operation that the call does, with its detail: one of Callable.Implies, or that of
	// the call if Callable.DetailFollows. An error refuses the call. Else the door that it returns stands for that
	// operation, and has to be asked for Consent.
	Ask(ctx context.Context, o policy.Operation, detail string) (Door, error)
	// Consent asks a person about the operation that the door stands for, where a rule says so. The zero question is
	// about the operation and its detail. decided is false if no rule decides about the operation.
	Consent(ctx context.Context, q Question) (decided bool, err error)
	// Shows reports whether policy allows the operation for another detail too, such as the path of an entry in a
	// list. It asks no one.
	Shows(ctx context.Context, detail string) bool
	// Reveal returns variables of a command with the principal's secrets in place of references to them. What it
	// returns goes to the sandbox, and is stored nowhere.
	Reveal(ctx context.Context, env map[string]string) (map[string]string, error)
	// Hold keeps the call open, with its place in the quota, until release: for a run that may outlast the client.
	Hold() (release func())
	// Record returns a context in which a Trail notes what the call asks policy.
	Record(ctx context.Context) (context.Context, Trail)
}

// Door returns the call's way through the hub. It is closed before the hub has the call.
func (c Call) Door() Door {
	if c.door == nil {
		return closed{}
	}
	return c.door
}

// Through returns the call with a door. The hub gives each call one.
func (c Call) Through(d Door) Call {
	c.door = d
	return c
}

// May returns nil if policy allows an operation that the call does, and a person agrees where a rule asks one: see
// Door.Ask and Door.Consent.
func (c Call) May(ctx context.Context, o policy.Operation, detail string, q Question) error {
	d, err := c.Door().Ask(ctx, o, detail)
	if err == nil {
		_, err = d.Consent(ctx, q)
	}
	return err
}

// closed is the door of a call that has not reached the hub: nothing may be done.
type closed struct{ Open }

var errClosed = fault.New(fault.Internal, "a call asked policy before it reached the hub")

func (closed) Ask(context.Context, policy.Operation, string) (Door, error) { return nil, errClosed }

func (closed) Consent(context.Context, Question) (decided bool, err error) { return false, errClosed }

func (closed) Shows(context.Context, string) bool { return false }

func (closed) Reveal(context.Context, map[string]string) (map[string]string, error) {
	return nil, errClosed
}

// Open is a Door, and a Trail, without rules and secrets.
type Open struct{}

func (o Open) Ask(context.Context, policy.Operation, string) (Door, error) { return o, nil }
func (Open) Consent(context.Context, Question) (decided bool, err error)   { return false, nil }
func (Open) Shows(context.Context, string) bool                            { return true }
func (Open) Reveal(_ context.Context, env map[string]string) (map[string]string, error) {
	return env, nil
}
func (Open) Hold() (release func())                                { return func() {} }
func (o Open) Record(ctx context.Context) (context.Context, Trail) { return ctx, o }
func (Open) Recheck(context.Context, auth.Principal) error         { return nil }
func (Open) Size() int                                             { return 0 }
