package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// heartbeat is the interval of comments in a stream of events without events.
const heartbeat = 15 * time.Second

// events sends events as server-sent events: those that have happened, and then, unless
// follow=false, new ones.
func (s *Server) events(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	q, err := eventQuery(r.URL.Query(), r.Header.Get("Last-Event-ID"))
	if err != nil {
		return err
	}
	all, err := s.Hub.ReadEvents(r.Context(), p, q)
	if err != nil {
		return err
	}
	defer all.Close()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies must forward each event at once
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	out := &eventWriter{w: w, flush: http.NewResponseController(w).Flush, cursor: all.Cursor}
	out.write(nil, event.Lost{}) // a heartbeat: the client sees that it is connected
	if err := all.Past(r.Context(), out.past); err != nil {
		out.write(nil, event.Lost{Unknown: true}) // the headers are sent: this is all that can be said
		return nil
	}
	if out.err == nil {
		out.err = out.flush()
	}
	if r.URL.Query().Get("follow") == "false" {
		return nil
	}
	for out.err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), heartbeat)
		events, lost, err := all.Next(ctx)
		cancel()
		if r.Context().Err() != nil || errors.Is(err, event.ErrClosed) {
			return nil
		}
		out.write(events, lost)
	}
	return nil
}

// maxEventLimit bounds the parameter limit.
const maxEventLimit = 10000

// eventQuery reads the query of a request for events. The cursor is that of the last event that its client has.
func eventQuery(q url.Values, cursor string) (e hub.EventQuery, err error) {
	e.Cursor, e.Session, e.Principal = cursor, q.Get("session"), q.Get("principal")
	for _, list := range q["kind"] {
		for kind := range strings.SplitSeq(list, ",") {
			k := event.Kind(kind)
			if !slices.Contains(event.Kinds, k) {
				return e, fault.Argument("kind", "kind %q must be one of %v", fault.Clip(kind),
					event.Kinds).With("allowed", event.Kinds)
			}
			e.Kinds = append(e.Kinds, k)
		}
	}
	if follow := q.Get("follow"); follow != "" && follow != "true" && follow != "false" {
		return e, fault.Argument("follow", "follow must be true or false")
	}
	if since := q.Get("since"); since != "" {
		if e.Since, err = parseSince(since); err != nil {
			return e, err
		}
	}
	if limit := q.Get("limit"); limit != "" {
		if e.Limit, err = strconv.Atoi(limit); err != nil || e.Limit < 1 || e.Limit > maxEventLimit {
			return e, fault.Argument("limit", "limit must be a number from 1 to %d", maxEventLimit)
		}
	}
	return e, nil
}

// parseSince parses a time, or a duration before now.
func parseSince(since string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, since); err == nil {
		return t, nil
	}
	d, err := config.ParseDuration(since)
	if err != nil || d <= 0 {
		return time.Time{}, fault.Argument("since", "since must be a time such as 2026-01-31T12:00:00Z, or a duration "+
			"such as 90s, 30m, 12h or 7d")
	}
	return time.Now().Add(-d), nil
}

// eventWriter writes server-sent events. After an error it writes nothing more.
type eventWriter struct {
	w      http.ResponseWriter
	flush  func() error
	cursor func(id uint64) string
	err    error
}

// write writes the count of lost events and the events; without either, a heartbeat.
func (o *eventWriter) write(events []event.Event, lost event.Lost) {
	if lost.Any() {
		o.json("lost", "", protocol.Lost(lost))
	}
	for _, e := range events {
		o.json(string(e.Kind), o.cursor(e.ID), e)
	}
	if len(events) == 0 && !lost.Any() && o.err == nil {
		_, o.err = fmt.Fprint(o.w, ": heartbeat\n\n")
	}
	if o.err == nil {
		o.err = o.flush()
	}
}

// past writes an event that has happened.
func (o *eventWriter) past(e hub.PastEvent) error {
	if e.ID == 0 {
		o.json("lost", "", protocol.Lost{Unknown: true})
	} else {
		o.event(string(e.Kind), o.cursor(e.ID), e.JSON)
	}
	return o.err
}

func (o *eventWriter) json(kind, id string, data any) {
	b, err := json.Marshal(data)
	if err != nil {
		o.err = cmp.Or(o.err, err)
		return
	}
	o.event(kind, id, b)
}

func (o *eventWriter) event(kind, id string, data []byte) {
	if o.err != nil {
		return
	}
	if id != "" {
		id = "id: " + id + "\n"
	}
	_, o.err = fmt.Fprintf(o.w, "%sevent: %s\ndata: %s\n\n", id, kind, data)
}
