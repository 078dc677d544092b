package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
)

// unusableAnswer means that the server answered server/discover or initialize, but with an answer
// that allows no session.
type unusableAnswer struct{ text string }

func (d *unusableAnswer) Error() string { return d.text }

// Connect begins a session. It sends server/discover of the stateless protocol, and
// falls back to initialize of the stateful protocol when the server refuses it. A program
// that is silent gets both, as it may still be starting. One that does not survive the
// question is started again. Connect stores nothing about a server.
func Connect(ctx context.Context, dial transport.Dial, o Options) (*Session, error) {
	o = o.withDefaults()
	ctx, cancel := context.WithTimeoutCause(ctx, o.HandshakeTimeout,
		fmt.Errorf("%w: the session was not ready within %s", transport.ErrTimeout, o.HandshakeTimeout))
	defer cancel()
	h := &handshake{dial: dial, options: o}
	if err := h.run(ctx); err != nil {
		if h.session != nil {
			_ = h.session.Close() // the handshake's error is returned
		}
		return nil, err
	}
	s := h.session
	if s.Stateless() && o.Handler != nil && s.server.capabilities.anyListChanged() {
		_, _ = s.subscribe("") // fails only when the session is over
	}
	return s, nil
}

// handshake establishes a session.
type handshake struct {
	dial    transport.Dial
	options Options
	session *Session
}

func (h *handshake) run(ctx context.Context) error {
	if err := h.open(ctx); err != nil {
		return err
	}
	switch {
	case h.session.transport.Traits().StatefulOnly:
		return h.session.initialize(ctx)
	case h.options.StatefulFirst:
		return h.initializeFirst(ctx)
	}
	return h.discoverFirst(ctx)
}

// open dials a new transport, and closes the session on the previous one, if any.
func (h *handshake) open(ctx context.Context) error {
	if h.session != nil {
		_ = h.session.Close()
		h.session = nil
	}
	t, err := h.dial(ctx)
	if err != nil {
		return err
	}
	h.session = newSession(t, h.options)
	return nil
}

func (h *handshake) discoverFirst(ctx context.Context) error {
	if !h.session.transport.Traits().StreamPerRequest {
		return h.askProgram(ctx)
	}
	timeout := h.options.HandshakeTimeout / 2
	probeCtx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("%w: server/discover was ignored for %s",
		transport.ErrTimeout, timeout))
	defer cancel()
	discoverErr := h.session.discover(probeCtx)
	if discoverErr == nil || h.cannotFallBack(ctx, discoverErr) {
		return discoverErr
	}
	return triedBefore(h.session.initialize(ctx), discoverErr)
}

// triedBefore adds to an error of initialize why server/discover had failed.
func triedBefore(err, discoverErr error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w (server/discover was tried before: %v)", err, discoverErr)
}

// askProgram is discoverFirst over standard input and output. A program that has not answered may still be starting, so
// it keeps the whole time, and gets initialize beside server/discover: whichever it answers counts.
func (h *handshake) askProgram(ctx context.Context) error {
	s := h.session
	s.version.Store(revision.Stateless)
	discovered := s.begin(ctx, "server/discover", nil)
	var initialized <-chan answer
	var discoverErr error
	probe := time.NewTimer(h.options.ProbeTimeout)
	defer probe.Stop()
	for silent := probe.C; ; {
		select {
		case <-silent:
			s.version.Store("")
			initialized = s.begin(ctx, "initialize", s.initializeParams())
			silent = nil
		case a := <-discovered:
			discovered = nil
			if discoverErr = s.takeDiscover(ctx, a); discoverErr == nil || h.cannotFallBack(ctx, discoverErr) {
				return discoverErr
			}
			h.options.Log.Debug("mcpclient: falling back to the stateful protocol", "because", discoverErr)
			if !isAnswer(discoverErr) || s.Err() != nil { // it did not survive the question
				return triedBefore(h.initializeAnew(ctx), discoverErr)
			}
			if initialized == nil {
				return triedBefore(h.initialize(ctx, discoverErr), discoverErr)
			}
		case a := <-initialized:
			initialized = nil
			err := s.takeInitialize(ctx, a)
			switch {
			case err == nil || h.cannotFallBack(ctx, err):
				return err
			case !isAnswer(err) || s.Err() != nil:
				return triedBefore(h.initializeAnew(ctx), err)
			case discovered == nil:
				return triedBefore(err, discoverErr)
			}
		}
	}
}

// initializeAnew sends initialize to a new program.
func (h *handshake) initializeAnew(ctx context.Context) error {
	if err := h.open(ctx); err != nil {
		return err
	}
	return h.session.initialize(ctx)
}

// initialize sends initialize to a program that has refused server/discover. If it does not know that method, it is well.
// Another refusal may mean that the question has broken it: if it does not answer then, initialize goes to a new program.
func (h *handshake) initialize(ctx context.Context, discoverErr error) error {
	if refusal, ok := errors.AsType[*transport.Error](discoverErr); ok && refusal.Code == transport.CodeUnknownMethod {
		return h.session.initialize(ctx)
	}
	deadline, _ := ctx.Deadline()
	halfCtx, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
	defer cancel()
	err := h.session.initialize(halfCtx)
	if err == nil || isAnswer(err) || h.cannotFallBack(ctx, err) {
		return err
	}
	return h.initializeAnew(ctx)
}

func (h *handshake) initializeFirst(ctx context.Context) error {
	initializeErr := h.session.initialize(ctx)
	if initializeErr == nil || h.cannotFallBack(ctx, initializeErr) {
		return initializeErr
	}
	if h.session.Err() != nil {
		if err := h.open(ctx); err != nil {
			return err
		}
	}
	err := h.session.discover(ctx)
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w (initialize was tried before: %v)", err, initializeErr)
}

// cannotFallBack reports whether a fallback to the other protocol would fail as well.
func (h *handshake) cannotFallBack(ctx context.Context, err error) bool {
	_, login := errors.AsType[*transport.UnauthorizedError](err)
	_, unreachable := errors.AsType[*transport.UnreachableError](err)
	return ctx.Err() != nil || login || unreachable
}

// isAnswer reports whether the server answered, though with an error or an unusable result.
func isAnswer(err error) bool {
	_, refused := errors.AsType[*transport.Error](err)
	_, unusable := errors.AsType[*unusableAnswer](err)
	return refused || unusable
}

// discover sends server/discover.
func (s *Session) discover(ctx context.Context) error {
	s.version.Store(revision.Stateless)
	raw, err := s.handshakeCall(ctx, "server/discover", nil)
	return s.takeDiscover(ctx, answer{raw, err})
}

// takeDiscover takes the answer to server/discover.
func (s *Session) takeDiscover(ctx context.Context, a answer) error {
	rpcErr, ok := errors.AsType[*transport.Error](a.err)
	s.version.Store(revision.Stateless)
	if ok && rpcErr.Code == transport.CodeVersion && listsStateless(rpcErr.Data) {
		// The server may have objected to another revision than that of the request: try once more.
		a.raw, a.err = s.handshakeCall(ctx, "server/discover", nil)
	}
	if a.err == nil {
		a.err = s.readDiscoverResult(a.raw)
	}
	if a.err != nil {
		s.version.Store("")
		return a.err
	}
	s.transport.Negotiated(revision.Stateless)
	return nil
}

// answer is the outcome of a call of the handshake.
type answer struct {
	raw json.RawMessage
	err error
}

// begin begins a call of the handshake, and returns when its message has the form of the revision that is set now.
func (s *Session) begin(ctx context.Context, method string, params rawjson.Object) <-chan answer {
	answered, encoded := make(chan answer, 1), make(chan struct{})
	runs := s.startGoroutine(func(context.Context) {
		raw, err := s.Call(ctx, Request{Method: method, Params: params, Timeout: 2 * s.options.HandshakeTimeout,
			beforeSend: func(int64) { close(encoded) }})
		answered <- answer{raw, err}
	})
	if !runs {
		answered <- answer{nil, s.Err()}
		return answered
	}
	select {
	case <-encoded:
	case a := <-answered:
		answered <- a
	}
	return answered
}

// handshakeCall makes a call of the handshake. Its context bounds it before its timeout does.
func (s *Session) handshakeCall(ctx context.Context, method string, params rawjson.Object) (json.RawMessage, error) {
	return s.Call(ctx, Request{Method: method, Params: params, Timeout: 2 * s.options.HandshakeTimeout})
}

// listsStateless reports whether the data of an error list the revision of the stateless
// protocol as supported.
func listsStateless(data json.RawMessage) bool {
	var d struct {
		Supported []string `json:"supported"`
	}
	return json.Unmarshal(data, &d) == nil && slices.Contains(d.Supported, revision.Stateless)
}

// readDiscoverResult reads the result of server/discover into s.server.
func (s *Session) readDiscoverResult(raw json.RawMessage) error {
	var r struct {
		SupportedVersions []string `json:"supportedVersions"`
		Meta              struct {
			Server json.RawMessage `json:"io.modelcontextprotocol/serverInfo"`
		} `json:"_meta"`
		handshakeResult
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return &unusableAnswer{"the server's answer to server/discover cannot be read"}
	}
	if !slices.Contains(r.SupportedVersions, revision.Stateless) {
		return &unusableAnswer{fmt.Sprintf("the server does not speak the protocol's revision %s", revision.Stateless)}
	}
	if rawjson.IsObject(r.Meta.Server) {
		r.ServerInfo = r.Meta.Server
	}
	s.setServer(r.handshakeResult)
	return nil
}

// handshakeResult has the members that the results of server/discover and initialize share.
type handshakeResult struct {
	Capabilities json.RawMessage `json:"capabilities"`
	ServerInfo   json.RawMessage `json:"serverInfo"`
	Instructions json.RawMessage `json:"instructions"`
}

func (s *Session) setServer(r handshakeResult) {
	s.server = serverInfo{capabilities: parseCapabilities(r.Capabilities), instructions: rawjson.Text(r.Instructions)}
	if rawjson.IsObject(r.ServerInfo) {
		s.server.implementation = r.ServerInfo
	}
}

// initialize sends initialize and notifications/initialized.
func (s *Session) initialize(ctx context.Context) error {
	raw, err := s.handshakeCall(ctx, "initialize", s.initializeParams())
	return s.takeInitialize(ctx, answer{raw, err})
}

func (s *Session) initializeParams() rawjson.Object {
	return rawjson.Object{"protocolVersion": rawjson.Quote(revision.Stateful), "capabilities": s.options.Capabilities,
		"clientInfo": s.options.implementation()}
}

// takeInitialize takes the answer to initialize, and sends notifications/initialized.
func (s *Session) takeInitialize(ctx context.Context, a answer) error {
	if a.err != nil {
		return a.err
	}
	var r struct {
		ProtocolVersion string `json:"protocolVersion"`
		handshakeResult
	}
	if err := json.Unmarshal(a.raw, &r); err != nil {
		return &unusableAnswer{"the server's answer to initialize cannot be read"}
	}
	if !revision.IsStateful(r.ProtocolVersion) {
		return &unusableAnswer{fmt.Sprintf("the server speaks the protocol's revision %q, and Sandlot speaks %s and %v",
			transport.Clip(r.ProtocolVersion, 40), revision.Stateless, revision.AllStateful)}
	}
	s.setServer(r.handshakeResult)
	s.version.Store(r.ProtocolVersion)
	if err := s.notify(ctx, "notifications/initialized", nil); err != nil {
		return fmt.Errorf("the server did not take notifications/initialized: %w", err)
	}
	s.transport.Negotiated(r.ProtocolVersion)
	return nil
}
