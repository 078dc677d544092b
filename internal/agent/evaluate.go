package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// interpreter is the host's own way to the driver of one language: pieces of
// code that are short and say little go there and back without the agent. One
// piece runs at a time.
type interpreter struct {
	language string
	turn     chan struct{} // held by the piece that runs

	mu      sync.Mutex
	running time.Time // since when; zero: nothing runs

	// The turn guards what follows.
	conn net.Conn // nil: pieces go through the agent
	r    *bufio.Reader
	stop func() // stops the piece that was given up

	preparing bool        // guarded by the client's mu
	none      atomic.Bool // this driver takes no pieces from the host
}

// soon is how long a piece may run before the agent takes charge of it.
const soon = 15 * time.Millisecond

// interpreter returns the one of a language.
func (c *Client) interpreter(language string) *interpreter {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.interps[language]
	if i == nil {
		if c.interps == nil {
			c.interps = map[string]*interpreter{}
		}
		i = &interpreter{language: language, turn: make(chan struct{}, 1)}
		c.interps[language] = i
	}
	return i
}

// evaluate runs one piece of code to its end; what it says meanwhile is given to
// event, whose error ends it. When ctx ends, it is stopped.
func (c *Client) evaluate(ctx context.Context, q *agentv1.EvaluateRequest, event func(*agentv1.RunEvent) error) (*agentv1.EvaluateDone, error) {
	i := c.interpreter(q.Language)
	if err := c.wait(ctx, i, event); err != nil {
		return nil, err
	}
	i.begin(time.Now())
	defer func() { c.over(i) }()
	if i.open() {
		d, err := c.direct(ctx, i, q, event)
		if !errors.Is(err, errUnsent) {
			return d, err
		}
	}
	d, err := c.evaluateByAgent(ctx, q, event)
	if err == nil {
		c.Prepare(q.Language)
	}
	return d, err
}

// evaluateByAgent runs one piece of code that the agent hands to the driver.
func (c *Client) evaluateByAgent(ctx context.Context, q *agentv1.EvaluateRequest, event func(*agentv1.RunEvent) error) (*agentv1.EvaluateDone, error) {
	return c.evaluated(c.run(ctx, &agentv1.RunRequest{Kind: &agentv1.RunRequest_Evaluate{Evaluate: q}}, event))
}

// Prepare makes the way to a language's driver, beside other work, where there
// can be one. It need not be called.
func (c *Client) Prepare(language string) {
	i := c.interpreter(language)
	if i.none.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil || i.preparing {
		return
	}
	i.preparing = true
	c.work.Go(func() {
		ctx, cancel := context.WithTimeout(c.ctx, prepareLimit)
		defer cancel()
		// One that hangs at its start keeps nobody waiting who runs code meanwhile.
		if c.StartInterpreter(ctx, language) == nil {
			c.Open(ctx, language)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		i.preparing = false
	})
}

const prepareLimit = 20 * time.Second

// Open makes the way to a language's driver, and says whether there is one.
func (c *Client) Open(ctx context.Context, language string) bool {
	i := c.interpreter(language)
	if c.wait(ctx, i, nil) != nil {
		return false
	}
	defer c.over(i)
	c.connect(ctx, i)
	return i.open()
}

// connect makes the way. The turn is held.
func (c *Client) connect(ctx context.Context, i *interpreter) {
	if i.none.Load() || i.open() {
		return
	}
	e := c.expect()
	defer c.forget(e)
	_, err := call(ctx, c.rpc.OpenInterpreter, &agentv1.OpenInterpreterRequest{Language: i.language, Ticket: e.ticket[:]})
	if err != nil {
		i.none.Store(ReasonOf(err) == Unsupported)
		return // pieces go through the agent
	}
	conn, err := e.wait(ctx)
	if err != nil {
		return
	}
	i.conn, i.r = conn, bufio.NewReaderSize(conn, 16<<10)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	// What each piece does is done once, so that the first is as quick as others.
	conn.SetDeadline(time.Now().Add(sendLimit))
	if _, err = io.WriteString(conn, warm); err == nil {
		var said []byte
		if said, err = i.r.ReadSlice('\n'); err == nil && string(said) != leave {
			err = ErrProtocol
		}
	}
	if err != nil {
		i.close()
	}
}

// warm asks a driver to get ready; it says leave when it is.
const warm = "0 -1 0\n"

func (c *Client) evaluated(e *agentv1.RunEvent, err error) (*agentv1.EvaluateDone, error) {
	if err != nil {
		return nil, err
	}
	if d := e.GetEvaluated(); d != nil {
		return d, nil
	}
	return nil, ErrProtocol
}

// wait waits for its turn, and says so once a second.
func (c *Client) wait(ctx context.Context, i *interpreter, event func(*agentv1.RunEvent) error) error {
	select {
	case i.turn <- struct{}{}:
		return nil
	default:
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if err := i.say(event); err != nil {
			return err
		}
		select {
		case i.turn <- struct{}{}:
			return nil
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
}

func (i *interpreter) say(event func(*agentv1.RunEvent) error) error {
	i.mu.Lock()
	since := i.running
	i.mu.Unlock()
	if event == nil || since.IsZero() {
		return nil
	}
	return event(&agentv1.RunEvent{Event: &agentv1.RunEvent_Waiting{Waiting: &agentv1.Waiting{Language: i.language,
		RunningForMicros: uint64(time.Since(since).Microseconds())}}})
}

func (i *interpreter) begin(t time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.running = t
}

// over gives the turn to the next, once what was given up has stopped.
func (c *Client) over(i *interpreter) {
	i.begin(time.Time{})
	stop := i.stop
	i.stop = nil
	if stop == nil {
		c.pass(i)
		return
	}
	go func() {
		stop()
		c.pass(i)
	}()
}

// pass gives the turn back. At the client's end the way is closed.
func (c *Client) pass(i *interpreter) {
	if c.ctx.Err() != nil {
		i.close()
	}
	<-i.turn
	if c.ctx.Err() != nil { // Close may have been beside
		select {
		case i.turn <- struct{}{}:
			i.close()
			<-i.turn
		default:
		}
	}
}

// open says whether there is a way. A driver that died has closed it.
func (i *interpreter) open() bool {
	if i.conn == nil {
		return false
	}
	gone := true
	if sc, ok := i.conn.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) { gone = i.r.Buffered() > 0 || !quiet(int(fd)) })
		}
	}
	if gone {
		i.close()
	}
	return !gone
}

// leave is what a driver says that leaves the end of a piece to the agent.
const leave = "0 0 0\n"

// quiet says whether a connection is open and nothing waits to be read, which is
// how an honest driver leaves it: but for that word, when it came too late.
func quiet(fd int) bool {
	var b [len(leave)]byte
	n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT)
	if err == nil && string(b[:n]) == leave {
		_, _, err = unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT)
	}
	return errors.Is(err, unix.EAGAIN)
}

func (i *interpreter) close() {
	if i.conn != nil {
		i.conn.Close()
		i.conn, i.r = nil, nil
	}
}

// errUnsent says that a piece did not begin.
var errUnsent = errors.New("agent: the piece was not sent")

// direct runs a piece on the way to its driver.
func (c *Client) direct(ctx context.Context, i *interpreter, q *agentv1.EvaluateRequest, event func(*agentv1.RunEvent) error) (*agentv1.EvaluateDone, error) {
	if err := c.turns.take(ctx, c.ctx); err != nil {
		return nil, err
	}
	leaveTurn := sync.OnceFunc(c.turns.leave)
	defer leaveTurn()
	defer time.AfterFunc(soon, leaveTurn).Stop() // whatever the sandbox does, or reads
	began, id := time.Now(), 1+rand.Int64N(1<<53-1)
	limit := int(q.GetBounds().GetHeadChars())
	i.conn.SetDeadline(began.Add(sendLimit))
	if _, err := fmt.Fprintf(i.conn, "%d %d %d\n%s", id, len(q.Code), limit, q.Code); err != nil {
		i.close() // what came of it is no whole piece
		return nil, errUnsent
	}
	i.conn.SetReadDeadline(began.Add(soon))
	_, err := i.r.Peek(1)
	for tries := 1; ; tries++ {
		if err == nil {
			d, err := i.answer(id, limit)
			if err != nil {
				i.close()
				return nil, err
			}
			if d != nil {
				d.DurationMicros = uint64(time.Since(began).Microseconds())
				return d, nil
			}
			// There is more to it than is said here.
		}
		d, left, aerr := c.attend(ctx, i, id, began, q, event)
		if aerr != nil || !left {
			if aerr != nil && i.stop == nil || d.GetStateLost() {
				i.close()
			}
			return d, aerr
		}
		// It was over already, and the driver answers.
		i.conn.SetReadDeadline(time.Now().Add(sendLimit))
		_, err = i.r.Peek(1)
		if errors.Is(err, io.EOF) && tries < maxAsks {
			// Its process may be dying, which the agent tells when it is over.
			select {
			case <-time.After(askAgain):
				continue
			case <-ctx.Done():
			}
		}
		if err != nil || tries > 1 {
			i.close()
			return nil, fmt.Errorf("%w: the answer of the interpreter did not come", ErrLost)
		}
	}
}

// How often, and after which pause, the agent is asked about a driver that has
// closed its connection without an answer.
const (
	maxAsks  = 50
	askAgain = 20 * time.Millisecond
)

// sendLimit is how long a driver that waits for pieces may take to read one, or
// to write its answer.
const sendLimit = 10 * time.Second

// attend lets the agent take charge of a piece until its end. Left is true when
// it is over.
func (c *Client) attend(ctx context.Context, i *interpreter, id int64, began time.Time, q *agentv1.EvaluateRequest, event func(*agentv1.RunEvent) error) (d *agentv1.EvaluateDone, left bool, err error) {
	elapsed := time.Since(began)
	m := &agentv1.EvaluateRequest{Language: q.Language, Bounds: q.Bounds, Live: q.Live}
	if q.TimeoutMillis > 0 {
		m.TimeoutMillis = uint64(max(int64(q.TimeoutMillis)-elapsed.Milliseconds(), 1))
	}
	r := &agentv1.RunRequest{Kind: &agentv1.RunRequest_Attend{Attend: &agentv1.AttendRequest{Piece: m, Id: id, ElapsedMicros: uint64(elapsed.Microseconds())}}}
	e, err := c.run(ctx, r, event)
	if ctx.Err() != nil {
		// The agent may never have been told. Then the piece runs on, until it is
		// stopped; and its end is waited for in any case.
		r.GetAttend().Stop = true
		i.stop = func() { c.stop(i, id, r) }
		return nil, false, context.Cause(ctx)
	}
	if err == nil && e.GetLeft() {
		return nil, true, nil
	}
	d, err = c.evaluated(e, err)
	return d, false, err
}

// stop stops a piece that was given up, and returns when it is over: what comes
// back next on the way is the next piece's.
func (c *Client) stop(i *interpreter, id int64, r *agentv1.RunRequest) {
	ctx, cancel := context.WithTimeout(c.ctx, stopLimit)
	defer cancel()
	for {
		e, err := c.run(ctx, r, func(*agentv1.RunEvent) error { return nil })
		if err != nil {
			i.close()
			return
		}
		if !e.GetLeft() {
			return // the agent had it
		}
		if i.conn == nil {
			return
		}
		d, err := i.answer(id, maxAnswer)
		if err != nil {
			i.close()
			return
		}
		if d != nil {
			return // the driver had it
		}
	}
}

// stopLimit is more than the agent takes to stop what does not want to.
const stopLimit = 10 * time.Second

// maxAnswer bounds a driver's answer without what the piece wrote: more than the
// driver's own bound.
const maxAnswer = 512 << 10

// answer reads what a driver says of a piece; nil when it leaves that to the
// agent. What has been read is believed as little as all that comes out of a
// sandbox.
func (i *interpreter) answer(id int64, limit int) (*agentv1.EvaluateDone, error) {
	i.conn.SetReadDeadline(time.Now().Add(sendLimit))
	line, err := i.r.ReadSlice('\n')
	if err != nil {
		return nil, broken(err)
	}
	var size, stdout, stderr int
	if n, err := fmt.Sscanf(string(line), "%d %d %d\n", &size, &stdout, &stderr); err != nil || n != 3 ||
		size < 0 || size > maxAnswer || stdout < 0 || stdout > limit || stderr < 0 || stderr > limit {
		return nil, ErrProtocol
	}
	if size == 0 {
		return nil, nil
	}
	data := make([]byte, size+stdout+stderr)
	if _, err := io.ReadFull(i.r, data); err != nil {
		return nil, broken(err)
	}
	var reply wire.Reply
	if json.Unmarshal(data[:size], &reply) != nil || reply.ID != id || reply.Result != nil && len(*reply.Result) > limit {
		return nil, ErrProtocol
	}
	d := &agentv1.EvaluateDone{Ok: reply.OK, Error: reply.Error, Traceback: reply.Traceback, ExitCode: reply.Exit, Interrupted: reply.Stopped,
		Stdout: captured(data[size : size+stdout]), Stderr: captured(data[size+stdout:])}
	for n, c := range []*agentv1.Captured{d.Stdout, d.Stderr} {
		if c.Path = reply.Raw[n]; c.Path == "" {
			continue
		}
		if path.Dir(c.Path) != wire.OutputDir || !utf8.ValidString(c.Path) {
			return nil, ErrProtocol
		}
		c.Kept = c.Total
	}
	for _, v := range reply.Rich {
		d.Rich = append(d.Rich, &agentv1.Rich{Mime: v.MIME, Data: v.Data})
	}
	if reply.Result != nil {
		d.Result = captured([]byte(*reply.Result))
	}
	return d, nil
}

func broken(err error) error {
	if errors.Is(err, bufio.ErrBufferFull) {
		return ErrProtocol
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

func captured(b []byte) *agentv1.Captured { return &agentv1.Captured{Head: b, Total: uint64(len(b))} }
