package live

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"runtime/debug"
	"sync"
	"unicode/utf8"

	"github.com/coder/websocket"

	"sandlot/internal/agent/command"
	"sandlot/internal/api/conn"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// client is one connection.
type client struct {
	server    *Server
	ws        *websocket.Conn
	principal auth.Principal
	ctx       context.Context // ends with the connection, with the cause
	cancel    context.CancelCauseFunc
	work      sync.WaitGroup
	// reading ends later than ctx: its end cuts the connection, before the client knows why.
	reading     context.Context
	stopReading context.CancelFunc

	mu       sync.Mutex // guards what follows
	channels map[uint32]*channel
	ending   int    // channels that have ended, of which the client does not know yet
	newest   uint32 // the greatest number of a channel that was ever opened
	queued   int    // bytes of input that wait for terminals
}

// maxUnread is how many messages of a channel, and maxUnreadBytes how many bytes of a terminal, the client need not have
// acknowledged.
const maxUnread, maxUnreadBytes = 256, 256 << 10

// channel is one channel of a connection. Order of locks: the client's mu, then the channel's.
type channel struct {
	client   *client
	number   uint32
	kind     string
	terminal bool            // it has bytes: a terminal, or the output of a process
	args     json.RawMessage // until they are read
	ctx      context.Context // ends with the channel
	cancel   context.CancelFunc
	room     chan struct{} // holds one element after an acknowledgement
	news     chan struct{} // holds one element after input or a new size has come

	mu          sync.Mutex    // guards what follows
	sent, taken int64         // messages or, of a terminal, bytes
	keys        []byte        // input that waits
	size        *command.Size // that the client wants, and the terminal has not been told; nil: none
}

// request is a client's message.
type request struct {
	Op      string          `json:"op"`
	Channel int64           `json:"channel"`
	Kind    string          `json:"kind"`
	Args    json.RawMessage `json:"args"`
	Count   *int64          `json:"count"`
	Bytes   *int64          `json:"bytes"`
	Rows    int             `json:"rows"`
	Cols    int             `json:"cols"`
}

// decode reads a JSON object with the fields of q alone.
func decode(b []byte, q any, what string) error {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || b[0] != '{' || !utf8.Valid(b) {
		return fault.New(fault.InvalidParameters, "%s must be a JSON object", what)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err := d.Decode(q)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows it")
		}
	}
	if err != nil {
		return fault.Wrap(fault.InvalidParameters, err, "%s is not understood: %v", what, err)
	}
	return nil
}

// do does what a text message asks for.
func (c *client) do(text []byte) error {
	var r request
	if err := decode(text, &r, "a message"); err != nil {
		return err
	}
	if r.Channel < 1 || r.Channel > math.MaxInt32 {
		return fault.Argument("channel", "channel must be a number from 1 to %d", math.MaxInt32)
	}
	n := uint32(r.Channel)
	if r.Op == "open" {
		return about(n, c.open(n, r))
	}
	ch, err := c.find(n)
	if ch == nil {
		return about(n, err)
	}
	switch r.Op {
	case "close":
		ch.cancel()
	case "ack":
		err = ch.acknowledge(r)
	case "resize":
		err = ch.resize(r)
	default:
		err = fault.Argument("op", "op %q must be one of open, close, ack and resize", fault.Clip(r.Op))
	}
	return about(n, err)
}

func about(n uint32, err error) error {
	if err == nil {
		return nil
	}
	return &channelError{n, err}
}

// find returns an open channel. Without an error it is nil for one that has ended: the client may not know that yet.
func (c *client) find(n uint32) (*channel, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := c.channels[n]
	if ch == nil && n > c.newest {
		return nil, fault.New(fault.NotFound, "there is no channel %d: open it first", n)
	}
	return ch, nil
}

// open opens a channel.
func (c *client) open(n uint32, r request) error {
	k, known := kinds[r.Kind]
	if !known {
		return fault.Argument("kind",
			"kind %q must be one of events, files, process, questions, sessions, servers, log and terminal",
			fault.Clip(r.Kind))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case n <= c.newest:
		return fault.Argument("channel", "channel %d was used before: each number must be greater than the ones before, "+
			"and the greatest is %d", n, c.newest)
	case len(c.channels) >= maxChannels, len(c.channels)+c.ending >= 2*maxChannels:
		return fault.Limit("channels", int64(len(c.channels)), maxChannels,
			"%d channels are open, which is the limit: close one first, and read until it is closed", maxChannels)
	}
	same := 0
	for _, ch := range c.channels {
		if ch.kind == r.Kind {
			same++
		}
	}
	if same >= k.most {
		return fault.Limit("channels", int64(same), k.most, "%d channels of %s are open, which is the limit: close one first",
			same, r.Kind)
	}
	c.newest = n
	ctx, cancel := context.WithCancel(c.ctx)
	ch := &channel{client: c, number: n, kind: r.Kind, terminal: r.Kind == terminalKind || r.Kind == processKind, args: r.Args, ctx: ctx,
		cancel: cancel, room: make(chan struct{}, 1), news: make(chan struct{}, 1)}
	c.channels[n] = ch
	c.work.Go(func() { ch.run(k.serve) })
	return nil
}

// run serves a channel until it ends, and the client has been told.
func (ch *channel) run(serve func(*channel) (any, error)) {
	defer ch.cancel()
	c := ch.client
	var data any
	err := ch.guard(func() (err error) {
		data, err = serve(ch)
		return err
	})
	ch.forget()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ending--
	}()
	if errors.Is(err, hub.ErrStops) {
		c.cancel(hub.ErrStops)
	}
	m := message{Op: "closed", Channel: ch.number, Data: data}
	if err != nil && ch.ctx.Err() == nil { // else the client has closed it, or the connection ends
		m.Error = problem(err)
		if m.Error.Status >= 500 {
			c.server.Log.WarnContext(ch.ctx, "a channel has failed", "error", err)
		}
	}
	_ = c.write(m)
}

// forget removes a channel that has ended. It counts until the client has taken that: else one that reads nothing could
// open any number.
func (ch *channel) forget() {
	c := ch.client
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.channels, ch.number)
	c.ending++
	ch.mu.Lock()
	defer ch.mu.Unlock()
	c.queued -= len(ch.keys)
	ch.keys, ch.args = nil, nil
}

// guard makes an error of a panic: what a sandbox prints may find a mistake, which ends one channel then.
func (ch *channel) guard(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			ch.client.server.Log.Error("a channel has failed", "kind", ch.kind, "panic", p, "stack", string(debug.Stack()))
			err = fault.New(fault.Internal, "the channel has failed: the server's log says more")
		}
	}()
	return do()
}

// acknowledge notes how much of the channel the client has taken in all.
func (ch *channel) acknowledge(r request) error {
	taken, unit := r.Count, "count"
	if ch.terminal {
		taken, unit = r.Bytes, "bytes"
	}
	if taken == nil {
		return fault.Argument(unit, "an acknowledgement of this channel needs %s", unit)
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if *taken < ch.taken || *taken > ch.sent {
		return fault.Argument(unit, "%s is %d, but must be from %d, which was acknowledged, to %d, which was sent", unit,
			*taken, ch.taken, ch.sent)
	}
	ch.taken = *taken
	signal(ch.room)
	return nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is pending already
	}
}

// errStalled is why a terminal's channel ends.
var errStalled = fault.New(fault.ResourceLimit, "the screen was not acknowledged in time: open the terminal again").
	Advise("Acknowledge what has arrived, in bytes")

// await waits until the client has room on the channel.
func (ch *channel) await(ctx context.Context) error {
	limit := int64(maxUnread)
	if ch.terminal {
		limit = maxUnreadBytes
	}
	for {
		ch.mu.Lock()
		room := ch.sent-ch.taken < limit
		ch.mu.Unlock()
		if room {
			return nil
		}
		select {
		case <-ch.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// put sends one message of the channel, once the client has room.
func (ch *channel) put(op, cursor string, data any) error {
	if err := ch.await(ch.ctx); err != nil {
		return err
	}
	ch.mu.Lock()
	ch.sent++
	ch.mu.Unlock()
	return ch.client.write(message{Op: op, Channel: ch.number, Cursor: cursor, Data: data})
}

// tell sends a message that the client need not acknowledge.
func (ch *channel) tell(op string, data any) error {
	return ch.client.write(message{Op: op, Channel: ch.number, Data: data})
}

// maxFrame is how many bytes of a terminal are sent at once, and maxHeld how many wait for the client as long as it likes.
const maxFrame, maxHeld = 32 << 10, 64 << 10

// print sends bytes of a terminal, as the client has room. The rest of a large screen waits for a time only.
func (ch *channel) print(b []byte) error {
	for len(b) > 0 {
		ctx, cancel := ch.ctx, context.CancelFunc(func() {})
		if len(b) > maxHeld {
			ctx, cancel = context.WithTimeoutCause(ctx, conn.Stall, errStalled)
		}
		err := ch.await(ctx)
		cancel()
		if err != nil {
			return err
		}
		part := b[:min(len(b), maxFrame)]
		b = b[len(part):]
		ch.mu.Lock()
		ch.sent += int64(len(part))
		ch.mu.Unlock()
		frame := append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(part)), ch.number), part...)
		if err := ch.client.send(websocket.MessageBinary, frame); err != nil {
			return err
		}
	}
	return nil
}

// input passes on the input of a terminal.
func (c *client) input(frame []byte) error {
	if len(frame) < 4 {
		return fault.New(fault.InvalidParameters, "a binary message begins with the four bytes of its channel's number")
	}
	n, data := binary.BigEndian.Uint32(frame), frame[4:]
	ch, err := c.find(n)
	switch {
	case ch == nil:
		return about(n, err)
	case ch.kind != terminalKind:
		return about(n, fault.New(fault.InvalidParameters, "channel %d takes no bytes", n))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.channels[n] != ch: // it has just ended
		return nil
	case c.queued+len(data) > maxQueued:
		return about(n, fault.Limit("input_bytes", int64(c.queued), maxQueued,
			"%d bytes of input wait for programs that do not read them: the last %d bytes were dropped", c.queued, len(data)))
	}
	c.queued += len(data)
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.keys = append(ch.keys, data...)
	signal(ch.news)
	return nil
}

// takeInput returns the input that waits, and the size that is wanted. The input counts as waiting until done is called.
func (ch *channel) takeInput() (keys []byte, wanted *command.Size, done func()) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	keys, wanted = ch.keys, ch.size
	ch.keys, ch.size = nil, nil
	return keys, wanted, func() {
		ch.client.mu.Lock()
		defer ch.client.mu.Unlock()
		ch.client.queued -= len(keys)
	}
}

func (ch *channel) resize(r request) error {
	if ch.kind != terminalKind {
		return fault.New(fault.InvalidParameters, "channel %d has no size", ch.number)
	}
	if _, err := sizeOf(r.Rows, r.Cols); err != nil {
		return err
	}
	ch.mu.Lock()
	ch.size = &command.Size{Rows: r.Rows, Cols: r.Cols}
	ch.mu.Unlock()
	signal(ch.news)
	return nil
}
