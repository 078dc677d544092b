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
	"unicode/utf8"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/interp"
	"sandlot/proto/agentv1"
)

// language returns the language with a name, or the error for the host.
func (a *Agent) language(name string) (*agentv1.Language, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.languages {
		if l.Name == name {
			return l, nil
		}
	}
	return nil, wire.Errorf(connect.CodeNotFound, "language not found in sandbox: %.60s", name)
}

// interpreterName returns the name of the interpreter that runs a language: that of the first
// language with the same driver and command. Such languages share an interpreter and its
// variables; TypeScript and JavaScript do. The caller holds mu.
func (a *Agent) interpreterName(l *agentv1.Language) string {
	for _, other := range a.languages {
		if other.Driver == l.Driver && slices.Equal(other.Command, l.Command) {
			return other.Name
		}
	}
	return l.Name
}

// interpreter returns the interpreter that runs a language. It may not be started yet.
func (a *Agent) interpreter(l *agentv1.Language) *interp.Interp {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := a.interpreterName(l)
	if i := a.interps[name]; i != nil {
		return i
	}
	i := interp.New(interp.Config{Driver: l.Driver, Command: l.Command, Dir: a.workingFolder(),
		OutputDir: wire.OutputDir, User: a.user,
		Env:   func() []string { return a.environment(nil, true) },
		Start: a.Fork, KilledSince: a.Enforcer.KilledSince})
	if n := a.network.Load(); n != nil {
		i.SetHandover(n.RefusedRecently())
	}
	a.interps[name] = i
	return i
}

// interpreterPrefix is the beginning of the process ids of interpreters.
const interpreterPrefix = "interpreter-"

// interpreters returns the running interpreters as processes.
func (a *Agent) interpreters() []*agentv1.Process {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []*agentv1.Process
	for _, name := range slices.Sorted(maps.Keys(a.interps)) {
		i := a.interps[name]
		if pid, started := i.Process(); pid != 0 {
			list = append(list, &agentv1.Process{ProcessId: interpreterPrefix + name, Argv: []string{name},
				Kind: "interpreter", Pid: uint32(pid), StartedUnixMillis: uint64(started.UnixMilli()),
				Running: true, Busy: i.Busy()})
		}
	}
	return list
}

// interpreterByID returns the interpreter with a process id; nil: it is not that of one.
func (a *Agent) interpreterByID(id string) *interp.Interp {
	name, ok := strings.CutPrefix(id, interpreterPrefix)
	if !ok {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.interps[name]
}

// stopInterpreter stops the cell that an interpreter runs. KILL ends the interpreter itself, and
// its variables are lost.
func stopInterpreter(ctx context.Context, i *interp.Interp, s syscall.Signal) *agentv1.StopProcessResponse {
	if s == syscall.SIGKILL {
		i.Close()
		return &agentv1.StopProcessResponse{ExitCode: 128 + int32(s)}
	}
	i.Interrupt(ctx) // kills the interpreter when the cell does not stop
	pid, _ := i.Process()
	return &agentv1.StopProcessResponse{Running: pid != 0}
}

// StartInterpreter implements the RPC.
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

// OpenInterpreter implements the RPC.
func (a *Agent) OpenInterpreter(ctx context.Context,
	r *agentv1.OpenInterpreterRequest) (*agentv1.OpenInterpreterResponse, error) {
	l, err := a.language(r.Language)
	if err != nil {
		return nil, err
	}
	err = interp.ErrUnsupported
	if l.Driver != "" {
		err = a.interpreter(l).OpenDirect(ctx, a.config.Socket, r.Ticket)
	}
	switch {
	case errors.Is(err, interp.ErrUnsupported):
		return nil, connect.NewError(connect.CodeUnimplemented, err)
	case err != nil:
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return &agentv1.OpenInterpreterResponse{}, nil
}

// cell is a cell of code that an interpreter runs for the host, and its output.
type cell struct {
	agent   *Agent
	request *agentv1.EvaluateRequest
	live    *liveOutput
	output  *merged
}

func (a *Agent) newCell(request *agentv1.EvaluateRequest, live *liveOutput) *cell {
	return &cell{a, request, live, newMerged(a.output, request.Bounds)}
}

// interpCell returns the cell in the form that Interp.Run takes. The caller calls end when the
// cell is over.
func (c *cell) interpCell() (interpCell interp.Cell, end func()) {
	ticks, end := c.live.ticks()
	interpCell = interp.Cell{Code: c.request.Code, Language: c.request.Language,
		Timeout: wire.Milliseconds(c.request.TimeoutMillis),
		Stdout:  c.output.writer(0, c.live), Stderr: c.output.writer(1, c.live), Ticks: ticks}
	if c.live != nil {
		interpCell.Tick = c.live.flush
	}
	return interpCell, end
}

// minRoom is how many characters of a long text a result has when others have taken the room.
const minRoom = 200

// room returns how many characters the rich values of a result may have, and its error.
func (c *cell) room() int {
	if b := c.request.Bounds; b != nil {
		return int(min(b.HeadChars+b.TailChars, maxInline))
	}
	return maxInline
}

// shorten returns a text with at most as many characters as there is room, and what it leaves out is said in it. Of a
// longer one the whole is in a file, to which d gets a link.
func (c *cell) shorten(d *agentv1.EvaluateDone, name, text string, room int) string {
	if utf8.RuneCountInString(text) <= room {
		return text
	}
	room = max(room-minRoom, minRoom) // what is left out takes room as well
	b := &agentv1.Bounds{HeadChars: uint32(room * 2 / 5), TailChars: uint32(room - room*2/5)}
	whole := newCapture(name, c.agent.output, b)
	io.WriteString(whole, text)
	o := whole.done()
	rest := "the rest was not kept"
	if o.Path != "" {
		rest = "the whole is in the file " + o.Path + " of the sandbox"
		d.Rich = append(d.Rich, &agentv1.Rich{Mime: wire.CutList, Data: fmt.Appendf(nil, "# %d bytes\nfile://%s", o.Kept, o.Path)})
	}
	return fmt.Sprintf("%s\n… [%d of %d bytes of this %s left out here; %s] …\n%s", o.Head,
		o.Total-uint64(len(o.Head)+len(o.Tail)), o.Total, name, rest, o.Tail)
}

// done returns the answer to the host.
func (c *cell) done(r *interp.Result) *agentv1.EvaluateDone {
	d := &agentv1.EvaluateDone{Ok: r.OK, Error: wire.UTF8(r.Error),
		Traceback: wire.UTF8(r.Traceback), ExitCode: r.Exit, TimedOut: r.TimedOut,
		Interrupted: r.Interrupted && !r.TimedOut, StateLost: r.StateLost, Reason: wire.UTF8(r.Reason),
		KilledBy: r.KilledBy, DurationMicros: uint64(r.Took.Microseconds())}
	d.Stdout, d.Stderr, d.Merged = c.output.done(r.Order)
	if d.TimedOut {
		d.ExitCode = 124
		d.Traceback, d.Error = "", "" // they are about the agent's interrupt
	}
	room := c.room()
	d.Traceback = c.shorten(d, "error", d.Traceback, room)
	for _, v := range r.Rich {
		data := v.Data
		if mime := wire.UTF8(v.MIME); !strings.HasPrefix(mime, "image/") || mime == "image/svg+xml" {
			text := wire.UTF8(string(data))
			data = []byte(c.shorten(d, "value", text, room))
			room = max(room-utf8.RuneCountInString(text), 0)
		}
		d.Rich = append(d.Rich, &agentv1.Rich{Mime: wire.UTF8(v.MIME), Data: data})
	}
	if r.Result != nil {
		value := newCapture("result", c.agent.output, c.request.Bounds)
		io.WriteString(value, wire.UTF8(*r.Result))
		d.Result = value.done()
		if d.Result.Total <= uint64(len(d.Result.Head)+len(d.Result.Tail)) {
			d.Result.Path, d.Result.Kept = "", 0 // a value that fits inline needs no file
		}
	}
	return d
}

// evaluate runs a cell to its end, on the agent's own connection to the driver.
func (a *Agent) evaluate(ctx context.Context, request *agentv1.EvaluateRequest,
	send eventSender) (*agentv1.EvaluateDone, error) {
	l, err := a.language(request.Language)
	if err != nil {
		return nil, err
	}
	live := newLive(request.Live, send)
	if l.Driver == "" {
		return a.runFile(ctx, l, request, live)
	}
	cell := a.newCell(request, live)
	call, end := cell.interpCell()
	defer end()
	call.Waiting = func(d time.Duration) {
		w := &agentv1.Waiting{Language: l.Name, RunningForMicros: uint64(d.Microseconds())}
		_ = send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Waiting{Waiting: w}}) // on an error ctx ends, too
	}
	r, err := a.interpreter(l).Run(ctx, call)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return cell.done(r), nil
}

// supervise supervises a cell that the host sent to the driver directly, to its end. It returns
// nil when the cell is over already.
func (a *Agent) supervise(ctx context.Context, request *agentv1.SuperviseRequest,
	send eventSender) (*agentv1.EvaluateDone, error) {
	cellRequest := request.GetCell()
	l, err := a.language(cellRequest.GetLanguage())
	if err != nil {
		return nil, err
	}
	if l.Driver == "" {
		return nil, wire.Errorf(connect.CodeFailedPrecondition, "this language has no driver")
	}
	cell := a.newCell(cellRequest, newLive(cellRequest.Live, send))
	call, end := cell.interpCell()
	defer end()
	began := time.Now().Add(-time.Duration(min(request.ElapsedMicros, 1<<40)) * time.Microsecond)
	r, running, err := a.interpreter(l).Supervise(ctx, request.Id, began, request.Stop, call)
	if err != nil || !running {
		return nil, err
	}
	return cell.done(r), nil
}

// runFile runs code of a language without a driver, as `command file`.
func (a *Agent) runFile(ctx context.Context,
	l *agentv1.Language, request *agentv1.EvaluateRequest, live *liveOutput) (*agentv1.EvaluateDone, error) {
	ext := l.Extension
	if strings.ContainsAny(ext, "/\x00") {
		ext = ""
	}
	var dir, file string
	err := a.user.Do(func() (err error) {
		if dir, err = os.MkdirTemp("", "code-"); err != nil {
			return err
		}
		file = filepath.Join(dir, "code"+ext)
		return os.WriteFile(file, []byte(request.Code), 0o600)
	})
	if dir != "" {
		defer a.user.Do(func() error { return os.RemoveAll(dir) })
	}
	if err != nil {
		return nil, a.Explain("/tmp", err)
	}
	argv := append(append([]string{}, l.Command...), file)
	d, err := a.execute(ctx, &agentv1.ExecRequest{Command: &agentv1.Command{Argv: argv},
		TimeoutMillis: request.TimeoutMillis, Bounds: request.Bounds, Tag: request.Tag}, live)
	if err != nil {
		return nil, err
	}
	return &agentv1.EvaluateDone{Ok: d.ExitCode == 0, Stdout: d.Stdout, Stderr: d.Stderr, Merged: d.Merged, ExitCode: d.ExitCode,
		TimedOut: d.TimedOut, KilledBy: d.KilledBy, DurationMicros: d.DurationMicros}, nil
}
