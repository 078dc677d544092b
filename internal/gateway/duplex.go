package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/event"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
	"sandlot/internal/toolview"
)

// duplex is the SDK's transport for one client on standard input and output. The SDK's own
// transport closes on a batch that it does not accept; this one answers with an error. It
// counts the bytes of a line and of its answers until the answers are written.
type duplex struct {
	in      *lineReader
	out     *messageWriter
	owner   string
	limits  *limit.Limiter
	answers *runningAnswers
	origin  event.Origin     // of the request that carries the messages
	results toolview.Results // that the client asks for
	stops   <-chan struct{}  // closed when the server stops: the session ends as soon as all calls are answered

	lines    chan inputResult // from the goroutine that reads the input
	readers  sync.WaitGroup
	closed   chan struct{}
	written  chan struct{} // gets something when unwritten becomes less
	once     sync.Once
	closeErr error
	queue    []jsonrpc.Message // the rest of the last batch; only Read uses it

	mu    sync.Mutex
	calls map[jsonrpc.ID]*pendingLine // the unanswered calls
	ended bool                        // Close was called
	// unwritten is the number of lines whose answers are to be written before the input's end ends the session.
	unwritten int
}

// inputResult is a line of the input, or the error that ended the input.
type inputResult struct {
	inputLine
	err error
}

// pendingLine is a line with calls, until all of them are answered.
type pendingLine struct {
	body       *limit.Reservation
	answers    *limit.Answers
	unregister func() // removes answers from duplex.answers
	batch      bool
	indexes    map[jsonrpc.ID]int // the index of each call's response in responses
	responses  []json.RawMessage
	unanswered int  // number of calls
	lasts      bool // it has no call that ends by itself
}

// Connect implements mcp.Transport.
func (d *duplex) Connect(context.Context) (mcp.Connection, error) {
	d.lines, d.closed, d.calls = make(chan inputResult), make(chan struct{}), map[jsonrpc.ID]*pendingLine{}
	d.written = make(chan struct{}, 1)
	d.readers.Go(func() { // ends when Close closes the input
		for {
			p, err := d.in.next()
			select {
			case d.lines <- inputResult{p, err}:
			case <-d.closed:
				p.reservation.Release()
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
	for stops := d.stops; len(d.queue) == 0; {
		var answered <-chan struct{}
		if stops == nil && d.stops != nil {
			answered = d.written
			if d.allWritten() {
				select {
				case l := <-d.lines: // it was there before the stop, and its client waits for the answer
					if err := d.take(ctx, l); err != nil {
						return nil, err
					}
					continue
				default:
					return nil, io.EOF
				}
			}
		}
		select {
		case <-stops:
			stops = nil
		case <-answered:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-d.closed:
			return nil, io.EOF
		case l := <-d.lines:
			if err := d.take(ctx, l); err != nil {
				return nil, err
			}
		}
	}
	m := d.queue[0]
	d.queue = d.queue[1:]
	return m, nil
}

// take puts a line of the input into queue, or answers it if it is refused. At the end of the input it waits for the
// answers, and returns the error that ended it.
func (d *duplex) take(ctx context.Context, l inputResult) error {
	if l.err != nil {
		d.awaitAnswers(ctx, l.err)
		return l.err
	}
	if errorAnswer := d.register(l.inputLine); errorAnswer != nil {
		l.reservation.Release()
		return d.in.writeMessage(errorAnswer)
	}
	d.queue = l.messages
	return nil
}

// lastAnswers is how long calls may run on when the input has ended.
const lastAnswers = 30 * time.Second

// awaitAnswers waits until the calls that were read are answered, for lastAnswers at most, if the input has ended
// regularly: with the end of Read, the SDK cancels them.
func (d *duplex) awaitAnswers(ctx context.Context, err error) {
	if !errors.Is(err, io.EOF) {
		return
	}
	late := time.NewTimer(lastAnswers)
	defer late.Stop()
	for !d.allWritten() {
		select {
		case <-d.written:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		case <-d.closed:
			return
		}
	}
}

// allWritten reports whether all answers were written.
func (d *duplex) allWritten() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unwritten == 0
}

// register registers the calls of a line. It returns the answer to a line that is refused, or
// nil.
func (d *duplex) register(p inputLine) (errorAnswer any) {
	x := &pendingLine{body: p.reservation, answers: d.limits.NewAnswers(d.owner), batch: p.batch,
		indexes: map[jsonrpc.ID]int{}, lasts: true}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended { // the output is closed too
		p.reservation.Release()
		return nil
	}
	for _, m := range p.messages {
		q, ok := m.(*jsonrpc.Request)
		if !ok || !q.IsCall() {
			continue
		}
		if d.calls[q.ID] != nil {
			if p.batch {
				return rpc.InvalidRequest("Invalid request: a request of the batch has the id of one that is not " +
					"answered yet")
			}
			continue // the SDK answers with an error
		}
		x.indexes[q.ID] = len(x.indexes)
		x.lasts = x.lasts && q.Method == "subscriptions/listen"
	}
	if len(x.indexes) == 0 {
		p.reservation.Release()
		return nil
	}
	key, unregister := d.answers.add(x.answers, d.origin)
	x.unregister, x.unanswered, x.responses = unregister, len(x.indexes), make([]json.RawMessage, len(x.indexes))
	for id := range x.indexes {
		d.calls[id] = x
	}
	if !x.lasts {
		d.unwritten++
	}
	for _, m := range p.messages {
		if q, ok := m.(*jsonrpc.Request); ok {
			q.Extra = &mcp.RequestExtra{Header: http.Header{answersHeader: {key}, rpc.ResultsHeader: {string(d.results)}}}
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
		return d.writeLine(b)
	}
	b, done, afterWrite := d.recordAnswer(r.ID, b)
	defer afterWrite()
	if !done {
		return nil // other calls of its batch are not answered yet
	}
	return d.writeLine(b)
}

// recordAnswer returns what to write for an answer: the answer, or the batch that it
// completes; done is false if its batch is incomplete. The caller calls afterWrite after
// writing.
func (d *duplex) recordAnswer(id jsonrpc.ID, b []byte) (_ []byte, done bool, afterWrite func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.calls[id]
	if x == nil {
		return b, true, func() {}
	}
	delete(d.calls, id) // a client may use the id again once it has read the answer
	x.responses[x.indexes[id]] = b
	if x.unanswered--; x.unanswered > 0 {
		return nil, false, func() {}
	}
	if x.batch {
		b = rpc.JSON(x.responses)
		b = b[:len(b)-1]
	}
	x.body.Release() // now, so that the client's next line can be counted
	return b, true, func() {
		x.release()
		d.wrote(x)
	}
}

// wrote notes that the answers of a line were written.
func (d *duplex) wrote(x *pendingLine) {
	if x.lasts {
		return
	}
	d.mu.Lock()
	d.unwritten--
	d.mu.Unlock()
	select {
	case d.written <- struct{}{}:
	default:
	}
}

// release releases the reservations of a line.
func (x *pendingLine) release() {
	x.unregister()
	x.answers.Release()
	x.body.Release()
}

func (d *duplex) writeLine(b []byte) error {
	_, err := d.out.Write(append(b, '\n'))
	return err
}

// Close implements mcp.Connection. Running calls end later, and their answers are dropped.
func (d *duplex) Close() error {
	d.once.Do(func() {
		close(d.closed)
		d.closeErr = errors.Join(d.in.Close(), d.out.Close())
		d.readers.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.ended = true
		for _, x := range d.calls {
			x.release()
		}
		clear(d.calls)
	})
	return d.closeErr
}
