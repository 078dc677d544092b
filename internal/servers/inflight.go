package servers

import (
	"context"
	"encoding/json"

	"sandlot/internal/fault"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// HandleRequest implements mcpclient.Handler. A server of the older era does not say for
// which call it asks: there must be no doubt.
func (l *instance) HandleRequest(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	l.s.elicits()
	if err := catalog.CheckQuestion(params); err != nil {
		return nil, &transport.Error{Code: -32602, Message: err.Error()}
	}
	f, err := l.asker()
	if err != nil {
		return nil, err
	}
	r, err := f.client.Ask(ctx, method, params)
	// Its call goes on at once: the server may do one thing after the other.
	l.awaitUser(f, false)
	if err != nil {
		return nil, refusal(err)
	}
	return r, nil
}

// asker returns the one call that a question can be of: where there is doubt,
// nobody is asked.
func (l *instance) asker() (*inFlight, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var one *inFlight
	callers := map[string]bool{}
	for f := range l.inFlight {
		switch {
		case f.waits:
			continue
		case f.client == nil:
			callers[""] = true
			continue
		}
		callers[f.client.ID()] = true
		if one == nil || one.asked {
			one = f
		}
	}
	switch {
	case len(callers) == 0:
		return nil, &transport.Error{Code: -32601, Message: "no call is on its way"}
	case one == nil:
		return nil, &transport.Error{Code: -32601, Message: "the caller cannot be asked: it is no MCP client"}
	case len(callers) > 1:
		return nil, &transport.Error{Code: -32603,
			Message: "several clients have calls on their way, and it cannot be told which of them is asked; from now on their calls wait for each other, so try again"}
	}
	one.asked = true
	l.freed()
	return one, nil
}

// freed wakes those who wait for others. The lock is held.
func (l *instance) freed() {
	close(l.free)
	l.free = make(chan struct{})
}

// refusal is a client's error as the server is told of it.
func refusal(err error) error {
	f := fault.From(err)
	if f.Kind == fault.Internal {
		return &transport.Error{Code: -32603, Message: spec.Text(err.Error(), 500)}
	}
	return &transport.Error{Code: int64(f.RPC()), Message: f.Error()}
}

// elicits remembers that the server asks clients in the middle of a call.
func (s *server) elicits() {
	if s.record().Elicits {
		return
	}
	if err := s.update(func(r *Record) { r.Elicits = true }); err != nil {
		s.servers.Log.Error("could not store a connection", "connection", s.id, "error", err)
	}
}

// begin gives a call its place. Where a server asks clients in the middle of
// calls, those of one client wait until those of another have ended, or are
// asked themselves.
func (l *instance) begin(ctx context.Context, client tool.Client, alone bool) (*inFlight, error) {
	wait := alone && client != nil
	f := &inFlight{client: client, waits: wait}
	l.mu.Lock()
	l.inFlight[f] = true
	l.mu.Unlock()
	if wait {
		if err := l.wait(ctx, f); err != nil {
			l.end(f)
			return nil, err
		}
	}
	return f, nil
}

func (l *instance) end(f *inFlight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.inFlight, f)
	l.freed()
}

func (l *instance) isAsked(f *inFlight) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return f.asked
}

// awaitUser says whether a call's client is asked now.
func (l *instance) awaitUser(f *inFlight, yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.asked = yes
	l.freed()
}

// wait waits until no call of another client is on its way but those whose
// clients are asked.
func (l *instance) wait(ctx context.Context, f *inFlight) error {
	for {
		l.mu.Lock()
		if !l.others(f) {
			f.waits = false
			l.mu.Unlock()
			return nil
		}
		free := l.free
		l.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return fault.From(ctx.Err())
		case <-l.session.Done():
			return transport.ErrClosed
		}
	}
}

// others says whether calls of other clients are on their way that can be
// meant. The lock is held.
func (l *instance) others(f *inFlight) bool {
	for o := range l.inFlight {
		if o != f && o.client != nil && !o.asked && !o.waits && o.client.ID() != f.client.ID() {
			return true
		}
	}
	return false
}
