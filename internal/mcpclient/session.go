package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
)

const (
	maxRequests   = 16 // of the server, that are being answered
	maxBackground = 64 // messages to the server that nobody waits for
	replyTimeout  = 30 * time.Second
	cancelTimeout = 5 * time.Second // for telling the server that a call is cancelled
	maxProgress   = 64 << 10        // bytes of a notification of progress
)

// Session is a conversation with one server. Its methods may be used by several
// goroutines at once.
type Session struct {
	transport transport.Transport
	options   Options

	version atomic.Value // the revision of the protocol, a string; "": not agreed yet
	server  serverInfo   // set by the handshake, before anyone else has the session

	ctx    context.Context // ends with the session, whose end is its cause
	cancel context.CancelCauseFunc
	close  func() error // closes the transport, once

	notifying  sync.Mutex    // held while the handler has a notification
	background chan struct{} // holds one for each message of maxBackground

	mu            sync.Mutex // held while ctx is cancelled, and no goroutine starts after that
	running       sync.WaitGroup
	lastID        int64 // of the requests to the server
	calls         map[int64]*call
	requests      map[string]context.CancelFunc // of the server, by their ids
	level         string                        // of log messages, in the stateless protocol
	subscriptions map[string]*subscription      // by URI; "" is the one for changes of lists
}

// serverInfo is what a server says of itself.
type serverInfo struct {
	implementation json.RawMessage // an object; nil: it has not said
	instructions   string
	capabilities   Capabilities
}

func newSession(t transport.Transport, o Options) *Session {
	s := &Session{transport: t, options: o, close: sync.OnceValue(t.Close),
		background: make(chan struct{}, maxBackground), calls: map[int64]*call{},
		requests: map[string]context.CancelFunc{}, subscriptions: map[string]*subscription{}}
	s.version.Store("")
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	t.Start(receiver{s}, o.MaxMessage, o.Reserve)
	return s
}

// Version returns the agreed revision of the protocol.
func (s *Session) Version() string { return s.version.Load().(string) }

// Stateless reports whether the agreed revision of the protocol has no sessions.
func (s *Session) Stateless() bool { return revision.IsStateless(s.Version()) }

// Info returns the server's Implementation object; nil: it has sent none.
func (s *Session) Info() json.RawMessage { return s.server.implementation }

// Instructions returns the server's instructions for models.
func (s *Session) Instructions() string { return s.server.instructions }

// Capabilities returns those that the server has declared.
func (s *Session) Capabilities() Capabilities { return s.server.capabilities }

// Done is closed when the session is over. It has to be closed then, too.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Err says why the session is over; nil while it is not.
func (s *Session) Err() error { return context.Cause(s.ctx) }

// Close ends the session, and waits until all of its goroutines have ended. It can be
// called twice; a Handler and a Progress function must not call it.
func (s *Session) Close() error {
	s.end(transport.ErrClosed)
	err := s.close()
	s.running.Wait()
	return err
}

// end ends the session. The first cause counts.
func (s *Session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel(cause)
}

// work runs f in a goroutine that Close waits for. It returns false when the session
// is over.
func (s *Session) work(f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.running.Go(func() { f(s.ctx) })
	return true
}

// workInBackground runs f as work does. Its caller has put one into background, which
// is taken out when f has ended.
func (s *Session) workInBackground(f func(ctx context.Context)) {
	if !s.work(func(ctx context.Context) {
		defer func() { <-s.background }()
		f(ctx)
	}) {
		<-s.background
	}
}

// take returns a call that waits for its answer, and removes it; nil: there is none.
func (s *Session) take(id int64) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[id]
	delete(s.calls, id)
	return c
}

// receiver is what a session's transport hands messages to.
type receiver struct{ *Session }

// Lost implements transport.Receiver.
func (s receiver) Lost(err error) { s.end(err) }

// Missed implements transport.Receiver.
func (s receiver) Missed() { s.repeatChanges("") }

// Fail implements transport.Receiver.
func (s receiver) Fail(id int64, err error) {
	if c := s.take(id); c != nil {
		c.queue.finish(outcome{err: err, reservation: transport.NoReservation{}})
	}
}

// Receive implements transport.Receiver.
func (s receiver) Receive(b []byte, r transport.Reservation) (answered int64, ok bool) {
	r.Keep(int64(len(b))) // the reservation was for the largest message there may be
	all, err := transport.Decode(b)
	if err != nil {
		r.Release()
		return 0, false
	}
	if len(all) != 1 || all[0].Method != nil && all[0].ID == nil { // handled when Receive returns
		defer r.Release()
		r = transport.NoReservation{}
	}
	for i := range all {
		m := &all[i]
		switch {
		case m.Method == nil:
			answered = max(answered, s.answer(m, r))
		case m.ID == nil:
			s.notified(*m.Method, m.Params)
		case !m.Answerable():
			r.Release()
			s.options.Log.Debug("mcpclient: a request whose id cannot be answered",
				"method", transport.Clip(*m.Method, 100))
		default:
			s.requested(m, r)
		}
	}
	return answered, true
}

// answer hands a response to its call.
func (s *Session) answer(m *transport.Message, r transport.Reservation) int64 {
	id, ok := transport.RequestID(m.ID)
	if !ok {
		r.Release()
		s.options.Log.Debug("mcpclient: a response to nothing that was asked",
			"id", transport.Clip(string(m.ID), 100))
		return 0
	}
	c := s.take(id)
	if c == nil {
		r.Release()
		return id // an answer that comes late, or twice, ends its stream as well
	}
	result, err := m.Outcome()
	c.queue.finish(outcome{result, err, r})
	return id
}

func (s *Session) notified(method string, params json.RawMessage) {
	switch method {
	case "notifications/progress":
		s.progress(params)
	case "notifications/cancelled":
		var p struct {
			RequestID json.RawMessage `json:"requestId"`
		}
		_ = json.Unmarshal(params, &p)
		s.mu.Lock()
		cancel := s.requests[string(p.RequestID)]
		s.mu.Unlock()
		if cancel != nil {
			cancel()
		}
	case "notifications/subscriptions/acknowledged":
		s.acknowledged(params)
	default:
		s.handleNotification(method, params)
	}
}

func (s *Session) handleNotification(method string, params json.RawMessage) {
	if s.options.Handler == nil {
		return
	}
	s.notifying.Lock()
	defer s.notifying.Unlock()
	if s.ctx.Err() == nil {
		s.options.Handler.HandleNotification(method, params)
	}
}

// progress puts a notification into the queue of its call, and waits while that
// is full.
func (s *Session) progress(params json.RawMessage) {
	if len(params) > maxProgress {
		s.options.Log.Debug("mcpclient: progress that is too long to be passed on", "bytes", len(params))
		return
	}
	rest, token := rawjson.Without(params, metaToken)
	id, ok := transport.RequestID(token)
	if !ok {
		return
	}
	s.mu.Lock()
	c := s.calls[id]
	s.mu.Unlock()
	if c != nil {
		c.queue.push(rest)
	}
}

// requested has a request of the server answered.
func (s *Session) requested(m *transport.Message, r transport.Reservation) {
	method, id := *m.Method, m.ID
	refuse := func(code int64, message string) {
		r.Release()
		s.reply(rawjson.Envelope{ID: id, Error: &transport.Error{Code: code, Message: message}})
	}
	switch {
	case method == "ping":
		r.Release()
		s.reply(rawjson.Envelope{ID: id, Result: struct{}{}})
		return
	case s.options.Handler == nil || s.Stateless(),
		method != "elicitation/create" && method != "sampling/createMessage" && method != "roots/list":
		refuse(transport.CodeUnknownMethod, "unknown method")
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	full, twice := len(s.requests) >= maxRequests, s.requests[string(id)] != nil
	if !full && !twice {
		s.requests[string(id)] = cancel
	}
	s.mu.Unlock()
	switch {
	case twice:
		cancel()
		refuse(transport.CodeInvalidRequest, "a request with this id is on its way")
	case full:
		cancel()
		refuse(transport.CodeBusy, fmt.Sprintf("%d requests are on their way; try again", maxRequests))
	default:
		if !s.work(func(context.Context) {
			defer r.Release()
			defer cancel()
			s.handleRequest(ctx, method, m)
		}) {
			r.Release()
			cancel()
		}
	}
}

// handleRequest has the handler answer, and sends the answer unless the server has
// cancelled the request.
func (s *Session) handleRequest(ctx context.Context, method string, m *transport.Message) {
	result, err := s.options.Handler.HandleRequest(ctx, method, m.Params)
	cancelled := ctx.Err() != nil
	s.mu.Lock()
	delete(s.requests, string(m.ID))
	s.mu.Unlock()
	if cancelled {
		return
	}
	reply := rawjson.Envelope{ID: m.ID}
	said, isError := errors.AsType[*transport.Error](err)
	switch {
	case isError:
		reply.Error = said
	case err != nil:
		reply.Error = errUnanswered
	case rawjson.IsObject(result):
		reply.Result = result
	default:
		reply.Result = struct{}{}
	}
	s.sendReply(s.ctx, reply)
}

// errUnanswered is the answer to a request whose handler failed.
var errUnanswered = &transport.Error{Code: transport.CodeInternal, Message: "the request could not be answered"}

// reply sends an answer that no handler makes. When too many messages wait to be sent,
// nothing more is read until one has gone out.
func (s *Session) reply(e rawjson.Envelope) {
	select {
	case s.background <- struct{}{}:
		s.workInBackground(func(ctx context.Context) { s.sendReply(ctx, e) })
	case <-s.ctx.Done():
	}
}

func (s *Session) sendReply(ctx context.Context, e rawjson.Envelope) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	b, err := rawjson.Encode(e)
	if err != nil { // the handler's result is no JSON
		b, _ = rawjson.Encode(rawjson.Envelope{ID: e.ID, Error: errUnanswered})
	}
	err = s.transport.Send(ctx, transport.Outgoing{Body: b, Version: s.Version()})
	if err != nil && ctx.Err() == nil {
		s.options.Log.Debug("mcpclient: an answer did not reach the server", "error", err)
	}
}

// notify sends a notification.
func (s *Session) notify(ctx context.Context, method string, params rawjson.Object) error {
	m := transport.Outgoing{Method: method, Version: s.Version()}
	var err error
	if m.Body, err = rawjson.Encode(envelope(nil, method, params)); err != nil {
		return err
	}
	if s.Stateless() {
		m.Header = standardHeaders(method, params)
	}
	return s.transport.Send(ctx, m)
}

// envelope returns a request to the server or, without an id, a notification.
func envelope(id json.RawMessage, method string, params rawjson.Object) rawjson.Envelope {
	e := rawjson.Envelope{ID: id, Method: method}
	if len(params) > 0 {
		e.Params = params
	}
	return e
}
