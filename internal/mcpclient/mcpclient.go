// Package mcpclient speaks MCP as a client to one third-party server: raw,
// bounded, and in wire order.
//
// What the server sends passes as it came: numbers, unknown fields and unknown
// kinds of content are never decoded. Whatever it sends, or leaves out, a call
// ends: sizes, counts and times are bounded. What it announces of a call is
// handed over before the call's result, in the order in which it was sent.
package mcpclient

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"sandlot/internal/rawjson"
)

const (
	defaultHandshake  = 15 * time.Second
	defaultProbe      = 2 * time.Second
	defaultTimeout    = time.Minute
	defaultMaxMessage = 16 << 20
	defaultMaxList    = 16 << 20
)

// Options is what a session is made with.
type Options struct {
	Name, Version string // of us
	// of our client: declared once in the older era, and by requests that bring none in the newer;
	// nil: {}
	Capabilities json.RawMessage
	Handshake    time.Duration // bounds everything until the session is ready; 0: 15 s
	// how long a program may leave server/discover unanswered; 0: 2 s, or a third of Handshake if
	// that is less
	Probe      time.Duration
	Older      bool         // begin with initialize: the server spoke the older era the last time
	MaxMessage int          // bytes; 0: 16 MiB
	MaxList    int          // bytes of all pages of one list; 0: 16 MiB
	Room       func() Room  // bounds what large messages hold while they are read; nil: nothing does
	Handler    Handler      // nil: requests are refused, and announcements dropped
	Log        *slog.Logger // nil: nothing is logged
}

// Room is what one large message holds of what its owner may have in memory.
type Room interface {
	// Wait takes n bytes more. It waits until there is room, but not for ever.
	Wait(ctx context.Context, n int64) error
	// Keep gives back what was taken beyond n bytes.
	Keep(n int64)
	// Release gives all back. It may be called twice.
	Release()
}

// crowded is an error of Room.Wait.
type crowded struct{ error }

func (c crowded) Unwrap() error { return c.error }

// largeTime is how long a large message may take from when it has its room: others of
// its owner wait for that.
const largeTime = 2 * time.Minute

// wait returns a room with n bytes. The message has to be whole before largeTime is
// over, which whole says; else stop is called, to end what it comes on.
func wait(ctx context.Context, room func() Room, n int, stop func()) (_ Room, whole func(), _ error) {
	r := room()
	if err := r.Wait(ctx, int64(n)); err != nil {
		r.Release()
		return noRoom{}, func() {}, crowded{err}
	}
	t := time.AfterFunc(largeTime, stop)
	return r, func() { t.Stop() }, nil
}

// largeFrom is from how many bytes on a message needs room.
const largeFrom = 64 << 10

// noRoom is for messages that need none, and where nobody counts.
type noRoom struct{}

func (noRoom) Wait(context.Context, int64) error { return nil }
func (noRoom) Keep(int64)                        {}
func (noRoom) Release()                          {}

// Handler hears what the server asks and announces. Its methods may be called
// before Connect returns, and must not close the session.
type Handler interface {
	// Ask answers a request of a server of the older era: elicitation/create,
	// sampling/createMessage or roots/list. It runs in a goroutine of its own, of
	// which there are at most 16; further requests are refused. Its context ends
	// with the session, and when the server gives the request up. An *Error is
	// sent as it is; other errors stay here.
	Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
	// Announce is told of each notification but those of progress and
	// cancellation, one after the other, in wire order. While it runs nothing more
	// is read, so it must not block, nor make calls. A notification of a change
	// that may have been missed, because the way on which it would have come was
	// broken, is made up.
	Announce(method string, params json.RawMessage)
}

func (o Options) withDefaults() Options {
	if len(o.Capabilities) == 0 {
		o.Capabilities = json.RawMessage("{}")
	}
	if o.Handshake <= 0 {
		o.Handshake = defaultHandshake
	}
	if o.Probe <= 0 {
		o.Probe = min(defaultProbe, o.Handshake/3)
	}
	if o.MaxMessage <= 0 {
		o.MaxMessage = defaultMaxMessage
	}
	if o.MaxList <= 0 {
		o.MaxList = defaultMaxList
	}
	if o.Room == nil {
		o.Room = func() Room { return noRoom{} }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Can is what a server has declared that it can do.
type Can struct {
	Tools, ToolsChanged         bool
	Prompts, PromptsChanged     bool
	Resources, ResourcesChanged bool
	Subscribe                   bool
	Completions, Logging        bool
}

// parseCan reads capabilities; what cannot be read is not there.
func parseCan(raw json.RawMessage) Can {
	var all struct {
		Tools, Prompts, Resources, Completions, Logging json.RawMessage
	}
	_ = json.Unmarshal(raw, &all)
	declared := func(raw json.RawMessage) (changes, subscribe, ok bool) {
		var c struct{ ListChanged, Subscribe json.RawMessage }
		ok = rawjson.IsObject(raw)
		_ = json.Unmarshal(raw, &c)
		return string(c.ListChanged) == "true", string(c.Subscribe) == "true", ok
	}
	var c Can
	c.ToolsChanged, _, c.Tools = declared(all.Tools)
	c.PromptsChanged, _, c.Prompts = declared(all.Prompts)
	c.ResourcesChanged, c.Subscribe, c.Resources = declared(all.Resources)
	_, _, c.Completions = declared(all.Completions)
	_, _, c.Logging = declared(all.Logging)
	return c
}
