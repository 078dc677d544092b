package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/question"
	"sandlot/internal/tool"
)

// Live is what an edge pushes to a client: the state of things first, and then what changes.
type Live interface {
	// Next returns what is to be sent next. It waits for it, until ctx ends. The first call returns all.
	Next(ctx context.Context) ([]any, error)
	// Close may be called once.
	Close()
}

// ErrStops is the error of Live.Next when the server stops.
var ErrStops = errors.New("the server stops")

// Stopping returns a channel that is closed when the server stops: then what is open for ever has to end.
func (h *Hub) Stopping() <-chan struct{} {
	if h.Events == nil {
		return nil
	}
	return h.Events.Closed()
}

// Stops reports whether the server stops.
func (h *Hub) Stops() bool {
	select {
	case <-h.Stopping():
		return true
	default:
		return false
	}
}

// QuestionChange is what a face is told of questions: all of them, or what happened to one.
type QuestionChange struct {
	Change    string               `json:"change"` // all, asked or ended
	Questions *[]question.Question `json:"questions,omitempty"`
	Question  *question.Question   `json:"question,omitempty"`
	ID        string               `json:"id,omitempty"`
	How       question.How         `json:"how,omitempty"`
	Answer    string               `json:"answer,omitempty"`
}

// SessionsChange and ServersChange are what a face is told of sessions and third-party servers: all of them, or one that
// is new or has changed, or one that is gone.
type (
	SessionsChange struct {
		Change   string        `json:"change"` // all, put or removed
		Sessions *[]SessionRow `json:"sessions,omitempty"`
		Session  *SessionRow   `json:"session,omitempty"`
		ID       string        `json:"session_id,omitempty"`
	}
	ServersChange struct {
		Change  string       `json:"change"` // all, put or removed
		Servers *[]ServerRow `json:"servers,omitempty"`
		Server  *ServerRow   `json:"server,omitempty"`
		ID      string       `json:"connection_id,omitempty"`
	}
)

// The values of Change.
const (
	changeAll     = "all"
	changeAsked   = "asked"
	changeEnded   = "ended"
	changePut     = "put"
	changeRemoved = "removed"
)

// watched is the request of a client that watches. Watching is no event, as the reads that it stands for are none.
type watched struct {
	hub     *Hub
	request Request
}

func (h *Hub) watch(ctx context.Context, p auth.Principal, o policy.Operation) (watched, error) {
	w := watched{h, Request{Principal: p, Operation: o}}
	_, err := h.authorize(ctx, w.request)
	return w, err
}

// again asks policy again, before more is told: rules may have changed. Nobody is asked.
func (w watched) again(ctx context.Context) error {
	d := w.hub.decide(w.request)
	if d.Effect != policy.Refuse {
		return nil
	}
	err := d.Err()
	w.hub.active(ctx, w.request).publish(fault.From(err).Code(), 0)
	return err
}

// WatchQuestions begins to watch the questions that listQuestions lists.
func (h *Hub) WatchQuestions(ctx context.Context, p auth.Principal) (Live, error) {
	w, err := h.watch(ctx, p, policy.QuestionList)
	if err != nil {
		return nil, err
	}
	l := &liveQuestions{watched: w}
	if h.Questions != nil {
		l.watch, l.first = h.Questions.Watch(questionsOf(p))
		l.end = h.asking.watch(p.ID)
	}
	return l, nil
}

// questionsOf returns whose questions a principal sees; nil: everyone's.
func questionsOf(p auth.Principal) func(id string) bool {
	if p.HasRole(auth.Operator) {
		return nil
	}
	return func(id string) bool { return id == p.ID }
}

type liveQuestions struct {
	watched
	watch *question.Watch // nil: there are no questions
	first []question.Question
	end   func() // of the person's presence; nil as watch is
	begun bool
}

// Next implements Live.
func (l *liveQuestions) Next(ctx context.Context) ([]any, error) {
	if !l.begun {
		l.begun = true
		return []any{allQuestions(l.first)}, nil
	}
	if l.watch == nil {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	changes, all, anew, err := l.watch.Next(ctx)
	switch {
	case errors.Is(err, question.ErrClosed):
		return nil, ErrStops
	case err != nil:
		return nil, err
	}
	if err := l.again(ctx); err != nil {
		return nil, err
	}
	if anew {
		return []any{allQuestions(all)}, nil
	}
	out := make([]any, len(changes))
	for i, c := range changes {
		if c.Asked != nil {
			out[i] = QuestionChange{Change: changeAsked, Question: c.Asked}
		} else {
			out[i] = QuestionChange{Change: changeEnded, ID: c.ID, How: c.How, Answer: c.Answer}
		}
	}
	return out, nil
}

func allQuestions(all []question.Question) QuestionChange {
	if all == nil {
		all = []question.Question{}
	}
	return QuestionChange{Change: changeAll, Questions: &all}
}

// Close implements Live.
func (l *liveQuestions) Close() {
	if l.watch != nil {
		l.watch.Close()
		l.end()
	}
}

// rows are the rows of a list that one of Sandlot's tools makes, by their ids.
type rows map[string]any

// liveRows watches the rows of a list. It reads them anew when an event says that they may have changed, and tells what
// differs from what it told before. It wakes no session: neither does the tool.
type liveRows struct {
	watched
	events *event.Subscription
	told   map[string]string // the JSON of each row, by its id
	begun  bool
	read   time.Time // when rows were read last

	list    func(ctx context.Context, id string) (rows, error) // of one id, or of all
	all     func(rows) any
	put     func(row any) any
	removed func(id string) any
	// changed returns of which row an event tells; all is true if that is not known, and none if of no row.
	changed func(e *event.Event) (id string, all bool)
}

// readInterval is the shortest time between two reads of the rows of one watcher. Events come at any rate.
const readInterval = 250 * time.Millisecond

func (h *Hub) watchRows(ctx context.Context, p auth.Principal, o policy.Operation, l *liveRows) (*liveRows, error) {
	w, err := h.watch(ctx, p, o)
	if err != nil {
		return nil, err
	}
	l.watched, l.told = w, map[string]string{}
	if h.Events != nil {
		l.events = h.Events.Subscribe(event.Filter{Principal: p.ID}, h.Events.Newest())
	}
	return l, nil
}

// WatchSessions begins to watch the rows of get_sessions.
func (h *Hub) WatchSessions(ctx context.Context, p auth.Principal) (Live, error) {
	l := &liveRows{
		put:     func(row any) any { s := row.(SessionRow); return SessionsChange{Change: changePut, Session: &s} },
		removed: func(id string) any { return SessionsChange{Change: changeRemoved, ID: id} },
		all: func(r rows) any {
			all := sorted[SessionRow](r, func(s SessionRow) string { return s.Created + s.ID })
			return SessionsChange{Change: changeAll, Sessions: &all}
		},
		changed: func(e *event.Event) (string, bool) { return e.Session, false },
	}
	l.list = func(ctx context.Context, id string) (rows, error) {
		args := map[string]string{}
		if id != "" {
			args["session_id"] = id
		}
		list, err := rowsOf[*SessionList](ctx, h, p, sessionsTool, args)
		if err != nil {
			return nil, err
		}
		all := rows{}
		for _, s := range list.Sessions {
			all[s.ID] = s
		}
		return all, nil
	}
	l, err := h.watchRows(ctx, p, policy.SessionList, l)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// WatchServers begins to watch the rows of list_external_mcp.
func (h *Hub) WatchServers(ctx context.Context, p auth.Principal) (Live, error) {
	l := &liveRows{
		put:     func(row any) any { s := row.(ServerRow); return ServersChange{Change: changePut, Server: &s} },
		removed: func(id string) any { return ServersChange{Change: changeRemoved, ID: id} },
		all: func(r rows) any {
			all := sorted[ServerRow](r, func(s ServerRow) string { return s.Name + s.ConnectionID })
			return ServersChange{Change: changeAll, Servers: &all}
		},
		changed: func(e *event.Event) (string, bool) {
			return "", e.Kind == event.Connection || e.Kind == event.Call && aboutServers[policy.Operation(e.Operation)]
		},
	}
	l.list = func(ctx context.Context, _ string) (rows, error) {
		list, err := rowsOf[*ServerList](ctx, h, p, serversTool, nil)
		if err != nil {
			return nil, err
		}
		all := rows{}
		for _, s := range list.Servers {
			all[s.ConnectionID] = s
		}
		return all, nil
	}
	l, err := h.watchRows(ctx, p, policy.MCPList, l)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// aboutServers are the operations that change what the list of third-party servers says.
var aboutServers = map[policy.Operation]bool{policy.MCPConnect: true, policy.MCPInstall: true, policy.MCPApprove: true,
	policy.MCPRestart: true, policy.MCPDisconnect: true, policy.MCPCall: true, policy.SecretSet: true,
	policy.SecretRemove: true}

func sorted[T any](r rows, key func(T) string) []T {
	all := []T{}
	for _, row := range r {
		all = append(all, row.(T))
	}
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
	return all
}

// rowsOf returns the structured result of one of Sandlot's tools. What is pushed counts against no quota of calls, and is
// no event: policy was asked before.
func rowsOf[T any](ctx context.Context, h *Hub, p auth.Principal, name string, args map[string]string) (rows T,
	err error) {
	f, external, ok := h.findTool(p, name)
	if !ok || external {
		return rows, fault.New(fault.NotFound, "this server has none")
	}
	b, err := json.Marshal(args)
	if err != nil {
		return rows, err
	}
	r, err := f.Call(ctx, tool.NewCall(p, name, b, nil))
	if err != nil {
		return rows, err
	}
	rows, ok = r.Fields.(T)
	if !ok {
		err = fault.New(fault.Internal, "the list has the type %T", r.Fields)
	}
	return rows, err
}

// Next implements Live.
func (l *liveRows) Next(ctx context.Context) ([]any, error) {
	if !l.begun {
		all, err := l.list(ctx, "")
		if err != nil {
			return nil, err
		}
		l.begun = true
		l.remember(all)
		return []any{l.all(all)}, nil
	}
	for {
		ids, all, err := l.await(ctx)
		if err != nil {
			return nil, err
		}
		if err := l.again(ctx); err != nil {
			return nil, err
		}
		out, err := l.differences(ctx, ids, all)
		if len(out) > 0 || err != nil {
			return out, err
		}
	}
}

// await waits for events that tell of rows, and returns of which.
func (l *liveRows) await(ctx context.Context) (ids map[string]bool, all bool, err error) {
	if l.events == nil {
		<-ctx.Done()
		return nil, false, context.Cause(ctx)
	}
	ids = map[string]bool{}
	for len(ids) == 0 && !all {
		events, lost, err := l.events.Next(ctx)
		if err == nil {
			all = l.note(ids, events, lost)
		}
		switch {
		case errors.Is(err, event.ErrClosed):
			return nil, false, ErrStops
		case err != nil:
			return nil, false, err
		}
	}
	if wait := readInterval - time.Since(l.read); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
	for more := true; more; { // what has come meanwhile
		var events []event.Event
		var lost event.Lost
		events, lost, more = l.events.Read()
		all = l.note(ids, events, lost) || all
	}
	return ids, all, nil
}

func (l *liveRows) note(ids map[string]bool, events []event.Event, lost event.Lost) (all bool) {
	all = lost.Any()
	for i := range events {
		id, every := l.changed(&events[i])
		if all = all || every; id != "" {
			ids[id] = true
		}
	}
	return all
}

// differences reads rows, and returns what is to be told of them.
func (l *liveRows) differences(ctx context.Context, ids map[string]bool, all bool) (out []any, err error) {
	l.read = time.Now()
	found := rows{}
	if all {
		if found, err = l.list(ctx, ""); err != nil {
			return nil, err
		}
		for id := range l.told {
			ids[id] = true
		}
		for id := range found {
			ids[id] = true
		}
	}
	for id := range ids {
		row, ok := found[id]
		if !all {
			one, err := l.list(ctx, id)
			if err != nil && !fault.Is(err, fault.SessionNotFound) {
				return nil, err
			}
			row, ok = one[id]
		}
		text := textOf(row)
		switch was, told := l.told[id]; {
		case !ok && told:
			delete(l.told, id)
			out = append(out, l.removed(id))
		case ok && (!told || text != was):
			l.told[id] = text
			out = append(out, l.put(row))
		}
	}
	return out, nil
}

func (l *liveRows) remember(all rows) {
	for id, row := range all {
		l.told[id] = textOf(row)
	}
}

func textOf(row any) string {
	b, _ := json.Marshal(row) // every row can be encoded
	return string(b)
}

// Close implements Live.
func (l *liveRows) Close() {
	if l.events != nil {
		l.events.Close()
	}
}
