package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/relay"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/tool"
)

// shortcut answers tool calls and lists without the SDK, which makes a session of
// each request of the newer era, and a stream and several goroutines of one of the
// older. It takes those alone that are in all but a call's arguments like one that
// the SDK took a moment ago: the same headers, the same session, tool and client.
// So what a request must be is the SDK's to say, and what a list is, too.
type shortcut struct {
	mu      sync.Mutex
	taken   map[string]taken                // by what a request is like
	pages   map[pageKey]json.RawMessage     // of lists, as they were answered
	size    int                             // of them, in bytes
	age     int                             // grows when all is forgotten
	loud    map[string]bool                 // sessions that want to be told of logs
	running map[string]run                  // requests of the older era, by session and id
	asked   map[string]chan json.RawMessage // what clients were asked, by session and id
}

// pageKey is which page of which list, in which era.
type pageKey struct {
	what  string
	newer bool
}

// taken is a request that the SDK took.
type taken struct {
	until time.Time
	can   json.RawMessage // what the client can
}

const (
	// remembered is how long a call counts as one that the SDK took. It has to
	// see each session now and then, so that it does not end it.
	remembered = 10 * time.Minute
	// maxTaken bounds the requests that are remembered on one endpoint, and
	// maxPages the pages of lists, in bytes.
	maxTaken = 1024
	maxPages = 8 << 20
	// maxLike and maxCan bound what is remembered of each, in bytes.
	maxLike, maxCan = 4 << 10, 4 << 10
	// likeness is the header in which the SDK carries what a call is like. What a
	// client sends in it is thrown away.
	likeness = "Sandlot-Likeness"
)

// take remembers a call that the SDK took, when others like it may be answered
// without it. Can is what its client can, where the tool may ask.
func (s *shortcut) take(e *endpoint, r *mcp.CallToolRequest, can json.RawMessage) {
	if r.Extra == nil || len(can) > maxCan || !about(r.Extra.Header.Get(likeness), "tools/call", r.Params.Name, "") {
		return
	}
	age := s.now()
	k := featureKey{"tools/call", r.Params.Name}
	def := e.own[k]
	if def == nil {
		if def = e.passedOn()[k]; def == nil {
			return
		}
		// The SDK compares arguments with headers where a definition says so.
		if headed(def) {
			return
		}
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
	s.put(r.Extra.Header.Get(likeness), can)
}

// put remembers what a request was like. The lock is held.
func (s *shortcut) put(like string, can json.RawMessage) {
	if s.taken == nil || len(s.taken) >= maxTaken {
		s.taken = map[string]taken{}
	}
	s.taken[like] = taken{time.Now().Add(remembered), can}
}

// now returns what tells whether all was forgotten since.
func (s *shortcut) now() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.age
}

// keep remembers a list that the SDK took, and a page of it, which was made after
// age.
func (s *shortcut) keep(g *Gateway, req mcp.Request, p *page, age int) {
	x := req.GetExtra()
	if x == nil || !about(x.Header.Get(likeness), p.method(), "", cursorOf(req)) {
		return
	}
	whole := &rpc.Raw{Fields: maps.Clone(p.Fields)}
	whole.Meta = maps.Clone(p.Meta)
	if newer(req) {
		g.signed(whole)
	}
	b, err := (&page{whole, p.field, p.items}).MarshalJSON()
	if err != nil {
		return // the SDK says so
	}
	k := pageOf(x.Header.Get(likeness), newer(req))
	s.mu.Lock()
	defer s.mu.Unlock()
	if age != s.age || len(b) > maxPages {
		return
	}
	s.put(x.Header.Get(likeness), nil)
	if s.pages == nil || s.size-len(s.pages[k])+len(b) > maxPages || len(s.pages) >= maxTaken {
		s.pages, s.size = map[pageKey]json.RawMessage{}, 0
	}
	s.size += len(b) - len(s.pages[k])
	s.pages[k] = b
}

// page returns a page of a list, if it is known.
func (s *shortcut) page(o *ordinary) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pages[pageOf(o.like, o.newer)]
}

// pageOf is the page that a request like that is about.
func pageOf(like string, newer bool) pageKey { return pageKey{subject(like), newer} }

// forget forgets all calls, when what tools are has changed.
func (s *shortcut) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
}

// clear is forget for those who hold the lock.
func (s *shortcut) clear() {
	s.taken, s.pages, s.size = nil, nil, 0
	s.age++
}

// levelled says that a session of the older era wants to be told of logs, which
// the SDK sends. Live are the sessions that there are.
func (s *shortcut) levelled(session string, live func(string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	if s.loud == nil {
		s.loud = map[string]bool{}
	}
	for old := range s.loud {
		if !live(old) {
			delete(s.loud, old)
		}
	}
	s.loud[session] = true
}

// like returns what is remembered of a call like that.
func (s *shortcut) like(o *ordinary) (taken, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.taken[o.like]
	return t, ok && time.Now().Before(t.until)
}

// lives says whether there is a session of the older era.
func (e *endpoint) lives(id string) bool {
	for s := range e.server.Sessions() {
		if s.ID() == id {
			return true
		}
	}
	return false
}

// early answers what need not come to the SDK. What does is over when end is
// called.
func (g *Gateway) early(w http.ResponseWriter, r *http.Request, e *endpoint, m rpc.Message, a *limit.Holds) (answered bool, end func()) {
	r.Header.Del(likeness)
	session := r.Header.Get("Mcp-Session-Id")
	if session != "" && e.short.heard(session, m) {
		w.WriteHeader(http.StatusAccepted)
		return true, func() {}
	}
	o := ordinaryRequest(r, m)
	if o != nil {
		o.answers = a
		if g.shortly(w, r, e, o) {
			return true, func() {}
		}
		r.Header.Set(likeness, o.like)
	}
	if session == "" || len(m.ID) == 0 {
		return false, func() {}
	}
	if end, ok := e.short.leave(session, m.ID); ok {
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

// shortly answers a request by the shortcut, if it may take it.
func (g *Gateway) shortly(w http.ResponseWriter, r *http.Request, e *endpoint, o *ordinary) bool {
	t, ok := e.short.like(o)
	if !ok || o.session != "" && !e.lives(o.session) {
		return false
	}
	if o.method != "tools/call" {
		b := g.knownPage(r.Context(), e, o)
		if b == nil {
			return false
		}
		pw := rpc.NewKeepAlive(w, false)
		defer pw.Stop()
		b, err := hub.Do(r.Context(), g.Hub, hub.Request{Principal: e.principal, Operation: operations[o.method]}, func(context.Context) (json.RawMessage, error) {
			return b, o.answers.Held().Reserve(r.Context(), len(b))
		})
		o.answer(pw, b, err)
		return true
	}
	ctx, release := e.calls.Within(r.Context())
	defer release()
	if !o.newer {
		whole, release := e.calls.Within(context.WithoutCancel(ctx))
		defer release()
		own, end, ok := e.short.begin(whole, o)
		if !ok {
			return false
		}
		defer end()
		ctx = own
	}
	pw := rpc.NewKeepAlive(w, true)
	defer pw.Stop()
	b, err := g.ordinarily(ctx, e, o, t.can, pw)
	o.answer(pw, b, err)
	return true
}

// answer writes the answer to the request: its result, or the error.
func (o *ordinary) answer(w http.ResponseWriter, b json.RawMessage, err error) {
	if err == nil {
		answer(w, http.StatusOK, o.id, "result", b)
		return
	}
	said, status := rpc.Error(err), http.StatusOK
	if o.newer {
		status = statusOf(said.Code)
	}
	b, _ = json.Marshal(said)
	answer(w, status, o.id, "error", b)
}

// knownPage returns a page of a list, if it is known and what there is has not
// changed. It waits for nothing.
func (g *Gateway) knownPage(ctx context.Context, e *endpoint, o *ordinary) json.RawMessage {
	now, cancel := context.WithCancel(ctx)
	cancel()
	if g.Hub.Ready(now, e.principal) {
		return nil // the SDK's way waits
	}
	g.features(e) // and forgets what is old
	return e.short.page(o)
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

// statusOf is the newer era's HTTP status of an error.
func statusOf(code int64) int {
	switch code {
	case jsonrpc.CodeMethodNotFound:
		return http.StatusNotFound
	case jsonrpc.CodeInvalidParams, mcp.CodeUnsupportedProtocolVersion, mcp.CodeMissingRequiredClientCapabilities:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// ordinarily makes the call and returns the result's object.
func (g *Gateway) ordinarily(ctx context.Context, e *endpoint, o *ordinary, can json.RawMessage, pw *rpc.KeepAlive) (b json.RawMessage, err error) {
	defer rpc.Recover(ctx, g.Log, o.method, &err)
	l := &ownLine{short: &e.short, session: o.session, token: o.meta["progressToken"], writer: pw}
	own := e.own[featureKey{"tools/call", o.name}] != nil
	if !own || e.asks[o.name] {
		q := &relay.Request{Method: o.method, Key: o.name, Writer: l, Stateless: o.newer, Can: can, Meta: map[string]any{}, Params: rpc.Object{}, Holds: o.answers}
		for k, v := range o.meta {
			q.Meta[k] = v
		}
		q.Params["name"], _ = json.Marshal(o.name)
		if o.args != nil {
			q.Params["arguments"] = o.args
		}
		answer := g.relay.Tool(e.calls, q, o.args)
		if own {
			answer = g.relay.ElicitingTool(e.calls, q, o.args)
		}
		if b, err = g.relay.Answer(ctx, e.calls, q, answer); err != nil {
			return nil, err
		}
		return g.typed(b, o.newer)
	}
	var progress func(*mcp.ProgressNotificationParams)
	if l.token != nil {
		progress = func(p *mcp.ProgressNotificationParams) {
			b, _ := json.Marshal(p)
			l.Tell(ctx, "notifications/progress", b)
		}
	}
	res, err := g.ownTool(ctx, tool.Call{Principal: e.principal, Name: o.name, Args: o.args, Held: o.answers.Held()}, progress)
	if err != nil {
		return nil, err
	}
	if o.newer {
		res.Meta = mcp.Meta{mcp.MetaKeyServerInfo: g.implementation()}
	}
	if b, err = json.Marshal(res); err == nil && o.newer {
		b = append(b[:len(b)-1], `,"resultType":"complete"}`...)
	}
	return b, err
}

// typed makes a result that a server gave one of the client's era.
func (g *Gateway) typed(b json.RawMessage, newer bool) (json.RawMessage, error) {
	if !newer && rpc.IsObject(b) && !rpc.Mentions(b, "resultType") {
		return b, nil
	}
	r, err := rpc.ReadRaw(b, newer)
	if err != nil {
		return nil, err
	}
	if newer {
		g.signed(r)
	}
	return r.MarshalJSON()
}

// signed says in a result of the newer era who answers, as the SDK does.
func (g *Gateway) signed(r *rpc.Raw) {
	if r.Meta == nil {
		r.Meta = mcp.Meta{}
	}
	if r.Meta[mcp.MetaKeyServerInfo] == nil {
		r.Meta[mcp.MetaKeyServerInfo] = g.implementation()
	}
}

// ownLine is that of a call that takes the shortcut: what is said to the client
// comes in the answer to its request, which becomes a stream of events then.
type ownLine struct {
	short   *shortcut
	session string
	token   json.RawMessage // of progress; nil: the client does not want to know
	writer  *rpc.KeepAlive
}

func (l *ownLine) Client() string { return l.session }

func (l *ownLine) Tell(_ context.Context, method string, params json.RawMessage) {
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

func (l *ownLine) send(m map[string]any) {
	if b, err := json.Marshal(m); err == nil {
		l.writer.Event(b)
	}
}
