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

// Events are the events that a principal reads: their own, or, as an operator, all. Close
// ends the reading.
type Events struct {
	*event.Subscription
	epoch string
}

// ReadEvents begins to read the events that the filter wants. After is the place after
// which to begin, as Place gave it; empty: before the oldest stored event. After an
// unknown place, all stored events come, and the reader is told that some are lost.
func (h *Hub) ReadEvents(ctx context.Context, p auth.Principal, f event.Filter, after string) (*Events, error) {
	// Reading events is no event itself: readers would read about themselves.
	if _, err := h.begin(Request{Principal: p, Operation: policy.EventRead}); err != nil {
		return nil, err
	}
	if h.Events == nil {
		return nil, fault.New(fault.NotFound, "this server keeps no events")
	}
	if id, err := h.Sessions.Find(p, f.Session); f.Session != "" && err == nil {
		f.Session = id // "home" has an id too
	}
	if f.Principal = p.ID; p.Has(auth.Operator) {
		f.Principal = ""
	}
	e := &Events{epoch: h.Events.Epoch}
	since, known := e.since(after)
	e.Subscription = h.Events.Subscribe(f, since)
	if !known {
		e.Missed()
	}
	return e, nil
}

// Place returns what ReadEvents takes to continue after an event.
func (e *Events) Place(id uint64) string { return e.epoch + "-" + strconv.FormatUint(id, 10) }

// since returns the id in a place; false: the place is malformed, or of a server before
// this one.
func (e *Events) since(place string) (uint64, bool) {
	if place == "" {
		return 0, true
	}
	epoch, number, _ := strings.Cut(place, "-")
	id, err := strconv.ParseUint(number, 10, 64)
	if err != nil || epoch != e.epoch {
		return 0, false
	}
	return id, true
}
