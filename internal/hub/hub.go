// Package hub is the one door of the server: every operation that a client asks for,
// over MCP, HTTP or the owner's socket, goes through it. Policy decides, the package
// that owns the resource carries the operation out, and the outcome is an event.
package hub

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/port"
	"sandlot/internal/servers"
	"sandlot/internal/session"
	"sandlot/internal/tool"
	"sandlot/internal/vault"
)

// Config is what is behind the door.
type Config struct {
	// Sources give tools. A name that two of them give belongs to the first one.
	Sources []tool.Source
	// Decide is the policy; nil: policy.Decide.
	Decide policy.Decider
	// Sessions, Ports, Servers and Vault carry out the operations that are no tools;
	// nil: the server has none of them.
	Sessions *session.Sessions
	Ports    *port.Ports
	Servers  *servers.Servers
	Vault    *vault.Vault
	// Network returns the network settings of all sessions.
	Network func() NetworkState
	// Events gets an event for every operation; nil: there are no events.
	Events *event.Stream
	// Observe, if set, is called at the end of every tool call, with the outcome of
	// the event.
	Observe func(ctx context.Context, c tool.Call, outcome string, took time.Duration)
	// Log gets what users are not told; nil: nothing is logged.
	Log *slog.Logger
}

// Hub is the door.
type Hub struct {
	Config
	readers  []tool.Reader
	external tool.External // third-party servers; nil: none
}

// New returns a hub. Sources that are readers give resources too.
func New(c Config) *Hub {
	h := &Hub{Config: c}
	if h.Decide == nil {
		h.Decide = policy.Decide
	}
	if h.Log == nil {
		h.Log = slog.New(slog.DiscardHandler)
	}
	for _, s := range c.Sources {
		if r, ok := s.(tool.Reader); ok {
			h.readers = append(h.readers, r)
		}
		if e, ok := s.(tool.External); ok {
			h.external = e
		}
	}
	return h
}

// Request is one operation that a client asks for.
type Request struct {
	Principal auth.Principal // its zero value: it is not known who asks
	Operation policy.Operation
	Resource  policy.Resource
	// Name is the name in the event: that of a tool or a prompt, never the value of
	// an argument.
	Name string
	// Arguments are the client's; Arguments and Client may be nil.
	Arguments json.RawMessage
	Client    tool.Client
}

// Do lets a request through the door: policy decides, handle carries the operation
// out, and the outcome is an event.
func Do[T any](ctx context.Context, h *Hub, r Request, handle func(context.Context) (T, error)) (answer T, err error) {
	a, err := h.begin(r)
	if err != nil {
		return answer, err
	}
	defer a.Close()
	answer, err = handle(ctx)
	a.outcome = outcomeOf(err)
	if s, ok := any(answer).(located); ok {
		a.session = s.session()
	}
	return answer, err
}

// located is an answer that knows its session.
type located interface{ session() string }

// Op is an operation with an input and an output of its own. An input that names a
// resource has the type SessionID, ServerName or SecretName, or embeds it.
type Op[In, Out any] struct {
	name policy.Operation
	do   func(*Hub, context.Context, auth.Principal, In) (Out, error)
}

func op[In, Out any](name policy.Operation,
	do func(*Hub, context.Context, auth.Principal, In) (Out, error)) Op[In, Out] {
	return Op[In, Out]{name, do}
}

// Do asks for the operation in the name of a principal.
func (o Op[In, Out]) Do(ctx context.Context, h *Hub, p auth.Principal, in In) (Out, error) {
	r := Request{Principal: p, Operation: o.name}
	if n, ok := any(in).(named); ok {
		r.Resource = n.resource(h, p)
	}
	return Do(ctx, h, r, func(ctx context.Context) (Out, error) { return o.do(h, ctx, p, in) })
}

// named is an input that names a resource.
type named interface {
	resource(*Hub, auth.Principal) policy.Resource
}

// None is the input or the output of an operation that has none.
type None = struct{}

// Act is a request that policy allowed. An act that lasts, such as a connection, is
// returned to the edge, and its end, Close, is an event of its own.
type Act struct {
	hub     *Hub
	request Request
	start   time.Time
	session string // empty: that of the request's resource
	outcome string
	release []func() // called by Close, the last one first
}

// begin asks the policy. A refusal is an event too.
func (h *Hub) begin(r Request) (Act, error) {
	a := Act{hub: h, request: r, start: time.Now(), outcome: panicked}
	err := h.Decide(policy.Question{Principal: r.Principal, Operation: r.Operation, Resource: r.Resource}).Err()
	if err == nil {
		return a, nil
	}
	if r.Resource.Kind == sessionKind && h.Sessions != nil && fault.Is(err, fault.NotFound) {
		// Another principal's session is answered like one that does not exist.
		if _, unknown := h.Sessions.Find(r.Principal, r.Resource.ID); unknown != nil {
			err = unknown
		}
	}
	a.publish(fault.From(err).Code(), 0)
	return Act{}, err
}

// Begin lets in a request that lasts until the act's Close.
func (h *Hub) Begin(r Request) (*Act, error) {
	return begin(h, r, func(a *Act) (*Act, error) { return a, nil })
}

// begin lets in a request that lasts, whose answer open makes. The act starts when open
// succeeds, and ends when it fails.
func begin[T any](h *Hub, r Request, open func(*Act) (T, error)) (answer T, err error) {
	allowed, err := h.begin(r)
	if err != nil {
		return answer, err
	}
	a := &allowed
	a.outcome = event.OK
	if answer, err = open(a); err != nil {
		a.Fail(err)
		a.Close()
		return answer, err
	}
	a.publish(event.Started, time.Since(a.start))
	return answer, nil
}

// Fail sets the outcome of the act. The first error counts.
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
	a.publish(a.outcome, time.Since(a.start))
	a.hub = nil
	return nil
}

// publish makes an event of the act. An act of an unknown principal, such as opening a
// log-in's link, has none: there is no principal who could read it.
func (a *Act) publish(outcome string, took time.Duration) {
	r := &a.request
	if a.hub.Events == nil || r.Principal.ID == "" {
		return
	}
	session := a.session
	if session == "" && r.Resource.Kind == sessionKind {
		session = r.Resource.ID
	}
	a.hub.Events.Publish(event.Event{Time: a.start.Add(took), Kind: event.Call, Principal: r.Principal.ID,
		Session: session, Operation: string(r.Operation), Name: r.Name, Outcome: outcome, Duration: took,
		Others: r.Operation == policy.PortVisit})
}

// panicked is the outcome of an act whose handler did not return.
var panicked = fault.New(fault.Internal, "").Code()

// outcomeOf is how an act ended.
func outcomeOf(err error) string {
	if err == nil {
		return event.OK
	}
	if _, ok := errors.AsType[*tool.Refusal](err); ok {
		return event.Error // the third-party server answered with an error
	}
	return fault.From(err).Code()
}
