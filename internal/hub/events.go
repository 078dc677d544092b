package hub

import (
	"context"
	"strconv"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// Events is a principal's subscription to events: to their own, or, for an operator, to all.
type Events struct {
	*event.Subscription
	epoch string
}

// ReadEvents subscribes to the events that the filter selects, after the event with that
// cursor; empty: from the oldest stored event on. An unknown cursor selects all stored
// events, and the subscription reports that events are lost.
func (h *Hub) ReadEvents(ctx context.Context, p auth.Principal, f event.Filter, cursor string) (*Events, error) {
	// Reading events publishes no event, which the reader would get too.
	if _, err := h.authorize(Request{Principal: p, Operation: policy.EventRead}); err != nil {
		return nil, err
	}
	if h.Events == nil {
		return nil, fault.New(fault.NotFound, "this server keeps no events")
	}
	if id, err := h.Sessions.Find(p, f.Session); f.Session != "" && err == nil {
		f.Session = id // "home" is an alias of an id
	}
	if f.Principal = p.ID; p.HasRole(auth.Operator) {
		f.Principal = ""
	}
	e := &Events{epoch: h.Events.Epoch}
	since, known := e.parseCursor(cursor)
	e.Subscription = h.Events.Subscribe(f, since)
	if !known {
		e.MarkLost()
	}
	return e, nil
}

// Cursor returns the cursor with which ReadEvents continues after an event.
func (e *Events) Cursor(id uint64) string { return e.epoch + "-" + strconv.FormatUint(id, 10) }

// parseCursor returns the event id in a cursor; false: the cursor is malformed, or from before
// a restart of the server.
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
