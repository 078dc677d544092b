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

// sender sends an event to the host that waits for the end of a run.
type sender func(*agentv1.RunEvent) error

// runs serves a run stream: one request after the other.
func (a *Agent) runs(ctx context.Context, s net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	requests := make(chan *agentv1.RunRequest)
	a.work.Go(func() {
		defer cancel() // the host does not wait any more
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

// awaitReports returns when the host knows which connections were refused until now.
func (a *Agent) awaitReports() {
	n := a.network.Load()
	if n == nil {
		return
	}
	n.AwaitReports()
	if !n.RefusedLately() {
		a.notify(false)
	}
}

// notify makes interpreters to which the host sends cells itself leave the ends of the
// cells to the agent, or no more.
func (a *Agent) notify(yes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, i := range a.interps {
		i.Notify(yes)
	}
}

// run runs one request and returns its last event.
func (a *Agent) run(ctx context.Context, r *agentv1.RunRequest, send sender) *agentv1.RunEvent {
	defer a.activity()()
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
		last.Event = &agentv1.RunEvent_Refused{Refused: refusal(err)}
	}
	return &last
}

// live sends output to the host while a call runs: at most ten times a second, the
// newest few kilobytes.
type live struct {
	send func(*agentv1.Output) error

	mu      sync.Mutex
	pending [2][]byte // stdout, stderr
}

// newLive returns nil, which sends nothing, when the host does not want it.
func newLive(wanted bool, send sender) *live {
	if !wanted {
		return nil
	}
	return &live{send: func(o *agentv1.Output) error {
		return send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Output{Output: o}})
	}}
}

const (
	liveEvery = 100 * time.Millisecond
	liveBytes = 4 << 10
)

// tee returns a writer to the capture and to the host; i is 0 for stdout, 1 for stderr.
func (l *live) tee(c *capture, i int) io.Writer {
	if l == nil {
		return c
	}
	return writerFunc(func(p []byte) (int, error) {
		l.mu.Lock()
		l.pending[i] = append(l.pending[i], p...)
		if over := len(l.pending[i]) - liveBytes; over > 0 {
			l.pending[i] = append(l.pending[i][:0], l.pending[i][over:]...)
		}
		l.mu.Unlock()
		return c.Write(p)
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// flush sends what is pending. It is called from the call's own goroutine.
func (l *live) flush() error {
	for i := range l.pending {
		l.mu.Lock()
		data := bytes.Clone(l.pending[i])
		l.pending[i] = l.pending[i][:0]
		l.mu.Unlock()
		if len(data) > 0 {
			if err := l.send(&agentv1.Output{Data: data, Stderr: i == 1}); err != nil {
				return err
			}
		}
	}
	return nil
}

// ticks returns a channel that ticks when flush is to be called; it never does for nil.
func (l *live) ticks() (<-chan time.Time, func()) {
	if l == nil {
		return nil, func() {}
	}
	t := time.NewTicker(liveEvery)
	return t.C, t.Stop
}

// execute runs a command until its end, its time is over, or nobody waits for it.
func (a *Agent) execute(ctx context.Context, r *agentv1.ExecRequest, l *live) (*agentv1.ExecDone, error) {
	stdout, stderr := newCapture("stdout", a.output, r.Bounds), newCapture("stderr", a.output, r.Bounds)
	w := process.Wiring{Stdout: l.tee(stdout, 0), Stderr: l.tee(stderr, 1)}
	if len(r.Stdin) > 0 {
		w.Stdin = bytes.NewReader(r.Stdin)
	}
	start := time.Now()
	p, err := a.Spawn("exec", r.Command, w)
	if err != nil {
		return nil, err
	}
	var over <-chan time.Time
	if r.TimeoutMillis > 0 {
		t := time.NewTimer(wire.Millis(r.TimeoutMillis))
		defer t.Stop()
		over = t.C
	}
	ticks, stop := l.ticks()
	defer stop()
	timedOut := false
	for waiting := true; waiting; {
		select {
		case <-p.Done():
			waiting = false
		case <-ticks:
			if err := l.flush(); err != nil {
				ticks = nil // nobody listens; the context ends soon
			}
		case <-over:
			timedOut, over = true, nil
			a.End(p, 200*time.Millisecond)
		case <-ctx.Done():
			a.End(p, 200*time.Millisecond)
			return nil, ctx.Err()
		}
	}
	exit, killedBy := p.Ended()
	d := &agentv1.ExecDone{ExitCode: exit, TimedOut: timedOut, KilledBy: killedBy, Stdout: stdout.done(),
		Stderr: stderr.done(), DurationMicros: uint64(time.Since(start).Microseconds())}
	if timedOut {
		d.ExitCode = 124
	}
	if d.KilledBy == "" && d.ExitCode == 128+int32(syscall.SIGKILL) {
		d.KilledBy = a.Enforcer.KilledSince(start)
	}
	return d, nil
}
