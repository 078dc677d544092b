// Package live is the live channel of the HTTP API: one WebSocket for each client, with numbered channels of events,
// questions, sessions, third-party servers, their logs and terminals. It bounds what a client that does not read can make the server
// keep: a channel sends only as much as the client has room for.
package live

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http/httpguts"

	"sandlot/internal/api/conn"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
)

// Subprotocol is the one that the server agrees to. The console's page offers a second one, which says who it is, and a
// browser wants one of what it offers.
const Subprotocol = "sandlot.live"

// Limits of one connection.
const (
	maxMessage  = 64 << 10 // bytes of a client's message
	maxChannels = 64       // that are open at once
	maxQueued   = 1 << 20  // bytes of input that wait for terminals
	heartbeat   = 20 * time.Second
	endTimeout  = time.Second // for the client to answer the close frame
)

// Server serves the live channel.
type Server struct {
	Hub *hub.Hub
	// EventQuery reads the query of GET /v1/events, and the cursor of an event.
	EventQuery func(q url.Values, cursor string) (hub.EventQuery, error)
	Log        *slog.Logger
}

// Serve serves one client until it leaves, its token ends or the server stops. It returns an error while nothing is
// written.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	open, err := s.Hub.Begin(r.Context(), hub.Request{Principal: p, Operation: policy.ClientConnect, Name: "live"})
	if err != nil {
		return err
	}
	defer open.Close()
	if r.Method != http.MethodGet || !httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade") ||
		!httpguts.HeaderValuesContainsToken(r.Header["Upgrade"], "websocket") {
		return open.Fail(fault.New(fault.InvalidParameters, "this needs a WebSocket: a GET request with the headers "+
			"Connection: Upgrade and Upgrade: websocket"))
	}
	// Who may send a request to the server at all was decided before, for every request alike, and by the settings: the
	// library's own check knows only the request's own host.
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true,
		Subprotocols:    []string{Subprotocol},
		CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		s.Log.DebugContext(r.Context(), "a WebSocket was not opened", "error", err)
		return nil // the library has answered
	}
	defer ws.CloseNow()
	ws.SetReadLimit(maxMessage)
	c := s.client(r.Context(), ws, p)
	stop := context.AfterFunc(r.Context(), func() { c.cancel(context.Cause(r.Context())) })
	defer stop()
	c.serve()
	return nil
}

// client returns a client that is connected. Its end is up to the caller.
func (s *Server) client(values context.Context, ws *websocket.Conn, p auth.Principal) *client {
	// Reads and writes have a context of their own: the end of one would cut the connection before it says why.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(values))
	reading, stopReading := context.WithCancel(context.Background())
	return &client{server: s, ws: ws, principal: p, ctx: ctx, cancel: cancel, reading: reading, stopReading: stopReading,
		channels: map[uint32]*channel{}}
}

// serve serves a client until the connection ends.
func (c *client) serve() {
	defer c.stopReading()
	c.work.Go(c.beat)
	c.work.Go(c.end)
	c.cancel(c.read())
	c.work.Wait()
}

// errGone is the cause of the end of a connection whose client does not answer.
var errGone = errors.New("the client does not answer")

// beat pings the client from time to time: one that is gone without a word is noticed. A page does not see pings: it gets
// a message too, by which it notices that the server is gone.
func (c *client) beat() {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(c.ctx, conn.Stall)
		err := c.ws.Ping(ctx)
		cancel()
		if err != nil {
			c.cancel(errGone)
			return
		}
		if err := c.write(message{Op: "alive"}); err != nil {
			return
		}
	}
}

// end waits for the end of the connection, and says why it ends.
func (c *client) end() {
	select {
	case <-c.ctx.Done():
	case <-c.server.Hub.Stopping():
		c.cancel(hub.ErrStops)
	}
	status, why := websocket.StatusNormalClosure, ""
	switch cause := context.Cause(c.ctx); {
	case errors.Is(cause, auth.ErrEnded):
		status, why = websocket.StatusPolicyViolation, fault.From(cause).Code()+": the token has ended"
	case errors.Is(cause, hub.ErrStops):
		status, why = websocket.StatusGoingAway, "the server stops"
	case errors.Is(cause, errGone):
		c.stopReading()
		return
	}
	defer time.AfterFunc(endTimeout, c.stopReading).Stop()
	_ = c.ws.Close(status, why) // the client may be gone
}

// read reads the client's messages until the connection ends.
func (c *client) read() error {
	for {
		kind, message, err := c.ws.Read(c.reading)
		if err != nil {
			return err
		}
		switch {
		case c.ctx.Err() != nil: // what comes after the end of the token counts for nothing
		case kind == websocket.MessageBinary:
			err = c.input(message)
		default:
			err = c.do(message)
		}
		if err != nil {
			c.misunderstood(err)
		}
	}
}

// misunderstood tells the client of a message that means nothing. No channel ends.
func (c *client) misunderstood(err error) {
	m := message{Op: "error", Error: problem(err)}
	if f, ok := errors.AsType[*channelError](err); ok {
		m.Channel, m.Error = f.channel, problem(f.error)
	}
	_ = c.write(m) // then the connection has ended
}

// channelError is an error about a message for a channel.
type channelError struct {
	channel uint32
	error
}

// message is what the server sends as text.
type message struct {
	Op      string            `json:"op"`
	Channel uint32            `json:"channel,omitempty"`
	Cursor  string            `json:"cursor,omitempty"`
	Data    any               `json:"data,omitempty"`
	Error   *protocol.Problem `json:"error,omitempty"`
}

func problem(err error) *protocol.Problem {
	p := protocol.NewProblem(fault.From(err))
	return &p
}

// write sends a text message. If the client does not take it in time, the connection ends.
func (c *client) write(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return c.send(websocket.MessageText, b)
}

func (c *client) send(kind websocket.MessageType, b []byte) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), conn.Stall)
	defer cancel()
	err := c.ws.Write(ctx, kind, b)
	if err != nil {
		c.cancel(errGone)
	}
	return err
}
