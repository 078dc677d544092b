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

// runningRequest is a running request of the stateful protocol.
type runningRequest struct {
	cancel      context.CancelFunc // cancels a call on the fast path; nil: the SDK answers the request
	sdkRequests int                // requests with this id at the SDK, which refuses all but the first
}

func requestKey(session string, id json.RawMessage) string { return session + "\x00" + string(id) }

// beginCall registers a call of the stateful protocol until the returned function is called.
// It returns a context that also ends when the client cancels the call. False: another request
// with that id is running.
func (s *Path) beginCall(ctx context.Context, o *cacheable) (context.Context, func(), bool) {
	key := requestKey(o.session, o.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, runs := s.running[key]; runs {
		return nil, nil, false
	}
	ctx, cancel := context.WithCancel(ctx)
	s.setRunning(key, runningRequest{cancel: cancel})
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, key)
	}, true
}

// beginSDKRequest registers a request that the SDK answers, until end is called. False: a
// request with that id is running on the fast path.
func (s *Path) beginSDKRequest(session string, id json.RawMessage) (end func(), ok bool) {
	key := requestKey(session, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	r, runs := s.running[key]
	if runs && r.cancel != nil {
		return nil, false
	}
	r.sdkRequests++
	s.setRunning(key, r)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		r := s.running[key]
		if r.sdkRequests--; r.sdkRequests > 0 {
			s.running[key] = r
			return
		}
		delete(s.running, key)
	}, true
}

func (s *Path) setRunning(key string, r runningRequest) {
	if s.running == nil {
		s.running = map[string]runningRequest{}
	}
	s.running[key] = r
}

// receive handles a client's message if it is about a call on the fast path: a cancellation, or
// the answer to a request. True: it is handled, and the SDK must not get it.
func (s *Path) receive(session string, m rpc.Message) bool {
	switch {
	case m.Method == "notifications/cancelled":
		params, _ := rawjson.Members(m.Params) // the SDK reports errors in it
		s.mu.Lock()
		defer s.mu.Unlock()
		if r := s.running[requestKey(session, params["requestId"])]; r.cancel != nil {
			r.cancel()
		}
		return false
	case m.Method == "" && len(m.ID) > 0:
		s.mu.Lock()
		defer s.mu.Unlock()
		key := requestKey(session, m.ID)
		answer := s.questions[key]
		if answer == nil {
			return false
		}
		delete(s.questions, key)
		answer <- m.Result
		return true
	}
	return false
}

// Ask implements relay.ReplyWriter, for a client of the stateful protocol. It supports only
// roots/list: Accept refuses calls of clients that support the other methods.
func (w *replyWriter) Ask(ctx context.Context, method string, _ json.RawMessage) (json.RawMessage, error) {
	if method != "roots/list" || w.session == "" {
		return nil, relay.Unsupported(method)
	}
	id := "sandlot-" + secret.ID()
	key, answer := requestKey(w.session, json.RawMessage(`"`+id+`"`)), make(chan json.RawMessage, 1)
	w.path.mu.Lock()
	if w.path.questions == nil {
		w.path.questions = map[string]chan json.RawMessage{}
	}
	w.path.questions[key] = answer
	w.path.mu.Unlock()
	defer func() {
		w.path.mu.Lock()
		defer w.path.mu.Unlock()
		delete(w.path.questions, key)
	}()
	w.send(map[string]any{"jsonrpc": "2.0", "id": id, "method": method})
	select {
	case a := <-answer:
		//lint:ignore SA1019 clients of the stateful protocol have roots
		var roots *mcp.ListRootsResult // decoded and encoded as by the SDK
		if json.Unmarshal(a, &roots) != nil || roots == nil {
			return nil, relay.Unsupported(method)
		}
		return json.Marshal(roots)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
