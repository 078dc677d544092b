package live

import (
	"context"
	"encoding/json"
	"net/url"
	"path"
	"strconv"
	"strings"

	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// kind is a kind of channel.
type kind struct {
	// serve serves a channel until it ends. What it returns goes to the client.
	serve func(*channel) (any, error)
	most  int // of a connection: what is read for one is read for each
}

const terminalKind = "terminal"

var kinds = map[string]kind{
	"events":     {(*channel).events, 8},
	"files":      {(*channel).files, 4},
	processKind:  {(*channel).process, 16},
	"questions":  {states((*hub.Hub).WatchQuestions), 4},
	"sessions":   {states((*hub.Hub).WatchSessions), 4},
	"servers":    {states((*hub.Hub).WatchServers), 4},
	"templates":  {states((*hub.Hub).WatchTemplates), 4},
	"images":     {states((*hub.Hub).WatchImages), 4},
	"log":        {(*channel).log, 8},
	terminalKind: {(*channel).serveTerminal, maxChannels},
}

// eventArgs are the arguments of a channel of events, as of GET /v1/events.
type eventArgs struct {
	Kinds     []string `json:"kinds"`
	Session   string   `json:"session"`
	Principal string   `json:"principal"`
	Cursor    string   `json:"cursor"`
	Since     string   `json:"since"`
	Limit     int      `json:"limit"`
}

func (a eventArgs) query() url.Values {
	q := url.Values{"session": {a.Session}, "principal": {a.Principal}, "since": {a.Since}}
	if len(a.Kinds) > 0 {
		q.Set("kind", strings.Join(a.Kinds, ","))
	}
	if a.Limit != 0 {
		q.Set("limit", strconv.Itoa(a.Limit))
	}
	return q
}

// arguments decodes the arguments of a channel, which may be left out, and forgets their text.
func (ch *channel) arguments(a any) error {
	raw := ch.args
	ch.args = nil
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	return decode(raw, a, "args")
}

// events serves events: those that have happened, and then new ones.
func (ch *channel) events() (any, error) {
	var a eventArgs
	if err := ch.arguments(&a); err != nil {
		return nil, err
	}
	c := ch.client
	q, err := c.server.EventQuery(a.query(), a.Cursor)
	if err != nil {
		return nil, err
	}
	all, err := c.server.Hub.ReadEvents(ch.ctx, c.principal, q)
	if err != nil {
		return nil, err
	}
	defer all.Close()
	if err := ch.tell("opened", struct{}{}); err != nil {
		return nil, err
	}
	err = all.Past(ch.ctx, func(e hub.PastEvent) error {
		if e.ID == 0 {
			return ch.put("lost", "", protocol.Lost{Unknown: true})
		}
		return ch.put("data", all.Cursor(e.ID), json.RawMessage(e.JSON))
	})
	if err != nil {
		return nil, err
	}
	// A face has to know when there is nothing to show, and not only nothing yet.
	if err := ch.tell("current", nil); err != nil {
		return nil, err
	}
	for {
		events, lost, err := all.Next(ch.ctx)
		if c.server.Hub.Stops() {
			err = hub.ErrStops
		}
		if err != nil {
			return nil, err
		}
		if lost.Any() {
			if err := ch.put("lost", "", protocol.Lost(lost)); err != nil {
				return nil, err
			}
		}
		for i := range events {
			if err := ch.put("data", all.Cursor(events[i].ID), events[i]); err != nil {
				return nil, err
			}
		}
	}
}

// logArgs are the arguments of a channel of a third-party server's log.
type logArgs struct {
	Server string `json:"server"` // name or id
	Cursor string `json:"cursor"`
}

// log serves the log of a third-party server, as it grows.
func (ch *channel) log() (any, error) {
	var a logArgs
	if err := ch.arguments(&a); err != nil {
		return nil, err
	}
	c := ch.client
	l, err := c.server.Hub.FollowServerLog(ch.ctx, c.principal, hub.ServerName(a.Server), a.Cursor)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if err := ch.tell("opened", map[string]string{"connection_id": l.ConnectionID()}); err != nil {
		return nil, err
	}
	if l.Anew() {
		if err := ch.put("lost", "", protocol.Lost{Unknown: true}); err != nil {
			return nil, err
		}
	}
	for {
		// Not before there is room: what is lost meanwhile is counted.
		if err := ch.await(ch.ctx); err != nil {
			return nil, err
		}
		part, cursor, err := l.Next(ch.ctx)
		if err != nil {
			return nil, err
		}
		if err := ch.put("data", cursor, part); err != nil {
			return nil, err
		}
	}
}

// states serves the state of things, and its changes.
func states(watch func(*hub.Hub, context.Context, auth.Principal) (hub.Live, error)) func(*channel) (any, error) {
	return func(ch *channel) (any, error) {
		if err := ch.arguments(&struct{}{}); err != nil {
			return nil, err
		}
		all, err := watch(ch.client.server.Hub, ch.ctx, ch.client.principal)
		if err != nil {
			return nil, err
		}
		return nil, ch.push(all)
	}
}

// fileArgs are the arguments of a channel of the files in a folder.
type fileArgs struct {
	Session string `json:"session_id"`
	Path    string `json:"path"`
}

// files serves what is in a folder, and its changes.
func (ch *channel) files() (any, error) {
	var a fileArgs
	if err := ch.arguments(&a); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(a.Path, "/") {
		return nil, fault.Argument("path", "path must be the absolute path of a folder")
	}
	folder := hub.FilePath{SessionID: hub.SessionID(a.Session), Path: path.Clean(a.Path)}
	all, err := ch.client.server.Hub.WatchFiles(ch.ctx, ch.client.principal, folder)
	if err != nil {
		return nil, err
	}
	return nil, ch.push(all)
}

// push sends a state and its changes, until the channel ends.
func (ch *channel) push(all hub.Live) error {
	defer all.Close()
	if err := ch.tell("opened", struct{}{}); err != nil {
		return err
	}
	for {
		// Not before there is room: meanwhile the changes of each thing become one.
		if err := ch.await(ch.ctx); err != nil {
			return err
		}
		changes, err := all.Next(ch.ctx)
		if err != nil {
			return err
		}
		for _, change := range changes {
			if err := ch.put("data", "", change); err != nil {
				return err
			}
		}
	}
}
