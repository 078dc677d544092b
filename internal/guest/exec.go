package guest

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/process"
	"sandlot/proto/agentv1"
)

// eventSender sends an event of a run to the host.
type eventSender func(*agentv1.RunEvent) error

// serveRuns serves a run stream: one request after the other.
func (a *Agent) serveRuns(ctx context.Context, s net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	requests := make(chan *agentv1.RunRequest)
	a.work.Go(func() {
		defer cancel() // the host has closed the stream: stop what runs
		for {
			r := new(agentv1.RunRequest)
			if wire.ReadMessage(s, r) != nil {
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	})
	send := func(e *agentv1.RunEvent) error { return wire.WriteMessage(s, e) }
	for {
		select {
		case r := <-requests:
			e := a.run(ctx, r, send)
			a.awaitReports()
			if send(e) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// awaitReports waits until all connections that were refused until now are reported to the
// host. A tool's result then can name them.
func (a *Agent) awaitReports() {
	n := a.network.Load()
	if n == nil {
		return
	}
	n.AwaitReports()
	if !n.RefusedRecently() {
		a.setHandover(false)
	}
}

// setHandover sets whether drivers that get cells from the host directly hand the end of each
// cell over to the agent. They do so while programs may try to reach a refused name: the agent
// then calls awaitReports before it answers.
func (a *Agent) setHandover(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, i := range a.interps {
		i.SetHandover(on)
	}
}

// run runs one request, and returns its last event.
func (a *Agent) run(ctx context.Context, r *agentv1.RunRequest, send eventSender) *agentv1.RunEvent {
	defer a.beginCall()()
	var last agentv1.RunEvent
	var err error
	switch k := r.Kind.(type) {
	case *agentv1.RunRequest_Exec:
		var d *agentv1.ExecDone
		d, err = a.execute(ctx, k.Exec, newLive(k.Exec.Live, send))
		last.Event = &agentv1.RunEvent_Executed{Executed: d}
	case *agentv1.RunRequest_Evaluate:
		var d *agentv1.EvaluateDone
		d, err = a.evaluate(ctx, k.Evaluate, send)
		last.Event = &agentv1.RunEvent_Evaluated{Evaluated: d}
	case *agentv1.RunRequest_Supervise:
		var d *agentv1.EvaluateDone
		d, err = a.supervise(ctx, k.Supervise, send)
		last.Event = &agentv1.RunEvent_Evaluated{Evaluated: d}
		if d == nil {
			last.Event = &agentv1.RunEvent_Over{Over: true}
		}
	default:
		err = wire.Errorf(connect.CodeUnimplemented, "unknown kind of run")
	}
	if err != nil {
		last.Event = &agentv1.RunEvent_Refused{Refused: refusalReply(err)}
	}
	return &last
}

// liveOutput sends output to the host while a call runs: at most ten times a second, and each
// time at most the last liveBytes bytes of each stream.
type liveOutput struct {
	send func(*agentv1.Output) error

	mu      sync.Mutex
	pending [2][]byte // stdout, stderr
}

// newLive returns nil when the host does not want live output. A nil *liveOutput sends nothing.
func newLive(wanted bool, send eventSender) *liveOutput {
	if !wanted {
		return nil
	}
	return &liveOutput{send: func(o *agentv1.Output) error {
		return send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Output{Output: o}})
	}}
}

const (
	liveInterval = 100 * time.Millisecond
	liveBytes    = 4 << 10
)

// tee returns a writer to both the capture and the host; i is 0 for stdout, 1 for stderr.
func (l *liveOutput) tee(c *capture, i int) io.Writer {
	if l == nil {
		return c
	}
	return &teed{c, l, i}
}

// teed is a capture whose output the host gets while it comes, too.
type teed struct {
	*capture
	live *liveOutput
	i    int
}

func (t *teed) Write(p []byte) (int, error) {
	l := t.live
	l.mu.Lock()
	l.pending[t.i] = append(l.pending[t.i], p...)
	if excess := len(l.pending[t.i]) - liveBytes; excess > 0 {
		l.pending[t.i] = append(l.pending[t.i][:0], l.pending[t.i][excess:]...)
	}
	l.mu.Unlock()
	return t.capture.Write(p)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// flush sends the pending output. Only the goroutine of the call may use it.
func (l *liveOutput) flush() error {
	for i := range l.pending {
		l.mu.Lock()
		whole := len(l.pending[i]) - partialLen(l.pending[i])
		data := bytes.Clone(l.pending[i][:whole])
		l.pending[i] = append(l.pending[i][:0], l.pending[i][whole:]...)
		l.mu.Unlock()
		if len(data) > 0 {
			if err := l.send(&agentv1.Output{Data: data, Stderr: i == 1}); err != nil {
				return err
			}
		}
	}
	return nil
}

// ticks returns a channel that ticks when flush is to be called. For a nil *liveOutput it never
// ticks.
func (l *liveOutput) ticks() (<-chan time.Time, func()) {
	if l == nil {
		return nil, func() {}
	}
	t := time.NewTicker(liveInterval)
	return t.C, t.Stop
}

// execute runs a command until it ends, its timeout is over, or ctx ends.
func (a *Agent) execute(ctx context.Context, r *agentv1.ExecRequest, live *liveOutput) (*agentv1.ExecDone, error) {
	output := newMerged(a.output, r.Bounds)
	w := process.Stdio{Stdout: output.writer(0, live), Stderr: output.writer(1, live), Tag: r.Tag}
	if len(r.Stdin) > 0 {
		w.Stdin = bytes.NewReader(r.Stdin)
	}
	start := time.Now()
	p, err := a.Spawn("exec", r.Command, w)
	if err != nil {
		return nil, err
	}
	var timeout <-chan time.Time
	if r.TimeoutMillis > 0 {
		t := time.NewTimer(wire.Milliseconds(r.TimeoutMillis))
		defer t.Stop()
		timeout = t.C
	}
	ticks, stop := live.ticks()
	defer stop()
	timedOut := false
	for waiting := true; waiting; {
		select {
		case <-p.Done():
			waiting = false
		case <-ticks:
			if err := live.flush(); err != nil {
				ticks = nil // the stream is broken; ctx ends soon
			}
		case <-timeout:
			timedOut, timeout = true, nil
			a.End(p, 200*time.Millisecond)
		case <-ctx.Done():
			a.End(p, 200*time.Millisecond)
			return nil, ctx.Err()
		}
	}
	exit, killedBy := p.Ended()
	d := &agentv1.ExecDone{ExitCode: exit, TimedOut: timedOut, KilledBy: killedBy,
		DurationMicros: uint64(time.Since(start).Microseconds())}
	d.Stdout, d.Stderr, d.Merged = output.done(nil)
	if timedOut {
		d.ExitCode = 124
	}
	if d.KilledBy == "" && d.ExitCode == 128+int32(syscall.SIGKILL) {
		d.KilledBy = a.Enforcer.KilledSince(start)
	}
	return d, nil
}
