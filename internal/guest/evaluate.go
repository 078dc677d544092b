package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/interp"
	"sandlot/proto/agentv1"
)

func (a *Agent) language(name string) (*agentv1.Language, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.languages {
		if l.Name == name {
			return l, nil
		}
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("language not found in sandbox: %.60s", name))
}

// shared is the name of the interpreter of a language. Languages with the same
// driver and program have one together, such as TypeScript with JavaScript: what
// one declares the other sees. The caller holds mu.
func (a *Agent) shared(l *agentv1.Language) string {
	for _, other := range a.languages {
		if other.Driver == l.Driver && slices.Equal(other.Command, l.Command) {
			return other.Name
		}
	}
	return l.Name
}

// interpreter returns the one of a language, which may not have started.
func (a *Agent) interpreter(l *agentv1.Language) *interp.Interp {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := a.shared(l)
	if i := a.interps[name]; i != nil {
		return i
	}
	i := interp.New(interp.Config{Driver: l.Driver, Command: l.Command, Dir: a.Base(), Output: wire.OutputDir,
		Env: func() []string { return a.environment(nil, true) },
		Start: func(argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
			return a.Fork(argv, attr)
		},
		Killed: a.Enforcer.KilledSince})
	if n := a.network.Load(); n != nil {
		i.Notify(n.Lately())
	}
	a.interps[name] = i
	return i
}

// interpreterPrefix begins the process ids of interpreters.
const interpreterPrefix = "interpreter-"

// interpreters describes those that live, as processes.
func (a *Agent) interpreters() []*agentv1.Process {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []*agentv1.Process
	for _, name := range slices.Sorted(maps.Keys(a.interps)) {
		i := a.interps[name]
		if pid, started := i.Process(); pid != 0 {
			list = append(list, &agentv1.Process{ProcessId: interpreterPrefix + name, Argv: []string{name}, Running: true, Kind: "interpreter",
				Pid: uint32(pid), StartedUnixMillis: uint64(started.UnixMilli()), Busy: i.Busy()})
		}
	}
	return list
}

// named returns the interpreter of a process id, or nil.
func (a *Agent) named(id string) *interp.Interp {
	name, ok := strings.CutPrefix(id, interpreterPrefix)
	if !ok {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.interps[name]
}

// halt stops the code that an interpreter runs; with KILL the interpreter, and
// its variables, too.
func halt(ctx context.Context, i *interp.Interp, s syscall.Signal) *agentv1.StopProcessResponse {
	if s == syscall.SIGKILL {
		i.Close()
		return &agentv1.StopProcessResponse{ExitCode: 128 + int32(s)}
	}
	i.Interrupt(ctx) // it is killed when it does not stop
	pid, _ := i.Process()
	return &agentv1.StopProcessResponse{Running: pid != 0}
}

// StartInterpreter implements the wire.
func (a *Agent) StartInterpreter(ctx context.Context,
	r *agentv1.StartInterpreterRequest) (*agentv1.StartInterpreterResponse, error) {
	l, err := a.language(r.Language)
	if err != nil {
		return nil, err
	}
	if l.Driver != "" {
		if err := a.interpreter(l).Warm(ctx); err != nil {
			return nil, connect.NewError(connect.CodeInternal, err)
		}
	}
	return &agentv1.StartInterpreterResponse{}, nil
}

// OpenInterpreter implements the wire.
func (a *Agent) OpenInterpreter(ctx context.Context,
	r *agentv1.OpenInterpreterRequest) (*agentv1.OpenInterpreterResponse, error) {
	l, err := a.language(r.Language)
	if err != nil {
		return nil, err
	}
	err = interp.ErrNone
	if l.Driver != "" {
		err = a.interpreter(l).Open(ctx, a.config.Socket, r.Ticket)
	}
	switch {
	case errors.Is(err, interp.ErrNone):
		return nil, connect.NewError(connect.CodeUnimplemented, err)
	case err != nil:
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return &agentv1.OpenInterpreterResponse{}, nil
}

// heard is what one piece of code says, on its way to the host.
type heard struct {
	a              *Agent
	m              *agentv1.EvaluateRequest
	live           *live
	stdout, stderr *capture
}

func (a *Agent) hear(m *agentv1.EvaluateRequest, lv *live) *heard {
	return &heard{a, m, lv, newCapture("stdout", a.spool, m.Bounds), newCapture("stderr", a.spool, m.Bounds)}
}

// call is the piece as its interpreter takes it; end is called when it is over.
func (h *heard) call() (c interp.Call, end func()) {
	ticks, end := h.live.ticks()
	c = interp.Call{Code: h.m.Code, Language: h.m.Language, Timeout: time.Duration(min(h.m.TimeoutMillis, 1<<40)) * time.Millisecond,
		Stdout: h.live.tee(h.stdout, false), Stderr: h.live.tee(h.stderr, true), Ticks: ticks}
	if h.live != nil {
		c.Tick = h.live.flush
	}
	return c, end
}

func (h *heard) done(r *interp.Result) *agentv1.EvaluateDone {
	d := done(r, h.stdout, h.stderr)
	if r.Result != nil {
		c := newCapture("result", h.a.spool, h.m.Bounds)
		io.WriteString(c, toUTF8(*r.Result))
		d.Result = c.done()
		if d.Result.Total <= uint64(len(d.Result.Head)+len(d.Result.Tail)) {
			d.Result.Path, d.Result.Kept = "", 0 // that of a value has none beside what does not fit
		}
	}
	return d
}

// evaluate runs a piece of code to its end.
func (a *Agent) evaluate(ctx context.Context, m *agentv1.EvaluateRequest, send sender) (*agentv1.EvaluateDone, error) {
	l, err := a.language(m.Language)
	if err != nil {
		return nil, err
	}
	lv := newLive(m.Live, send)
	if l.Driver == "" {
		return a.runFile(ctx, l, m, lv)
	}
	h := a.hear(m, lv)
	call, end := h.call()
	defer end()
	call.Waiting = func(d time.Duration) {
		// A host that is gone is noticed by the context.
		_ = send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Waiting{Waiting: &agentv1.Waiting{Language: l.Name, RunningForMicros: uint64(d.Microseconds())}}})
	}
	r, err := a.interpreter(l).Run(ctx, call)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return h.done(r), nil
}

// supervise takes over a piece that the host gave to its driver; nil when
// that is over.
func (a *Agent) supervise(ctx context.Context,
	q *agentv1.SuperviseRequest, send sender) (*agentv1.EvaluateDone, error) {
	m := q.GetCell()
	l, err := a.language(m.GetLanguage())
	if err != nil {
		return nil, err
	}
	if l.Driver == "" {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("this language has no driver"))
	}
	h := a.hear(m, newLive(m.Live, send))
	call, end := h.call()
	defer end()
	began := time.Now().Add(-time.Duration(min(q.ElapsedMicros, 1<<40)) * time.Microsecond)
	r, taken, err := a.interpreter(l).Supervise(ctx, q.Id, began, q.Stop, call)
	if err != nil || !taken {
		return nil, err
	}
	return h.done(r), nil
}

func done(r *interp.Result, stdout, stderr *capture) *agentv1.EvaluateDone {
	d := &agentv1.EvaluateDone{Ok: r.OK, Stdout: stdout.done(), Stderr: stderr.done(), Error: toUTF8(r.Error), Traceback: toUTF8(r.Traceback),
		ExitCode: r.Exit, TimedOut: r.TimedOut, Interrupted: r.Interrupted && !r.TimedOut, StateLost: r.StateLost, Reason: toUTF8(r.Reason),
		KilledBy: r.KilledBy, DurationMicros: uint64(r.Took.Microseconds())}
	for _, v := range r.Rich {
		d.Rich = append(d.Rich, &agentv1.Rich{Mime: toUTF8(v.MIME), Data: v.Data})
	}
	if d.TimedOut {
		d.ExitCode = 124
		d.Traceback, d.Error = "", "" // of the interrupt, which the user did not make
	}
	return d
}

// runFile runs code of a language that keeps no state, as `command file`.
func (a *Agent) runFile(ctx context.Context,
	l *agentv1.Language, m *agentv1.EvaluateRequest, lv *live) (*agentv1.EvaluateDone, error) {
	dir, err := os.MkdirTemp("", "code-")
	if err != nil {
		return nil, a.Explain("/tmp", err)
	}
	defer os.RemoveAll(dir)
	ext := l.Extension
	if strings.ContainsAny(ext, "/\x00") {
		ext = ""
	}
	file := filepath.Join(dir, "code"+ext)
	if err := os.WriteFile(file, []byte(m.Code), 0o600); err != nil {
		return nil, a.Explain("/tmp", err)
	}
	argv := append(append([]string{}, l.Command...), file)
	d, err := a.execute(ctx, &agentv1.ExecRequest{Command: &agentv1.Command{Argv: argv}, TimeoutMillis: m.TimeoutMillis, Bounds: m.Bounds}, lv)
	if err != nil {
		return nil, err
	}
	return &agentv1.EvaluateDone{Ok: d.ExitCode == 0, Stdout: d.Stdout, Stderr: d.Stderr, ExitCode: d.ExitCode, TimedOut: d.TimedOut,
		KilledBy: d.KilledBy, DurationMicros: d.DurationMicros}, nil
}
