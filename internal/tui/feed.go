package tui

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	tea "charm.land/bubbletea/v2"

	"sandlot/internal/api/client"
	"sandlot/internal/api/protocol"
	"sandlot/internal/event"
	"sandlot/internal/hub"
)

// What the feed tells the model.
type (
	online  struct{ me protocol.Principal }
	offline struct {
		why string
		in  time.Duration // until the next attempt
	}
	// ended: the server does not let the user in any more. Nothing is tried before the user asks for it.
	ended struct{ why string }
	// closed: a channel has ended, as the user may not see what it shows.
	closed struct{ kind, why string }
	lost   struct{}
)

// Channels of a connection.
var channels = []string{"questions", "sessions", "servers", "events"}

// How many events are asked for at first, and how long the feed waits after a break, at least and at most.
const (
	firstEvents = 100
	firstPause  = 250 * time.Millisecond
	lastPause   = 8 * time.Second
)

// feed carries the live channel's messages to the model, over breaks of the connection.
type feed struct {
	client *client.Client
	send   func(tea.Msg)
	again  chan struct{} // holds one element after the user asked for an attempt
	cursor string        // of the newest event
}

// run feeds the model until ctx ends.
func (f *feed) run(ctx context.Context) {
	pause := time.Duration(0)
	for {
		connected, err := f.connection(ctx)
		if ctx.Err() != nil {
			return
		}
		if connected {
			pause = 0
		}
		pause = min(lastPause, max(firstPause, 2*pause))
		after := time.After(pause)
		if refused(err) {
			f.send(ended{why(err)})
			after = nil
		} else {
			f.send(offline{why(err), pause})
		}
		select {
		case <-after:
		case <-f.again:
		case <-ctx.Done():
			return
		}
	}
}

// refused reports whether the server does not let the user in.
func refused(err error) bool {
	p, is := errors.AsType[*protocol.Problem](err)
	return errors.Is(err, client.ErrTokenEnded) ||
		is && (p.Status == http.StatusUnauthorized || p.Status == http.StatusForbidden)
}

func why(err error) string {
	if p, is := errors.AsType[*protocol.Problem](err); is {
		return p.Detail
	}
	return err.Error()
}

// connection serves one connection. It returns why that ended, and whether there was one.
func (f *feed) connection(ctx context.Context) (connected bool, err error) {
	live, err := f.client.Live(ctx)
	if err != nil {
		return false, err
	}
	defer live.Close()
	var on online
	if err := f.client.JSON(ctx, "GET", "/v1/principal", nil, &on.me); err != nil {
		return false, err
	}
	f.send(on)
	open := map[uint32]string{}
	for _, kind := range channels {
		if err := f.open(ctx, live, open, kind); err != nil {
			return true, err
		}
	}
	for {
		m, err := live.Next(ctx)
		if err != nil {
			return true, err
		}
		kind, known := open[m.Channel]
		switch {
		case !known:
		case m.Op == "closed" || m.Op == "error":
			delete(open, m.Channel)
			if err := f.closed(ctx, live, open, kind, m); err != nil {
				return true, err
			}
		case m.Op == "lost":
			f.send(lost{})
		case m.Op == "data":
			if err := f.data(kind, m); err != nil {
				return true, err
			}
		} // others say nothing that is shown, and a newer server may have more of them
	}
}

func (f *feed) open(ctx context.Context, live *client.Live, open map[uint32]string, kind string) error {
	args := map[string]any{}
	switch {
	case kind == "events" && f.cursor != "":
		args["cursor"] = f.cursor
	case kind == "events":
		args["limit"] = firstEvents
	}
	n, err := live.Open(ctx, kind, args)
	open[n] = kind
	return err
}

// closed opens the events again if the server does not know the cursor any more. What else ends stays so: the user may not
// see it.
func (f *feed) closed(ctx context.Context, live *client.Live, open map[uint32]string, kind string,
	m client.LiveMessage) error {
	if kind == "events" && f.cursor != "" && m.Error != nil && m.Error.Status == http.StatusBadRequest {
		f.cursor = ""
		return f.open(ctx, live, open, kind)
	}
	if m.Error != nil {
		f.send(closed{kind, m.Error.Detail})
	}
	return nil
}

// data passes on one change.
func (f *feed) data(kind string, m client.LiveMessage) (err error) {
	var c any
	switch kind {
	case "questions":
		var q hub.QuestionChange
		err = json.Unmarshal(m.Data, &q)
		c = q
	case "sessions":
		var s hub.SessionsChange
		err = json.Unmarshal(m.Data, &s)
		c = s
	case "servers":
		var s hub.ServersChange
		err = json.Unmarshal(m.Data, &s)
		c = s
	case "events":
		var e event.Event
		err = json.Unmarshal(m.Data, &e)
		c, f.cursor = e, m.Cursor
	}
	if err == nil {
		f.send(c)
	}
	return err
}
