package guest

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"sandlot/proto/agentv1"
)

func bytesReader(b []byte) io.Reader { return bytes.NewReader(b) }

func toUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// live passes output on while a call runs: at most ten times a second, a few
// kilobytes each time, the newest.
type live struct {
	send func(*agentv1.Output) error

	mu      sync.Mutex
	pending [2][]byte // stdout, stderr
}

const (
	liveEvery = 100 * time.Millisecond
	liveBytes = 4 << 10
)

// tee returns a writer that captures and, while live, passes on.
func (l *live) tee(c *capture, stderr bool) io.Writer {
	if l == nil {
		return c
	}
	i := 0
	if stderr {
		i = 1
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
		data := append([]byte(nil), l.pending[i]...)
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

// ticks returns a channel that ticks while there is someone to tell, and never
// otherwise.
func (l *live) ticks() (<-chan time.Time, func()) {
	if l == nil {
		return nil, func() {}
	}
	t := time.NewTicker(liveEvery)
	return t.C, t.Stop
}

// Exec implements the wire: it runs a command to its end.
func (a *Agent) Exec(ctx context.Context, r *connect.Request[agentv1.ExecRequest], s *connect.ServerStream[agentv1.ExecEvent]) error {
	defer a.enter()()
	var l *live
	if r.Msg.Live {
		l = &live{send: func(o *agentv1.Output) error {
			return s.Send(&agentv1.ExecEvent{Event: &agentv1.ExecEvent_Output{Output: o}})
		}}
	}
	d, err := a.execute(ctx, r.Msg, l)
	if err != nil {
		return err
	}
	return s.Send(&agentv1.ExecEvent{Event: &agentv1.ExecEvent_Done{Done: d}})
}

// execute runs a command until its end, its time is over, or nobody waits for it.
func (a *Agent) execute(ctx context.Context, r *agentv1.ExecRequest, l *live) (*agentv1.ExecDone, error) {
	stdout, stderr := newCapture("stdout", a.spool, r.Bounds), newCapture("stderr", a.spool, r.Bounds)
	w := wiring{stdout: l.tee(stdout, false), stderr: l.tee(stderr, true)}
	if len(r.Stdin) > 0 {
		w.stdin = bytesReader(r.Stdin)
	}
	start := time.Now()
	p, err := a.spawn("exec", r.Command, w)
	if err != nil {
		return nil, err
	}
	var over <-chan time.Time
	if r.TimeoutMillis > 0 {
		t := time.NewTimer(time.Duration(min(r.TimeoutMillis, 1<<40)) * time.Millisecond)
		defer t.Stop()
		over = t.C
	}
	ticks, stop := l.ticks()
	defer stop()
	timedOut := false
	for waiting := true; waiting; {
		select {
		case <-p.done:
			waiting = false
		case <-ticks:
			if err := l.flush(); err != nil {
				ticks = nil // nobody listens; the context ends soon
			}
		case <-over:
			timedOut, over = true, nil
			a.end(p, 200*time.Millisecond)
		case <-ctx.Done():
			a.end(p, 200*time.Millisecond)
			return nil, ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	d := &agentv1.ExecDone{ExitCode: p.exit, TimedOut: timedOut, KilledBy: p.killedBy, DurationMicros: uint64(time.Since(start).Microseconds()),
		Stdout: stdout.done(), Stderr: stderr.done()}
	if timedOut {
		d.ExitCode = 124
	}
	if d.KilledBy == "" && d.ExitCode == 128+int32(syscall.SIGKILL) {
		d.KilledBy = a.guard.recent(start)
	}
	return d, nil
}
