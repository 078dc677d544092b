package connection

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/tool"
	"sandlot/internal/upstream"
)

// Tools implements tool.Source.
func (b *Book) Tools(_ context.Context, p auth.Principal) []tool.Tool { return b.viewOf(p).list }

// Has implements tool.Source.
func (b *Book) Has(p auth.Principal, name string) bool {
	_, ok := b.viewOf(p).tools[name]
	return ok
}

// Prompts implements tool.Foreign.
func (b *Book) Prompts(p auth.Principal) []tool.Item { return b.viewOf(p).promptList }

// Resources implements tool.Foreign.
func (b *Book) Resources(p auth.Principal) []tool.Item { return b.viewOf(p).resourceList }

// Templates implements tool.Foreign.
func (b *Book) Templates(p auth.Principal) []tool.Item { return b.viewOf(p).templateList }

// query is one request to a server.
type query struct {
	method   string
	params   object
	meta     object
	schema   json.RawMessage
	client   tool.Client
	inputs   tool.Inputs
	progress func(text string) // for those who are no clients of MCP
}

// Call implements tool.Source.
func (b *Book) Call(ctx context.Context, c tool.Call) (*tool.Result, error) {
	e, ok := b.viewOf(c.Principal).tools[c.Name]
	if !ok {
		return nil, fault.New(fault.NotFound, "unknown tool %q", clip(c.Name))
	}
	args := c.Args
	if len(args) == 0 || string(args) == "null" {
		args = json.RawMessage("{}")
	}
	if !isObject(args) {
		return nil, fault.New(fault.InvalidParameters, "arguments must be a JSON object").With("argument", "arguments")
	}
	raw, err := e.server.request(ctx, query{method: "tools/call", params: object{"name": quoted(e.Remote), "arguments": args},
		meta: c.Meta, schema: e.Schema, client: c.Client, inputs: c.Inputs, progress: c.Progress})
	if err != nil {
		return nil, err
	}
	safe, isError, err := safeResult(raw)
	if err != nil {
		return nil, err
	}
	return &tool.Result{Raw: safe, IsError: isError}, nil
}

// Pass implements tool.Foreign.
func (b *Book) Pass(ctx context.Context, r tool.Request) (json.RawMessage, error) {
	v := b.viewOf(r.Principal)
	q := query{method: r.Method, params: object{}, meta: r.Meta, client: r.Client, inputs: r.Inputs}
	for k, p := range r.Params {
		q.params[k] = p
	}
	var s *server
	switch r.Method {
	case "prompts/get":
		e, ok := v.prompts[asText(r.Params["name"])]
		if !ok {
			return nil, fault.New(fault.InvalidParameters, "unknown prompt %q", clip(asText(r.Params["name"])))
		}
		s, q.params["name"] = e.server, quoted(e.Remote)
	case "resources/read":
		uri := asText(r.Params["uri"])
		owner, remote := v.resource(uri)
		if owner == nil {
			return nil, fault.New(fault.NotFound, "resource not found: %s", clip(uri))
		}
		s, q.params["uri"] = owner, quoted(remote)
	case "completion/complete":
		var err error
		if s, err = v.complete(q.params); err != nil || s == nil {
			return json.RawMessage(`{"completion":{"values":[]}}`), err
		}
	default:
		return nil, fault.New(fault.NotFound, "no server answers %s", clip(r.Method))
	}
	raw, err := s.request(ctx, q)
	if err != nil {
		return nil, err
	}
	return safeObject(raw)
}

// safeObject makes a result that is no tool's fit for clients.
func safeObject(raw json.RawMessage) (json.RawMessage, error) {
	var r object
	if err := json.Unmarshal(raw, &r); err != nil || r == nil || deep(raw) {
		return nil, fault.New(fault.Connection, "the server's answer is no object, or nested too deep")
	}
	if len(raw) > maxResult {
		return nil, fault.New(fault.ResourceLimit, "the server's answer has %d bytes, and %d are passed on", len(raw), maxResult).
			With("resource_type", "result_bytes").With("current_usage", len(raw)).With("limit", maxResult)
	}
	cleaned(r)
	if string(r["resultType"]) != `"input_required"` {
		delete(r, "resultType")
	}
	var contents []object
	if json.Unmarshal(r["contents"], &contents) == nil {
		for _, c := range contents {
			if isString(c["blob"]) && notBase64(c["blob"]) != "" {
				delete(c, "blob")
				c["text"] = quoted("[data that is not base64 was left out]")
			}
			cleaned(c)
		}
		r["contents"], _ = json.Marshal(contents)
	}
	var messages []object
	if json.Unmarshal(r["messages"], &messages) == nil {
		for _, m := range messages {
			if isObject(m["content"]) {
				m["content"] = safeBlock(m["content"])
			}
		}
		r["messages"], _ = json.Marshal(messages)
	}
	return json.Marshal(r)
}

// resource finds who has a resource, and under which URI of its own.
func (v *view) resource(uri string) (*server, string) {
	if e, ok := v.resources[uri]; ok {
		return e.server, e.Remote
	}
	if rest, ok := strings.CutPrefix(uri, ownScheme); ok {
		if id, remote, ok := strings.Cut(rest, ":"); ok {
			for _, s := range v.servers() {
				if strings.EqualFold(s.id, id) {
					return s, remote
				}
			}
		}
	}
	for _, e := range v.templates {
		if matches(e.Key, uri) {
			return e.server, uri
		}
	}
	// A link in a result need not be listed.
	var only *server
	for _, s := range v.servers() {
		s.mu.Lock()
		can := s.live != nil && s.live.session.Can().Resources || len(s.rec.Catalog.Resources)+len(s.rec.Catalog.Templates) > 0
		s.mu.Unlock()
		if can {
			if only != nil {
				return nil, ""
			}
			only = s
		}
	}
	return only, uri
}

// servers are those who offer anything, each once.
func (v *view) servers() []*server {
	var all []*server
	seen := map[*server]bool{}
	add := func(s *server) {
		if !seen[s] {
			seen[s] = true
			all = append(all, s)
		}
	}
	for _, t := range v.list {
		add(v.tools[t.Name].server)
	}
	for _, i := range v.resourceList {
		add(v.resources[i.Key].server)
	}
	for _, e := range v.templates {
		add(e.server)
	}
	return all
}

// complete finds whose prompt or template a completion is about.
func (v *view) complete(params object) (*server, error) {
	var ref object
	if json.Unmarshal(params["ref"], &ref) != nil {
		return nil, fault.New(fault.InvalidParameters, "ref must be an object").With("argument", "ref")
	}
	var s *server
	switch name, uri := asText(ref["name"]), asText(ref["uri"]); {
	case name != "":
		e, ok := v.prompts[name]
		if !ok {
			return nil, fault.New(fault.InvalidParameters, "unknown prompt %q", clip(name))
		}
		s, ref["name"] = e.server, quoted(e.Remote)
	case uri != "":
		if e, ok := v.byTemplate[uri]; ok {
			s, ref["uri"] = e.server, quoted(e.Remote)
		}
		if s == nil {
			owner, remote := v.resource(uri)
			if owner == nil {
				return nil, fault.New(fault.InvalidParameters, "unknown resource %q", clip(uri))
			}
			s, ref["uri"] = owner, quoted(remote)
		}
	}
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	can := s.live == nil || s.live.session.Can().Completions
	s.mu.Unlock()
	if !can {
		return nil, nil
	}
	params["ref"], _ = json.Marshal(ref)
	return s, nil
}

// request makes one call of a client, and starts the server when it does not
// run. A session that the server has forgotten is begun anew, once.
func (s *server) request(ctx context.Context, q query) (json.RawMessage, error) {
	for attempt := 0; ; attempt++ {
		raw, err := s.once(ctx, q)
		if errors.Is(err, upstream.ErrLost) && attempt == 0 {
			continue
		}
		return raw, err
	}
}

func (s *server) once(ctx context.Context, q query) (json.RawMessage, error) {
	stop := q.patience(s)
	l, release, err := s.use(ctx)
	stop()
	if err != nil {
		return nil, err
	}
	defer release()
	older := l.session.Version() < newerEra
	s.mu.Lock()
	alone := older && s.rec.Asks
	s.mu.Unlock()
	f, err := l.board(ctx, q.client, alone)
	if err != nil {
		return nil, s.callFault(l, q, err)
	}
	defer l.land(f)
	began := time.Now()
	raw, err := l.rounds(ctx, q, f)
	if err != nil {
		return nil, s.callFault(l, q, err)
	}
	s.worked(time.Since(began))
	return raw, nil
}

// patience tells a client that waits for a server to start, after a second.
func (q query) patience(s *server) (stop func()) {
	say := func(text string) {
		if q.client != nil {
			b, _ := json.Marshal(map[string]any{"progress": 0, "message": text})
			q.client.Tell("notifications/progress", b)
		} else if q.progress != nil {
			q.progress(text)
		}
	}
	t := time.AfterFunc(time.Second, func() { say(fmt.Sprintf("Starting the MCP server %q", s.name)) })
	return func() { t.Stop() }
}

// watchdog ends a call that gives no sign of life: no answer and no progress,
// while its client is not asked.
type watchdog struct {
	limit time.Duration
	asked func() bool
	stop  context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
}

func watch(ctx context.Context, limit time.Duration, asked func() bool) (context.Context, *watchdog) {
	ctx, stop := context.WithCancelCause(ctx)
	w := &watchdog{limit: limit, asked: asked, stop: stop}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(limit, func() {
		if asked() {
			w.alive()
			return
		}
		stop(upstream.ErrTimeout)
	})
	return ctx, w
}

func (w *watchdog) alive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Reset(w.limit)
}

func (w *watchdog) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.stop(nil)
}

const maxRounds = 10

// rounds makes the call, and those that follow when a server of the newer era
// asks for input and the client is one that is asked while it waits.
func (l *live) rounds(ctx context.Context, q query, f *flight) (json.RawMessage, error) {
	ctx, dog := watch(ctx, l.settings.call(), func() bool { return l.isAsked(f) })
	defer dog.end()
	relay := func(params json.RawMessage) {
		dog.alive()
		q.relay(params)
	}
	r := upstream.Request{Method: q.method, Params: q.params, Meta: q.meta, Schema: q.schema, Timeout: callMost, Most: callMost,
		Capabilities: json.RawMessage("{}"), Progress: relay}
	if q.client != nil {
		r.Capabilities = q.client.Can()
	}
	if !q.inputs.Empty() {
		r.Params = with(r.Params, q.inputs.Responses, q.inputs.State)
	}
	for range maxRounds {
		raw, err := l.session.Call(ctx, r)
		if err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, upstream.ErrTimeout) {
				err = cause
			}
			return nil, err
		}
		var asks struct {
			ResultType    string          `json:"resultType"`
			InputRequests map[string]need `json:"inputRequests"`
			RequestState  string          `json:"requestState"`
		}
		if !strings.Contains(string(raw[:min(len(raw), 1<<20)]), "input_required") || json.Unmarshal(raw, &asks) != nil || asks.ResultType != "input_required" {
			return raw, nil
		}
		if q.client != nil && q.client.Retries() {
			return raw, nil
		}
		l.asking(f, true)
		answers, err := q.answers(ctx, asks.InputRequests)
		l.asking(f, false)
		dog.alive()
		if err != nil {
			return nil, err
		}
		r.Params = with(q.params, answers, asks.RequestState)
	}
	return nil, fault.New(fault.Connection, "the server asked for input %d times, and that is enough", maxRounds)
}

// need is something that a server of the newer era wants to know.
type need struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// answers asks the client for all of it.
func (q query) answers(ctx context.Context, needs map[string]need) (json.RawMessage, error) {
	if len(needs) > 16 {
		return nil, fault.New(fault.Connection, "the server asks for %d things at once", len(needs))
	}
	all := object{}
	for name, n := range needs {
		if q.client == nil {
			return nil, fault.New(fault.Connection, "the server wants to ask something (%s), and this client cannot be asked: use an MCP client that can", clip(n.Method))
		}
		a, err := q.client.Ask(ctx, n.Method, n.Params)
		if err != nil {
			return nil, err
		}
		all[name] = a
	}
	return json.Marshal(all)
}

// with returns parameters and what a client brings beside.
func with(params object, responses json.RawMessage, state string) object {
	out := object{}
	for k, v := range params {
		out[k] = v
	}
	if len(responses) > 0 {
		out["inputResponses"] = responses
	}
	if state != "" {
		out["requestState"] = quoted(state)
	}
	return out
}

// relay passes progress on.
func (q query) relay(params json.RawMessage) {
	if q.client != nil {
		q.client.Tell("notifications/progress", params)
		return
	}
	var p struct{ Message string }
	if q.progress != nil && json.Unmarshal(params, &p) == nil && p.Message != "" {
		q.progress(text(p.Message, 1000))
	}
}

// callFault says in words why a call was not answered.
func (s *server) callFault(l *live, q query, err error) error {
	var f *fault.Error
	var said *upstream.Error
	switch {
	case errors.As(err, &said):
		return &tool.Refusal{Code: said.Code, Message: text(said.Message, 4000), Data: said.Data}
	case errors.As(err, &f):
		return f
	case errors.Is(err, upstream.ErrLost):
		<-l.session.Done()
		s.lost(l)
		return fmt.Errorf("%w: %w", upstream.ErrLost, s.fault(fault.Connection, err, "has forgotten its session"))
	case errors.Is(err, context.Canceled):
		return fault.From(context.Canceled)
	case errors.Is(err, upstream.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return s.fault(fault.Connection, err, "did not answer within %s of its last sign of life; it was told to stop", l.settings.call())
	case errors.Is(err, upstream.ErrTooLarge):
		return s.fault(fault.Connection, err, "answered with more than is taken")
	}
	select {
	case <-l.session.Done():
		how, itself := l.how(farewell)
		if itself {
			return s.fault(fault.Connection, err, "died during the call: %s. It is started again when it is used", how)
		}
		return s.fault(fault.Connection, err, "is gone: the connection to it ended during the call. It is made again when it is used")
	default:
	}
	return s.fault(fault.Connection, err, "could not be asked: %s", text(err.Error(), 500))
}

// Subscribe implements tool.Foreign.
func (b *Book) Subscribe(ctx context.Context, p auth.Principal, uri string) error {
	s, remote := b.viewOf(p).resource(uri)
	if s == nil {
		return nil // ours, or none that changes
	}
	l, release, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer release()
	s.mu.Lock()
	full := len(s.follows) >= maxDefinitions
	follows := s.follows[remote] > 0
	if follows {
		s.follows[remote]++
	}
	s.mu.Unlock()
	if follows {
		return nil
	}
	if full {
		return fault.New(fault.ResourceLimit, "%d resources of one server are followed already", maxDefinitions).With("resource_type", "subscriptions").With("limit", maxDefinitions)
	}
	if err := l.session.Subscribe(ctx, remote); err != nil {
		return s.callFault(l, query{method: "resources/subscribe"}, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.follows[remote]++
	return nil
}

// Unsubscribe implements tool.Foreign.
func (b *Book) Unsubscribe(ctx context.Context, p auth.Principal, uri string) error {
	s, remote := b.viewOf(p).resource(uri)
	if s == nil {
		return nil
	}
	s.mu.Lock()
	l, follows := s.live, s.follows[remote]
	if follows > 1 {
		s.follows[remote]--
	} else {
		delete(s.follows, remote)
	}
	s.mu.Unlock()
	if l == nil || follows != 1 {
		return nil
	}
	if err := l.session.Unsubscribe(ctx, remote); err != nil {
		return s.callFault(l, query{method: "resources/unsubscribe"}, err)
	}
	return nil
}

// SetLevel implements tool.Foreign.
func (b *Book) SetLevel(ctx context.Context, p auth.Principal, level string) {
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, s := range b.all(p.ID) {
		s.mu.Lock()
		more := slices.Index(levels, level) < slices.Index(levels, s.level) || s.level == ""
		if more { // one client that wants less does not silence the others
			s.level = level
		}
		l := s.live
		s.mu.Unlock()
		if more && l != nil && l.session.Can().Logging {
			all.Go(func() { _ = l.session.SetLevel(ctx, level) }) // it says less then
		}
	}
	all.Wait()
}

// levels of MCP's logging, the most talkative first.
var levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
