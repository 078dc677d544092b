package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
	"sandlot/internal/secret"
	"sandlot/internal/tool"
)

// waitsForUser is how long a call waits for its client to come again with what was
// asked for.
const waitsForUser = tool.Thinking

// retryingClient is a client of the stateless protocol: it cannot be asked while it waits, but
// comes again with answers. A server of the stateful protocol asks in the middle of a
// call, which thus outlives the request that made it.
type retryingClient struct {
	client
	questions chan *question
}

type question struct {
	method string
	params json.RawMessage
	answer chan json.RawMessage
}

// Retries implements tool.Client.
func (r *retryingClient) Retries() bool { return true }

// ID implements tool.Client: requests of the stateless protocol belong to no session.
func (r *retryingClient) ID() string { return fmt.Sprintf("%p", r) }

// Ask implements tool.Client.
func (r *retryingClient) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if !Able(r.q.Capabilities, method) {
		return nil, Cannot(method)
	}
	q := &question{method, params, make(chan json.RawMessage, 1)}
	select {
	case r.questions <- q:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case a := <-q.answer:
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// detach says that no request waits.
func (r *retryingClient) detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx = nil
}

// attach makes a request the one that waits.
func (r *retryingClient) attach(ctx context.Context, q *Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx, r.q = ctx, q
}

// suspended is a call that outlives its request.
type suspended struct {
	client *retryingClient
	cancel context.CancelFunc
	done   chan struct{}
	held   *limit.Held // of the result
	result json.RawMessage
	err    error

	asked   *question // what it waits for; owned by who holds the call
	timer   *time.Timer
	release func() // of the principal's limit
}

// Calls are the calls of one token: those that wait for their clients among them.
type Calls struct {
	Principal auth.Principal  // with the token
	Life      context.Context // ends with the token

	mu        sync.Mutex
	suspended map[string]*suspended
	ended     bool
}

// Within returns a context that ends with the token too; release lets go of it.
func (s *Calls) Within(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.Life, func() { cancel(context.Cause(s.Life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Suspended says whether a call waits for its client.
func (s *Calls) Suspended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.suspended) > 0
}

// put keeps a call and returns the handle under which it waits; false: the endpoint
// is over.
func (s *Calls) put(c *suspended) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return "", false
	}
	if s.suspended == nil {
		s.suspended = map[string]*suspended{}
	}
	id := secret.ID()
	s.suspended[id] = c
	c.timer = time.AfterFunc(waitsForUser, func() {
		if s.take(id) != nil {
			c.drop()
		}
	})
	return id, true
}

// take returns a call that waits; nobody else gets it.
func (s *Calls) take(id string) *suspended {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.suspended[id]
	delete(s.suspended, id)
	if c != nil {
		c.timer.Stop()
		c.release()
	}
	return c
}

// retrying makes the call of a client of the stateless protocol, or goes on with it.
func (y *Relay) retrying(ctx context.Context, calls *Calls, q *Request, answer Answerer) (json.RawMessage, error) {
	state, err := y.seal.open(calls.Principal, q)
	if err != nil {
		return nil, err
	}
	var call *suspended
	if state.Call != "" {
		if call = calls.take(state.Call); call == nil {
			return nil, fault.New(fault.InvalidParameters, "the call that asked for this is over; make it again").With("argument", "requestState")
		}
		call.client.attach(ctx, q)
		call.deliver(q.Inputs.Responses)
	} else {
		q.Inputs.State = state.Upstream
		call = y.start(ctx, calls, q, answer)
	}
	return y.await(ctx, calls, q, call)
}

// start begins a call that may outlive ctx.
func (y *Relay) start(ctx context.Context, calls *Calls, q *Request, answer Answerer) *suspended {
	own, cancel := calls.Within(context.WithoutCancel(ctx))
	c := &suspended{cancel: cancel, done: make(chan struct{}), held: y.Limits.Held(calls.Principal.ID, limit.Answers),
		client: &retryingClient{client: client{q: q, ctx: ctx}, questions: make(chan *question)}}
	in := q.Inputs
	go func() {
		defer close(c.done)
		defer rpc.Recover(own, y.Log, q.Method, &c.err)
		c.result, c.err = answer(own, c.client, in, c.held)
	}()
	return c
}

// drop gives a call up: nobody takes its result.
func (c *suspended) drop() {
	c.cancel()
	c.held.Release()
}

// answerName is under which name a question of an older server is put.
const answerName = "input"

// deliver gives a call what it asked for, if that came.
func (c *suspended) deliver(responses json.RawMessage) {
	var all rpc.Object
	if json.Unmarshal(responses, &all) != nil || all[answerName] == nil || c.asked == nil {
		return
	}
	c.asked.answer <- all[answerName]
	c.asked = nil
}

// await waits for a call's end, or its next question.
func (y *Relay) await(ctx context.Context, calls *Calls, q *Request, c *suspended) (json.RawMessage, error) {
	if c.asked != nil { // nothing came for it: it is asked again
		return y.hold(calls, q, c)
	}
	select {
	case <-c.done:
		c.cancel()
		q.Holds.Add(c.held)
		c.client.said.Flush(ctx, flushing)
		c.client.said.End()
		if c.err != nil {
			return nil, c.err
		}
		return y.sealed(calls, q, c.result)
	case c.asked = <-c.client.questions:
		return y.hold(calls, q, c)
	case <-ctx.Done():
		c.drop()
		c.client.said.End()
		<-c.done
		return nil, fault.From(ctx.Err())
	}
}

// hold puts a call aside and returns the result that asks its client.
func (y *Relay) hold(calls *Calls, q *Request, c *suspended) (json.RawMessage, error) {
	c.client.said.Flush(context.Background(), flushing)
	c.client.detach()
	ask := map[string]any{"method": c.asked.method}
	if len(c.asked.params) > 0 {
		ask["params"] = c.asked.params
	}
	var err error
	if c.release, err = y.Limits.Take(calls.Principal.ID, limit.Waiting, 1); err != nil {
		c.drop()
		return nil, err
	}
	id, ok := calls.put(c)
	if !ok {
		c.drop()
		c.release()
		return nil, fault.New(fault.Canceled, "the call ended while it waited")
	}
	sealed, err := y.seal.make(calls.Principal, q, state{Call: id})
	if err != nil {
		c.drop()
		calls.take(id)
		return nil, err
	}
	return json.Marshal(map[string]any{"resultType": "input_required", "inputRequests": map[string]any{answerName: ask}, "requestState": sealed})
}

// sealed hides the state of a server of the stateless protocol that asks for input: what
// comes back must be what went out, from whom it went to.
func (y *Relay) sealed(calls *Calls, q *Request, b json.RawMessage) (json.RawMessage, error) {
	if !rpc.Mentions(b, "input_required") {
		return b, nil
	}
	var r rpc.Object
	var kind, upstream string
	if json.Unmarshal(b, &r) != nil || json.Unmarshal(r["resultType"], &kind) != nil || kind != "input_required" {
		return b, nil
	}
	if json.Unmarshal(r["requestState"], &upstream) != nil || upstream == "" {
		return b, nil // there is none
	}
	s, err := y.seal.make(calls.Principal, q, state{Upstream: upstream})
	if err != nil {
		return nil, err
	}
	r["requestState"], _ = json.Marshal(s)
	return json.Marshal(r)
}

// End gives up all calls that wait, and waits for their ends.
func (s *Calls) End() {
	s.mu.Lock()
	all := s.suspended
	s.suspended, s.ended = nil, true
	s.mu.Unlock()
	for _, c := range all {
		c.timer.Stop()
		c.drop()
		c.release()
	}
	for _, c := range all {
		<-c.done
	}
}

var errState = errors.New("requestState is not what this server gave for this call, or it is too old; make the call again without it")
