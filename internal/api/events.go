package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
)

// heartbeat is the interval of comments in a stream of events without events.
const heartbeat = 15 * time.Second

// events sends events as server-sent events: the stored ones, and then, unless
// follow=false, new ones.
func (s *Server) events(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	f, err := eventFilter(r)
	if err != nil {
		return err
	}
	all, err := s.Hub.ReadEvents(r.Context(), p, f, r.Header.Get("Last-Event-ID"))
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
	if r.URL.Query().Get("follow") == "false" {
		for more := true; more && out.err == nil; {
			var events []event.Event
			var lost event.Lost
			events, lost, more = all.Read()
			out.write(events, lost)
		}
		return nil
	}
	out.write(nil, event.Lost{}) // a heartbeat: the client sees that it is connected
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

// eventFilter reads the filter from the query of a request.
func eventFilter(r *http.Request) (f event.Filter, err error) {
	q := r.URL.Query()
	f.Session = q.Get("session")
	for _, list := range q["kind"] {
		for kind := range strings.SplitSeq(list, ",") {
			k := event.Kind(kind)
			if !slices.Contains(event.Kinds, k) {
				return f, fault.Argument("kind", "kind %q must be one of %v", fault.Clip(kind),
					event.Kinds).With("allowed", event.Kinds)
			}
			f.Kinds = append(f.Kinds, k)
		}
	}
	if follow := q.Get("follow"); follow != "" && follow != "true" && follow != "false" {
		return f, fault.Argument("follow", "follow must be true or false")
	}
	return f, nil
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
		o.event("lost", "", protocol.Lost(lost))
	}
	for _, e := range events {
		o.event(string(e.Kind), o.cursor(e.ID), e)
	}
	if len(events) == 0 && !lost.Any() && o.err == nil {
		_, o.err = fmt.Fprint(o.w, ": heartbeat\n\n")
	}
	if o.err == nil {
		o.err = o.flush()
	}
}

func (o *eventWriter) event(kind, id string, data any) {
	if o.err != nil {
		return
	}
	var b []byte
	if b, o.err = json.Marshal(data); o.err != nil {
		return
	}
	if id != "" {
		id = "id: " + id + "\n"
	}
	_, o.err = fmt.Fprintf(o.w, "%sevent: %s\ndata: %s\n\n", id, kind, b)
}
