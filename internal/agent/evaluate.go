package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sandlot/internal/agent/direct"
	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// interpreter is the host's record of the interpreter of one language. One cell of code runs at
// a time: over the direct connection to the driver, when there is one, or through the agent.
type interpreter struct {
	language string
	slot     chan struct{}               // held by the cell that runs
	cell     atomic.Pointer[runningCell] // that cell; nil: none runs

	// The slot guards these two.
	conn      *direct.Conn // nil: cells go through the agent
	awaitStop func()       // waits until the cell that the host has given up is over; nil: there is none

	preparing   atomic.Bool
	unsupported atomic.Bool // the driver cannot get cells directly
}

// runningCell is what is known of the cell that runs.
type runningCell struct {
	began time.Time
	tag   string // for calls of tools
}

// interpreter returns the record of a language.
func (c *Client) interpreter(language string) *interpreter {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.interps[language]
	if i == nil {
		i = &interpreter{language: language, slot: make(chan struct{}, 1)}
		c.interps[language] = i
	}
	return i
}

// evaluate runs one cell to its end. An error of the observer ends the cell. When ctx ends, the
// cell is stopped.
func (c *Client) evaluate(ctx context.Context, q *agentv1.EvaluateRequest, o Observer) (*agentv1.EvaluateDone, error) {
	i := c.interpreter(q.Language)
	if err := c.acquireInterpreter(ctx, i, o.Waiting); err != nil {
		return nil, err
	}
	i.cell.Store(&runningCell{time.Now(), q.Tag})
	defer func() { c.releaseInterpreter(i) }()
	if i.isDirect() {
		d, err := c.evaluateDirect(ctx, i, q, o)
		if !errors.Is(err, direct.ErrNotSent) {
			return d, err
		}
	}
	d, err := c.evaluateByAgent(ctx, q, o)
	if err == nil {
		c.Prepare(q.Language)
	}
	return d, err
}

// evaluateByAgent runs one cell through the agent.
func (c *Client) evaluateByAgent(ctx context.Context, q *agentv1.EvaluateRequest,
	o Observer) (*agentv1.EvaluateDone, error) {
	return evaluated(c.run(ctx, &agentv1.RunRequest{Kind: &agentv1.RunRequest_Evaluate{Evaluate: q}}, o.events()))
}

// evaluated returns the answer in the last event of a cell that the agent ran, or supervised.
func evaluated(e *agentv1.RunEvent, err error) (*agentv1.EvaluateDone, error) {
	if err != nil {
		return nil, err
	}
	if d := e.GetEvaluated(); d != nil {
		return d, nil
	}
	return nil, ErrProtocol
}

// Prepare opens the direct connection to a language's driver in the background, if the driver
// supports it. A cell through the agent does so afterwards, too.
func (c *Client) Prepare(language string) {
	i := c.interpreter(language)
	if i.unsupported.Load() || i.preparing.Swap(true) {
		return
	}
	c.spawn(func() {
		defer i.preparing.Store(false)
		ctx, cancel := context.WithTimeout(c.ctx, prepareLimit)
		defer cancel()
		// Start the interpreter first, without the slot: it may hang, and cells need not wait then.
		if c.StartInterpreter(ctx, language) == nil {
			c.OpenDirect(ctx, language)
		}
	})
}

const prepareLimit = 20 * time.Second

// OpenDirect opens the direct connection to a language's driver, unless it is open, and reports
// whether there is one.
func (c *Client) OpenDirect(ctx context.Context, language string) bool {
	i := c.interpreter(language)
	if c.acquireInterpreter(ctx, i, nil) != nil {
		return false
	}
	defer c.releaseInterpreter(i)
	c.openDirect(ctx, i)
	return i.isDirect()
}

// openDirect opens the direct connection: it makes the driver dial the host. When that fails, cells
// go through the agent. The caller holds the slot.
func (c *Client) openDirect(ctx context.Context, i *interpreter) {
	if i.unsupported.Load() || i.isDirect() {
		return
	}
	e := c.expect()
	defer c.forget(e)
	_, err := call(ctx, c.rpc.OpenInterpreter, &agentv1.OpenInterpreterRequest{Language: i.language,
		Ticket: e.ticket[:]})
	if err != nil {
		i.unsupported.Store(ReasonOf(err) == Unsupported)
		return
	}
	conn, err := e.wait(ctx)
	if err != nil {
		return
	}
	if _, ok := conn.(syscall.Conn); !ok { // it is carried over another one: the way through the agent is quicker
		i.unsupported.Store(true)
		conn.Close()
		return
	}
	i.conn, _ = direct.Open(ctx, conn)
}

// acquireInterpreter waits for an interpreter's slot. It calls waiting, which may be nil, at once and then
// once a second with how long the cell that holds the slot has run.
func (c *Client) acquireInterpreter(ctx context.Context, i *interpreter, waiting func(time.Duration) error) error {
	select {
	case i.slot <- struct{}{}:
		return nil
	default:
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if cell := i.cell.Load(); cell != nil && waiting != nil {
			if err := waiting(time.Since(cell.began)); err != nil {
				return err
			}
		}
		select {
		case i.slot <- struct{}{}:
			return nil
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
}

// releaseInterpreter releases the slot, after the cell is over that the host has given up.
func (c *Client) releaseInterpreter(i *interpreter) {
	i.cell.Store(nil)
	stop := i.awaitStop
	i.awaitStop = nil
	if stop != nil {
		if c.spawn(func() { stop(); c.freeInterpreter(i) }) {
			return
		}
		i.closeConn()
	}
	c.freeInterpreter(i)
}

// freeInterpreter releases the slot. After Close of the client it closes the direct connection.
func (c *Client) freeInterpreter(i *interpreter) {
	if c.ctx.Err() != nil {
		i.closeConn()
	}
	<-i.slot
	if c.ctx.Err() != nil { // Close may have found the slot held
		select {
		case i.slot <- struct{}{}:
			i.closeConn()
			<-i.slot
		default:
		}
	}
}

// isDirect reports whether there is a direct connection that works. It closes one that the driver
// has closed.
func (i *interpreter) isDirect() bool {
	if i.conn != nil && !i.conn.Idle() {
		i.closeConn()
	}
	return i.conn != nil
}

func (i *interpreter) closeConn() {
	if i.conn != nil {
		i.conn.Close()
		i.conn = nil
	}
}

// evaluateDirect runs a cell over the direct connection to the driver.
func (c *Client) evaluateDirect(ctx context.Context, i *interpreter, q *agentv1.EvaluateRequest,
	o Observer) (*agentv1.EvaluateDone, error) {
	if err := c.acquireSlot(ctx); err != nil {
		return nil, err
	}
	release := sync.OnceFunc(c.releaseSlot)
	defer release()
	defer time.AfterFunc(direct.SuperviseAfter, release).Stop() // Run may take longer to send the cell
	began, limit, onEvent := time.Now(), int(q.GetBounds().GetHeadChars()), o.events()
	var d *agentv1.EvaluateDone
	answer, _, err := i.conn.Run(ctx, q.Code, limit, func(ctx context.Context, id int64) (over bool, err error) {
		d, over, err = c.supervise(ctx, i, supervisedCell{q, id, began}, onEvent)
		return over, err
	})
	switch {
	case answer != nil:
		d = fromDriver(answer)
		d.DurationMicros = uint64(time.Since(began).Microseconds())
	case errors.Is(err, direct.ErrProtocol):
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
	case errors.Is(err, direct.ErrBroken):
		err = fmt.Errorf("%w: %w", ErrLinkBroken, err)
	}
	if err != nil && i.awaitStop == nil || d.GetStateLost() {
		i.closeConn()
	}
	return d, err
}

// supervisedCell is a cell that the agent is asked to supervise.
type supervisedCell struct {
	*agentv1.EvaluateRequest
	id    int64
	began time.Time
}

// request returns the request to supervise the cell, or to stop it.
func (s supervisedCell) request(stop bool) *agentv1.RunRequest {
	elapsed := time.Since(s.began)
	cell := &agentv1.EvaluateRequest{Language: s.Language, Bounds: s.Bounds, Live: s.Live}
	if s.TimeoutMillis > 0 {
		cell.TimeoutMillis = uint64(max(int64(s.TimeoutMillis)-elapsed.Milliseconds(), 1))
	}
	return &agentv1.RunRequest{Kind: &agentv1.RunRequest_Supervise{Supervise: &agentv1.SuperviseRequest{
		Cell: cell, Id: s.id, ElapsedMicros: uint64(elapsed.Microseconds()), Stop: stop}}}
}

// supervise makes the agent supervise a cell until its end. Over is true when the cell was over
// already: then the driver answers.
func (c *Client) supervise(ctx context.Context, i *interpreter, s supervisedCell,
	onEvent func(*agentv1.RunEvent) error) (d *agentv1.EvaluateDone, over bool, err error) {
	e, err := c.run(ctx, s.request(false), onEvent)
	if ctx.Err() != nil {
		// The request may not have reached the agent: awaitStopped stops the cell. The slot is held
		// until the cell is over.
		i.awaitStop = func() { c.awaitStopped(i, s) }
		return nil, false, context.Cause(ctx)
	}
	if err == nil && e.GetOver() {
		return nil, true, nil
	}
	d, err = evaluated(e, err)
	return d, false, err
}

// awaitStopped makes the agent stop a cell that the host has given up, and waits until the cell
// is over.
func (c *Client) awaitStopped(i *interpreter, s supervisedCell) {
	ctx, cancel := context.WithTimeout(c.ctx, stopLimit)
	defer cancel()
	if i.conn == nil {
		return
	}
	err := i.conn.AwaitEnd(ctx, s.id, func(ctx context.Context, _ int64) (over bool, err error) {
		e, err := c.run(ctx, s.request(true), func(*agentv1.RunEvent) error { return nil })
		return e.GetOver(), err
	})
	if err != nil {
		i.closeConn()
	}
}

// stopLimit is more than the agent takes to stop a cell that ignores interrupts.
const stopLimit = 10 * time.Second

// fromDriver returns a driver's answer in the form of the agent's answer.
func fromDriver(a *direct.Answer) *agentv1.EvaluateDone {
	d := &agentv1.EvaluateDone{Ok: a.OK, Error: a.Error, Traceback: a.Traceback, ExitCode: a.Exit,
		Interrupted: a.Stopped, Stdout: captured(a.Stdout, a.RawFiles[0]), Stderr: captured(a.Stderr, a.RawFiles[1])}
	if merged := wire.Merge(a.Order, a.Stdout, a.Stderr); merged != nil {
		d.Merged = captured(merged, "")
	}
	for _, v := range a.Rich {
		d.Rich = append(d.Rich, &agentv1.Rich{Mime: v.MIME, Data: v.Data})
	}
	if a.Result != nil {
		d.Result = captured([]byte(*a.Result), "")
	}
	return d
}

// captured returns an output that fits inline; path is that of a file with all of it, or empty.
func captured(b []byte, path string) *agentv1.Captured {
	c := &agentv1.Captured{Head: b, Total: uint64(len(b)), Path: path}
	if path != "" {
		c.Kept = c.Total
	}
	return c
}
