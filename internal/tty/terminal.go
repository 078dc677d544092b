package tty

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/event"
	"sandlot/internal/fault"
)

// Terminal is one terminal.
type Terminal struct {
	Start
	registry *Registry
	of       *owner
	ctx      context.Context // ends with it
	cancel   context.CancelFunc
	sizing   sync.Mutex // held while its program is told of a size; before mu

	mu      sync.Mutex // guards what follows
	screen  screen
	applied agent.Size // that its program knows
	cursor  int64      // how much of the output was read
	ready   bool       // what it had printed before it was known was read
	old     int64      // how much that was: the offset of its end; -1: nobody knows yet
	viewers map[*Viewer]bool
	ended   *End
	idle    *time.Timer // of a terminal without viewers; nil: of one that may be without
}

// screen is terminal.Emulator.
type screen interface {
	Size() (rows, columns int)
	Resize(rows, columns int)
	Write(output []byte) (shown, answers []byte)
	Skip()
	Draw() []byte
}

func (t *Terminal) info() Info {
	t.mu.Lock()
	defer t.mu.Unlock()
	rows, cols := t.screen.Size()
	return Info{ID: t.ID, Session: t.Session, Command: commandText(t.Command), Started: t.Began.UTC(), Rows: rows,
		Cols: cols, Viewers: len(t.viewers)}
}

const (
	readWait = 20 * time.Second // for output
	// breakWait is the first and lastWait the last pause after a read without an answer.
	breakWait, lastWait = 100 * time.Millisecond, 5 * time.Second
	// readPace is the time from one read to the next at least, whatever a sandbox answers.
	readPace   = 10 * time.Millisecond
	answerWait = time.Second // for a program to take the answers to its questions
	maxAnswers = 256         // bytes of answers to the questions in one read
	maxOld     = 4 << 20     // bytes that an agent may have kept of what was printed before
)

// run reads what the program prints, until the terminal ends. The output may be hostile: a mistake here ends one
// terminal, and not the server.
func (t *Terminal) run() {
	end := End{Why: "the server could not show it"}
	defer func() {
		if p := recover(); p != nil {
			t.registry.Log.Error("a terminal's output could not be shown", "panic", p, "stack", string(debug.Stack()))
		}
		t.end(end)
	}()
	end = t.follow()
}

func (t *Terminal) follow() End {
	var events *event.Subscription
	if s := t.registry.Events; s != nil {
		events = s.Subscribe(event.Filter{Principal: t.Owner, Session: t.Session, Kinds: []event.Kind{event.Session}},
			s.Newest())
		defer events.Close()
	}
	pause := breakWait
	for t.ctx.Err() == nil {
		p, err := t.registry.Programs(t.Owner, t.Session)
		switch {
		case err != nil:
			return gone("its session is gone")
		case !p.Kept || p.Life != t.Life:
			return gone("it has ended with its session's sandbox")
		case p.Machine == nil:
			if err := awaitEvent(t.ctx, events); err != nil {
				return End{stops: true}
			}
			continue
		}
		began := time.Now()
		t.applySize(t.ctx, p.Machine)
		out, err := p.Machine.ReadProcess(t.ctx, t.ID, t.cursor, maxRead, readWait)
		switch agent.ReasonOf(err) {
		case agent.NotFound, agent.Conflict, agent.Invalid, agent.Unsupported:
			return gone("%v", err)
		}
		if err == nil {
			t.show(p.Machine, out)
			if !out.Running && out.Available <= 0 {
				code := out.ExitCode
				return End{ExitCode: &code}
			}
		}
		// Without an answer the session falls asleep, or its agent dials again. An agent that has nothing waits before it
		// says so, unless it is no agent any more.
		if err != nil || len(out.Data) == 0 && time.Since(began) < readWait/2 {
			sleep(t.ctx, pause)
			pause = min(2*pause, lastWait)
			continue
		}
		pause = breakWait
		sleep(t.ctx, time.Until(began.Add(readPace)))
	}
	return End{stops: true}
}

// awaitEvent waits for an event of the session, or some seconds: it may wake without one. The error says that the server
// stops.
func awaitEvent(ctx context.Context, events *event.Subscription) error {
	wait, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	if events == nil {
		sleep(wait, lastWait)
		return ctx.Err()
	}
	if _, _, err := events.Next(wait); errors.Is(err, event.ErrClosed) {
		return err
	}
	return ctx.Err()
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// show shows what the program has printed, and answers its questions.
func (t *Terminal) show(m Machine, out agent.ProcessOutput) {
	if answers := t.work(out); len(answers) > 0 {
		ctx, cancel := context.WithTimeout(t.ctx, answerWait)
		defer cancel()
		_, _ = m.TypeKeys(ctx, t.ID, answers[:min(len(answers), maxAnswers)]) // a program need not read them
	}
}

// work is write. All terminals of a principal together use a quarter of a processor for it, whatever their programs print.
func (t *Terminal) work(out agent.ProcessOutput) (answers []byte) {
	t.of.busy.Lock()
	defer t.of.busy.Unlock()
	began := time.Now()
	answers = t.write(out)
	if took := time.Since(began); took > time.Millisecond {
		sleep(t.ctx, 3*took)
	}
	return answers
}

// write writes what the program has printed to the screen, and returns the answers to what it asks now.
func (t *Terminal) write(out agent.ProcessOutput) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.old < 0 {
		t.old = out.Cursor + min(max(out.Available, 0), maxOld)
	}
	if out.Skipped > 0 {
		t.screen.Skip()
		for v := range t.viewers {
			v.late()
		}
	}
	shown, answers := t.screen.Write(out.Data)
	live := t.ready
	t.cursor, t.ready = out.Cursor, t.ready || out.Cursor >= t.old
	for v := range t.viewers {
		v.add(shown)
	}
	if !live {
		return nil
	}
	return answers
}

// end notes how the terminal ended, and tells its viewers.
func (t *Terminal) end(e End) {
	t.cancel()
	t.mu.Lock()
	if t.ended == nil {
		t.ended = &e
	}
	t.rest(false)
	for v := range t.viewers {
		v.signal()
	}
	t.mu.Unlock()
	t.registry.forget(t)
}

// rest starts or stops the time until a terminal without viewers ends. The caller holds mu.
func (t *Terminal) rest(begins bool) {
	switch {
	case t.idle == nil:
	case begins:
		t.idle.Reset(unwatched)
	default:
		t.idle.Stop()
	}
}

// endUnwatched ends the terminal if nobody has looked at it for a long time. While its session sleeps, it costs nothing.
func (t *Terminal) endUnwatched() {
	t.mu.Lock()
	watched := len(t.viewers) > 0
	t.mu.Unlock()
	if watched || t.ctx.Err() != nil {
		return
	}
	p, err := t.registry.Programs(t.Owner, t.Session)
	if err == nil && p.Machine != nil && p.Life == t.Life {
		ctx, cancel := context.WithTimeout(t.ctx, 10*time.Second)
		defer cancel()
		_ = t.Stop(ctx, p.Machine, p.Life)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.viewers) == 0 && t.ended == nil {
		t.rest(true)
	}
}

// hangup is SIGHUP in a sandbox, whatever the server's system is.
const hangup = syscall.Signal(1)

// Stop ends the program of the terminal: as when a person closes the window of a terminal, and by force if need be.
func (t *Terminal) Stop(ctx context.Context, m Machine, life uint64) error {
	if life != t.Life {
		return nil // it has ended
	}
	_, _, err := m.StopProcess(ctx, t.ID, hangup, 2*time.Second)
	if agent.ReasonOf(err) == agent.NotFound {
		err = nil
	}
	return err
}

// keysAtOnce is how many bytes of keys are given to a program at once: one that reads slowly gets ten seconds for them.
const keysAtOnce = 4 << 10

// Type gives keys to the program. What it does not read in time is lost.
func (t *Terminal) Type(ctx context.Context, m Machine, life uint64, keys []byte) error {
	if life != t.Life {
		return fault.New(fault.NotFound, "the terminal has ended with its session's sandbox: open a new one")
	}
	for len(keys) > 0 {
		part := keys[:min(len(keys), keysAtOnce)]
		keys = keys[len(part):]
		n, err := m.TypeKeys(ctx, t.ID, part)
		if err != nil {
			return fmt.Errorf("typing into a terminal: %w", err)
		}
		if n < len(part) {
			return fault.New(fault.CommandExecution, "the program does not read what is typed")
		}
	}
	return nil
}

// Lives returns no error as long as the terminal has not ended: else typing would start a sandbox without it.
func (t *Terminal) Lives() error {
	t.mu.Lock()
	ended := t.ended != nil
	t.mu.Unlock()
	p, err := t.registry.Programs(t.Owner, t.Session)
	if err == nil && (ended || !p.Kept || p.Life != t.Life) {
		err = fault.New(fault.NotFound, "the terminal has ended: open a new one")
	}
	return err
}

// applySize tells the program the size of the screen, if that has changed.
func (t *Terminal) applySize(ctx context.Context, m Machine) {
	t.sizing.Lock()
	defer t.sizing.Unlock()
	t.mu.Lock()
	rows, cols := t.screen.Size()
	is := agent.Size{Rows: rows, Cols: cols}
	same := is == t.applied
	t.mu.Unlock()
	if same {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if m.ResizeTerminal(ctx, t.ID, is) != nil {
		return // the next read tries again
	}
	t.mu.Lock()
	t.applied = is
	t.mu.Unlock()
}
