package mcpclient

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
)

// Keys of _meta that are the protocol's own.
const (
	metaToken        = "progressToken"
	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaClient       = "io.modelcontextprotocol/clientInfo"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLevel        = "io.modelcontextprotocol/logLevel"
)

// Request is one call.
type Request struct {
	Method string
	Params map[string]json.RawMessage // without _meta
	// Meta is what may be passed on of _meta; the session adds its own keys.
	Meta map[string]json.RawMessage
	// Progress gets the parameters of each progress notification of this call, but
	// its token: in wire order, in the caller's goroutine, and all before Call
	// returns. While it is slow, the server is not read further.
	Progress func(params json.RawMessage)
	Timeout  time.Duration // from the start or the last progress notification; 0: 60 s
	Most     time.Duration // in all; 0: no more than Timeout allows
	// Schema is the inputSchema of the tool that is called. Over HTTP the stateless
	// protocol wants arguments that the schema marks repeated in headers.
	Schema json.RawMessage
	// Capabilities are, in the stateless protocol, those of the client that this call is
	// for; nil: Options.Capabilities.
	Capabilities json.RawMessage

	// Held takes over the reservation of the result; nil: it is released when Call
	// returns.
	Held func(transport.Reservation)

	endless bool // it has no time limit: subscriptions/listen
	// begun is told the id of the request before it is sent.
	begun func(id int64)
}

// call is a request that waits for its answer.
type call struct {
	id     int64
	method string // as errors name it
	queue  *queue
}

// Call sends a request and returns the whole result object, as it came. An error
// of the server is a *transport.Error. When the context ends, or the time is up, the
// server is told that the call is cancelled.
func (s *Session) Call(ctx context.Context, r Request) (json.RawMessage, error) {
	if r.Timeout <= 0 {
		r.Timeout = defaultTimeout
	}
	c, err := s.begin(r.Method)
	if err != nil {
		return nil, err
	}
	if r.Most > 0 && !r.endless {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.Most,
			fmt.Errorf("%w: %s took over %s", transport.ErrTimeout, c.method, r.Most))
		defer cancel()
	}
	m, err := s.request(c, r)
	if err == nil {
		if r.begun != nil {
			r.begun(c.id)
		}
		err = s.sendRequest(ctx, m, c, r.Timeout)
	}
	if err != nil {
		s.take(c.id)
		c.queue.close()
		return nil, err
	}
	return s.await(ctx, c, r)
}

// begin makes a call that can be answered.
func (s *Session) begin(method string) (*call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Err(); err != nil {
		return nil, err
	}
	s.lastID++
	c := &call{id: s.lastID, method: transport.Clip(method, 100), queue: newQueue()}
	s.calls[c.id] = c
	return c, nil
}

// sendRequest hands the request to the transport, in no more time than a call has.
func (s *Session) sendRequest(ctx context.Context, m transport.Outgoing, c *call, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("%w: it did not take %s within %s", transport.ErrTimeout, c.method, timeout))
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	err := s.transport.Send(ctx, m)
	if over := s.Err(); err != nil && over != nil {
		return over
	}
	return err
}

// request returns the message of a request.
func (s *Session) request(c *call, r Request) (transport.Outgoing, error) {
	params, meta := rawjson.Object{}, rawjson.Object{}
	maps.Copy(params, r.Params)
	maps.Copy(meta, r.Meta)
	delete(params, "_meta")
	delete(meta, metaToken)
	if r.Progress != nil || r.Method == "tools/call" {
		meta[metaToken] = rawjson.Number(c.id)
	}
	m := transport.Outgoing{ID: c.id, Method: r.Method, Version: s.Version()}
	if s.Stateless() {
		s.addClient(meta, r)
		m.Header = standardHeaders(r.Method, params)
		if r.Method == "tools/call" {
			maps.Copy(m.Header, paramHeaders(r.Schema, params["arguments"]))
		}
	}
	if len(meta) > 0 {
		b, err := rawjson.Encode(meta)
		if err != nil {
			return m, fmt.Errorf("the _meta of %s is no JSON: %w", c.method, err)
		}
		params["_meta"] = b
	}
	var err error
	if m.Body, err = rawjson.Encode(envelope(rawjson.Number(c.id), r.Method, params)); err != nil {
		return m, fmt.Errorf("the parameters of %s are no JSON: %w", c.method, err)
	}
	return m, nil
}

// addClient adds what each request of the stateless protocol says of the client.
func (s *Session) addClient(meta rawjson.Object, r Request) {
	meta[metaVersion], meta[metaClient] = rawjson.Quote(s.Version()), s.options.implementation()
	meta[metaCapabilities] = s.options.Capabilities
	if len(r.Capabilities) > 0 {
		meta[metaCapabilities] = r.Capabilities
	}
	delete(meta, metaLevel)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.level != "" {
		meta[metaLevel] = rawjson.Quote(s.level)
	}
}

// implementation is the Implementation object of this client.
func (o Options) implementation() json.RawMessage {
	b, _ := rawjson.Encode(map[string]string{"name": o.Name, "version": o.Version}) // texts can always be written
	return b
}

// await hands progress over until the call has its outcome, its time is up, or
// the context ends.
func (s *Session) await(ctx context.Context, c *call, r Request) (json.RawMessage, error) {
	defer c.queue.close()
	var timeout <-chan time.Time
	var timer *time.Timer
	if !r.endless {
		timer = time.NewTimer(r.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		over := false
		select {
		case <-c.queue.ready:
		case <-s.Done():
			over = true
		case <-ctx.Done():
			return nil, s.giveUp(c, context.Cause(ctx))
		case <-timeout:
			if left := r.Timeout - time.Since(c.queue.lastSign()); left > 0 {
				timer.Reset(left)
				continue
			}
			return nil, s.giveUp(c, fmt.Errorf("%w: no sign of life of %s for %s", transport.ErrTimeout, c.method,
				r.Timeout))
		}
		progress, end := c.queue.take()
		for _, p := range progress {
			if r.Progress != nil {
				r.Progress(p)
			}
		}
		if end != nil {
			if end.err == nil && r.Held != nil {
				r.Held(end.reservation)
				end.reservation = transport.NoReservation{}
			}
			return end.result, end.err
		}
		if over {
			// The call may have had its effect, so the error does not invite to repeat it.
			s.take(c.id)
			return nil, fmt.Errorf("%w: %s was not answered (%v)", transport.ErrClosed, c.method, s.Err())
		}
	}
}

// giveUp tells the server that nobody waits for the answer of a call any more.
func (s *Session) giveUp(c *call, cause error) error {
	s.take(c.id)
	// The handshake must not be cancelled; and the end of a stream cancels a request of
	// the stateless protocol.
	handshake := c.method == "initialize" || c.method == "server/discover"
	if !handshake && !(s.transport.Traits().Streams && s.Stateless()) {
		params := rawjson.Object{"requestId": rawjson.Number(c.id),
			"reason": rawjson.Quote(transport.Clip(cause.Error(), 200))}
		select {
		case s.background <- struct{}{}:
			s.workInBackground(func(ctx context.Context) {
				ctx, cancel := context.WithTimeout(ctx, cancelTimeout)
				defer cancel()
				_ = s.notify(ctx, "notifications/cancelled", params) // nobody waits for it
			})
		default: // the server takes no messages
		}
	}
	s.transport.Abandon(c.id)
	return cause
}
