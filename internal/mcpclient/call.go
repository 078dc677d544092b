package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
)

// Keys of _meta that the protocol reserves.
const (
	metaProgressToken   = "progressToken"
	metaProtocolVersion = "io.modelcontextprotocol/protocolVersion"
	metaClientInfo      = "io.modelcontextprotocol/clientInfo"
	metaCapabilities    = "io.modelcontextprotocol/clientCapabilities"
	metaLogLevel        = "io.modelcontextprotocol/logLevel"
)

// Request is one call.
type Request struct {
	Method string
	Params map[string]json.RawMessage // without _meta
	// Meta holds keys of _meta to send; the session adds the keys of the protocol.
	Meta map[string]json.RawMessage
	// Progress is called with the parameters of each progress notification of this call,
	// without the progress token: in wire order, in the caller's goroutine, and before
	// Call returns. A slow Progress stops the session from reading more of the server.
	Progress     func(params json.RawMessage)
	Timeout      time.Duration // from the start or the last progress notification; 0: 60 s
	TotalTimeout time.Duration // of the whole call; 0: only Timeout applies
	// Schema is the inputSchema of the tool that is called. The stateless protocol over
	// HTTP repeats the arguments that it marks (x-mcp-header) in headers.
	Schema json.RawMessage
	// Capabilities are, in the stateless protocol, the capabilities of the client on whose
	// behalf the call is made; nil: Options.Capabilities.
	Capabilities json.RawMessage

	// TakeReservation is called with the reservation of the result, which the caller has to release;
	// nil: Call releases it before it returns.
	TakeReservation func(transport.Reservation)

	// Large: the result may have up to Options.MaxLarge bytes. It may be changed in place.
	Large bool

	stayOpen bool // for subscriptions/listen, which stays open
	// beforeSend is called with the id of the request before the request is sent.
	beforeSend func(id int64)
}

// call is a request whose response has not come yet.
type call struct {
	id     int64
	method string // as errors name it
	queue  *queue
	large  bool // Request.Large
}

// Call sends a request and returns the result object, unchanged. An error response of
// the server is a *transport.Error. When the context ends, or a timeout passes, Call
// notifies the server that the call is cancelled.
func (s *Session) Call(ctx context.Context, r Request) (json.RawMessage, error) {
	if r.Timeout <= 0 {
		r.Timeout = defaultTimeout
	}
	c, err := s.registerCall(r.Method, r.Large)
	if err != nil {
		return nil, err
	}
	if r.TotalTimeout > 0 && !r.stayOpen {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.TotalTimeout,
			fmt.Errorf("%w: %s took over %s", transport.ErrTimeout, c.method, r.TotalTimeout))
		defer cancel()
	}
	m, err := s.encodeRequest(c, r)
	if err == nil {
		if r.beforeSend != nil {
			r.beforeSend(c.id)
		}
		err = s.sendRequest(ctx, m, c, r.Timeout)
	}
	if err != nil {
		s.removeCall(c.id)
		c.queue.close()
		return nil, err
	}
	return s.await(ctx, c, r)
}

// registerCall registers a new call, so that a response can be assigned to it.
func (s *Session) registerCall(method string, large bool) (*call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Err(); err != nil {
		return nil, err
	}
	s.lastID++
	c := &call{id: s.lastID, method: transport.Clip(method, 100), queue: newQueue(), large: large}
	s.calls[c.id] = c
	return c, nil
}

// sendRequest hands the request to the transport, which may take at most timeout.
func (s *Session) sendRequest(ctx context.Context, m transport.Outgoing, c *call, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("%w: it did not take %s within %s", transport.ErrTimeout, c.method, timeout))
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	err := s.transport.Send(ctx, m)
	if sessionErr := s.Err(); err != nil && sessionErr != nil {
		return sessionErr
	}
	return err
}

// encodeRequest encodes the request of a call.
func (s *Session) encodeRequest(c *call, r Request) (transport.Outgoing, error) {
	params, meta := rawjson.Object{}, rawjson.Object{}
	maps.Copy(params, r.Params)
	maps.Copy(meta, r.Meta)
	delete(params, "_meta")
	delete(meta, metaProgressToken)
	if r.Progress != nil || r.Method == "tools/call" {
		meta[metaProgressToken] = rawjson.Number(c.id)
	}
	m := transport.Outgoing{ID: c.id, Method: r.Method, Version: s.Version()}
	if s.Stateless() {
		s.addClientMeta(meta, r)
		m.Header = standardHeaders(r.Method, params)
		if r.Method == "tools/call" {
			maps.Copy(m.Header, paramHeaders(r.Schema, params["arguments"]))
		}
	}
	if len(meta) > 0 {
		b, err := rawjson.Encode(meta)
		if err != nil {
			return m, fmt.Errorf("the _meta of %s is not JSON: %w", c.method, err)
		}
		params["_meta"] = b
	}
	var err error
	if m.Body, err = encode(rawjson.Number(c.id), r.Method, params); err != nil {
		return m, fmt.Errorf("the parameters of %s are not JSON: %w", c.method, err)
	}
	return m, nil
}

// addClientMeta adds the keys that describe the client to _meta of a stateless request.
func (s *Session) addClientMeta(meta rawjson.Object, r Request) {
	meta[metaProtocolVersion], meta[metaClientInfo] = rawjson.Quote(s.Version()), s.options.implementation()
	meta[metaCapabilities] = s.options.Capabilities
	if len(r.Capabilities) > 0 {
		meta[metaCapabilities] = r.Capabilities
	}
	delete(meta, metaLogLevel)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.level != "" {
		meta[metaLogLevel] = rawjson.Quote(s.level)
	}
}

// implementation returns the Implementation object of this client.
func (o Options) implementation() json.RawMessage {
	b, _ := rawjson.Encode(map[string]string{"name": o.Name, "version": o.Version}) // strings always encode
	return b
}

// await passes progress to the caller until the call has its outcome, it times out, or
// the context ends.
func (s *Session) await(ctx context.Context, c *call, r Request) (json.RawMessage, error) {
	defer c.queue.close()
	var timeout <-chan time.Time
	var timer *time.Timer
	if !r.stayOpen {
		timer = time.NewTimer(r.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		sessionOver := false
		select {
		case <-c.queue.ready:
		case <-s.Done():
			sessionOver = true
		case <-ctx.Done():
			return nil, s.cancelCall(c, context.Cause(ctx))
		case <-timeout:
			if remaining := r.Timeout - time.Since(c.queue.lastSeen()); remaining > 0 {
				timer.Reset(remaining)
				continue
			}
			return nil, s.cancelCall(c, fmt.Errorf("%w: no sign of life of %s for %s", transport.ErrTimeout, c.method,
				r.Timeout))
		}
		progress, end := c.queue.drain()
		for _, p := range progress {
			if r.Progress != nil {
				r.Progress(p)
			}
		}
		if end != nil {
			if end.err == nil && r.TakeReservation != nil {
				r.TakeReservation(end.reservation)
				end.reservation = transport.NoReservation{}
			}
			return end.result, end.err
		}
		if sessionOver {
			// The server may have executed the call, so the error is not ErrSessionLost,
			// which allows a repetition.
			s.removeCall(c.id)
			if errors.Is(s.Err(), transport.ErrSlow) {
				return nil, s.Err()
			}
			return nil, fmt.Errorf("%w: %s was not answered (%v)", transport.ErrClosed, c.method, s.Err())
		}
	}
}

// cancelCall stops waiting for a call, and notifies the server of that. It returns cause.
func (s *Session) cancelCall(c *call, cause error) error {
	s.removeCall(c.id)
	// MCP does not allow to cancel initialize. In the stateless protocol over HTTP, the end
	// of the request's stream, which Abandon closes, cancels the request.
	handshake := c.method == "initialize" || c.method == "server/discover"
	if !handshake && !(s.transport.Traits().StreamPerRequest && s.Stateless()) {
		params := rawjson.Object{"requestId": rawjson.Number(c.id),
			"reason": rawjson.Quote(transport.Clip(cause.Error(), 200))}
		select {
		case s.backgroundSlots <- struct{}{}:
			s.startInBackground(func(ctx context.Context) {
				ctx, cancel := context.WithTimeout(ctx, cancelTimeout)
				defer cancel()
				_ = s.notify(ctx, "notifications/cancelled", params) // best effort
			})
		default: // too many messages wait to be sent: the server does not read
		}
	}
	s.transport.Abandon(c.id)
	return cause
}
