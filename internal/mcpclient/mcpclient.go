// Package mcpclient is an MCP client for one third-party server. It passes on raw JSON, bounds what it
// reads, and keeps the order of the messages.
//
// Results and notifications of the server are returned unchanged: numbers, unknown
// fields and unknown kinds of content are never decoded. Every call ends, whatever the
// server sends or does not send: sizes, counts and times are bounded. A caller gets the
// progress of its call before the result, in the order in which the server sent it.
//
// Lock order: Session.handlerMu, then Session.mu, then queue.mu.
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
	defaultHandshakeTimeout = 15 * time.Second
	defaultProbeTimeout     = 2 * time.Second
	defaultTimeout          = time.Minute
	defaultMaxMessage       = 16 << 20
	defaultMaxList          = 16 << 20
)

// Options are the settings of a session.
type Options struct {
	Name, Version string // of this client; sent to the server
	// Capabilities of this client. The stateful protocol declares them once; in the
	// stateless protocol, requests without Capabilities of their own declare them. nil: {}
	Capabilities     json.RawMessage
	HandshakeTimeout time.Duration // bounds everything until the session is ready; 0: 15 s
	// ProbeTimeout is how long a program may leave server/discover unanswered until it gets initialize too; 0: 2 s,
	// or a third of HandshakeTimeout if that is less.
	ProbeTimeout  time.Duration
	StatefulFirst bool // send initialize first: the server spoke the stateful protocol last time
	MaxMessage    int  // bytes; 0: 16 MiB
	MaxLarge      int  // bytes of the result of a call with Request.Large; 0: MaxMessage
	MaxList       int  // bytes of all pages of one list; 0: 16 MiB
	// Reserve returns a new reservation, which accounts for the memory of a large message
	// while it is read and used; nil: memory is not accounted for.
	Reserve func() transport.Reservation
	Handler Handler      // nil: requests are refused, and notifications dropped
	Log     *slog.Logger // nil: nothing is logged
}

// Handler handles the requests and notifications of the server. Its methods may be
// called before Connect returns, and must not close the session.
type Handler interface {
	// HandleRequest answers a request of a server that speaks the stateful protocol:
	// elicitation/create, sampling/createMessage or roots/list. It runs in a goroutine
	// of its own. At most 16 requests are answered at once; further ones are refused.
	// The context ends with the session, and when the server cancels the request. A
	// *transport.Error is sent to the server; for other errors the server gets a fixed
	// message.
	HandleRequest(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
	// HandleNotification is called for each notification except progress and
	// cancellation: one at a time, in wire order. The session reads nothing while it
	// runs, so it must neither block nor make calls. After a stream broke, it is also
	// called with change notifications that the server may have sent and that got lost.
	HandleNotification(method string, params json.RawMessage)
}

func (o Options) withDefaults() Options {
	if len(o.Capabilities) == 0 {
		o.Capabilities = json.RawMessage("{}")
	}
	if o.HandshakeTimeout <= 0 {
		o.HandshakeTimeout = defaultHandshakeTimeout
	}
	if o.ProbeTimeout <= 0 {
		o.ProbeTimeout = min(defaultProbeTimeout, o.HandshakeTimeout/3)
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

// Capabilities are the capabilities that a server has declared.
type Capabilities struct {
	Tools, ToolsListChanged         bool
	Prompts, PromptsListChanged     bool
	Resources, ResourcesListChanged bool
	Subscribe                       bool
	Completions, Logging            bool
}

// parseCapabilities reads a server's capabilities. Invalid ones count as not declared.
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
	c.ToolsListChanged, _, c.Tools = declared(all.Tools)
	c.PromptsListChanged, _, c.Prompts = declared(all.Prompts)
	c.ResourcesListChanged, c.Subscribe, c.Resources = declared(all.Resources)
	_, _, c.Completions = declared(all.Completions)
	_, _, c.Logging = declared(all.Logging)
	return c
}

// anyListChanged reports whether the server sends list_changed notifications for any list.
func (c Capabilities) anyListChanged() bool {
	return c.ToolsListChanged || c.PromptsListChanged || c.ResourcesListChanged
}
