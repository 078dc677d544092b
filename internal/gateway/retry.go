package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
	"sandlot/internal/secret"
	"sandlot/internal/tool"
)

// held is how long a call waits for its client to come again with what was
// asked for.
const held = tool.Thinking

// retrier is a client of the newer era: it cannot be asked while it waits, but
// comes again with answers. A server of the older era asks in the middle of a
// call, which thus outlives the request that made it.
type retrier struct {
	caller
	questions chan *question
}

type question struct {
	method string
	params json.RawMessage
	answer chan json.RawMessage
}

// Retries implements tool.Client.
func (r *retrier) Retries() bool { return true }

// ID implements tool.Client: requests of the newer era belong to no session.
func (r *retrier) ID() string { return fmt.Sprintf("%p", r) }

// Ask implements tool.Client.
func (r *retrier) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if !able(r.q.can, method) {
		return nil, cannot(method)
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
func (r *retrier) detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx = nil
}

// attach makes a request the one that waits.
func (r *retrier) attach(ctx context.Context, q *passedOn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx, r.q = ctx, q
}

// suspended is a call that outlives its request.
type suspended struct {
	client *retrier
	cancel context.CancelFunc
	done   chan struct{}
	held   *limit.Held // of the result
	result json.RawMessage
	err    error

	asked   *question // what it waits for; owned by who holds the call
	timer   *time.Timer
	release func() // of the principal's limit
}

// shelf keeps the calls of one endpoint that wait for their clients.
type shelf struct {
	mu    sync.Mutex
	calls map[string]*suspended
	ended bool
}

// put keeps a call and returns the handle under which it waits; false: the endpoint
// is over.
func (s *shelf) put(c *suspended) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return "", false
	}
	if s.calls == nil {
		s.calls = map[string]*suspended{}
	}
	id := secret.ID()
	s.calls[id] = c
	c.timer = time.AfterFunc(held, func() {
		if s.take(id) != nil {
			c.drop()
		}
	})
	return id, true
}

// take returns a call that waits; nobody else gets it.
func (s *shelf) take(id string) *suspended {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[id]
	delete(s.calls, id)
	if c != nil {
		c.timer.Stop()
		c.release()
	}
	return c
}

// passRetrying makes the call of a client of the newer era, or goes on with it.
func (g *Gateway) passRetrying(ctx context.Context, e *endpoint, q *passedOn, answer answerer) (json.RawMessage, error) {
	state, err := g.seal.open(e.principal, q)
	if err != nil {
		return nil, err
	}
	var call *suspended
	if state.Call != "" {
		if call = e.shelf.take(state.Call); call == nil {
			return nil, fault.New(fault.InvalidParameters, "the call that asked for this is over; make it again").With("argument", "requestState")
		}
		call.client.attach(ctx, q)
		call.deliver(q.inputs.Responses)
	} else {
		q.inputs.State = state.Upstream
		call = g.start(ctx, e, q, answer)
	}
	return g.await(ctx, e, q, call)
}

// start begins a call that may outlive ctx.
func (g *Gateway) start(ctx context.Context, e *endpoint, q *passedOn, answer answerer) *suspended {
	own, cancel := e.within(context.WithoutCancel(ctx))
	c := &suspended{cancel: cancel, done: make(chan struct{}), held: g.Limits.Held(e.principal.ID, limit.Answers),
		client: &retrier{caller: caller{q: q, ctx: ctx}, questions: make(chan *question)}}
	in := q.inputs
	go func() {
		defer close(c.done)
		defer rpc.Recover(own, g.Log, q.method, &c.err)
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
func (g *Gateway) await(ctx context.Context, e *endpoint, q *passedOn, c *suspended) (json.RawMessage, error) {
	if c.asked != nil { // nothing came for it: it is asked again
		return g.hold(e, q, c)
	}
	select {
	case <-c.done:
		c.cancel()
		q.answers.Add(c.held)
		c.client.said.flush(ctx, flushing)
		c.client.said.end()
		if c.err != nil {
			return nil, c.err
		}
		return g.sealed(e, q, c.result)
	case c.asked = <-c.client.questions:
		return g.hold(e, q, c)
	case <-ctx.Done():
		c.drop()
		c.client.said.end()
		<-c.done
		return nil, fault.From(ctx.Err())
	}
}

// hold puts a call aside and returns the result that asks its client.
func (g *Gateway) hold(e *endpoint, q *passedOn, c *suspended) (json.RawMessage, error) {
	c.client.said.flush(context.Background(), flushing)
	c.client.detach()
	ask := map[string]any{"method": c.asked.method}
	if len(c.asked.params) > 0 {
		ask["params"] = c.asked.params
	}
	var err error
	if c.release, err = g.Limits.Take(e.principal.ID, limit.Waiting, 1); err != nil {
		c.drop()
		return nil, err
	}
	id, ok := e.shelf.put(c)
	if !ok {
		c.drop()
		c.release()
		return nil, fault.New(fault.Canceled, "the call ended while it waited")
	}
	sealed, err := g.seal.make(e.principal, q, state{Call: id})
	if err != nil {
		c.drop()
		e.shelf.take(id)
		return nil, err
	}
	return json.Marshal(map[string]any{"resultType": "input_required", "inputRequests": map[string]any{answerName: ask}, "requestState": sealed})
}

// sealed hides the state of a server of the newer era that asks for input: what
// comes back must be what went out, from whom it went to.
func (g *Gateway) sealed(e *endpoint, q *passedOn, b json.RawMessage) (json.RawMessage, error) {
	if !mentions(b, "input_required") {
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
	s, err := g.seal.make(e.principal, q, state{Upstream: upstream})
	if err != nil {
		return nil, err
	}
	r["requestState"], _ = json.Marshal(s)
	return json.Marshal(r)
}

// end gives up all calls that wait, and waits for their ends.
func (s *shelf) end() {
	s.mu.Lock()
	all := s.calls
	s.calls, s.ended = nil, true
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
