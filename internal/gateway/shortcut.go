package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
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
	running map[string]context.CancelFunc   // calls of the older era, by session and id
	asked   map[string]chan json.RawMessage // what clients were asked, by session and id
	loud    map[string]bool                 // sessions that want to be told of logs
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
	// maxLike bounds what is remembered of each, in bytes.
	maxLike = 4 << 10
	// likeness is the header in which the SDK carries what a call is like. What a
	// client sends in it is thrown away.
	likeness = "Sandlot-Likeness"
)

// message is one of a client, as far as it says where it belongs.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

func readMessage(body []byte) (m message) {
	if json.Unmarshal(body, &m) != nil {
		return message{}
	}
	return m
}

// ordinary is a tool call, or a list, that may take the shortcut.
type ordinary struct {
	method  string
	id      json.RawMessage
	name    string
	args    json.RawMessage
	cursor  json.RawMessage // of a list; nil: the first page
	meta    object
	session string
	newer   bool
	like    string // what it has in common with others
}

// ordinaryRequest reads a request; nil when it is none that may take the shortcut.
func ordinaryRequest(r *http.Request, m message) *ordinary {
	if !isID(m.ID) || m.Result != nil || m.Error != nil || len(r.Header["Last-Event-Id"]) > 0 {
		return nil
	}
	o := &ordinary{method: m.Method, id: m.ID, session: r.Header.Get("Mcp-Session-Id")}
	if !o.read(m.Params) {
		return nil
	}
	o.newer = o.session == "" && r.Header.Get("Mcp-Protocol-Version") >= statelessFrom
	like := []string{o.method, strconv.Quote(o.name), string(o.cursor)} // headers have no control characters either
	for _, h := range []string{"Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name", "Content-Type", "Accept"} {
		like = append(like, strings.Join(r.Header[h], "\x00"))
	}
	var own []string
	for k, v := range o.meta {
		switch {
		case k == "progressToken":
			if !isID(v) {
				return nil
			}
		case strings.Contains(k, "logLevel"):
			return nil
		case strings.HasPrefix(k, "io.modelcontextprotocol/"):
			own = append(own, strconv.Quote(k)+"\x00"+string(v))
		}
	}
	slices.Sort(own)
	o.like = strings.Join(append(like, own...), "\x01")
	if len(o.like) > maxLike {
		return nil
	}
	return o
}

// read takes the parameters, unless there is more to them.
func (o *ordinary) read(raw json.RawMessage) bool {
	var params object
	if len(raw) > 0 && json.Unmarshal(raw, &params) != nil {
		return false
	}
	if meta, ok := params["_meta"]; ok && json.Unmarshal(meta, &o.meta) != nil {
		return false
	}
	known := []string{"_meta"}
	switch o.method {
	case "tools/call":
		known = append(known, "name", "arguments")
		o.args = params["arguments"]
		if json.Unmarshal(params["name"], &o.name) != nil || o.name == "" || string(o.args) == "null" {
			return false
		}
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list":
		known = append(known, "cursor")
		var s string
		if c, ok := params["cursor"]; ok && json.Unmarshal(c, &s) != nil {
			return false
		}
		o.cursor = params["cursor"]
	default:
		return false
	}
	for k := range params {
		if !slices.Contains(known, k) {
			return false
		}
	}
	return true
}

// isID says whether a value is a string or a number.
func isID(v json.RawMessage) bool {
	return len(v) > 0 && (v[0] == '"' || v[0] == '-' || v[0] >= '0' && v[0] <= '9')
}

// take remembers a call that the SDK took, when others like it may be answered
// without it. Can is what its client can, where the tool may ask.
func (s *shortcut) take(e *endpoint, r *mcp.CallToolRequest, can json.RawMessage) {
	if r.Extra == nil || r.Extra.Header.Get(likeness) == "" {
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
		if bytes.Contains(bytes.ToLower(def), []byte("x-mcp-header")) || bytes.Contains(def, []byte(`\u`)) {
			return
		}
	}
	session := r.Session.ID()
	if session != "" && (able(can, "elicitation/create") || able(can, "sampling/createMessage")) {
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
	if x == nil || x.Header.Get(likeness) == "" {
		return
	}
	whole := &rawResult{fields: maps.Clone(p.fields)}
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

// pageOf is the page that a request like that is about: the method and the
// cursor, of all that it is like.
func pageOf(like string, newer bool) pageKey {
	return pageKey{strings.Join(strings.SplitN(like, "\x01", 4)[:3], "\x01"), newer}
}

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

// begin makes the context of a call of the older era: it ends when its client
// cancels it, not when the connection does. False: one with that id runs.
func (s *shortcut) begin(ctx context.Context, o *ordinary) (context.Context, func(), bool) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	key := o.session + "\x00" + string(o.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.running = map[string]context.CancelFunc{}
	}
	if s.running[key] != nil {
		cancel()
		return nil, nil, false
	}
	s.running[key] = cancel
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, key)
	}, true
}

// heard takes what a client of the older era says of calls that run here. True:
// nobody else is to hear it.
func (s *shortcut) heard(session string, m message) bool {
	switch {
	case m.Method == "notifications/cancelled":
		var p struct {
			RequestID json.RawMessage `json:"requestId"`
		}
		_ = json.Unmarshal(m.Params, &p) // the SDK says what is wrong with it
		s.mu.Lock()
		defer s.mu.Unlock()
		if cancel := s.running[session+"\x00"+string(p.RequestID)]; cancel != nil {
			cancel()
		}
		return false
	case m.Method == "" && len(m.ID) > 0:
		s.mu.Lock()
		defer s.mu.Unlock()
		key := session + "\x00" + string(m.ID)
		answer := s.asked[key]
		if answer == nil {
			return false
		}
		delete(s.asked, key)
		if m.Result == nil {
			m.Result = json.RawMessage("null") // an error
		}
		answer <- m.Result
		return true
	}
	return false
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

// early takes what need not come to the SDK.
func (g *Gateway) early(w http.ResponseWriter, r *http.Request, e *endpoint, m message) bool {
	r.Header.Del(likeness)
	session := r.Header.Get("Mcp-Session-Id")
	if session != "" && e.short.heard(session, m) {
		w.WriteHeader(http.StatusAccepted)
		return true
	}
	o := ordinaryRequest(r, m)
	if o == nil {
		return false
	}
	if g.shortly(w, r, e, o) {
		return true
	}
	r.Header.Set(likeness, o.like)
	return false
}

// shortly answers a request by the shortcut, if it may take it.
func (g *Gateway) shortly(w http.ResponseWriter, r *http.Request, e *endpoint, o *ordinary) bool {
	if o.method != "tools/call" {
		g.fresh(r.Context(), e)
	}
	t, ok := e.short.like(o)
	if !ok || o.session != "" && !e.lives(o.session) {
		return false
	}
	if o.method != "tools/call" {
		b := e.short.page(o)
		if b == nil {
			return false
		}
		answer(w, http.StatusOK, o.id, "result", b)
		return true
	}
	ctx := r.Context()
	if !o.newer {
		own, end, ok := e.short.begin(ctx, o)
		if !ok {
			return false
		}
		defer end()
		ctx = own
	}
	pw := newPatientWriter(w, true)
	defer pw.stop()
	b, err := g.ordinarily(ctx, e, o, t.can, pw)
	if err == nil {
		answer(pw, http.StatusOK, o.id, "result", b)
		return true
	}
	said, status := wireOf(err), http.StatusOK
	if o.newer {
		status = statusOf(said.Code)
	}
	b, _ = json.Marshal(said)
	answer(pw, status, o.id, "error", b)
	return true
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

// wireOf is an error as clients are told of it.
func wireOf(err error) *jsonrpc.Error {
	if said, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return said
	}
	said, _ := errors.AsType[*jsonrpc.Error](wireError(fault.From(err)))
	return said
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
func (g *Gateway) ordinarily(ctx context.Context, e *endpoint, o *ordinary, can json.RawMessage, pw *patientWriter) (b json.RawMessage, err error) {
	defer g.recovered(ctx, o.method, &err)
	l := &ownLine{short: &e.short, session: o.session, token: o.meta["progressToken"], writer: pw}
	own := e.own[featureKey{"tools/call", o.name}] != nil
	if !own || e.asks[o.name] {
		q := &passedOn{method: o.method, key: o.name, line: l, newer: o.newer, can: can, meta: map[string]any{}, params: object{}}
		for k, v := range o.meta {
			q.meta[k] = v
		}
		q.params["name"], _ = json.Marshal(o.name)
		if o.args != nil {
			q.params["arguments"] = o.args
		}
		answer := g.theirTool(e, q, o.args)
		if own {
			answer = g.askingTool(e, q, o.args)
		}
		if b, err = g.passedAnswer(ctx, e, q, answer); err != nil {
			return nil, err
		}
		return g.typed(b, o.newer)
	}
	var progress func(*mcp.ProgressNotificationParams)
	if l.token != nil {
		progress = func(p *mcp.ProgressNotificationParams) {
			b, _ := json.Marshal(p)
			l.tell(ctx, "notifications/progress", b)
		}
	}
	res, err := g.ownTool(ctx, e.principal, o.name, o.args, progress)
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
	if !newer && !bytes.Contains(b, []byte("resultType")) && !bytes.Contains(b, []byte(`\u`)) {
		return b, nil
	}
	r, err := raw(b, newer)
	if err != nil {
		return nil, err
	}
	if newer {
		g.signed(r)
	}
	return r.MarshalJSON()
}

// signed says in a result of the newer era who answers, as the SDK does.
func (g *Gateway) signed(r *rawResult) {
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
	writer  *patientWriter
}

func (l *ownLine) client() string { return l.session }

func (l *ownLine) tell(_ context.Context, method string, params json.RawMessage) {
	if method != "notifications/progress" || l.token == nil {
		return // of logs the client wants to hear nothing
	}
	var p object
	if json.Unmarshal(params, &p) != nil || p == nil {
		return
	}
	p["progressToken"] = l.token
	l.send(map[string]any{"jsonrpc": "2.0", "method": method, "params": p})
}

func (l *ownLine) send(m map[string]any) {
	if b, err := json.Marshal(m); err == nil {
		l.writer.event(b)
	}
}

// ask asks a client of the older era. Only roots/list comes here: what else it
// can be asked does not take the shortcut.
func (l *ownLine) ask(ctx context.Context, method string, _ json.RawMessage) (json.RawMessage, error) {
	if method != "roots/list" || l.session == "" {
		return nil, cannot(method)
	}
	id := "sandlot-" + secret.ID()
	key, answer := l.session+"\x00\""+id+"\"", make(chan json.RawMessage, 1)
	l.short.mu.Lock()
	if l.short.asked == nil {
		l.short.asked = map[string]chan json.RawMessage{}
	}
	l.short.asked[key] = answer
	l.short.mu.Unlock()
	defer func() {
		l.short.mu.Lock()
		defer l.short.mu.Unlock()
		delete(l.short.asked, key)
	}()
	l.send(map[string]any{"jsonrpc": "2.0", "id": id, "method": method})
	select {
	case a := <-answer:
		if string(a) == "null" {
			return nil, cannot(method)
		}
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
