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

// suspendTimeout is how long a suspended call waits for its client's retry.
const suspendTimeout = tool.Thinking

// retryingClient is a client of the stateless protocol. It cannot get requests while it waits,
// but gets questions as a result, and retries the call with the answers. A server of the
// stateful protocol asks during a call, so that the call must outlive the client's request.
type retryingClient struct {
	client
	questions chan *question
}

// question is a server's request to the client.
type question struct {
	method string
	params json.RawMessage
	answer chan json.RawMessage
}

// Retries implements tool.Client.
func (r *retryingClient) Retries() bool { return true }

// ID implements tool.Client. Requests of the stateless protocol have no session.
func (r *retryingClient) ID() string { return fmt.Sprintf("%p", r) }

// Ask implements tool.Client.
func (r *retryingClient) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if !Supports(r.q.Capabilities, method) {
		return nil, Unsupported(method)
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

// detach records that no request waits for the call.
func (r *retryingClient) detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx = nil
}

// attach records that q waits for the call.
func (r *retryingClient) attach(ctx context.Context, q *Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx, r.q = ctx, q
}

// suspended is a call that may outlive its request.
type suspended struct {
	client *retryingClient
	cancel context.CancelFunc
	done   chan struct{}
	held   *limit.Held // for the result
	result json.RawMessage
	err    error

	asked   *question // the unanswered question; only the request that claimed the call uses it
	timer   *time.Timer
	release func() // ends the count of the call as suspended
}

// Calls manages the calls of one token, and stores the suspended ones.
type Calls struct {
	Principal auth.Principal  // including the token
	Life      context.Context // ends with the token

	mu        sync.Mutex
	suspended map[string]*suspended
	ended     bool
}

// Context returns a context for a call, which ends with ctx, with the token, or by release.
func (s *Calls) Within(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.Life, func() { cancel(context.Cause(s.Life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Suspended reports whether there is a suspended call.
func (s *Calls) Suspended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.suspended) > 0
}

// store stores a suspended call and returns its id; false: End was called.
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
	c.timer = time.AfterFunc(suspendTimeout, func() {
		if s.take(id) != nil {
			c.drop()
		}
	})
	return id, true
}

// claim removes a suspended call and returns it; nil: it is not there any more.
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

// answerStateless answers a request of the stateless protocol: it starts a call, or continues a
// suspended one.
func (y *Relay) retrying(ctx context.Context, calls *Calls, q *Request) (json.RawMessage, error) {
	state, err := y.seal.open(calls.Principal, q)
	if err != nil {
		return nil, err
	}
	var call *suspended
	if state.Call != "" {
		if call = calls.take(state.Call); call == nil {
			return nil, fault.New(fault.InvalidParameters, "the call that asked for this is over; make it again").
				With("argument", "requestState")
		}
		call.client.attach(ctx, q)
		call.deliver(q.Inputs.Responses)
	} else {
		q.Inputs.State = state.Upstream
		call = y.start(ctx, calls, q)
	}
	return y.await(ctx, calls, q, call)
}

// start starts a call that may outlive ctx.
func (y *Relay) start(ctx context.Context, calls *Calls, q *Request) *suspended {
	own, cancel := calls.Within(context.WithoutCancel(ctx))
	c := &suspended{cancel: cancel, done: make(chan struct{}), held: y.Limits.Held(calls.Principal.ID, limit.Answers),
		client: &retryingClient{client: client{q: q, ctx: ctx}, questions: make(chan *question)}}
	in := q.Inputs
	go func() {
		defer close(c.done)
		defer rpc.Recover(own, y.Log, q.Method, &c.err)
		c.result, c.err = y.call(own, calls, q, c.client, in, c.held)
	}()
	return c
}

// cancelAndRelease cancels a call whose result no request will return.
func (c *suspended) drop() {
	c.cancel()
	c.held.Release()
}

// inputName is the name of a question in inputRequests and inputResponses. Servers of the
// stateful protocol give their questions no names.
const answerName = "input"

// answerPending passes the client's answer, if it sent one, to the call's question.
func (c *suspended) deliver(responses json.RawMessage) {
	var all rpc.Object
	if json.Unmarshal(responses, &all) != nil || all[answerName] == nil || c.asked == nil {
		return
	}
	c.asked.answer <- all[answerName]
	c.asked = nil
}

// await waits until the call ends or asks a question, and returns the result for the client.
func (y *Relay) await(ctx context.Context, calls *Calls, q *Request, c *suspended) (json.RawMessage, error) {
	if c.asked != nil { // the client sent no answer: ask it again
		return y.suspend(calls, q, c)
	}
	select {
	case <-c.done:
		c.cancel()
		q.Holds.Add(c.held)
		c.client.said.Flush(ctx, flushTimeout)
		c.client.said.End()
		if c.err != nil {
			return nil, c.err
		}
		return y.sealed(calls, q, c.result)
	case c.asked = <-c.client.questions:
		return y.suspend(calls, q, c)
	case <-ctx.Done():
		c.drop()
		c.client.said.End()
		<-c.done
		return nil, fault.From(ctx.Err())
	}
}

// suspend suspends a call, and returns the result that asks the client its question.
func (y *Relay) suspend(calls *Calls, q *Request, c *suspended) (json.RawMessage, error) {
	c.client.said.Flush(context.Background(), flushTimeout)
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
	return json.Marshal(map[string]any{"resultType": "input_required", "requestState": sealed,
		"inputRequests": map[string]any{answerName: ask}})
}

// sealState encrypts the requestState in the result of a server of the stateless protocol that
// asks for input, so that only the same principal can return it, and only unchanged.
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
		return b, nil // the server has no state
	}
	s, err := y.seal.make(calls.Principal, q, state{Upstream: upstream})
	if err != nil {
		return nil, err
	}
	r["requestState"], _ = json.Marshal(s)
	return json.Marshal(r)
}

// End cancels all suspended calls, and waits until they have ended.
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

var errState = errors.New("requestState is not what this server gave for this call, or it is too old; " +
	"make the call again without it")
