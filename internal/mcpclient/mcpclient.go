// Package mcpclient speaks MCP as a client to one third-party server: raw,
// bounded, and in wire order.
//
// What the server sends passes as it came: numbers, unknown fields and unknown
// kinds of content are never decoded. Whatever it sends, or leaves out, a call
// ends: sizes, counts and times are bounded. Progress of a call is handed over before
// its result, in the order in which the server sent it.
//
// Locks, from outside in: notifying, then a Session's mu, then a queue's.
package mcpclient

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"sandlot/internal/mcpclient/transport"
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
	Name, Version string // of this client, as servers are told
	// Capabilities of this client: declared once in the stateful protocol, and in the
	// stateless one by requests that bring none; nil: {}
	Capabilities json.RawMessage
	Handshake    time.Duration // bounds everything until the session is ready; 0: 15 s
	// Probe is how long a program may leave server/discover unanswered; 0: 2 s, or a
	// third of Handshake if that is less
	Probe      time.Duration
	Older      bool // begin with initialize: the server spoke the stateful protocol the last time
	MaxMessage int  // bytes; 0: 16 MiB
	MaxList    int  // bytes of all pages of one list; 0: 16 MiB
	// Reserve makes the reservations for large messages, from when they are read; nil:
	// nothing is reserved.
	Reserve func() transport.Reservation
	Handler Handler      // nil: requests are refused, and notifications dropped
	Log     *slog.Logger // nil: nothing is logged
}

// Handler handles the requests and notifications of the server. Its methods may be
// called before Connect returns, and must not close the session.
type Handler interface {
	// HandleRequest answers a request of a server that speaks the stateful protocol:
	// elicitation/create, sampling/createMessage or roots/list. It runs in a goroutine
	// of its own, of which there are at most 16; further requests are refused. Its
	// context ends with the session, and when the server cancels the request. A
	// *transport.Error is sent as it is; other errors are not sent.
	HandleRequest(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
	// HandleNotification is called for each notification but those of progress and
	// cancellation, one after the other, in wire order. While it runs nothing more
	// is read, so it must not block, nor make calls. It is also called for changes of
	// which the notifications may have been lost with a stream that broke.
	HandleNotification(method string, params json.RawMessage)
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
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Capabilities are those that a server has declared.
type Capabilities struct {
	Tools, ToolsChanged         bool
	Prompts, PromptsChanged     bool
	Resources, ResourcesChanged bool
	Subscribe                   bool
	Completions, Logging        bool
}

// parseCapabilities reads a server's capabilities; what cannot be read is not there.
func parseCapabilities(raw json.RawMessage) Capabilities {
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
	var c Capabilities
	c.ToolsChanged, _, c.Tools = declared(all.Tools)
	c.PromptsChanged, _, c.Prompts = declared(all.Prompts)
	c.ResourcesChanged, c.Subscribe, c.Resources = declared(all.Resources)
	_, _, c.Completions = declared(all.Completions)
	_, _, c.Logging = declared(all.Logging)
	return c
}

// anyChanges reports whether the server announces changes of any of its lists.
func (c Capabilities) anyChanges() bool {
	return c.ToolsChanged || c.PromptsChanged || c.ResourcesChanged
}
