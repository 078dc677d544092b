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

// Events is what a principal reads of the stream of events: their own, or, as an
// operator, all. Close ends it.
type Events struct {
	*event.Subscription
	epoch string
}

// ReadEvents begins to read events of those kinds, and of that session, where they
// are given. After is the place behind which to begin, as Place gave it; empty: with
// the oldest that are kept. Where it is not known any more, what is kept comes, and
// that something is lost.
func (h *Hub) ReadEvents(ctx context.Context, p auth.Principal, f event.Filter, after string) (*Events, error) {
	// Who reads is no event: they would only read of themselves.
	if _, err := h.begin(Request{Principal: p, Operation: policy.EventRead}); err != nil {
		return nil, err
	}
	if h.Events == nil {
		return nil, fault.New(fault.NotFound, "this server keeps no events")
	}
	if id, err := h.Sessions.Find(p, f.Session); f.Session != "" && err == nil {
		f.Session = id // of their home, say
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

// Place is what ReadEvents takes to go on behind an event.
func (e *Events) Place(id uint64) string { return e.epoch + "-" + strconv.FormatUint(id, 10) }

// since is the id that a place means; false: it is of another server, or none.
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
