// Package hub is the only way to the server's operations: every operation that a client
// requests, over MCP, HTTP or the owner's socket, goes through it. Package policy decides,
// the package that owns the resource carries the operation out, and the outcome becomes an
// event.
package hub

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/audit"
	"sandlot/internal/auth"
	"sandlot/internal/checkup"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/inventory"
	"sandlot/internal/policy"
	"sandlot/internal/port"
	"sandlot/internal/question"
	"sandlot/internal/quota"
	"sandlot/internal/registry"
	"sandlot/internal/secret"
	"sandlot/internal/servers"
	"sandlot/internal/session"
	"sandlot/internal/template"
	"sandlot/internal/tool"
	"sandlot/internal/tty"
	"sandlot/internal/vault"
)

// Config is what the hub gives access to.
type Config struct {
	// Sources are the sources of tools. If two have a tool of the same name, the first one's
	// counts.
	Sources []tool.Source
	// Rules are the rules of the settings; nil: there are none.
	Rules *policy.Current
	// Questions has the questions that rules ask; nil: what a rule asks about is refused.
	Questions *question.Questions
	// QuestionTimeout returns how long a call waits for an answer.
	QuestionTimeout func() time.Duration
	// NetworkHold returns how long a connection waits for a person's answer; nil, or 0: nobody is asked about hosts.
	NetworkHold func() time.Duration
	// Decide is the policy in place of Rules; nil: Rules decide.
	Decide policy.Decider
	// Sessions, Ports, Servers and Vault carry out the operations that are not tool calls;
	// nil: the server has none of them.
	Sessions *session.Sessions
	Ports    *port.Ports
	Servers  *servers.Servers
	Vault    *vault.Vault
	// Registries are the registries of third-party servers; nil: the server has none.
	Registries *registry.Registries
	// SecretsChanged is called when a principal's secrets have changed; nil: nobody wants to know.
	SecretsChanged func(owner string)
	// Terminals has the terminals of sessions; nil: the server has none.
	Terminals *tty.Registry
	// Templates has the templates; nil: the server has none.
	Templates *template.Set
	// Images has the images of the server's store, and Pulls gets more; nil: the server has none.
	Images *inventory.Inventory
	Pulls  *inventory.Pulls
	// Doctor checks the server's machine; nil: nobody can ask for that.
	Doctor *checkup.Checkups
	// Tokens has the tokens of all users; nil: none are made here.
	Tokens auth.Store
	// Consent returns the verdict about an operation about which no rule decides; nil: the one that it gets.
	Consent func(policy.Question, policy.Verdict) policy.Verdict
	// Restorer restores backups of the database.
	Restorer Restorer
	// Backups makes backups of the database.
	Backups Backups
	// Network returns the network settings of all sessions.
	Network func() NetworkState
	// Quotas has how many calls each principal may make; nil: any number.
	Quotas *quota.Quotas
	// Events gets an event for every operation; nil: there are no events.
	Events *event.Stream
	// Recorder has the stored events; nil: events are only in memory.
	Recorder *audit.Recorder
	// Observe, if set, is called at the end of every tool call. The outcome is that of the
	// event.
	Observe func(ctx context.Context, c tool.Call, outcome string, took time.Duration)
	// Log gets details that users do not see; nil: nothing is logged.
	Log *slog.Logger
}

// Hub authorizes operations, carries them out, and publishes their events.
type Hub struct {
	Config
	early           *policy.Current // the rules of a hub that is not open yet
	isOpen          atomic.Bool     // Open has set everything else
	resourceReaders []tool.ResourceReader
	external        tool.External // third-party servers; nil: none
	asking          asking
	tokenMu         sync.Mutex // held while a token is made: a user has at most maxTokens
	watches         watches
	results         results
}

// New returns a hub that is open.
func New(c Config) *Hub {
	h := Closed(c.Rules)
	h.Open(c)
	return h
}

// Closed returns a hub for what is made before that to which the hub gives access. Until Open it is asked about
// connections of sandboxes alone, which earlier servers have left: they reach nothing if there are rules about hosts.
func Closed(rules *policy.Current) *Hub {
	h := &Hub{early: rules}
	h.asking.hub = h
	return h
}

// Open gives the hub what it gives access to. It also uses the resources of sources that are a tool.ResourceReader,
// and the features of one that is a tool.External.
func (h *Hub) Open(c Config) {
	h.Config = c
	if h.Log == nil {
		h.Log = slog.New(slog.DiscardHandler)
	}
	if h.SecretsChanged == nil {
		h.SecretsChanged = func(string) {}
	}
	for _, s := range c.Sources {
		if r, ok := s.(tool.ResourceReader); ok {
			h.resourceReaders = append(h.resourceReaders, r)
		}
		if e, ok := s.(tool.External); ok {
			h.external = e
		}
	}
	h.isOpen.Store(true)
}

// Request is a client's request for one operation.
type Request struct {
	Principal auth.Principal // the zero value: unknown, as for the link of a log-in
	Operation policy.Operation
	Resource  policy.Resource
	// Detail is what policy compares with the patterns of rules. DetailFollows: it is not known
	// yet, and ActiveRequest.decide follows.
	Detail        string
	DetailFollows bool
	user          *tool.User // who is asked; nil: see withUser
	consents      bool       // the call asks for consent itself
	// snapshot has the rules with which the request was made, and which decide about it: others might depend on what
	// it does not have. nil: the rules in effect.
	snapshot *snapshot
	// Name is the name for the event, such as a tool's. It must not contain the value of an
	// argument.
	Name string
}

// Do asks policy whether a request is allowed, calls handle to carry it out, and publishes
// the outcome as an event. If policy refuses, it returns the refusal. A read that faces repeat is an event only if it
// fails: those that succeed would push all else out of the stored events.
func Do[T any](ctx context.Context, h *Hub, r Request, handle func(context.Context) (T, error)) (answer T, err error) {
	a, err := h.authorize(ctx, r)
	if err != nil {
		return answer, err
	}
	defer a.Close()
	if answer, err = handle(ctx); err == nil {
		h.afterSuccess(r)
	}
	a.outcome, a.silent = outcomeOf(err), r.Operation.Polled()
	if s, ok := any(answer).(sessionAnswer); ok {
		a.session = s.session()
	}
	return answer, err
}

// sessionAnswer is an answer that knows the session for the event.
type sessionAnswer interface{ session() string }

// Op is an operation with its types of input and output. An input that names a resource is a
// SessionID, ServerName or SecretName, or embeds one.
type Op[In, Out any] struct {
	do func(*Hub, context.Context, auth.Principal, In) (Out, error)
}

// Do requests the operation for a principal, as the function Do does.
func (o Op[In, Out]) Do(ctx context.Context, h *Hub, p auth.Principal, in In) (Out, error) {
	return o.do(h, ctx, p, in)
}

// newOp returns the operation that handle carries out.
func newOp[In, Out any](name policy.Operation,
	handle func(*Hub, context.Context, auth.Principal, In) (Out, error)) Op[In, Out] {
	return Op[In, Out]{func(h *Hub, ctx context.Context, p auth.Principal, in In) (Out, error) {
		r := Request{Principal: p, Operation: name}
		if n, ok := any(in).(resourceInput); ok {
			r.Resource = n.resource(h, p)
		}
		if n, ok := any(&in).(interface{ pin(id string) }); ok && r.Resource.Kind == sessionKind {
			n.pin(r.Resource.ID)
		}
		if d, ok := any(in).(detailInput); ok {
			r.Detail = d.detail(h, p)
		}
		r.DetailFollows = name == policy.SessionCreate // see MayCreateSession
		return Do(ctx, h, r, func(ctx context.Context) (Out, error) { return handle(h, ctx, p, in) })
	}}
}

// EdgeOp returns the operation that an edge answers by itself, such as a guide for its clients.
func EdgeOp[In, Out any](name policy.Operation, answer func(In) (Out, error)) Op[In, Out] {
	return newOp(name, func(_ *Hub, _ context.Context, _ auth.Principal, in In) (Out, error) { return answer(in) })
}

// toolOp returns the operation that one of Sandlot's own tools carries out. It is a call of the tool as any client makes
// it, with the same event, quota, rules and checks, but that a read that faces repeat is no event, as with Do. The output
// is the structured result.
func toolOp(name string) Op[tool.Call, any] {
	return Op[tool.Call, any]{func(h *Hub, ctx context.Context, p auth.Principal, c tool.Call) (any, error) {
		c.Name, c.Principal = name, p
		r, err := h.call(ctx, c, true)
		if err != nil {
			return nil, err
		}
		return r.Fields, nil
	}}
}

// resourceInput is an input that names a resource.
type resourceInput interface {
	resource(*Hub, auth.Principal) policy.Resource
}

// detailInput is an input with a detail for the patterns of rules.
type detailInput interface {
	detail(*Hub, auth.Principal) string
}

// None is the input or output of an operation without one.
type None = struct{}

// ActiveRequest is a request that policy allowed, until Close. Requests that last, such as a
// connection, are returned to the edge (api or gateway). Their beginning and their end are
// two events.
type ActiveRequest struct {
	hub      *Hub
	request  Request
	decision policy.Decision
	start    time.Time
	session  string // for the event; empty: the request's resource, if it is a session
	outcome  string
	silent   bool // its success is no event
	refused  event.Refused
	origin   event.Origin
	// received and sent are the sizes for the event, in bytes.
	received, sent atomic.Int64
	cleanups       []func() // called by Close, the last one first
}

// active returns a request that policy has not decided about yet.
func (h *Hub) active(ctx context.Context, r Request) *ActiveRequest {
	a := &ActiveRequest{hub: h, request: r, start: time.Now(), outcome: outcomePanicked,
		origin: event.FromContext(ctx)}
	a.origin.Token = r.Principal.Token
	if service, ok := auth.ServiceOf(r.Principal.ID); ok {
		a.origin.Service = service
	}
	return a
}

// authorize asks policy. It publishes a refusal as an event.
func (h *Hub) authorize(ctx context.Context, r Request) (*ActiveRequest, error) {
	a := h.active(ctx, r)
	if r.Principal.Service {
		h.Quotas.AddService(r.Principal.ID)
	}
	d, err := h.permit(ctx, r)
	if err == nil {
		a.decision = d
		return a, nil
	}
	if r.Resource.Kind == sessionKind && h.Sessions != nil && fault.Is(err, fault.NotFound) {
		// The answer for another principal's session is the same as for an unknown session.
		if _, unknown := h.Sessions.Find(r.Principal, r.Resource.ID); unknown != nil {
			err = unknown
		}
	}
	a.refused = refusedBy(d, err)
	a.publish(fault.From(err).Code(), 0)
	return nil, err
}

// refusedBy returns why policy has refused a request, for its event; the zero value: by no rule, scope or role.
func refusedBy(d policy.Decision, err error) (r event.Refused) {
	f := fault.From(err)
	if d.Rule != nil {
		r.Rule = d.Rule.Place // what stands in it is the operator's to know
	}
	switch {
	case d.Effect == policy.Refuse && d.Rule != nil:
		r.Cause = event.DeniedByRule
	case d.Effect == policy.Ask && f.Kind == fault.Forbidden:
		r.Cause = event.NotAgreed
		r.Question, _ = f.Context["question"].(string)
	case f.Context["required_scope"] != nil:
		r.Cause = event.OutOfScope
	case f.Context["role"] != nil:
		r.Cause = event.NeedsRole
	default:
		return event.Refused{}
	}
	return r
}

// Begin authorizes a request that lasts until the ActiveRequest's Close.
func (h *Hub) Begin(ctx context.Context, r Request) (*ActiveRequest, error) {
	return begin(ctx, h, r, func(a *ActiveRequest) (*ActiveRequest, error) { return a, nil })
}

// begin authorizes a request that lasts, and calls open, which makes the answer. If open
// fails, the request ends with its error, and otherwise it lasts until Close.
func begin[T any](ctx context.Context, h *Hub, r Request,
	open func(*ActiveRequest) (T, error)) (answer T, err error) {
	a, err := h.authorize(ctx, r)
	if err != nil {
		return answer, err
	}
	a.outcome = event.OK
	if answer, err = open(a); err != nil {
		a.Fail(err)
		a.Close()
		return answer, err
	}
	a.publish(event.Started, time.Since(a.start))
	return answer, nil
}

// decide asks policy again, when the detail of the request is known. The error is the outcome of
// the request.
func (a *ActiveRequest) decide(ctx context.Context, detail string) error {
	a.request.Detail, a.request.DetailFollows = detail, false
	d, err := a.hub.permit(ctx, a.request)
	if err != nil {
		a.refused = refusedBy(d, err)
	}
	return a.Fail(err)
}

// Fail makes err the outcome of the request, if it is the first error. It returns err.
func (a *ActiveRequest) Fail(err error) error {
	if err != nil && a.outcome == event.OK {
		a.outcome = outcomeOf(err)
	}
	return err
}

// Close ends the request, and releases what it uses. It may be called more than once.
func (a *ActiveRequest) Close() error {
	if a.hub == nil {
		return nil
	}
	for _, release := range slices.Backward(a.cleanups) {
		release()
	}
	a.publish(a.outcome, time.Since(a.start))
	a.hub = nil
	return nil
}

// publish publishes an event of the request. Requests of an unknown principal, such as opening
// the link of a log-in, have no events: no principal could read them.
func (a *ActiveRequest) publish(outcome string, duration time.Duration) {
	r := &a.request
	if a.hub.Events == nil || r.Principal.ID == "" || a.silent && outcome == event.OK {
		return
	}
	session := a.session
	if session == "" && r.Resource.Kind == sessionKind && !isAlias(r.Resource.ID) &&
		(r.Resource.Owner == r.Principal.ID || secret.IsID(r.Resource.ID)) { // clients may request any text
		session = r.Resource.ID
	}
	if a.hub.Sessions != nil && outcome != event.Started && r.Operation != policy.PortVisit {
		counted := session
		if a.session == "" && r.Resource.Owner != r.Principal.ID { // it may be invented
			counted = ""
		}
		a.hub.Sessions.CountCall(r.Principal.ID, counted)
	}
	a.hub.Events.Publish(event.Event{Time: a.start.Add(duration), Kind: event.Call, Principal: r.Principal.ID,
		Session: session, Operation: string(r.Operation), Name: r.Name, Outcome: outcome, Duration: duration,
		Origin: a.origin, RequestBytes: a.received.Load(), AnswerBytes: a.sent.Load(),
		Refused: a.refused, ByOthers: r.Operation == policy.PortVisit})
}

// outcomePanicked is the outcome of a request whose handler panicked.
var outcomePanicked = fault.New(fault.Internal, "").Code()

// outcomeOf returns the outcome of a request that ended with err.
func outcomeOf(err error) string {
	if err == nil {
		return event.OK
	}
	if _, ok := errors.AsType[*tool.ExternalError](err); ok {
		return event.Error // the third-party server answered with an error
	}
	return fault.From(err).Code()
}
