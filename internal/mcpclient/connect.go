package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
)

// declined is an answer to the question that begins a session which leads no
// further in that era.
type declined struct{ why string }

func (d *declined) Error() string { return d.why }

// unreachable is a request to which nothing came back.
type unreachable struct{ cause error }

func (u *unreachable) Error() string {
	return fmt.Sprintf("the server cannot be reached, or hung up: %v", u.cause)
}
func (u *unreachable) Unwrap() error { return u.cause }

// Connect begins a session. It asks for the newer era by server/discover, and
// begins in the older one when that is refused; over a program's input and
// output also when it is ignored, and then afresh, as programs have been seen to
// break on a question that they do not know. Nothing is remembered.
func Connect(ctx context.Context, dial Dial, o Options) (*Session, error) {
	o = o.withDefaults()
	ctx, cancel := context.WithTimeoutCause(ctx, o.Handshake,
		fmt.Errorf("%w: the session was not ready within %s", ErrTimeout, o.Handshake))
	defer cancel()
	h := &handshake{dial: dial, options: o}
	if err := h.run(ctx); err != nil {
		if h.session != nil {
			_ = h.session.Close() // what went wrong before is what counts
		}
		return nil, err
	}
	s := h.session
	changes := s.can.ToolsChanged || s.can.PromptsChanged || s.can.ResourcesChanged
	if s.stateless() && o.Handler != nil && changes {
		s.listen("")
	}
	return s, nil
}

// handshake makes a session that is ready.
type handshake struct {
	dial    Dial
	options Options
	session *Session
}

func (h *handshake) run(ctx context.Context) error {
	if err := h.open(ctx); err != nil {
		return err
	}
	switch {
	case h.session.pipe.traits().older:
		return h.session.initialize(ctx)
	case h.options.Older:
		return h.olderFirst(ctx)
	}
	return h.newerFirst(ctx)
}

// open dials; a session that was there before is closed.
func (h *handshake) open(ctx context.Context) error {
	if h.session != nil {
		_ = h.session.Close()
		h.session = nil
	}
	p, err := h.dial(ctx)
	if err != nil {
		return err
	}
	h.session = newSession(p, h.options)
	return nil
}

func (h *handshake) newerFirst(ctx context.Context) error {
	streams := h.session.pipe.traits().streams
	limit := h.options.Probe
	if streams {
		limit = h.options.Handshake / 2
	}
	probe, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: server/discover was ignored for %s",
		ErrTimeout, limit))
	defer cancel()
	refused := h.session.discover(probe)
	if refused == nil || h.final(ctx, refused) {
		return refused
	}
	h.options.Log.Debug("mcpclient: beginning in the older era", "because", refused)
	same := streams || answered(refused) && h.session.Err() == nil
	if !same {
		if err := h.open(ctx); err != nil {
			return err
		}
	}
	err := h.initialize(ctx, same && !streams)
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w (server/discover was tried before: %v)", err, refused)
}

// initialize begins in the older era. A program that was asked something before
// may be confused, and is then asked afresh.
func (h *handshake) initialize(ctx context.Context, confused bool) error {
	if !confused {
		return h.session.initialize(ctx)
	}
	deadline, _ := ctx.Deadline()
	half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
	defer cancel()
	err := h.session.initialize(half)
	if err == nil || answered(err) || h.final(ctx, err) {
		return err
	}
	if err := h.open(ctx); err != nil {
		return err
	}
	return h.session.initialize(ctx)
}

func (h *handshake) olderFirst(ctx context.Context) error {
	refused := h.session.initialize(ctx)
	if refused == nil || h.final(ctx, refused) {
		return refused
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
	return fmt.Errorf("%w (initialize was tried before: %v)", err, refused)
}

// final says whether another era would not help.
func (h *handshake) final(ctx context.Context, err error) bool {
	var login *ErrUnauthorized
	var away *unreachable
	return ctx.Err() != nil || errors.As(err, &login) || errors.As(err, &away)
}

// answered says whether the server itself refused.
func answered(err error) bool {
	var said *Error
	var no *declined
	return errors.As(err, &said) || errors.As(err, &no)
}

// discover begins in the newer era.
func (s *Session) discover(ctx context.Context) error {
	s.spoken.Store(revision.Stateless)
	raw, err := s.question(ctx, "server/discover", nil)
	var said *Error
	if errors.As(err, &said) && said.Code == codeVersion && supports(said.Data) {
		// It may have meant another revision than the one that it was asked in.
		raw, err = s.question(ctx, "server/discover", nil)
	}
	if err == nil {
		err = s.discovered(raw)
	}
	if err != nil {
		s.spoken.Store("")
		return err
	}
	s.pipe.agreed(revision.Stateless)
	return nil
}

// question is a call of the handshake, which the context bounds.
func (s *Session) question(ctx context.Context, method string, params rawjson.Object) (json.RawMessage, error) {
	return s.Call(ctx, Request{Method: method, Params: params, Timeout: 2 * s.options.Handshake})
}

// supports reads the data of a refusal.
func supports(data json.RawMessage) bool {
	var d struct {
		Supported []string `json:"supported"`
	}
	return json.Unmarshal(data, &d) == nil && slices.Contains(d.Supported, revision.Stateless)
}

// discovered takes what server/discover said.
func (s *Session) discovered(raw json.RawMessage) error {
	var r struct {
		SupportedVersions []string `json:"supportedVersions"`
		Meta              struct {
			Server json.RawMessage `json:"io.modelcontextprotocol/serverInfo"`
		} `json:"_meta"`
		welcome
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return &declined{"the server's answer to server/discover cannot be read"}
	}
	if !slices.Contains(r.SupportedVersions, revision.Stateless) {
		return &declined{fmt.Sprintf("the server does not speak the protocol's revision %s", revision.Stateless)}
	}
	if rawjson.IsObject(r.Meta.Server) {
		r.ServerInfo = r.Meta.Server
	}
	s.welcome(r.welcome)
	return nil
}

// welcome is what a server says of itself in either era.
type welcome struct {
	Capabilities json.RawMessage `json:"capabilities"`
	ServerInfo   json.RawMessage `json:"serverInfo"`
	Instructions json.RawMessage `json:"instructions"`
}

func (s *Session) welcome(w welcome) {
	s.can = parseCan(w.Capabilities)
	if rawjson.IsObject(w.ServerInfo) {
		s.info = w.ServerInfo
	}
	_ = json.Unmarshal(w.Instructions, &s.instructions) // none, or something else
}

// initialize begins in the older era.
func (s *Session) initialize(ctx context.Context) error {
	client, err := rawjson.Encode(map[string]string{"name": s.options.Name, "version": s.options.Version})
	if err != nil {
		return err
	}
	raw, err := s.question(ctx, "initialize", rawjson.Object{"protocolVersion": rawjson.Quote(revision.Stateful),
		"capabilities": s.options.Capabilities, "clientInfo": client})
	if err != nil {
		return err
	}
	var r struct {
		ProtocolVersion string `json:"protocolVersion"`
		welcome
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return &declined{"the server's answer to initialize cannot be read"}
	}
	if !revision.IsStateful(r.ProtocolVersion) {
		return &declined{fmt.Sprintf("the server speaks the protocol's revision %q, and Sandlot speaks %s and %v",
			clip(r.ProtocolVersion, 40), revision.Stateless, revision.AllStateful)}
	}
	s.welcome(r.welcome)
	s.spoken.Store(r.ProtocolVersion)
	if err := s.notify(ctx, "notifications/initialized", nil); err != nil {
		return fmt.Errorf("the server did not take notifications/initialized: %w", err)
	}
	s.pipe.agreed(r.ProtocolVersion)
	return nil
}
