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
const suspendTimeout = tool.UserTimeout

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
	client      *retryingClient
	cancel      context.CancelFunc
	done        chan struct{}
	reservation *limit.Reservation // for the result
	result      json.RawMessage
	err         error

	pending      *question // the unanswered question; only the request that claimed the call uses it
	timer        *time.Timer
	releaseLimit func() // ends the count of the call as suspended
}

// Calls manages the calls of one token, and stores the suspended ones.
type Calls struct {
	Principal    auth.Principal  // including the token
	TokenContext context.Context // ends with the token

	mu        sync.Mutex
	suspended map[string]*suspended
	ended     bool
}

// Context returns a context for a call, which ends with ctx, with the token, or by release.
func (s *Calls) Context(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.TokenContext, func() { cancel(context.Cause(s.TokenContext)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Suspended reports whether there is a suspended call.
func (s *Calls) Suspended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.suspended) > 0
}

// store stores a suspended call and returns its id; false: End was called.
func (s *Calls) store(c *suspended) (string, bool) {
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
		if s.claim(id) != nil {
			c.cancelAndRelease()
		}
	})
	return id, true
}

// claim removes a suspended call and returns it; nil: it is not there any more.
func (s *Calls) claim(id string) *suspended {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.suspended[id]
	delete(s.suspended, id)
	if c != nil {
		c.timer.Stop()
		c.releaseLimit()
	}
	return c
}

// answerStateless answers a request of the stateless protocol: it starts a call, or continues a
// suspended one.
func (r *Relay) answerStateless(ctx context.Context, calls *Calls, q *Request) (json.RawMessage, error) {
	state, err := r.seal.decode(calls.Principal, q)
	if err != nil {
		return nil, err
	}
	var call *suspended
	if state.Call != "" {
		if call = calls.claim(state.Call); call == nil {
			return nil, fault.Argument("requestState", "the call that asked for this is over; make it again")
		}
		call.client.attach(ctx, q)
		call.answerPending(q.Inputs.Responses)
	} else {
		q.Inputs.State = state.Upstream
		call = r.start(ctx, calls, q)
	}
	return r.await(ctx, calls, q, call)
}

// start starts a call that may outlive ctx.
func (r *Relay) start(ctx context.Context, calls *Calls, q *Request) *suspended {
	callCtx, cancel := calls.Context(context.WithoutCancel(ctx))
	c := &suspended{cancel: cancel, done: make(chan struct{}),
		reservation: r.Limits.NewReservation(calls.Principal.ID, limit.AnswerBytes),
		client:      &retryingClient{client: client{q: q, ctx: ctx}, questions: make(chan *question)}}
	inputs := q.Inputs
	go func() {
		defer close(c.done)
		defer fault.Recover(callCtx, r.Log, q.Method, &c.err)
		c.result, c.err = r.call(callCtx, calls, q, c.client, inputs, c.reservation)
	}()
	return c
}

// cancelAndRelease cancels a call whose result no request will return.
func (c *suspended) cancelAndRelease() {
	c.cancel()
	c.reservation.Release()
}

// inputName is the name of a question in inputRequests and inputResponses. Servers of the
// stateful protocol give their questions no names.
const inputName = "input"

// answerPending passes the client's answer, if it sent one, to the call's question.
func (c *suspended) answerPending(responses json.RawMessage) {
	var all rpc.Object
	if json.Unmarshal(responses, &all) != nil || all[inputName] == nil || c.pending == nil {
		return
	}
	c.pending.answer <- all[inputName]
	c.pending = nil
}

// await waits until the call ends or asks a question, and returns the result for the client.
func (r *Relay) await(ctx context.Context, calls *Calls, q *Request, c *suspended) (json.RawMessage, error) {
	if c.pending != nil { // the client sent no answer: ask it again
		return r.suspend(calls, q, c)
	}
	select {
	case <-c.done:
		c.cancel()
		q.Answers.Add(c.reservation)
		c.client.notifications.Flush(ctx, flushTimeout)
		c.client.notifications.End()
		if c.err != nil {
			return nil, c.err
		}
		return r.sealState(calls, q, c.result)
	case c.pending = <-c.client.questions:
		return r.suspend(calls, q, c)
	case <-ctx.Done():
		c.cancelAndRelease()
		c.client.notifications.End()
		<-c.done
		return nil, fault.From(ctx.Err())
	}
}

// suspend suspends a call, and returns the result that asks the client its question.
func (r *Relay) suspend(calls *Calls, q *Request, c *suspended) (json.RawMessage, error) {
	c.client.notifications.Flush(context.Background(), flushTimeout)
	c.client.detach()
	ask := map[string]any{"method": c.pending.method}
	if len(c.pending.params) > 0 {
		ask["params"] = c.pending.params
	}
	var err error
	if c.releaseLimit, err = r.Limits.Acquire(calls.Principal.ID, limit.WaitingCalls, 1); err != nil {
		c.cancelAndRelease()
		return nil, err
	}
	id, ok := calls.store(c)
	if !ok {
		c.cancelAndRelease()
		c.releaseLimit()
		return nil, fault.New(fault.Canceled, "the call ended while it waited")
	}
	sealed, err := r.seal.encode(calls.Principal, q, state{Call: id})
	if err != nil {
		c.cancelAndRelease()
		calls.claim(id)
		return nil, err
	}
	return json.Marshal(map[string]any{"resultType": "input_required", "requestState": sealed,
		"inputRequests": map[string]any{inputName: ask}})
}

// sealState encrypts the requestState in the result of a server of the stateless protocol that
// asks for input, so that only the same principal can return it, and only unchanged.
func (r *Relay) sealState(calls *Calls, q *Request, b json.RawMessage) (json.RawMessage, error) {
	if !rpc.MayContain(b, "input_required") {
		return b, nil
	}
	var result rpc.Object
	var kind, upstream string
	if json.Unmarshal(b, &result) != nil || json.Unmarshal(result["resultType"], &kind) != nil ||
		kind != "input_required" {
		return b, nil
	}
	if json.Unmarshal(result["requestState"], &upstream) != nil || upstream == "" {
		return b, nil // the server has no state
	}
	sealedState, err := r.seal.encode(calls.Principal, q, state{Upstream: upstream})
	if err != nil {
		return nil, err
	}
	result["requestState"], _ = json.Marshal(sealedState)
	return json.Marshal(result)
}

// End cancels all suspended calls, and waits until they have ended.
func (s *Calls) End() {
	s.mu.Lock()
	all := s.suspended
	s.suspended, s.ended = nil, true
	s.mu.Unlock()
	for _, c := range all {
		c.timer.Stop()
		c.cancelAndRelease()
		c.releaseLimit()
	}
	for _, c := range all {
		<-c.done
	}
}

var errInvalidState = errors.New("requestState is not what this server gave for this call, or it is too old; " +
	"make the call again without it")
