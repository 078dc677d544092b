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
	// Start begins to read. Messages have at most limit bytes. Large ones reserve
	// memory, which goes to the receiver with them; a nil reserve reserves nothing.
	Start(to Receiver, limit int, reserve func() Reservation)
	// Send hands a message over. That of a request may return before the message has
	// gone out: the receiver is told when that fails.
	Send(ctx context.Context, m Outgoing) error
	// Abandon says that nobody waits for the answer to a request any more.
	Abandon(id int64)
	// Agreed is called when the handshake is over, with the agreed revision.
	Agreed(version string)
	// Traits returns in what the transport differs from others.
	Traits() Traits
	// Close ends everything, and waits. The session calls it once.
	Close() error
}

// Traits are in what transports differ for a session.
type Traits struct {
	// Streams: each request has a stream of its own, whose end cancels it in the
	// stateless protocol; and a request that the server does not understand leaves no
	// trace.
	Streams bool
	// StatefulOnly: the stateless protocol does not have this transport.
	StatefulOnly bool
}

// Outgoing is a message to the server.
type Outgoing struct {
	Body   []byte
	ID     int64 // of a request; else 0
	Method string
	// For HTTP.
	Version string      // the revision of the protocol; "": not agreed yet
	Header  http.Header // headers that repeat what the body says
}

// Receiver takes what a transport reads. Its methods may be called by several
// goroutines, but for the messages of one stream by one.
type Receiver interface {
	// Receive takes what may be a message, and its reservation. It blocks while the
	// session cannot take more. It returns the id of the session's request that the
	// message answers, or 0, and whether it was a message at all.
	Receive(b []byte, r Reservation) (answered int64, ok bool)
	// Fail says that a request will not be answered.
	Fail(id int64, err error)
	// Missed says that notifications may have been lost.
	Missed()
	// Lost says that the transport has ended by itself.
	Lost(err error)
}

// Dial opens a transport. It is called again when a server needs a new program or
// connection: one that leaves server/discover unanswered, or dies of it.
type Dial func(ctx context.Context) (Transport, error)
