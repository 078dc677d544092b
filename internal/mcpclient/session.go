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
	maxServerRequests = 16 // requests of the server that are answered at once
	maxBackground     = 64 // answers and cancellations that wait to be sent
	replyTimeout      = 30 * time.Second
	cancelTimeout     = 5 * time.Second // for sending notifications/cancelled
	maxProgress       = 64 << 10        // bytes of the parameters of a progress notification
)

// Session is an MCP session with one server. Its methods are safe for concurrent use.
type Session struct {
	transport transport.Transport
	options   Options

	version atomic.Value // the revision of the protocol, a string; "": not agreed yet
	server  serverInfo   // set by the handshake, before Connect returns the session

	ctx            context.Context // ends with the session; its cause is why
	cancel         context.CancelCauseFunc
	closeTransport func() error // closes the transport; further calls return the same error

	handlerMu       sync.Mutex    // held while Handler.HandleNotification runs
	backgroundSlots chan struct{} // a semaphore for maxBackground messages

	mu            sync.Mutex // also held to cancel ctx, so that no goroutine starts after that
	goroutines    sync.WaitGroup
	lastID        int64 // the id of the last request to the server
	calls         map[int64]*call
	requests      map[string]context.CancelFunc // cancel the server's requests, by request id
	level         string                        // the level that SetLevel set, in the stateless protocol
	subscriptions map[string]*subscription      // by URI; "" is the one for changes of lists
}

// serverInfo is how a server described itself in the handshake.
type serverInfo struct {
	implementation json.RawMessage // an object; nil: the server sent none
	instructions   string
	capabilities   Capabilities
}

func newSession(t transport.Transport, o Options) *Session {
	s := &Session{transport: t, options: o, closeTransport: sync.OnceValue(t.Close),
		backgroundSlots: make(chan struct{}, maxBackground), calls: map[int64]*call{},
		requests: map[string]context.CancelFunc{}, subscriptions: map[string]*subscription{}}
	s.version.Store("")
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	t.Start(receiver{s}, transport.Limits{Message: o.MaxMessage, Large: o.MaxLarge, Reserve: o.Reserve})
	return s
}

// Version returns the agreed revision of the protocol.
func (s *Session) Version() string { return s.version.Load().(string) }

// Stateless reports whether the agreed revision of the protocol has no sessions.
func (s *Session) Stateless() bool { return revision.IsStateless(s.Version()) }

// Info returns the server's Implementation object; nil: the server sent none.
func (s *Session) Info() json.RawMessage { return s.server.implementation }

// Instructions returns the server's instructions for models.
func (s *Session) Instructions() string { return s.server.instructions }

// Capabilities returns the capabilities that the server declared.
func (s *Session) Capabilities() Capabilities { return s.server.capabilities }

// Done returns a channel that is closed when the session is over. Close has to be called also then.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Err returns why the session is over, or nil while it is not.
func (s *Session) Err() error { return context.Cause(s.ctx) }

// Close ends the session, and waits until all of its goroutines have ended. It may be
// called more than once. A Handler or a Progress function must not call it.
func (s *Session) Close() error {
	s.end(transport.ErrClosed)
	err := s.closeTransport()
	s.goroutines.Wait()
	return err
}

// end ends the session. The cause of the first call is kept.
func (s *Session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel(cause)
}

// startGoroutine runs f in a goroutine that Close waits for. It returns false when the session
// is over.
func (s *Session) startGoroutine(f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.goroutines.Go(func() { f(s.ctx) })
	return true
}

// startInBackground runs f like startGoroutine. The caller has acquired backgroundSlots,
// which is released when f has ended.
func (s *Session) startInBackground(f func(ctx context.Context)) {
	if !s.startGoroutine(func(ctx context.Context) {
		defer func() { <-s.backgroundSlots }()
		f(ctx)
	}) {
		<-s.backgroundSlots
	}
}

// removeCall removes a call from those that wait for a response, and returns it; nil: there is
// none with the id.
func (s *Session) removeCall(id int64) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[id]
	delete(s.calls, id)
	return c
}

// receiver implements transport.Receiver for a session, without exporting the methods in Session.
type receiver struct{ *Session }

// Ended implements transport.Receiver.
func (s receiver) Ended(err error) { s.end(err) }

// NotificationsLost implements transport.Receiver.
func (s receiver) NotificationsLost() { s.repeatNotifications("") }

// Fail implements transport.Receiver.
func (s receiver) Fail(id int64, err error) {
	if c := s.removeCall(id); c != nil {
		c.queue.finish(outcome{err: err, reservation: transport.NoReservation{}})
	}
}

// Receive implements transport.Receiver.
func (s receiver) Receive(b []byte, r transport.Reservation) (answered int64, ok bool) {
	if len(b) > s.options.MaxMessage {
		return s.receiveLarge(b, r)
	}
	r.ShrinkTo(int64(len(b))) // a message of the maximum size was reserved
	all, err := transport.Decode(b)
	if err != nil {
		r.Release()
		return 0, false
	}
	if len(all) != 1 || all[0].Method != nil && all[0].ID == nil { // a batch or a notification: not used after Receive
		defer r.Release()
		r = transport.NoReservation{}
	}
	for i := range all {
		m := &all[i]
		switch {
		case m.Method == nil:
			answered = max(answered, s.handleResponse(m, r))
		case m.ID == nil:
			s.dispatchNotification(*m.Method, m.Params)
		case !m.Answerable():
			r.Release()
			s.options.Log.Debug("mcpclient: a request whose id cannot be answered",
				"method", transport.Clip(*m.Method, 100))
		default:
			s.dispatchRequest(m, r)
		}
	}
	return answered, true
}

// receiveLarge is Receive for a message that is larger than Options.MaxMessage: the response to a call that takes one.
func (s receiver) receiveLarge(b []byte, r transport.Reservation) (answered int64, ok bool) {
	m, err := transport.DecodeLarge(b)
	if err != nil {
		r.Release()
		return 0, false
	}
	// An error would be decoded, which copies it.
	if id, ok := transport.ParseRequestID(m.ID); ok && (!m.HasResult() || !s.TakesLarge(id)) {
		r.Release()
		s.Fail(id, fmt.Errorf("%w: an answer of over %d bytes", transport.ErrTooLarge, s.options.MaxMessage))
		return id, true
	}
	return s.handleResponse(&m, r), true
}

// TakesLarge implements transport.Receiver.
func (s receiver) TakesLarge(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != 0 {
		c := s.calls[id]
		return c != nil && c.large
	}
	for _, c := range s.calls {
		if c.large {
			return true
		}
	}
	return false
}

// handleResponse passes a response to its call, and returns the id of the call.
func (s *Session) handleResponse(m *transport.Message, r transport.Reservation) int64 {
	id, ok := transport.ParseRequestID(m.ID)
	if !ok {
		of := transport.Clip(string(m.ID[:min(len(m.ID), 200)]), 100)
		r.Release()
		s.options.Log.Debug("mcpclient: a response to nothing that was asked", "id", of)
		return 0
	}
	c := s.removeCall(id)
	if c == nil {
		r.Release()
		return id // a late or duplicate response ends its stream as well
	}
	result, err := m.Outcome()
	c.queue.finish(outcome{result, err, r})
	return id
}

func (s *Session) dispatchNotification(method string, params json.RawMessage) {
	switch method {
	case "notifications/progress":
		s.queueProgress(params)
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
		s.handleAcknowledged(params)
	default:
		s.callNotificationHandler(method, params)
	}
}

func (s *Session) callNotificationHandler(method string, params json.RawMessage) {
	if s.options.Handler == nil {
		return
	}
	s.handlerMu.Lock()
	defer s.handlerMu.Unlock()
	if s.ctx.Err() == nil {
		s.options.Handler.HandleNotification(method, params)
	}
}

// queueProgress adds the parameters of a progress notification to the queue of its call, and
// blocks while the queue is full.
func (s *Session) queueProgress(params json.RawMessage) {
	if len(params) > maxProgress {
		s.options.Log.Debug("mcpclient: progress that is too long to be passed on", "bytes", len(params))
		return
	}
	rest, token := rawjson.Without(params, metaProgressToken)
	id, ok := transport.ParseRequestID(token)
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

// dispatchRequest answers a request of the server, or starts the handler for it.
func (s *Session) dispatchRequest(m *transport.Message, r transport.Reservation) {
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
	full, duplicate := len(s.requests) >= maxServerRequests, s.requests[string(id)] != nil
	if !full && !duplicate {
		s.requests[string(id)] = cancel
	}
	s.mu.Unlock()
	switch {
	case duplicate:
		cancel()
		refuse(transport.CodeInvalidRequest, "a request with this id is in flight")
	case full:
		cancel()
		refuse(transport.CodeBusy, fmt.Sprintf("%d requests are in flight; try again", maxServerRequests))
	default:
		if !s.startGoroutine(func(context.Context) {
			defer r.Release()
			defer cancel()
			s.handleRequest(ctx, method, m)
		}) {
			r.Release()
			cancel()
		}
	}
}

// handleRequest calls the handler, and sends its answer unless the server has cancelled
// the request.
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
	rpcErr, isError := errors.AsType[*transport.Error](err)
	switch {
	case isError:
		reply.Error = rpcErr
	case err != nil:
		reply.Error = errHandlerFailed
	case rawjson.IsObject(result):
		reply.Result = result
	default:
		reply.Result = struct{}{}
	}
	s.sendReply(s.ctx, reply)
}

// errHandlerFailed is what the server gets when the handler failed.
var errHandlerFailed = &transport.Error{Code: transport.CodeInternal, Message: "the request could not be answered"}

// reply sends an answer without calling the handler. While too many messages wait to be
// sent, it blocks, and with it the reading of the server's messages.
func (s *Session) reply(e rawjson.Envelope) {
	select {
	case s.backgroundSlots <- struct{}{}:
		s.startInBackground(func(ctx context.Context) { s.sendReply(ctx, e) })
	case <-s.ctx.Done():
	}
}

func (s *Session) sendReply(ctx context.Context, e rawjson.Envelope) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	b, err := rawjson.Encode(e)
	if err != nil { // the handler's result is not JSON
		b, _ = rawjson.Encode(rawjson.Envelope{ID: e.ID, Error: errHandlerFailed})
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
	if m.Body, err = encode(nil, method, params); err != nil {
		return err
	}
	if s.Stateless() {
		m.Header = standardHeaders(method, params)
	}
	return s.transport.Send(ctx, m)
}
