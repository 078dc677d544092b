// Package transport carries the JSON-RPC messages of one MCP session: over a program's
// standard input and output, Streamable HTTP, or HTTP+SSE. What servers send is hostile:
// messages, headers, redirects and times are bounded.
package transport

import (
	"context"
	"net/http"
)

// Transport carries the messages of one session.
type Transport interface {
	// Start begins to read messages within the limits, and passes them to the receiver, large ones with a reservation.
	Start(receiver Receiver, l Limits)
	// Send sends a message. For a request it may return before the message is sent; if
	// sending fails then, Receiver.Fail is called.
	Send(ctx context.Context, m Outgoing) error
	// Abandon tells the transport that the response to a request is not needed any more.
	Abandon(id int64)
	// Agreed is called after the handshake, with the negotiated revision.
	Negotiated(version string)
	// Traits returns the properties of the transport.
	Traits() Traits
	// Close closes the transport, and waits for its goroutines. The session calls it once.
	Close() error
}

// Traits are the properties in which transports differ.
type Traits struct {
	// StreamPerRequest: each request has a stream of its own. In the stateless protocol, to close
	// it cancels the request. A request that the server does not know does not affect
	// later ones.
	StreamPerRequest bool
	// StatefulOnly: the stateless protocol cannot be used over this transport.
	StatefulOnly bool
}

// Outgoing is a message to the server.
type Outgoing struct {
	Body   []byte
	ID     int64 // of a request; else 0
	Method string
	// For HTTP.
	Version string      // the revision of the protocol; "": not negotiated yet
	Header  http.Header // the headers that repeat parts of the body
}

// Receiver gets what a transport reads. Several goroutines may call its methods at once,
// but the messages of one stream come from one goroutine.
type Receiver interface {
	// Receive gets what may be a message, and its reservation, which it has to release.
	// It blocks while a caller does not keep up. It returns the id of the request that
	// the message answers, or 0, and whether b is a message at all.
	// It may keep and change b if that is larger than Limits.Message.
	Receive(b []byte, r Reservation) (answered int64, ok bool)
	// TakesLarge reports whether the response to a request may be larger than Limits.Message; 0: that to any request.
	TakesLarge(id int64) bool
	// Fail is called when a request will not be answered.
	Fail(id int64, err error)
	// Missed is called when notifications of the server may have been lost.
	NotificationsLost()
	// Lost is called when the transport has failed or the server has closed it.
	Ended(err error)
}

// Dial opens a transport. It is called again when the handshake needs a new program or
// connection: when the first did not answer server/discover, or ended.
type Dial func(ctx context.Context) (Transport, error)
