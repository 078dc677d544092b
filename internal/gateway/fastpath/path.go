// Package fastpath answers ordinary calls and lists past the SDK. It can be left out
// without any other change: whatever it does not take, the SDK answers in the same way.
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

	"sandlot/internal/gateway/relay"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
	"sandlot/internal/rawjson"
	"sandlot/internal/tool"
)

// Config is what the path needs of the road that it spares.
type Config struct {
	Calls *relay.Calls
	Relay *relay.Relay
	// Server is how Sandlot is called in results of the stateless protocol.
	Server func() *mcp.Implementation
	// Lives says whether there is a session of the stateful protocol with that id.
	Lives func(session string) bool
	// Tool returns what is known of a tool; false: it is not known.
	Tool func(name string) (Tool, bool)
	// Call calls a tool of ours that does not ask its user. With tell, the client is
	// told what happens.
	Call func(ctx context.Context, c tool.Call, tell func(*mcp.ProgressNotificationParams)) (*mcp.CallToolResult, error)
	// Fresh brings up to date what there is, and does not wait: false, if it had to.
	Fresh func(ctx context.Context) bool
	// Do lets the answer to a list through the door.
	Do  func(ctx context.Context, method string, answer func(context.Context) (json.RawMessage, error)) (json.RawMessage, error)
	Log *slog.Logger
}

// Tool is what the path has to know of a tool.
type Tool struct {
	Own     bool // of ours
	Elicits bool // it may ask its client's user
	Headers bool // some of its arguments may have to be in headers too
}

// Path answers tool calls and lists of one token's clients without the SDK, which makes
// a session of each stateless request, and a stream and several goroutines of each
// stateful one. It takes those alone that are in all but a call's arguments like one
// that the SDK took a moment ago: the same headers, the same session, tool and client.
// So what a request must be is the SDK's to say, and what a list is, too.
type Path struct {
	Config

	mu       sync.Mutex
	accepted map[string]accepted             // by fingerprint
	pages    map[pageKey]json.RawMessage     // of lists, as they were answered
	size     int                             // of them, in bytes
	age      int                             // grows when all is forgotten
	loud     map[string]bool                 // sessions that want to be told of logs
	running  map[string]run                  // requests of the stateful protocol, by session and id
	asked    map[string]chan json.RawMessage // what clients were asked, by session and id
}

// New returns a path that has seen nothing yet.
func New(c Config) *Path { return &Path{Config: c} }

// Sizes says what is remembered: requests, pages of lists, the bytes of both, and how
// many requests are running.
func (s *Path) Sizes() (requests, pages, bytes, running int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bytes = s.size
	for k, v := range s.accepted {
		bytes += len(k) + len(v.can)
	}
	return len(s.accepted), len(s.pages), bytes, len(s.running)
}

// pageKey is which page of which list, in which era.
type pageKey struct {
	what      string
	stateless bool
}

// accepted is a request that the SDK took.
type accepted struct {
	until time.Time
	can   json.RawMessage // what the client can
}

const (
	// remembered is how long a call counts as one that the SDK took. It has to
	// see each session now and then, so that it does not end it.
	remembered = 10 * time.Minute
	// MaxAccepted bounds the requests that are remembered on one endpoint, and
	// maxPages the pages of lists, in bytes.
	MaxAccepted = 1024
	maxPages    = 8 << 20
	// maxLike and maxCan bound what is remembered of each, in bytes.
	maxLike, maxCan = 4 << 10, 4 << 10
	// fingerprint is the header in which the SDK carries what a call is like. What a
	// client sends in it is thrown away.
	fingerprint = "Sandlot-Fingerprint"
)

// Took remembers a call that the SDK took, when others like it may be answered
// without it. Can is what its client can, where the tool may ask.
func (s *Path) Took(r *mcp.CallToolRequest, can json.RawMessage) {
	if r.Extra == nil || len(can) > maxCan || !about(r.Extra.Header.Get(fingerprint), "tools/call", r.Params.Name, "") {
		return
	}
	age := s.now()
	// The SDK compares arguments with headers where a definition says so.
	if t, ok := s.Tool(r.Params.Name); !ok || t.Headers {
		return
	}
	session := r.Session.ID()
	if session != "" && (relay.Able(can, "elicitation/create") || relay.Able(can, "sampling/createMessage")) {
		return // the SDK asks, and checks what is asked and answered
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if age != s.age || session != "" && s.loud[session] {
		return
	}
	s.put(r.Extra.Header.Get(fingerprint), can)
}

// put remembers what a request was like. The lock is held.
func (s *Path) put(like string, can json.RawMessage) {
	if s.accepted == nil || len(s.accepted) >= MaxAccepted {
		s.accepted = map[string]accepted{}
	}
	s.accepted[like] = accepted{time.Now().Add(remembered), can}
}

// now returns what tells whether all was forgotten since.
func (s *Path) now() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.age
}

// List is to be called before a list is made, and keep with what was made: a page of
// it, that the SDK took.
func (s *Path) List() (keep func(req mcp.Request, p *rpc.Page)) {
	age := s.now()
	return func(req mcp.Request, p *rpc.Page) { s.keep(req, p, age) }
}

// keep remembers a page that was made after age.
func (s *Path) keep(req mcp.Request, p *rpc.Page, age int) {
	x := req.GetExtra()
	if x == nil || !about(x.Header.Get(fingerprint), p.Method(), "", cursorOf(req)) {
		return
	}
	whole := &rpc.Raw{Fields: maps.Clone(p.Fields)}
	whole.Meta = maps.Clone(p.Meta)
	if rpc.IsStateless(req) {
		s.sign(whole)
	}
	b, err := (&rpc.Page{Raw: whole, Field: p.Field, Items: p.Items}).MarshalJSON()
	if err != nil {
		return // the SDK says so
	}
	k := pageOf(x.Header.Get(fingerprint), rpc.IsStateless(req))
	s.mu.Lock()
	defer s.mu.Unlock()
	if age != s.age || len(b) > maxPages {
		return
	}
	s.put(x.Header.Get(fingerprint), nil)
	if s.pages == nil || s.size-len(s.pages[k])+len(b) > maxPages || len(s.pages) >= MaxAccepted {
		s.pages, s.size = map[pageKey]json.RawMessage{}, 0
	}
	s.size += len(b) - len(s.pages[k])
	s.pages[k] = b
}

// page returns a page of a list, if it is known.
func (s *Path) page(o *cacheable) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pages[pageOf(o.like, o.stateless)]
}

// pageOf is the page that a request like that is about.
func pageOf(like string, stateless bool) pageKey { return pageKey{subject(like), stateless} }

// Forget forgets all calls, when what tools are has changed.
func (s *Path) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
}

// clear is forget for those who hold the lock.
func (s *Path) clear() {
	s.accepted, s.pages, s.size = nil, nil, 0
	s.age++
}

// Levelled says that a session of the stateful protocol wants to be told of logs, which
// the SDK sends.
func (s *Path) Levelled(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	if s.loud == nil {
		s.loud = map[string]bool{}
	}
	for old := range s.loud {
		if !s.Lives(old) {
			delete(s.loud, old)
		}
	}
	s.loud[session] = true
}

// like returns what is remembered of a call like that.
func (s *Path) like(o *cacheable) (accepted, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.accepted[o.like]
	return t, ok && time.Now().Before(t.until)
}

// Serve answers what need not come to the SDK. What does is over when end is
// called.
func (s *Path) Serve(w http.ResponseWriter, r *http.Request, m rpc.Message, a *limit.Holds) (answered bool, end func()) {
	r.Header.Del(fingerprint)
	session := r.Header.Get("Mcp-Session-Id")
	if session != "" && s.hear(session, m) {
		w.WriteHeader(http.StatusAccepted)
		return true, func() {}
	}
	o := readRequest(r, m)
	if o != nil {
		o.answers = a
		if s.serve(w, r, o) {
			return true, func() {}
		}
		r.Header.Set(fingerprint, o.like)
	}
	if session == "" || len(m.ID) == 0 {
		return false, func() {}
	}
	if end, ok := s.leave(session, m.ID); ok {
		return false, end
	}
	twice(w, m.ID)
	return true, func() {}
}

// twice refuses a request whose id one has that runs here, as the SDK does.
func twice(w http.ResponseWriter, id json.RawMessage) {
	b, _ := json.Marshal(jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "duplicate in-flight request ID " + strings.Trim(string(id), `"`)})
	answer(w, http.StatusBadRequest, id, "error", b)
}

// serve answers a request, if it may take it.
func (s *Path) serve(w http.ResponseWriter, r *http.Request, o *cacheable) bool {
	t, ok := s.like(o)
	if !ok || o.session != "" && !s.Lives(o.session) {
		return false
	}
	if o.method != "tools/call" {
		b := s.knownPage(r.Context(), o)
		if b == nil {
			return false
		}
		pw := rpc.NewKeepAlive(w, false)
		defer pw.Stop()
		b, err := s.Do(r.Context(), o.method, func(context.Context) (json.RawMessage, error) {
			return b, o.answers.Held().Reserve(r.Context(), len(b))
		})
		o.answer(pw, b, err)
		return true
	}
	ctx, release := s.Calls.Within(r.Context())
	defer release()
	if !o.stateless {
		whole, release := s.Calls.Within(context.WithoutCancel(ctx))
		defer release()
		own, end, ok := s.begin(whole, o)
		if !ok {
			return false
		}
		defer end()
		ctx = own
	}
	pw := rpc.NewKeepAlive(w, true)
	defer pw.Stop()
	b, err := s.call(ctx, o, t.can, pw)
	o.answer(pw, b, err)
	return true
}

// answer writes the answer to the request: its result, or the error.
func (o *cacheable) answer(w http.ResponseWriter, b json.RawMessage, err error) {
	if err == nil {
		answer(w, http.StatusOK, o.id, "result", b)
		return
	}
	said, status := rpc.Error(err), http.StatusOK
	if o.stateless {
		status = statusOf(said.Code)
	}
	b, _ = json.Marshal(said)
	answer(w, status, o.id, "error", b)
}

// knownPage returns a page of a list, if it is known and what there is has not
// changed. It waits for nothing.
func (s *Path) knownPage(ctx context.Context, o *cacheable) json.RawMessage {
	now, cancel := context.WithCancel(ctx)
	cancel()
	if !s.Fresh(now) { // and forgets what is old
		return nil // the SDK's way waits
	}
	return s.page(o)
}

// answer writes an answer to a request, whose outcome is its result or an error.
func answer(w http.ResponseWriter, status int, id json.RawMessage, outcome string, b json.RawMessage) {
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

// statusOf is the stateless era's HTTP status of an error.
func statusOf(code int64) int {
	switch code {
	case jsonrpc.CodeMethodNotFound:
		return http.StatusNotFound
	case jsonrpc.CodeInvalidParams, mcp.CodeUnsupportedProtocolVersion, mcp.CodeMissingRequiredClientCapabilities:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// call makes the call and returns the result's object.
func (s *Path) call(ctx context.Context, o *cacheable, can json.RawMessage, pw *rpc.KeepAlive) (b json.RawMessage, err error) {
	defer rpc.Recover(ctx, s.Log, o.method, &err)
	l := &replyWriter{path: s, session: o.session, token: o.meta["progressToken"], writer: pw}
	t, _ := s.Tool(o.name)
	if !t.Own || t.Elicits {
		q := &relay.Request{Method: o.method, Key: o.name, Writer: l, Stateless: o.stateless, Capabilities: can, Meta: map[string]any{}, Params: rpc.Object{}, Holds: o.answers}
		for k, v := range o.meta {
			q.Meta[k] = v
		}
		q.Params["name"], _ = json.Marshal(o.name)
		if o.args != nil {
			q.Params["arguments"] = o.args
		}
		answer := s.Relay.Tool(s.Calls, q, o.args)
		if t.Own {
			answer = s.Relay.ElicitingTool(s.Calls, q, o.args)
		}
		if b, err = s.Relay.Answer(ctx, s.Calls, q, answer); err != nil {
			return nil, err
		}
		return s.typed(b, o.stateless)
	}
	var progress func(*mcp.ProgressNotificationParams)
	if l.token != nil {
		progress = func(p *mcp.ProgressNotificationParams) {
			b, _ := json.Marshal(p)
			l.Tell(ctx, "notifications/progress", b)
		}
	}
	res, err := s.Call(ctx, tool.Call{Principal: s.Calls.Principal, Name: o.name, Args: o.args, Held: o.answers.Held()}, progress)
	if err != nil {
		return nil, err
	}
	if o.stateless {
		res.Meta = mcp.Meta{mcp.MetaKeyServerInfo: s.Server()}
	}
	if b, err = json.Marshal(res); err == nil && o.stateless {
		b = append(b[:len(b)-1], `,"resultType":"complete"}`...)
	}
	return b, err
}

// typed makes a result that a server gave one of the client's era.
func (s *Path) typed(b json.RawMessage, stateless bool) (json.RawMessage, error) {
	if !stateless && rawjson.IsObject(b) && !rpc.Mentions(b, "resultType") {
		return b, nil
	}
	r, err := rpc.ReadRaw(b, stateless)
	if err != nil {
		return nil, err
	}
	if stateless {
		s.sign(r)
	}
	return r.MarshalJSON()
}

// sign says in a result of the stateless era who answers, as the SDK does.
func (s *Path) sign(r *rpc.Raw) {
	if r.Meta == nil {
		r.Meta = mcp.Meta{}
	}
	if r.Meta[mcp.MetaKeyServerInfo] == nil {
		r.Meta[mcp.MetaKeyServerInfo] = s.Server()
	}
}

// replyWriter is for a call that does not pass the SDK: what is said to the client
// comes in the answer to its request, which becomes a stream of events then.
type replyWriter struct {
	path    *Path
	session string
	token   json.RawMessage // of progress; nil: the client does not want to know
	writer  *rpc.KeepAlive
}

func (l *replyWriter) Client() string { return l.session }

func (l *replyWriter) Tell(_ context.Context, method string, params json.RawMessage) {
	if method != "notifications/progress" || l.token == nil {
		return // of logs the client wants to hear nothing
	}
	var p rpc.Object
	if json.Unmarshal(params, &p) != nil || p == nil {
		return
	}
	p["progressToken"] = l.token
	l.send(map[string]any{"jsonrpc": "2.0", "method": method, "params": p})
}

func (l *replyWriter) send(m map[string]any) {
	if b, err := json.Marshal(m); err == nil {
		l.writer.Event(b)
	}
}
