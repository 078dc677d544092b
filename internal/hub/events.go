package hub

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/audit"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// EventStats counts what happened to events since the server's start.
type EventStats = audit.Stats

// EventQuery selects events. Filter.Principal is a principal's id or name; only operators may
// name others than themselves.
type EventQuery struct {
	event.Filter
	// Cursor selects the events after the one with that cursor; empty: all.
	Cursor string
	// Since selects the events since then; zero: all.
	Since time.Time
	// Limit selects the newest events, up to that number. 0: all, if there is a Cursor or Since, and
	// else DefaultEvents.
	Limit int
}

// DefaultEvents is how many events a query without any bound selects.
const DefaultEvents = 1000

// Events are events that happened, and then those that happen.
type Events struct {
	*event.Subscription // nil before Past
	hub                 *Hub
	epoch               string
	query               audit.Query
	newest              bool   // the query selects the newest events
	after               uint64 // the subscription begins behind this id
	lost                bool   // events after the cursor may be missing
}

// PastEvent is an event that has happened. The zero value means that events are missing here.
type PastEvent struct {
	ID   uint64
	Kind event.Kind
	JSON []byte // with the fields of its chain, if it is stored
}

// ReadEvents returns the events that the query selects. An unknown cursor selects all events, and
// Past reports that events are missing. The caller calls Past, and then reads the
// subscription, until Close.
func (h *Hub) ReadEvents(ctx context.Context, p auth.Principal, q EventQuery) (*Events, error) {
	// Reading events publishes no event, which the reader would get too.
	if _, err := h.authorize(ctx, Request{Principal: p, Operation: policy.EventRead}); err != nil {
		return nil, err
	}
	if h.Events == nil {
		return nil, fault.New(fault.NotFound, "this server keeps no events")
	}
	if id, err := h.Sessions.Find(p, q.Session); q.Session != "" && err == nil {
		q.Session = id // "home" is an alias of an id
	}
	var err error
	if q.Filter.Principal, err = eventPrincipal(p, q.Filter.Principal); err != nil {
		return nil, err
	}
	e := &Events{hub: h, epoch: h.Events.Epoch}
	after, known := e.parseCursor(q.Cursor)
	e.lost, e.after = !known, after
	e.query = audit.Query{Filter: q.Filter, After: after, Since: q.Since, Limit: q.Limit}
	if q.Limit == 0 && q.Cursor == "" && q.Since.IsZero() {
		e.query.Limit = DefaultEvents
	}
	e.newest = e.query.Limit > 0
	if h.Recorder != nil {
		return e, e.find(ctx, h.Recorder)
	}
	return e, nil
}

// find finds the beginning and the end of the stored events that the query selects.
func (e *Events) find(ctx context.Context, r *audit.Recorder) error {
	r.Flush(ctx)
	pruned, newest, err := r.Store.EventRange(ctx)
	if err != nil {
		return err
	}
	e.lost = e.lost || e.after > 0 && e.after < pruned
	e.after = max(e.after, newest)
	if e.newest {
		e.query.After, err = r.Store.BeforeNewest(ctx, e.query)
	}
	return err
}

// eventPrincipal returns the id of the principal whose events p may read; empty: of all.
func eventPrincipal(p auth.Principal, wanted string) (string, error) {
	operator := p.HasRole(auth.Operator)
	switch {
	case wanted == "" && operator:
		return "", nil
	case wanted == "" || wanted == p.ID:
		return p.ID, nil
	case wanted == event.ServerPrincipal && operator:
		return wanted, nil
	}
	id, err := auth.ParseID(wanted)
	if err != nil {
		return "", fault.Argument("principal", "principal: %v", err)
	}
	if id != p.ID && !operator {
		return "", fault.New(fault.Forbidden, "only an operator may read the events of others")
	}
	return id, nil
}

// Past calls each for the events that have happened, in the order of their ids, and begins the
// subscription to those that happen later.
func (e *Events) Past(ctx context.Context, each func(PastEvent) error) error {
	if e.hub.Recorder == nil {
		e.Subscription = e.hub.Events.Subscribe(e.query.Filter, e.after)
		return e.remembered(each)
	}
	if e.lost {
		if err := each(PastEvent{}); err != nil {
			return err
		}
	}
	err := e.stored(ctx, e.hub.Recorder, each)
	e.Subscription = e.hub.Events.Subscribe(e.query.Filter, e.after)
	return err
}

// eventPage is how many stored events are read at once.
const eventPage = 500

// stored calls each for stored events.
func (e *Events) stored(ctx context.Context, r *audit.Recorder, each func(PastEvent) error) error {
	page := e.query
	page.Limit = eventPage
	for {
		rows, err := r.Store.Events(ctx, page)
		if err != nil {
			return err
		}
		for i := range rows {
			row := &rows[i]
			if err := each(PastEvent{row.ID, row.Kind, row.Line()}); err != nil {
				return err
			}
			page.After = row.ID
			e.after = max(e.after, row.ID)
		}
		if len(rows) < eventPage {
			return nil
		}
	}
}

// remembered calls each for the events in memory.
func (e *Events) remembered(each func(PastEvent) error) error {
	var all []event.Event
	for more := true; more; {
		var events []event.Event
		var lost event.Lost
		events, lost, more = e.Read()
		e.lost = e.lost || lost.Any()
		all = append(all, events...)
	}
	all = slices.DeleteFunc(all, func(v event.Event) bool { return v.Time.Before(e.query.Since) })
	if e.newest {
		all = all[max(len(all)-e.query.Limit, 0):]
	}
	if e.lost {
		if err := each(PastEvent{}); err != nil {
			return err
		}
	}
	for _, v := range all {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if err := each(PastEvent{v.ID, v.Kind, b}); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the subscription.
func (e *Events) Close() {
	if e.Subscription != nil {
		e.Subscription.Close()
	}
}

// Cursor returns the cursor with which ReadEvents continues after an event.
func (e *Events) Cursor(id uint64) string { return e.epoch + "-" + strconv.FormatUint(id, 10) }

// parseCursor returns the event id in a cursor; false: the cursor is malformed, or of other
// events, as those before a restart of a server that stores none.
func (e *Events) parseCursor(cursor string) (uint64, bool) {
	if cursor == "" {
		return 0, true
	}
	epoch, number, _ := strings.Cut(cursor, "-")
	id, err := strconv.ParseUint(number, 10, 64)
	if err != nil || epoch != e.epoch {
		return 0, false
	}
	return id, true
}
