package mcpclient

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"time"

	"sandlot/internal/rawjson"
)

// Request is one call.
type Request struct {
	Method string
	Params map[string]json.RawMessage // without _meta
	// Meta is what may be passed on of _meta; the session adds its own.
	Meta map[string]json.RawMessage
	// Progress gets the parameters of each progress notification of this call, but
	// its token: in wire order, in the caller's goroutine, and all before Call
	// returns. While it is slow, the server is not read further.
	Progress func(params json.RawMessage)
	Timeout  time.Duration // since the last sign of life: the start, or a progress notification; 0: 60 s
	Most     time.Duration // in all; 0: no more than Timeout allows
	// Schema is the inputSchema of the tool that is called. Over HTTP the newer era
	// wants arguments that it marks repeated in headers.
	Schema json.RawMessage
	// Capabilities are, in the newer era, those of the client that this call is
	// for; nil: Options.Capabilities.
	Capabilities json.RawMessage

	// Held takes over what a large result holds of its owner's room; nil: it is given
	// back when Call returns.
	Held func(Room)

	endless bool // it has no time limit: subscriptions/listen
	// begun is told the id of the request before it is sent.
	begun func(id int64)
}

// call is a request that waits for its answer.
type call struct {
	id     int64
	method string
	queue  *queue
}

// Call sends a request and returns the whole result object, as it came. An error
// of the server is an *Error. When the context ends, or the time is up, the
// server is told that the call is given up.
func (s *Session) Call(ctx context.Context, r Request) (json.RawMessage, error) {
	if r.Timeout <= 0 {
		r.Timeout = defaultTimeout
	}
	if r.Most > 0 && !r.endless {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.Most, fmt.Errorf("%w: %s took over %s", ErrTimeout,
			clip(r.Method, 100), r.Most))
		defer cancel()
	}
	c, err := s.begin(r.Method)
	if err != nil {
		return nil, err
	}
	m, err := s.request(c.id, r)
	if err == nil {
		if r.begun != nil {
			r.begun(c.id)
		}
		err = s.sendRequest(ctx, m, r)
	}
	if err != nil {
		s.take(c.id)
		c.queue.leave()
		return nil, err
	}
	return s.await(ctx, c, r)
}

// begin makes a call that can be answered.
func (s *Session) begin(method string) (*call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	s.last++
	c := &call{id: s.last, method: method, queue: newQueue()}
	s.calls[c.id] = c
	return c, nil
}

// sendRequest hands the request to the pipe, in no more time than a call has.
func (s *Session) sendRequest(ctx context.Context, m outgoing, r Request) error {
	send, cancel := context.WithTimeoutCause(ctx, r.Timeout,
		fmt.Errorf("%w: it did not take %s within %s", ErrTimeout, clip(r.Method, 100), r.Timeout))
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	err := s.pipe.send(send, m)
	if over := s.Err(); err != nil && over != nil {
		return over
	}
	return err
}

// request writes a request down.
func (s *Session) request(id int64, r Request) (outgoing, error) {
	params := maps.Clone(r.Params)
	if params == nil {
		params = rawjson.Object{}
	}
	delete(params, "_meta")
	meta := maps.Clone(r.Meta)
	if meta == nil {
		meta = rawjson.Object{}
	}
	delete(meta, metaToken)
	if r.Progress != nil || r.Method == "tools/call" {
		meta[metaToken] = rawjson.Number(id)
	}
	m := outgoing{id: id, method: r.Method, version: s.Version()}
	if s.stateless() {
		if err := s.present(meta, r); err != nil {
			return m, err
		}
		m.header = standardHeaders(r.Method, params)
		if r.Method == "tools/call" {
			maps.Copy(m.header, paramHeaders(r.Schema, params["arguments"]))
		}
	}
	if len(meta) > 0 {
		b, err := rawjson.Encode(meta)
		if err != nil {
			return m, fmt.Errorf("the _meta of %s is no JSON: %w", clip(r.Method, 100), err)
		}
		params["_meta"] = b
	}
	var err error
	if m.body, err = rawjson.Encode(wireRequest{JSONRPC: "2.0", ID: id, Method: r.Method, Params: params}); err != nil {
		return m, fmt.Errorf("the parameters of %s are no JSON: %w", clip(r.Method, 100), err)
	}
	return m, nil
}

// present adds what each request of the newer era says of the client.
func (s *Session) present(meta rawjson.Object, r Request) error {
	client, err := rawjson.Encode(map[string]string{"name": s.options.Name, "version": s.options.Version})
	if err != nil {
		return err
	}
	meta[metaVersion], meta[metaClient] = rawjson.Quote(s.Version()), client
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
	return nil
}

// await hands progress over until the call has its outcome, is out of time, or
// is not wanted any more.
func (s *Session) await(ctx context.Context, c *call, r Request) (json.RawMessage, error) {
	defer c.queue.leave()
	var up <-chan time.Time
	var timer *time.Timer
	if !r.endless {
		timer = time.NewTimer(r.Timeout)
		defer timer.Stop()
		up = timer.C
	}
	for {
		over := false
		select {
		case <-c.queue.ready:
		case <-s.done:
			over = true
		case <-ctx.Done():
			return nil, s.giveUp(c, context.Cause(ctx))
		case <-up:
			if left := r.Timeout - time.Since(c.queue.lastHeard()); left > 0 {
				timer.Reset(left)
				continue
			}
			return nil, s.giveUp(c, fmt.Errorf("%w: no sign of life of %s for %s", ErrTimeout, clip(r.Method, 100),
				r.Timeout))
		}
		progress, last := c.queue.pop()
		for _, p := range progress {
			if r.Progress != nil {
				r.Progress(p)
			}
		}
		switch {
		case last:
			o := c.queue.take()
			if r.Held != nil && o.err == nil {
				r.Held(o.room)
			} else {
				o.room.Release()
			}
			return o.result, o.err
		case over:
			return nil, s.cutOff(c)
		}
	}
}

// cutOff is the error of a call that was on its way when the session ended. It
// may have had its effect: so it is not one that invites to repeat it.
func (s *Session) cutOff(c *call) error {
	s.take(c.id)
	return fmt.Errorf("%w: %s was not answered (%v)", ErrClosed, clip(c.method, 100), s.Err())
}

// giveUp tells the server that nobody waits for an answer any more.
func (s *Session) giveUp(c *call, why error) error {
	s.take(c.id)
	t := s.pipe.traits()
	// The handshake must not be cancelled, and where the end of a stream says it,
	// nothing else has to.
	if c.method != "initialize" && c.method != "server/discover" && !(t.streams && s.stateless()) {
		select {
		case s.replies <- struct{}{}:
			if !s.work(func(ctx context.Context) {
				defer func() { <-s.replies }()
				ctx, cancel := context.WithTimeout(ctx, byeLimit)
				defer cancel()
				_ = s.notify(ctx, "notifications/cancelled",
					rawjson.Object{"requestId": rawjson.Number(c.id), "reason": rawjson.Quote(clip(why.Error(), 200))})
			}) {
				<-s.replies
			}
		default: // the server takes nothing: it would not hear this either
		}
	}
	s.pipe.abandon(c.id)
	return why
}

// standardHeaders are those that say what a request of the newer era is.
func standardHeaders(method string, params rawjson.Object) http.Header {
	h := http.Header{"Mcp-Method": {method}}
	key := map[string]string{"tools/call": "name", "prompts/get": "name", "resources/read": "uri",
		"tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}[method]
	var name string
	if key != "" && json.Unmarshal(params[key], &name) == nil && name != "" {
		h.Set("Mcp-Name", headerText(name))
	}
	return h
}
