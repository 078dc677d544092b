package guest

import (
	"context"
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

// interpreter returns the one of a language, which may not have started.
func (a *Agent) interpreter(l *agentv1.Language) *interp.Interp {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := a.interps[l.Name]; i != nil {
		return i
	}
	i := interp.New(interp.Config{Driver: l.Driver, Command: l.Command, Dir: a.files.base(),
		Env: func() []string { return a.environment(nil) },
		Start: func(argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
			return a.fork(argv, attr)
		},
		Killed: a.guard.recent})
	a.interps[l.Name] = i
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
func (a *Agent) StartInterpreter(ctx context.Context, r *connect.Request[agentv1.StartInterpreterRequest]) (*connect.Response[agentv1.StartInterpreterResponse], error) {
	l, err := a.language(r.Msg.Language)
	if err != nil {
		return nil, err
	}
	if l.Driver != "" {
		if err := a.interpreter(l).Warm(ctx); err != nil {
			return nil, connect.NewError(connect.CodeInternal, err)
		}
	}
	return connect.NewResponse(&agentv1.StartInterpreterResponse{}), nil
}

// StopInterpreter implements the wire.
func (a *Agent) StopInterpreter(_ context.Context, r *connect.Request[agentv1.StopInterpreterRequest]) (*connect.Response[agentv1.StopInterpreterResponse], error) {
	a.mu.Lock()
	var ended []*interp.Interp
	for name, i := range a.interps {
		if r.Msg.Language == "" || r.Msg.Language == name {
			ended = append(ended, i)
			delete(a.interps, name)
		}
	}
	a.mu.Unlock()
	for _, i := range ended {
		i.Close()
	}
	return connect.NewResponse(&agentv1.StopInterpreterResponse{}), nil
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
	stdout, stderr := newCapture("stdout", a.spool, m.Bounds), newCapture("stderr", a.spool, m.Bounds)
	ticks, stop := lv.ticks()
	defer stop()
	call := interp.Call{Code: m.Code, Timeout: time.Duration(min(m.TimeoutMillis, 1<<40)) * time.Millisecond,
		Stdout: lv.tee(stdout, false), Stderr: lv.tee(stderr, true), Ticks: ticks,
		Waiting: func(d time.Duration) {
			// A host that is gone is noticed by the context.
			_ = send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Waiting{Waiting: &agentv1.Waiting{Language: l.Name, RunningForMicros: uint64(d.Microseconds())}}})
		}}
	if lv != nil {
		call.Tick = lv.flush
	}
	r, err := a.interpreter(l).Run(ctx, call)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	d := done(r, stdout, stderr)
	if r.Result != nil {
		c := newCapture("result", a.spool, m.Bounds)
		io.WriteString(c, toUTF8(*r.Result))
		d.Result = c.done()
	}
	return d, nil
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
func (a *Agent) runFile(ctx context.Context, l *agentv1.Language, m *agentv1.EvaluateRequest, lv *live) (*agentv1.EvaluateDone, error) {
	dir, err := os.MkdirTemp("", "code-")
	if err != nil {
		return nil, a.files.explain("/tmp", err)
	}
	defer os.RemoveAll(dir)
	ext := l.Extension
	if strings.ContainsAny(ext, "/\x00") {
		ext = ""
	}
	file := filepath.Join(dir, "code"+ext)
	if err := os.WriteFile(file, []byte(m.Code), 0o600); err != nil {
		return nil, a.files.explain("/tmp", err)
	}
	argv := append(append([]string{}, l.Command...), file)
	d, err := a.execute(ctx, &agentv1.ExecRequest{Command: &agentv1.Command{Argv: argv}, TimeoutMillis: m.TimeoutMillis, Bounds: m.Bounds}, lv)
	if err != nil {
		return nil, err
	}
	return &agentv1.EvaluateDone{Ok: d.ExitCode == 0, Stdout: d.Stdout, Stderr: d.Stderr, ExitCode: d.ExitCode, TimedOut: d.TimedOut,
		KilledBy: d.KilledBy, DurationMicros: d.DurationMicros}, nil
}
