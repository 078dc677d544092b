package fastpath

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/relay"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/rawjson"
	"sandlot/internal/secret"
)

// run is a request of the stateful protocol that has not been answered. Cancel gives it
// up; nil: it is the SDK's.
type run struct {
	cancel context.CancelFunc
	others int // of the same id, which the SDK refuses
}

func runKey(session string, id json.RawMessage) string { return session + "\x00" + string(id) }

// begin makes the context of a call of the stateful protocol, of one that does not end when
// the connection does: it ends when its client cancels it. False: one with that id
// runs.
func (s *Path) begin(ctx context.Context, o *cacheable) (context.Context, func(), bool) {
	key := runKey(o.session, o.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, runs := s.running[key]; runs {
		return nil, nil, false
	}
	ctx, cancel := context.WithCancel(ctx)
	s.note(key, run{cancel: cancel})
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, key)
	}, true
}

// leave notes a request that the SDK answers, until end is called. False: one
// with that id takes the shortcut.
func (s *Path) leave(session string, id json.RawMessage) (end func(), ok bool) {
	key := runKey(session, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	r, runs := s.running[key]
	if runs && r.cancel != nil {
		return nil, false
	}
	r.others++
	s.note(key, r)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		r := s.running[key]
		if r.others--; r.others > 0 {
			s.running[key] = r
			return
		}
		delete(s.running, key)
	}, true
}

func (s *Path) note(key string, r run) {
	if s.running == nil {
		s.running = map[string]run{}
	}
	s.running[key] = r
}

// hear takes what a client of the stateful protocol says of calls that run here. True:
// nobody else is to hear it.
func (s *Path) hear(session string, m rpc.Message) bool {
	switch {
	case m.Method == "notifications/cancelled":
		params, _ := rawjson.Members(m.Params) // the SDK says what is wrong with it
		s.mu.Lock()
		defer s.mu.Unlock()
		if r := s.running[runKey(session, params["requestId"])]; r.cancel != nil {
			r.cancel()
		}
		return false
	case m.Method == "" && len(m.ID) > 0:
		s.mu.Lock()
		defer s.mu.Unlock()
		key := runKey(session, m.ID)
		answer := s.asked[key]
		if answer == nil {
			return false
		}
		delete(s.asked, key)
		answer <- m.Result
		return true
	}
	return false
}

// ask asks a client of the stateful protocol. Only roots/list comes here: what else it
// can be asked does not take the shortcut.
func (l *replyWriter) Ask(ctx context.Context, method string, _ json.RawMessage) (json.RawMessage, error) {
	if method != "roots/list" || l.session == "" {
		return nil, relay.Cannot(method)
	}
	id := "sandlot-" + secret.ID()
	key, answer := runKey(l.session, json.RawMessage(`"`+id+`"`)), make(chan json.RawMessage, 1)
	l.path.mu.Lock()
	if l.path.asked == nil {
		l.path.asked = map[string]chan json.RawMessage{}
	}
	l.path.asked[key] = answer
	l.path.mu.Unlock()
	defer func() {
		l.path.mu.Lock()
		defer l.path.mu.Unlock()
		delete(l.path.asked, key)
	}()
	l.send(map[string]any{"jsonrpc": "2.0", "id": id, "method": method})
	select {
	case a := <-answer:
		//lint:ignore SA1019 clients of the stateful protocol have roots
		var roots *mcp.ListRootsResult // as the SDK reads it
		if json.Unmarshal(a, &roots) != nil || roots == nil {
			return nil, relay.Cannot(method)
		}
		return json.Marshal(roots)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
