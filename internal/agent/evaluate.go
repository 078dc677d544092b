package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/agent/direct"
	"sandlot/proto/agentv1"
)

// interpreter is what the host knows of the interpreter of one language. One cell of
// code runs at a time: on the direct way to its driver, where there is one, or through
// the agent.
type interpreter struct {
	language string
	turn     chan struct{} // held by the cell that runs

	mu      sync.Mutex
	running time.Time // since when; zero: nothing runs

	// The turn guards what follows.
	way  *direct.Way // nil: cells go through the agent
	stop func()      // waits for the cell that was given up to stop

	preparing bool        // guarded by the client's mu
	none      atomic.Bool // this driver takes no cells from the host
}

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
func (c *Client) evaluate(ctx context.Context, q *agentv1.EvaluateRequest,
	event func(*agentv1.RunEvent) error) (*agentv1.EvaluateDone, error) {
	i := c.interpreter(q.Language)
	if err := c.wait(ctx, i, event); err != nil {
		return nil, err
	}
	i.begin(time.Now())
	defer func() { c.over(i) }()
	if i.open() {
		d, err := c.direct(ctx, i, q, event)
		if !errors.Is(err, direct.ErrUnsent) {
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
func (c *Client) evaluateByAgent(ctx context.Context, q *agentv1.EvaluateRequest,
	event func(*agentv1.RunEvent) error) (*agentv1.EvaluateDone, error) {
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
	_, err := call(ctx, c.rpc.OpenInterpreter, &agentv1.OpenInterpreterRequest{Language: i.language,
		Ticket: e.ticket[:]})
	if err != nil {
		i.none.Store(ReasonOf(err) == Unsupported)
		return // cells go through the agent
	}
	conn, err := e.wait(ctx)
	if err != nil {
		return
	}
	i.way, _ = direct.Open(ctx, conn)
}

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
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil { // nothing begins that Close does not wait for
		i.close()
		c.pass(i)
		return
	}
	c.work.Go(func() {
		stop()
		c.pass(i)
	})
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
	if i.way != nil && !i.way.Quiet() {
		i.close()
	}
	return i.way != nil
}

func (i *interpreter) close() {
	if i.way != nil {
		i.way.Close()
		i.way = nil
	}
}

// direct runs a cell on the way to its driver.
func (c *Client) direct(ctx context.Context, i *interpreter, q *agentv1.EvaluateRequest,
	event func(*agentv1.RunEvent) error) (*agentv1.EvaluateDone, error) {
	if err := c.turns.take(ctx, c.ctx); err != nil {
		return nil, err
	}
	leaveTurn := sync.OnceFunc(c.turns.leave)
	defer leaveTurn()
	defer time.AfterFunc(direct.Soon, leaveTurn).Stop() // whatever the sandbox does, or reads
	began, limit := time.Now(), int(q.GetBounds().GetHeadChars())
	var d *agentv1.EvaluateDone
	answer, _, err := i.way.Run(ctx, q.Code, limit, func(ctx context.Context, id int64) (over bool, err error) {
		d, over, err = c.supervise(ctx, i, supervised{q, id, began}, event)
		return over, err
	})
	switch {
	case answer != nil:
		d = ofDriver(answer)
		d.DurationMicros = uint64(time.Since(began).Microseconds())
	case errors.Is(err, direct.ErrProtocol):
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
	case errors.Is(err, direct.ErrBroken):
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	if err != nil && i.stop == nil || d.GetStateLost() {
		i.close()
	}
	return d, err
}

// supervised is a cell that the agent is asked to supervise.
type supervised struct {
	*agentv1.EvaluateRequest
	id    int64
	began time.Time
}

// request asks the agent to supervise the cell.
func (s supervised) request(stop bool) *agentv1.RunRequest {
	elapsed := time.Since(s.began)
	m := &agentv1.EvaluateRequest{Language: s.Language, Bounds: s.Bounds, Live: s.Live}
	if s.TimeoutMillis > 0 {
		m.TimeoutMillis = uint64(max(int64(s.TimeoutMillis)-elapsed.Milliseconds(), 1))
	}
	return &agentv1.RunRequest{Kind: &agentv1.RunRequest_Supervise{Supervise: &agentv1.SuperviseRequest{
		Cell: m, Id: s.id, ElapsedMicros: uint64(elapsed.Microseconds()), Stop: stop}}}
}

// supervise lets the agent supervise a cell until its end. Over is true when the cell
// is over, and the driver answers.
func (c *Client) supervise(ctx context.Context, i *interpreter, s supervised,
	event func(*agentv1.RunEvent) error) (d *agentv1.EvaluateDone, over bool, err error) {
	e, err := c.run(ctx, s.request(false), event)
	if ctx.Err() != nil {
		// The agent may never have been told. Then the cell runs on, until it is
		// stopped; and its end is waited for in any case.
		i.stop = func() { c.awaitStopped(i, s) }
		return nil, false, context.Cause(ctx)
	}
	if err == nil && e.GetOver() {
		return nil, true, nil
	}
	d, err = c.evaluated(e, err)
	return d, false, err
}

// awaitStopped makes the agent stop a cell that was given up, and returns when the cell
// is over.
func (c *Client) awaitStopped(i *interpreter, s supervised) {
	ctx, cancel := context.WithTimeout(c.ctx, stopLimit)
	defer cancel()
	if i.way == nil {
		return
	}
	err := i.way.Await(ctx, s.id, func(ctx context.Context, _ int64) (over bool, err error) {
		e, err := c.run(ctx, s.request(true), func(*agentv1.RunEvent) error { return nil })
		return e.GetOver(), err
	})
	if err != nil {
		i.close()
	}
}

// stopLimit is more than the agent takes to stop what does not want to.
const stopLimit = 10 * time.Second

// ofDriver is a driver's answer as the agent gives its own.
func ofDriver(a *direct.Answer) *agentv1.EvaluateDone {
	d := &agentv1.EvaluateDone{Ok: a.OK, Error: a.Error, Traceback: a.Traceback, ExitCode: a.Exit,
		Interrupted: a.Stopped,
		Stdout:      captured(a.Stdout), Stderr: captured(a.Stderr)}
	for n, c := range []*agentv1.Captured{d.Stdout, d.Stderr} {
		if c.Path = a.Raw[n]; c.Path != "" {
			c.Kept = c.Total
		}
	}
	for _, v := range a.Rich {
		d.Rich = append(d.Rich, &agentv1.Rich{Mime: v.MIME, Data: v.Data})
	}
	if a.Result != nil {
		d.Result = captured([]byte(*a.Result))
	}
	return d
}

func captured(b []byte) *agentv1.Captured { return &agentv1.Captured{Head: b, Total: uint64(len(b))} }
