package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
)

// duplex is the SDK's transport for one client on standard input and output. The SDK's own
// transport closes on a batch that it does not accept; this one answers with an error. It
// counts the bytes of a line and of its answers until the answers are written.
type duplex struct {
	in     *inlet
	out    *messageWriter
	owner  string
	limits *limit.Limiter
	unread *unread

	lines   chan arrived // from the goroutine that reads the input
	reading sync.WaitGroup
	closed  chan struct{}
	once    sync.Once
	failed  error
	queue   []jsonrpc.Message // the rest of the last batch; only Read uses it

	mu    sync.Mutex
	calls map[jsonrpc.ID]*exchange // the unanswered calls
	over  bool                     // Close was called
}

// inputResult is a line of the input, or the error that ended the input.
type arrived struct {
	parcel
	err error
}

// pendingLine is a line with calls, until all of them are answered.
type exchange struct {
	body    *limit.Held
	answers *limit.Holds
	remove  func() // removes answers from duplex.answers
	batch   bool
	places  map[jsonrpc.ID]int // the index of each call's response in responses
	said    []json.RawMessage
	left    int // number of calls
}

// Connect implements mcp.Transport.
func (d *duplex) Connect(context.Context) (mcp.Connection, error) {
	d.lines, d.closed, d.calls = make(chan arrived), make(chan struct{}), map[jsonrpc.ID]*exchange{}
	d.reading.Go(func() { // ends when Close closes the input
		for {
			p, err := d.in.next()
			select {
			case d.lines <- arrived{p, err}:
			case <-d.closed:
				p.held.Release()
				return
			}
			if err != nil {
				return
			}
		}
	})
	return d, nil
}

// SessionID implements mcp.Connection.
func (d *duplex) SessionID() string { return "" }

// Read implements mcp.Connection.
func (d *duplex) Read(ctx context.Context) (jsonrpc.Message, error) {
	for len(d.queue) == 0 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-d.closed:
			return nil, io.EOF
		case l := <-d.lines:
			if l.err != nil {
				return nil, l.err
			}
			if wrong := d.take(l.parcel); wrong != nil {
				l.held.Release()
				if err := d.in.say(wrong); err != nil {
					return nil, err
				}
				continue
			}
			d.queue = l.messages
		}
	}
	m := d.queue[0]
	d.queue = d.queue[1:]
	return m, nil
}

// register registers the calls of a line. It returns the answer to a line that is refused, or
// nil.
func (d *duplex) take(p parcel) (wrong any) {
	x := &exchange{body: p.held, answers: d.limits.Holds(d.owner), batch: p.batch, places: map[jsonrpc.ID]int{}}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over { // the output is closed too
		p.held.Release()
		return nil
	}
	for _, m := range p.messages {
		q, ok := m.(*jsonrpc.Request)
		if !ok || !q.IsCall() {
			continue
		}
		if d.calls[q.ID] != nil {
			if p.batch {
				return rpc.Invalid("Invalid request: a request of the batch has the id of one that is not answered yet")
			}
			continue // the SDK answers with an error
		}
		x.places[q.ID] = len(x.places)
	}
	if len(x.places) == 0 {
		p.held.Release()
		return nil
	}
	key, forget := d.unread.put(x.answers)
	x.remove, x.left, x.said = forget, len(x.places), make([]json.RawMessage, len(x.places))
	for id := range x.places {
		d.calls[id] = x
	}
	for _, m := range p.messages {
		if q, ok := m.(*jsonrpc.Request); ok {
			q.Extra = &mcp.RequestExtra{Header: http.Header{answersHeader: {key}}}
		}
	}
	return nil
}

// Write implements mcp.Connection.
func (d *duplex) Write(ctx context.Context, m jsonrpc.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	r, ok := m.(*jsonrpc.Response)
	if !ok {
		return d.put(b)
	}
	b, done, over := d.answered(r.ID, b)
	defer over()
	if !done {
		return nil // other calls of its batch are not answered yet
	}
	return d.put(b)
}

// recordAnswer returns what to write for an answer: the answer, or the batch that it
// completes; done is false if its batch is incomplete. The caller calls afterWrite after
// writing.
func (d *duplex) answered(id jsonrpc.ID, b []byte) (_ []byte, done bool, over func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.calls[id]
	if x == nil {
		return b, true, func() {}
	}
	delete(d.calls, id) // a client may use the id again once it has read the answer
	x.said[x.places[id]] = b
	if x.left--; x.left > 0 {
		return nil, false, func() {}
	}
	if x.batch {
		b = rpc.JSON(x.said)
		b = b[:len(b)-1]
	}
	x.body.Release() // now, so that the client's next line can be counted
	return b, true, x.end
}

// release releases the reservations of a line.
func (x *exchange) end() {
	x.remove()
	x.answers.Release()
	x.body.Release()
}

func (d *duplex) put(b []byte) error {
	_, err := d.out.Write(append(b, '\n'))
	return err
}

// Close implements mcp.Connection. Running calls end later, and their answers are dropped.
func (d *duplex) Close() error {
	d.once.Do(func() {
		close(d.closed)
		d.failed = errors.Join(d.in.Close(), d.out.Close())
		d.reading.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.over = true
		for _, x := range d.calls {
			x.end()
		}
		clear(d.calls)
	})
	return d.failed
}
