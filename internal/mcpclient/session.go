package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
)

const (
	maxAsks    = 16 // requests of the server on their way
	maxReplies = 64 // messages of ours that nobody waits for
	replyLimit = 30 * time.Second
	byeLimit   = 5 * time.Second // for telling that a call is given up
	maxNote    = 64 << 10        // bytes of a notification of progress
)

// Session is a conversation with one server. Its methods may be used by several
// goroutines at once.
type Session struct {
	pipe    Pipe
	options Options
	log     *slog.Logger

	spoken atomic.Value // the revision of the protocol, a string; empty: not agreed yet
	// Set by the handshake, before anyone else has the session.
	info         json.RawMessage
	instructions string
	can          Can

	// ctx ends with the session.
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
	closed sync.Once
	failed error // of closing

	announcing sync.Mutex    // one announcement after the other
	replies    chan struct{} // as many as may be on their way

	mu      sync.Mutex
	err     error // why it is over; no goroutine starts any more
	working sync.WaitGroup
	last    int64 // the last id of a request of ours
	calls   map[int64]*call
	asks    map[string]context.CancelFunc // by the server's ids
	level   string                        // of log messages, in the newer era
	listens map[string]*listen            // by URI; the empty one is for changes of lists
}

func newSession(p Pipe, o Options) *Session {
	s := &Session{pipe: p, options: o, log: o.Log, done: make(chan struct{}), replies: make(chan struct{}, maxReplies),
		calls: map[int64]*call{}, asks: map[string]context.CancelFunc{}, listens: map[string]*listen{}}
	s.spoken.Store("")
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	p.start(s, o.MaxMessage, o.Room)
	return s
}

// Version returns the agreed revision of the protocol.
func (s *Session) Version() string { return s.spoken.Load().(string) }

func (s *Session) stateless() bool { return revision.IsStateless(s.Version()) }

// Info returns what the server says of itself, an Implementation object; or nil.
func (s *Session) Info() json.RawMessage { return s.info }

// Instructions returns the server's words for models.
func (s *Session) Instructions() string { return s.instructions }

// Can returns what the server has declared that it can do.
func (s *Session) Can() Can { return s.can }

// Done is closed when the session is over. It has to be closed then, too.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err says why the session is over; nil while it is not.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the session, and waits until nothing of it is left. It can be
// called twice; a Handler and a Progress function must not call it.
func (s *Session) Close() error {
	s.end(ErrClosed)
	s.closed.Do(func() {
		s.failed = s.pipe.close()
	})
	s.working.Wait()
	return s.failed
}

// end makes the session over, for the first reason that is given.
func (s *Session) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = why
	s.cancel(why)
	close(s.done)
}

// work runs f in a goroutine that Close waits for. It is false when the session
// is over.
func (s *Session) work(f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return false
	}
	s.working.Go(func() { f(s.ctx) })
	return true
}

// lost implements inbox.
func (s *Session) lost(err error) { s.end(err) }

// fail implements inbox.
func (s *Session) fail(id int64, err error) {
	if c := s.take(id); c != nil {
		c.queue.finish(outcome{err: err, room: noRoom{}})
	}
}

// take returns a call that waits for its answer; it is handed out once.
func (s *Session) take(id int64) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[id]
	delete(s.calls, id)
	return c
}

// receive implements inbox.
func (s *Session) receive(b []byte, room Room) (answered int64, ok bool) {
	room.Keep(int64(len(b))) // room was taken for the largest message there may be
	all, err := decode(b)
	if err != nil {
		room.Release()
		return 0, false
	}
	if len(all) != 1 || all[0].Method != nil && all[0].ID == nil { // it is over when it was handled
		defer room.Release()
		room = noRoom{}
	}
	for i := range all {
		m := &all[i]
		switch {
		case m.Method == nil:
			answered = max(answered, s.answer(m, room))
		case m.ID == nil:
			s.notified(*m.Method, m.Params)
		case !theirs(m.ID):
			room.Release()
			s.log.Debug("mcpclient: a request whose id cannot be answered", "method", clip(*m.Method, 100))
		default:
			s.asked(m, room)
		}
	}
	return answered, true
}

// answer hands a response to its call.
func (s *Session) answer(m *message, room Room) int64 {
	id, ok := ours(m.ID)
	if !ok {
		room.Release()
		s.log.Debug("mcpclient: a response to nothing that was asked", "id", clip(string(m.ID), 100))
		return 0
	}
	c := s.take(id)
	if c == nil {
		room.Release()
		return id
	}
	result, err := m.outcome()
	c.queue.finish(outcome{result, err, room})
	return id // an answer that comes late, or twice, ends its stream as well
}

func (s *Session) notified(method string, params json.RawMessage) {
	switch method {
	case "notifications/progress":
		s.progress(params)
		return
	case "notifications/cancelled":
		var p struct {
			RequestID json.RawMessage `json:"requestId"`
		}
		_ = json.Unmarshal(params, &p)
		s.mu.Lock()
		cancel := s.asks[string(p.RequestID)]
		s.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		return
	case "notifications/subscriptions/acknowledged":
		s.acknowledged(params)
		return
	}
	s.announce(method, params)
}

func (s *Session) announce(method string, params json.RawMessage) {
	if s.options.Handler == nil {
		return
	}
	s.announcing.Lock()
	defer s.announcing.Unlock()
	if s.ctx.Err() == nil {
		s.options.Handler.Announce(method, params)
	}
}

// progress puts a notification into the queue of its call, and waits while that
// is full.
func (s *Session) progress(params json.RawMessage) {
	if len(params) > maxNote {
		s.log.Debug("mcpclient: progress that is too long to be passed on", "bytes", len(params))
		return
	}
	rest, token := rawjson.Without(params, metaToken)
	id, ok := ours(token)
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

// asked has a request of the server answered.
func (s *Session) asked(m *message, room Room) {
	method, id := *m.Method, m.ID
	handed := false
	defer func() {
		if !handed {
			room.Release()
		}
	}()
	switch {
	case method == "ping":
		s.reply(wireReply{ID: id, Result: json.RawMessage("{}")})
		return
	case s.options.Handler == nil || s.stateless(),
		method != "elicitation/create" && method != "sampling/createMessage" && method != "roots/list":
		s.reply(wireReply{ID: id, Error: &Error{Code: codeUnknownMethod, Message: "unknown method"}})
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	full, twice := len(s.asks) >= maxAsks, s.asks[string(id)] != nil
	if !full && !twice {
		s.asks[string(id)] = cancel
	}
	s.mu.Unlock()
	switch {
	case twice:
		cancel()
		s.reply(wireReply{ID: id, Error: &Error{Code: codeInvalidRequest,
			Message: "a request with this id is on its way"}})
	case full:
		cancel()
		s.reply(wireReply{ID: id, Error: &Error{Code: codeBusy,
			Message: fmt.Sprintf("%d requests are on their way; try again", maxAsks)}})
	default:
		if handed = s.work(func(context.Context) {
			defer room.Release()
			defer cancel()
			s.ask(ctx, method, m)
		}); !handed {
			cancel()
		}
	}
}

// ask has the handler answer, and sends the answer unless the server has given
// the request up.
func (s *Session) ask(ctx context.Context, method string, m *message) {
	result, err := s.options.Handler.Ask(ctx, method, m.Params)
	gone := ctx.Err() != nil
	s.mu.Lock()
	delete(s.asks, string(m.ID))
	s.mu.Unlock()
	if gone {
		return
	}
	r := wireReply{ID: m.ID, Result: result}
	var said *Error
	switch {
	case errors.As(err, &said):
		r.Result, r.Error = nil, said
	case err != nil:
		r.Result, r.Error = nil, &Error{Code: codeInternal, Message: "the request could not be answered"}
	case !rawjson.IsObject(result):
		r.Result = json.RawMessage("{}")
	}
	s.sendReply(s.ctx, r)
}

// reply sends an answer that needs no thought. When too many are on their way,
// nothing more is read until one has gone out.
func (s *Session) reply(r wireReply) {
	select {
	case s.replies <- struct{}{}:
	case <-s.ctx.Done():
		return
	}
	if !s.work(func(ctx context.Context) {
		defer func() { <-s.replies }()
		s.sendReply(ctx, r)
	}) {
		<-s.replies
	}
}

func (s *Session) sendReply(ctx context.Context, r wireReply) {
	ctx, cancel := context.WithTimeout(ctx, replyLimit)
	defer cancel()
	r.JSONRPC = "2.0"
	b, err := rawjson.Encode(r)
	if err != nil { // what the handler gave is no JSON
		b, _ = rawjson.Encode(wireReply{JSONRPC: "2.0", ID: r.ID, Error: &Error{Code: codeInternal,
			Message: "the request could not be answered"}})
	}
	if err := s.pipe.send(ctx, outgoing{body: b, version: s.Version()}); err != nil && ctx.Err() == nil {
		s.log.Debug("mcpclient: an answer did not reach the server", "error", err)
	}
}

// notify sends a notification.
func (s *Session) notify(ctx context.Context, method string, params rawjson.Object) error {
	b, err := rawjson.Encode(wireRequest{JSONRPC: "2.0", Method: method, Params: params})
	if err != nil {
		return err
	}
	m := outgoing{body: b, method: method, version: s.Version()}
	if s.stateless() {
		m.header = standardHeaders(method, params)
	}
	return s.pipe.send(ctx, m)
}
