// Package fastpath answers repeated calls and lists without the SDK, which saves time. It is
// only an optimization: without it, the SDK gives the same answers.
package fastpath

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/gateway/relay"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/policy"
	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
	"sandlot/internal/tool"
	"sandlot/internal/toolview"
)

// Config is what a Path needs of the gateway.
type Config struct {
	Hub   *hub.Hub
	Calls *relay.Calls
	Relay *relay.Relay
	// Server returns the description of Sandlot for results of the stateless protocol.
	Server func() *mcp.Implementation
	// HasSession reports whether there is a session of the stateful protocol with that id.
	HasSession func(session string) bool
	// Client returns what such a session says of its client: its name, and the revision of MCP.
	Client func(session string) (name, version string)
	// Tool describes a tool; false: it is unknown.
	Tool func(name string) (Tool, bool)
	// Operations are the operations of requests for lists, by method.
	Operations map[string]policy.Operation
	// Refresh updates tools and lists. It returns false if some servers have not listed
	// theirs before ctx ends.
	Refresh func(ctx context.Context) bool
	Log     *slog.Logger
}

// Tool describes a tool.
type Tool struct {
	Own             bool // one of Sandlot's own
	Elicits         bool // it may ask the client's user
	AsksHosts       bool // it may ask the user about hosts, if the client can ask
	ArgumentHeaders bool // it may require arguments in headers too
}

// asksMore reports whether a call of the tool may ask the client's user more than it might when the SDK accepted it.
func (t Tool) asksMore(since accepted) bool {
	return t.Own && since.capabilities == nil && (t.Elicits || t.AsksHosts && since.canAsk)
}

// Path answers tool calls and lists of one token's clients without the SDK, which creates a
// session for each stateless request, and a stream and several goroutines for each stateful
// one. It answers only a request that equals one that the SDK accepted a short time ago, in
// everything except the id and a call's arguments: the same headers, session, tool and client.
// So only the SDK decides which requests are valid.
type Path struct {
	Config

	mu         sync.Mutex
	accepted   map[string]accepted             // requests that the SDK accepted, by fingerprint
	pages      map[pageKey]json.RawMessage     // of lists
	size       int                             // of pages, in bytes
	generation int                             // incremented by each reset
	logging    map[string]bool                 // sessions that want log messages
	running    map[string]runningRequest       // requests of the stateful protocol, by session and id
	questions  map[string]chan json.RawMessage // answers of clients, by session and id
}

// New returns a Path that answers nothing yet.
func New(c Config) *Path { return &Path{Config: c} }

// Sizes returns how many requests and pages of lists are stored, their total size in bytes,
// and how many requests are running.
func (s *Path) Sizes() (requests, pages, bytes, running int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bytes = s.size
	for k, v := range s.accepted {
		bytes += len(k) + len(v.capabilities)
	}
	return len(s.accepted), len(s.pages), bytes, len(s.running)
}

// pageKey identifies a page of a list, in the stateful or the stateless protocol.
type pageKey struct {
	subject   string
	stateless bool
}

// accepted is a request that the SDK accepted.
type accepted struct {
	until        time.Time
	capabilities json.RawMessage // the client's; nil if the tool does not elicit
	canAsk       bool            // the client can ask its user
}

const (
	// lifetime is how long a request stays accepted. The SDK must get a request of each
	// session from time to time, or it ends the session.
	lifetime = 10 * time.Minute
	// MaxAccepted is how many accepted requests are stored, and maxPageBytes the total size
	// of the stored pages.
	MaxAccepted  = 1024
	maxPageBytes = 8 << 20
	// maxFingerprint and maxCapabilities are the largest stored sizes of each, in bytes.
	maxFingerprint, maxCapabilities = 4 << 10, 4 << 10
	// fingerprintHeader is a header of requests to the SDK: the request's fingerprint, which
	// Accept and remember read. It replaces what a client sends in it.
	fingerprintHeader = "Sandlot-Fingerprint"
)

// Accept remembers a call that the SDK accepted: Serve answers equal calls. Capabilities are the
// client's if the tool may ask the client's user, and else nil.
func (s *Path) Accept(r *mcp.CallToolRequest, capabilities json.RawMessage) {
	if r.Extra == nil || len(capabilities) > maxCapabilities {
		return
	}
	fingerprint := r.Extra.Header.Get(fingerprintHeader)
	if !hasSubject(fingerprint, "tools/call", r.Params.Name, "") {
		return
	}
	generation := s.currentGeneration()
	// Only the SDK can compare arguments with headers.
	if t, ok := s.Tool(r.Params.Name); !ok || t.ArgumentHeaders {
		return
	}
	session := r.Session.ID()
	if session != "" && (relay.Supports(capabilities, "elicitation/create") ||
		relay.Supports(capabilities, "sampling/createMessage")) {
		return // only the SDK can send these requests, and checks them and their answers
	}
	canAsk := relay.Supports(relay.Capabilities(r.ClientCapabilities()), "elicitation/create")
	s.mu.Lock()
	defer s.mu.Unlock()
	if generation != s.generation || session != "" && s.logging[session] {
		return
	}
	s.accept(fingerprint, accepted{capabilities: capabilities, canAsk: canAsk})
}

// accept stores a fingerprint, so that equal requests are answered. The caller holds s.mu.
func (s *Path) accept(fingerprint string, a accepted) {
	if s.accepted == nil || len(s.accepted) >= MaxAccepted {
		s.accepted = map[string]accepted{}
	}
	a.until = time.Now().Add(lifetime)
	s.accepted[fingerprint] = a
}

// currentGeneration returns the generation.
func (s *Path) currentGeneration() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// BeginList is called before the SDK makes a list, and remember with a page of it. If a reset
// happens between them, the page is not stored, as it may be outdated.
func (s *Path) BeginList() (remember func(req mcp.Request, p *rpc.Page)) {
	generation := s.currentGeneration()
	return func(req mcp.Request, p *rpc.Page) { s.remember(req, p, generation) }
}

// remember stores a page that was made in a generation, and accepts requests for it.
func (s *Path) remember(req mcp.Request, p *rpc.Page, generation int) {
	extra := req.GetExtra()
	if extra == nil {
		return
	}
	fingerprint := extra.Header.Get(fingerprintHeader)
	if !hasSubject(fingerprint, p.Method(), "", cursorOf(req)) {
		return
	}
	head := &rpc.RawResult{Fields: maps.Clone(p.Fields)}
	head.Meta = maps.Clone(p.Meta)
	if rpc.IsStateless(req) {
		s.addServerInfo(head)
	}
	b, err := (&rpc.Page{RawResult: head, Field: p.Field, Items: p.Items}).MarshalJSON()
	if err != nil {
		return // the SDK reports it
	}
	k := pageKeyOf(fingerprint, rpc.IsStateless(req))
	s.mu.Lock()
	defer s.mu.Unlock()
	if generation != s.generation || len(b) > maxPageBytes {
		return
	}
	s.accept(fingerprint, accepted{})
	if s.pages == nil || s.size-len(s.pages[k])+len(b) > maxPageBytes || len(s.pages) >= MaxAccepted {
		s.pages, s.size = map[pageKey]json.RawMessage{}, 0
	}
	s.size += len(b) - len(s.pages[k])
	s.pages[k] = b
}

// page returns the stored page for a request; nil: there is none.
func (s *Path) page(o *cacheable) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pages[pageKeyOf(o.fingerprint, o.stateless)]
}

// pageKeyOf returns the key of the page for requests with a fingerprint.
func pageKeyOf(fingerprint string, stateless bool) pageKey {
	return pageKey{subject(fingerprint), stateless}
}

// Reset forgets everything, as tools or lists changed.
func (s *Path) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset()
}

// reset is Reset for a caller that holds s.mu.
func (s *Path) reset() {
	s.accepted, s.pages, s.size = nil, nil, 0
	s.generation++
}

// ExcludeSession makes the SDK answer a session of the stateful protocol that wants log
// messages: only the SDK can send these.
func (s *Path) ExcludeSession(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset()
	if s.logging == nil {
		s.logging = map[string]bool{}
	}
	for old := range s.logging {
		if !s.HasSession(old) {
			delete(s.logging, old)
		}
	}
	s.logging[session] = true
}

// findAccepted returns the accepted request with the same fingerprint.
func (s *Path) findAccepted(o *cacheable) (accepted, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.accepted[o.fingerprint]
	return t, ok && time.Now().Before(t.until)
}

// Serve answers a request, or returns false: then the SDK has to answer it, and end must be
// called afterwards.
func (s *Path) Serve(w http.ResponseWriter, r *http.Request, m rpc.Message,
	answers *limit.Answers) (answered bool, end func()) {
	r.Header.Del(fingerprintHeader)
	session := r.Header.Get("Mcp-Session-Id")
	if session != "" && s.receive(session, m) {
		w.WriteHeader(http.StatusAccepted)
		return true, func() {}
	}
	o := readRequest(r, m)
	if o != nil {
		o.answers = answers
		if s.serve(w, r, o) {
			return true, func() {}
		}
		r.Header.Set(fingerprintHeader, o.fingerprint)
	}
	if session == "" || len(m.ID) == 0 {
		return false, func() {}
	}
	if end, ok := s.beginSDKRequest(session, m.ID); ok {
		return false, end
	}
	refuseDuplicate(w, m.ID)
	return true, func() {}
}

// refuseDuplicate refuses a request with the id of a running one, as the SDK does.
func refuseDuplicate(w http.ResponseWriter, id json.RawMessage) {
	b, _ := json.Marshal(jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest,
		Message: "duplicate in-flight request ID " + strings.Trim(string(id), `"`)})
	writeAnswer(w, http.StatusBadRequest, id, "error", b)
}

// serve answers a request if it equals an accepted one, and reports whether it answered.
func (s *Path) serve(w http.ResponseWriter, r *http.Request, o *cacheable) bool {
	match, ok := s.findAccepted(o)
	if !ok || o.session != "" && !s.HasSession(o.session) {
		return false
	}
	if o.method == "tools/call" {
		if o.tool, _ = s.Tool(o.name); o.tool.asksMore(match) {
			return false // since the SDK took it, rules or settings have changed
		}
	}
	r = r.WithContext(event.WithMCP(r.Context(), o.method, o.session, rpc.Traceparent(o.meta)))
	if o.method != "tools/call" {
		b := s.storedPage(r.Context(), o)
		if b == nil {
			return false
		}
		writer := rpc.NewKeepAlive(w, false)
		defer writer.Stop()
		request := hub.Request{Principal: s.Calls.Principal, Operation: s.Operations[o.method]}
		b, err := hub.Do(r.Context(), s.Hub, request, func(ctx context.Context) (json.RawMessage, error) {
			return b, o.answers.NewReservation().ReserveAnswer(ctx, len(b))
		})
		o.answer(writer, b, err)
		return true
	}
	ctx, release := s.Calls.Context(r.Context())
	defer release()
	if !o.stateless {
		// A call of the stateful protocol does not end with its HTTP request.
		outliving, release := s.Calls.Context(context.WithoutCancel(ctx))
		defer release()
		callCtx, end, ok := s.beginCall(outliving, o)
		if !ok {
			return false
		}
		defer end()
		ctx = callCtx
	}
	writer := rpc.NewKeepAlive(w, true)
	defer writer.Stop()
	b, err := s.call(ctx, o, match.capabilities, writer)
	o.answer(writer, b, err)
	return true
}

// answer writes the answer to the request: its result, or the error.
func (o *cacheable) answer(w http.ResponseWriter, b json.RawMessage, err error) {
	if err == nil {
		writeAnswer(w, http.StatusOK, o.id, "result", b)
		return
	}
	rpcErr, status := rpc.Error(err), http.StatusOK
	if o.stateless {
		status = statusOf(rpcErr.Code)
	}
	b, _ = json.Marshal(rpcErr)
	writeAnswer(w, status, o.id, "error", b)
}

// storedPage returns a page of a list if it is stored and still valid. It does not wait.
func (s *Path) storedPage(ctx context.Context, o *cacheable) json.RawMessage {
	noWait, cancel := context.WithCancel(ctx)
	cancel()
	if !s.Refresh(noWait) { // it resets the path if something has changed
		return nil // the SDK's way waits for the servers
	}
	return s.page(o)
}

// writeAnswer writes an answer: b is its "result" or its "error".
func writeAnswer(w http.ResponseWriter, status int, id json.RawMessage, outcome string, b json.RawMessage) {
	w.Header().Set("Cache-Control", "no-cache, no-transform")
	w.Header().Set("Content-Type", "application/json")
	out := bytes.NewBuffer(make([]byte, 0, len(b)+len(id)+64))
	out.WriteString(`{"jsonrpc":"2.0","id":`)
	out.Write(id)
	out.WriteString(`,"` + outcome + `":`)
	out.Write(b)
	out.WriteString("}")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes()) // the client went away
}

// statusOf returns the HTTP status of an error in the stateless protocol.
func statusOf(code int64) int {
	switch code {
	case jsonrpc.CodeMethodNotFound:
		return http.StatusNotFound
	case jsonrpc.CodeInvalidParams, mcp.CodeUnsupportedProtocolVersion, mcp.CodeMissingRequiredClientCapabilities:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// call makes the call and returns the MCP result object.
func (s *Path) call(ctx context.Context, o *cacheable, capabilities json.RawMessage,
	writer *rpc.KeepAlive) (b json.RawMessage, err error) {
	defer fault.Recover(ctx, s.Log, o.method, &err)
	name, version := s.client(o)
	form := o.results
	if form == "" {
		form = toolview.ResultsOf(name)
	}
	reply := &replyWriter{path: s, session: o.session, token: o.meta["progressToken"], writer: writer}
	t := o.tool
	if !t.Own || t.Elicits || relay.Supports(capabilities, "elicitation/create") {
		q := &relay.Request{Method: o.method, Key: o.name, Own: t.Own, Arguments: o.args, Writer: reply,
			Stateless: o.stateless, Capabilities: capabilities, Meta: map[string]any{}, Params: rpc.Object{},
			Answers: o.answers, Revision: version, Results: form, Client: name}
		for k, v := range o.meta {
			q.Meta[k] = v
		}
		q.Params["name"], _ = json.Marshal(o.name)
		if o.args != nil {
			q.Params["arguments"] = o.args
		}
		if b, err = s.Relay.Answer(ctx, s.Calls, q); err != nil {
			return nil, err
		}
		return s.setResultType(b, o.stateless)
	}
	return s.callOwnTool(ctx, o, reply, form)
}

// client returns the name of a request's client, and the revision of MCP.
func (s *Path) client(o *cacheable) (name, version string) {
	if !o.stateless {
		return s.Client(o.session)
	}
	var info struct{ Name string }
	_ = json.Unmarshal(o.meta[mcp.MetaKeyClientInfo], &info) // the SDK has read an equal one
	return info.Name, revision.Stateless
}

// callOwnTool calls one of Sandlot's own tools that does not elicit, and returns the MCP result object.
func (s *Path) callOwnTool(ctx context.Context, o *cacheable, reply *replyWriter,
	form toolview.Results) (json.RawMessage, error) {
	c := tool.NewCall(s.Calls.Principal, o.name, o.args, o.answers.NewReservation())
	if reply.token != nil {
		defer relay.Report(&c, func(p *mcp.ProgressNotificationParams) {
			b, _ := json.Marshal(p)
			reply.Notify(ctx, "notifications/progress", b)
		})()
	}
	r, err := s.Hub.Call(ctx, c)
	var res *mcp.CallToolResult
	if err != nil {
		failed := rpc.LoggedError(ctx, s.Log, c.Name, err)
		if res = rpc.FailedCall(err, c.Name, true, form); res == nil {
			return nil, failed
		}
	} else {
		res = rpc.Result(r, form)
	}
	if o.stateless {
		if res.Meta == nil {
			res.Meta = mcp.Meta{}
		}
		res.Meta[mcp.MetaKeyServerInfo] = s.Server()
	}
	b, err := json.Marshal(res)
	if err == nil && o.stateless {
		b = append(b[:len(b)-1], `,"resultType":"complete"}`...)
	}
	return b, err
}

// setResultType makes a third-party server's result conform to the client's protocol: only the
// stateless one has a resultType.
func (s *Path) setResultType(b json.RawMessage, stateless bool) (json.RawMessage, error) {
	if !stateless && rawjson.IsObject(b) && !rpc.MayContain(b, "resultType") {
		return b, nil
	}
	r, err := rpc.ReadRawResult(b, stateless)
	if err != nil {
		return nil, err
	}
	if stateless {
		s.addServerInfo(r)
	}
	return r.MarshalJSON()
}

// addServerInfo adds the description of Sandlot to a result of the stateless protocol, as the
// SDK does.
func (s *Path) addServerInfo(r *rpc.RawResult) {
	if r.Meta == nil {
		r.Meta = mcp.Meta{}
	}
	if r.Meta[mcp.MetaKeyServerInfo] == nil {
		r.Meta[mcp.MetaKeyServerInfo] = s.Server()
	}
}

// replyWriter is the relay.ReplyWriter of a call on the fast path. A notification turns the
// answer to the HTTP request into an event stream.
type replyWriter struct {
	path    *Path
	session string
	token   json.RawMessage // the progress token; nil: the client wants no notifications of progress
	writer  *rpc.KeepAlive
}

func (w *replyWriter) Client() string { return w.session }

func (w *replyWriter) Notify(_ context.Context, method string, params json.RawMessage) {
	if method != "notifications/progress" || w.token == nil {
		return // no log messages: ExcludeSession sends such sessions to the SDK
	}
	var p rpc.Object
	if json.Unmarshal(params, &p) != nil || p == nil {
		return
	}
	p["progressToken"] = w.token
	w.send(map[string]any{"jsonrpc": "2.0", "method": method, "params": p})
}

func (w *replyWriter) send(m map[string]any) {
	if b, err := json.Marshal(m); err == nil {
		w.writer.Event(b)
	}
}
