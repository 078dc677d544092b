// Package hub is the one door of the server: every act that a client asks for, over
// MCP, HTTP or the owner's socket, goes through it. Policy decides, then the act is
// done by the package whose it is, and what came of it is an event.
package hub

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
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
	// Sources give tools. On a name that two of them give, the first one wins, always.
	Sources []tool.Source
	// Decide is the policy; nil: policy.Decide.
	Decide policy.Decider
	// Sessions, Ports, Servers and Vault are whose the acts are that are no tools;
	// nil: there are none of them.
	Sessions *session.Sessions
	Ports    *port.Ports
	Servers  *servers.Servers
	Vault    *vault.Vault
	// Network is what holds for all sessions.
	Network func() NetworkState
	// Events are told of every act; nil: nobody is.
	Events *event.Stream
	// Observe, if set, is told of the end of every call of a tool: the outcome is
	// that of the event.
	Observe func(ctx context.Context, c tool.Call, outcome string, took time.Duration)
	// Log takes what users cannot be told; nil: the default.
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
		h.Log = slog.Default()
	}
	for _, s := range c.Sources {
		if r, ok := s.(tool.Reader); ok {
			h.readers = append(h.readers, r)
		}
		if f, ok := s.(tool.External); ok {
			h.external = f
		}
	}
	return h
}

// Request is one act that somebody asks for.
type Request struct {
	Principal auth.Principal // its zero value is nobody
	Operation policy.Operation
	Resource  policy.Resource
	// Name is what the event calls it: a tool, a prompt, a stored secret. It is
	// never an argument's value.
	Name string
	// Arguments are what the client gave, and Client is who asks; both may be nil.
	Arguments json.RawMessage
	Client    tool.Client
}

// act is a request that was let in and has not ended.
type act struct {
	hub     *Hub
	request Request
	start   time.Time
}

// begin asks the policy. A refusal is an event too.
func (h *Hub) begin(r Request) (act, error) {
	a := act{h, r, time.Now()}
	if err := h.Decide(policy.Question{Principal: r.Principal, Operation: r.Operation, Resource: r.Resource}).Err(); err != nil {
		if unknown := h.unknown(r, err); unknown != nil {
			err = unknown
		}
		a.publish("", fault.From(err).Code(), 0)
		return act{}, err
	}
	return a, nil
}

// unknown is what is said of a session that is somebody else's: the same as of one
// that is not there.
func (h *Hub) unknown(r Request, refused error) error {
	if r.Resource.Kind != "session" || h.Sessions == nil || !fault.Is(refused, fault.NotFound) {
		return nil
	}
	_, err := h.Sessions.Find(r.Principal, r.Resource.ID)
	return err
}

// end says what came of the act, and in which session it was, where that is known.
func (a *act) end(session, outcome string) {
	a.publish(session, outcome, time.Since(a.start))
}

func (a *act) publish(session, outcome string, took time.Duration) {
	r := &a.request
	if a.hub.Events == nil || r.Principal.ID == "" { // of nobody's acts nobody is told
		return
	}
	if session == "" && r.Resource.Kind == "session" {
		session = r.Resource.ID
	}
	a.hub.Events.Publish(event.Event{Time: a.start.Add(took), Kind: event.Call, Principal: r.Principal.ID, Session: session,
		Operation: string(r.Operation), Name: r.Name, Outcome: outcome, Duration: took,
		Others: r.Operation == policy.PortVisit})
}

// Do lets a request through the door: policy decides, handle does it, and what came
// of it is an event.
func Do[T any](ctx context.Context, h *Hub, r Request, handle func(context.Context) (T, error)) (answer T, err error) {
	a, err := h.begin(r)
	if err != nil {
		return answer, err
	}
	session, outcome := "", panicked
	defer func() { a.end(session, outcome) }()
	answer, err = handle(ctx)
	outcome = outcomeOf(err)
	if s, ok := any(answer).(located); ok {
		session = s.session()
	}
	return answer, err
}

// located is an answer that knows its session.
type located interface{ session() string }

// nothing is the answer of an act that has none.
type nothing = struct{}

// panicked is the outcome of an act that broke.
var panicked = fault.New(fault.Internal, "").Code()

// outcomeOf is how an act ended.
func outcomeOf(err error) string {
	if err == nil {
		return event.OK
	}
	if _, ok := errors.AsType[*tool.Refusal](err); ok {
		return event.Error // a third-party server's own
	}
	return fault.From(err).Code()
}
