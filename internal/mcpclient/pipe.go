package mcpclient

import (
	"context"
	"net/http"
)

// Pipe carries the JSON-RPC messages of one session.
type Pipe interface {
	// start begins to read. Messages have at most limit bytes, and large ones need
	// room, which goes to the inbox with them.
	start(to inbox, limit int, room func() Room)
	// send hands a message over. That of a request returns early: what becomes of
	// it is told to the inbox.
	send(ctx context.Context, m outgoing) error
	// abandon says that nobody waits for the answer to a request any more.
	abandon(id int64)
	// agreed is called when the handshake is over, with the agreed revision.
	agreed(version string)
	// traits says what the pipe is.
	traits() traits
	// close ends everything, and waits. The session calls it once.
	close() error
}

// traits is in what pipes differ for a session.
type traits struct {
	// streams: each request has a stream of its own, whose end cancels it in the
	// newer era; and a request that is not understood leaves no trace.
	streams bool
	// older: the newer era does not know this kind of pipe.
	older bool
}

// outgoing is a message of ours.
type outgoing struct {
	body   []byte
	id     int64 // of a request; else 0
	method string
	// For HTTP.
	version string      // of the protocol; empty: not agreed yet
	header  http.Header // those that say again what the body says
}

// inbox is where a pipe puts what it hears. Its methods may be called from
// several goroutines, but those that are of one stream from one.
type inbox interface {
	// receive takes what may be a message. It blocks while the session cannot take
	// more. It returns which request of ours that answers, if any, and whether it
	// was a message at all. The room is the inbox's to release.
	receive(b []byte, room Room) (answered int64, ok bool)
	// fail says that a request will not be answered.
	fail(id int64, err error)
	// missed says that something may have been announced that did not come through.
	missed()
	// lost says that the pipe has ended by itself.
	lost(err error)
}

// Dial opens a pipe. Connect calls it again when a server has to be spoken to
// afresh: one that leaves server/discover unanswered, or dies of it.
type Dial func(ctx context.Context) (Pipe, error)
