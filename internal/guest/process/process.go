// Package process runs the programs of a sandbox: it starts and reaps them, keeps the output
// of background processes, ends programs with their descendants, and enforces the sandbox's
// limits.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// Process is one program that the agent started, and its group.
type Process struct {
	id      string
	kind    string // background, exec or interactive
	argv    []string
	pid     int
	started time.Time
	limit   time.Duration // after that it is ended; 0: never

	stdin  *os.File // nil when it has none
	output *ring    // of a background process
	pumps  sync.WaitGroup
	pipes  []*os.File // read ends, closed at the end
	done   chan struct{}

	mu       sync.Mutex
	ended    time.Time
	exit     int32
	killedBy string
}

// Done is closed when the process has ended, and its output is read.
func (p *Process) Done() <-chan struct{} { return p.done }

// ID is the process's id for the host.
func (p *Process) ID() string { return p.id }

// Ended returns how the process ended: its exit code, and the limit that ended it, or "".
func (p *Process) Ended() (exit int32, killedBy string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit, p.killedBy
}

// Running says whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal to the process group.
func (p *Process) Signal(s syscall.Signal) {
	if p.Running() {
		_ = syscall.Kill(-p.pid, s)
	}
}

// blame records which limit ended the process.
func (p *Process) blame(by string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killedBy == "" && p.ended.IsZero() {
		p.killedBy = by
	}
}

// Wiring is where a process's streams go.
type Wiring struct {
	Stdin          io.Reader      // copied in; nil: no input, unless open
	Stdout, Stderr io.Writer      // nil Stderr: in one with Stdout, in the order of the writes
	Direct         [2]*os.File    // in place of Stdin and Stdout
	Size           *agentv1.Pty   // of a terminal in place of pipes; nil: pipes
	Terminal       func(*os.File) // gets the master side of the terminal

	open   bool          // keep stdin for WriteProcess
	output *ring         // Stdout of a background process
	limit  time.Duration // Process.limit
}

// Processes are those that the agent has started for the host.
type Processes struct {
	Reaper   *Reaper
	Enforcer *Enforcer
	// Dir is the working directory of commands without one, and the base of relative ones.
	Dir func() string
	// Env makes the environment of a process from the call's own variables; quiet is for a
	// program whose output no terminal shows.
	Env func(call map[string]string, quiet bool) []string
	// Ended is called when a process has ended.
	Ended func()

	work sync.WaitGroup // goroutines that wait for a process, or write its input

	mu    sync.Mutex
	table map[string]*Process
	next  uint64
}

// Close ends all processes, and returns when they have ended.
func (ps *Processes) Close() {
	ps.mu.Lock()
	all := slices.Collect(maps.Values(ps.table))
	ps.mu.Unlock()
	for _, p := range all {
		KillTree(p)
		<-p.done
	}
	ps.work.Wait()
}

// Busy says whether a process runs.
func (ps *Processes) Busy() bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.table {
		if p.Running() {
			return true
		}
	}
	return false
}

// Blame records for those of the processes which limit ended them.
func (ps *Processes) Blame(pids map[int]bool, limit string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.table {
		if pids[p.pid] {
			p.blame(limit)
		}
	}
}

// Spawn starts a user's program.
func (ps *Processes) Spawn(kind string, c *agentv1.Command, w Wiring) (*Process, error) {
	if c == nil || len(c.Argv) == 0 || c.Argv[0] == "" {
		return nil, wire.Errorf(connect.CodeInvalidArgument, "the command is empty")
	}
	dir, err := ps.directory(c.Cwd)
	if err != nil {
		return nil, err
	}
	p := &Process{kind: kind, argv: c.Argv, started: time.Now(), output: w.output, limit: w.limit,
		done: make(chan struct{})}
	attr := &syscall.ProcAttr{Dir: dir, Env: ps.Env(c.Env, kind != "interactive")}
	var closeAfter []*os.File
	if w.Size != nil {
		closeAfter, err = p.openTerminal(attr, w)
	} else {
		closeAfter, err = p.openPipes(attr, w)
	}
	defer func() {
		for _, f := range closeAfter {
			f.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	pid, status, err := ps.Fork(c.Argv, attr)
	if err != nil {
		for _, f := range p.pipes {
			f.Close()
		}
		if p.stdin != nil {
			p.stdin.Close()
		}
		return nil, startError(c.Argv[0], err)
	}
	p.pid = pid
	if w.Stdin != nil && w.Size == nil {
		ps.work.Go(func() { feed(p.stdin, w.Stdin, w.open) })
	}
	ps.add(p)
	ps.work.Go(func() { ps.wait(p, status) })
	return p, nil
}

// Fork starts a program. When there are too many processes it ends the group
// with the most, and tries once more.
func (ps *Processes) Fork(argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	pid, st, err := ps.Reaper.Start(argv, attr)
	if errors.Is(err, syscall.EAGAIN) {
		ps.Enforcer.KillLargestGroup()
		time.Sleep(50 * time.Millisecond)
		pid, st, err = ps.Reaper.Start(argv, attr)
	}
	return pid, st, err
}

func startError(name string, err error) error {
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, syscall.ENOENT):
		return wire.Errorf(connect.CodeNotFound, "command not found: %s", name)
	case errors.Is(err, syscall.EACCES):
		return wire.Errorf(connect.CodePermissionDenied, "not executable: %s", name)
	case errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.EINVAL):
		return wire.Errorf(connect.CodeInvalidArgument,
			"the arguments or variables are too long, or hold a zero byte: %s", name)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return wire.Errorf(connect.CodeResourceExhausted,
			"no process can be started: the sandbox has reached its limit of processes or memory")
	}
	return connect.NewError(connect.CodeInternal, err)
}

// openPipes gives the process pipes. The child's ends, which it returns, are to be closed
// once the process has them.
func (p *Process) openPipes(attr *syscall.ProcAttr, w Wiring) (childs []*os.File, err error) {
	if w.Direct[0] != nil {
		return p.openDirect(attr, w)
	}
	in, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	childs = append(childs, in)
	if w.Stdin != nil || w.open {
		r, wr, err := os.Pipe()
		if err != nil {
			return childs, err
		}
		childs = append(childs, r)
		in, p.stdin = r, wr
	}
	attr.Files = []uintptr{in.Fd()}
	for _, sink := range []io.Writer{w.Stdout, w.Stderr} {
		if sink == nil {
			attr.Files = append(attr.Files, attr.Files[1])
			continue
		}
		r, wr, err := os.Pipe()
		if err != nil {
			return childs, err
		}
		childs = append(childs, wr)
		attr.Files = append(attr.Files, wr.Fd())
		p.pump(r, sink)
	}
	return childs, nil
}

// openDirect gives the process connections in place of pipes for input and output.
func (p *Process) openDirect(attr *syscall.ProcAttr, w Wiring) ([]*os.File, error) {
	r, errOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	attr.Files = []uintptr{w.Direct[0].Fd(), w.Direct[1].Fd(), errOut.Fd()}
	p.pump(r, w.Stderr)
	return []*os.File{errOut}, nil
}

func (p *Process) openTerminal(attr *syscall.ProcAttr, w Wiring) ([]*os.File, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("opening a terminal: %w", err)
	}
	size := &pty.Winsize{Rows: uint16(min(w.Size.Rows, 4096)), Cols: uint16(min(w.Size.Cols, 4096))}
	if err := pty.Setsize(master, size); err != nil {
		return []*os.File{master, slave}, err
	}
	fd := slave.Fd()
	attr.Files = []uintptr{fd, fd, fd}
	attr.Sys = &syscall.SysProcAttr{Setctty: true, Ctty: 0}
	p.stdin = master
	w.Terminal(master)
	p.pump(master, w.Stdout)
	return []*os.File{slave}, nil
}

// pump copies one stream of the process until its end.
func (p *Process) pump(r *os.File, sink io.Writer) {
	p.pipes = append(p.pipes, r)
	p.pumps.Go(func() { io.CopyBuffer(struct{ io.Writer }{sink}, struct{ io.Reader }{r}, make([]byte, 32<<10)) })
}

func feed(stdin *os.File, from io.Reader, open bool) {
	io.Copy(stdin, from) // a program need not read its input
	if !open {
		stdin.Close()
	}
}

// leftover is how long output is still read from the descendants that a process left
// running when it ended, such as `sleep 1000 &`.
const leftover = 100 * time.Millisecond

// wait waits for the process and for its output.
func (ps *Processes) wait(p *Process, status <-chan syscall.WaitStatus) {
	st := <-status
	drained := make(chan struct{})
	go func() { p.pumps.Wait(); close(drained) }()
	wait := leftover
	if p.kind == "background" {
		wait = time.Second
	}
	select {
	case <-drained:
	case <-time.After(wait):
		for _, f := range p.pipes {
			f.SetReadDeadline(time.Now())
		}
		<-drained
	}
	for _, f := range p.pipes {
		f.Close()
	}
	if p.stdin != nil {
		p.stdin.Close()
	}
	p.mu.Lock()
	if p.exit, p.ended = exitCode(st), time.Now(); p.killedBy == byTime {
		p.exit = 124 // as timeout(1) has it
	}
	p.mu.Unlock()
	if p.output != nil {
		p.output.close()
	}
	close(p.done)
	ps.Ended()
	ps.retire(p)
}

// byTime stands in the place of a limit for a process whose time was over.
const byTime = "time"

// timeoutGrace is how long a background process may take to end when its time is
// over.
const timeoutGrace = 5 * time.Second

// expire ends a process when its time is over.
func (ps *Processes) expire(p *Process) {
	t := time.NewTimer(p.limit)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		p.blame(byTime)
		ps.End(p, timeoutGrace)
	}
}

// End ends a process and its descendants: TERM, then KILL.
func (ps *Processes) End(p *Process, grace time.Duration) {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
	}
	KillTree(p)
}

// endGroup waits until the group of a process that has just ended is empty, and at the
// deadline kills what is left: a member may ignore the signal, or may have been forked
// while the signal was sent.
func (p *Process) endGroup(ctx context.Context, deadline time.Time) {
	const poll = 20 * time.Millisecond
	for syscall.Kill(-p.pid, 0) == nil && time.Now().Before(deadline) && ctx.Err() == nil {
		time.Sleep(poll)
	}
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
}

// KillTree kills the process group and the descendants that left it.
func KillTree(p *Process) {
	tree := descendants(p.pid)
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	for _, pid := range tree {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// directory resolves where a process starts.
func (ps *Processes) directory(cwd string) (string, error) {
	base := ps.Dir()
	if cwd == "" {
		return base, nil
	}
	if !filepath.IsAbs(cwd) {
		cwd = filepath.Join(base, cwd)
	}
	st, err := os.Stat(cwd)
	if err != nil {
		return "", wire.Errorf(connect.CodeNotFound, "directory not found in sandbox: %s", cwd)
	}
	if !st.IsDir() {
		return "", wire.Errorf(connect.CodeFailedPrecondition, "not a directory: %s", cwd)
	}
	return cwd, nil
}

// How many background processes may run, and how many ended ones are kept.
const (
	maxLive  = 128
	MaxEnded = 64
)

// add gives a process its id.
func (ps *Processes) add(p *Process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.next++
	p.id = "p" + strconv.FormatUint(ps.next, 36)
	if ps.table == nil {
		ps.table = map[string]*Process{}
	}
	ps.table[p.id] = p
}

// retire forgets a process that has ended, unless it was a background process: of
// those the last MaxEnded are kept.
func (ps *Processes) retire(p *Process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p.kind != "background" {
		delete(ps.table, p.id)
		return
	}
	var ended []*Process
	for _, q := range ps.table {
		if !q.Running() {
			ended = append(ended, q)
		}
	}
	slices.SortFunc(ended, func(x, y *Process) int { return x.started.Compare(y.started) })
	for len(ended) > MaxEnded {
		delete(ps.table, ended[0].id)
		ended = ended[1:]
	}
}

func (ps *Processes) process(id string) (*Process, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.table[id]; p != nil {
		return p, nil
	}
	return nil, wire.Errorf(connect.CodeNotFound, "process not found: %.40s", id)
}

// StartProcess implements the wire.
func (ps *Processes) StartProcess(_ context.Context,
	r *agentv1.StartProcessRequest) (*agentv1.StartProcessResponse, error) {
	ps.mu.Lock()
	live := 0
	for _, p := range ps.table {
		if p.kind == "background" && p.Running() {
			live++
		}
	}
	ps.mu.Unlock()
	if live >= maxLive {
		return nil, wire.Errorf(connect.CodeResourceExhausted,
			"%d background processes run already; stop one first", live)
	}
	out := newRing()
	w := Wiring{open: r.StdinOpen, Stdout: out, output: out,
		limit: wire.Millis(r.TimeoutMillis)}
	if len(r.Stdin) > 0 {
		w.Stdin = bytes.NewReader(r.Stdin)
	}
	p, err := ps.Spawn("background", r.Command, w)
	if err != nil {
		return nil, err
	}
	if p.limit > 0 {
		ps.work.Go(func() { ps.expire(p) })
	}
	return &agentv1.StartProcessResponse{ProcessId: p.id}, nil
}

// List describes the processes, the oldest first.
func (ps *Processes) List() (list []*agentv1.Process) {
	ps.mu.Lock()
	all := slices.Collect(maps.Values(ps.table))
	ps.mu.Unlock()
	slices.SortFunc(all, func(x, y *Process) int { return x.started.Compare(y.started) })
	for _, p := range all {
		list = append(list, p.Describe())
	}
	return list
}

// Describe describes the process as it is now.
func (p *Process) Describe() *agentv1.Process {
	running := p.Running()
	p.mu.Lock()
	defer p.mu.Unlock()
	d := &agentv1.Process{ProcessId: p.id, Running: running, Kind: p.kind, Pid: uint32(p.pid),
		StartedUnixMillis: uint64(p.started.UnixMilli()), KilledBy: p.killedBy,
		TimeoutMillis: uint64(p.limit.Milliseconds())}
	size := 0
	for _, s := range p.argv {
		if size += len(s); size > 2000 {
			d.Argv = append(d.Argv, "…")
			break
		}
		d.Argv = append(d.Argv, wire.UTF8(s))
	}
	if !running {
		d.ExitCode, d.EndedUnixMillis = p.exit, uint64(p.ended.UnixMilli())
	}
	if p.output != nil {
		p.output.mu.Lock()
		d.OutputBytes = p.output.end
		p.output.mu.Unlock()
	}
	return d
}

// ReadProcess implements the wire.
func (ps *Processes) ReadProcess(ctx context.Context,
	r *agentv1.ReadProcessRequest) (*agentv1.ReadProcessResponse, error) {
	p, err := ps.process(r.ProcessId)
	if err != nil {
		return nil, err
	}
	out := p.output
	if out == nil {
		return nil, wire.Errorf(connect.CodeFailedPrecondition, "only background processes keep their output")
	}
	deadline := time.NewTimer(time.Duration(min(r.WaitMillis, 600_000)) * time.Millisecond)
	defer deadline.Stop()
	for {
		ended := !p.Running()
		data, next, skipped, closed, changed := out.read(r.Cursor, int(min(max(r.MaxBytes, 1), 4<<20)))
		if len(data) > 0 || closed && ended || r.WaitMillis == 0 {
			return p.answer(data, next, skipped), nil
		}
		select {
		case <-changed:
		case <-p.done:
			if !closed {
				<-changed
			}
		case <-deadline.C:
			return p.answer(data, next, skipped), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *Process) answer(data []byte, next, skipped uint64) *agentv1.ReadProcessResponse {
	d := p.Describe()
	return &agentv1.ReadProcessResponse{Output: data, Cursor: next, Skipped: skipped, Left: d.OutputBytes - next,
		Running: d.Running, ExitCode: d.ExitCode, KilledBy: d.KilledBy, TimeoutMillis: d.TimeoutMillis}
}

// WriteProcess implements the wire.
func (ps *Processes) WriteProcess(ctx context.Context,
	r *agentv1.WriteProcessRequest) (*agentv1.WriteProcessResponse, error) {
	p, err := ps.process(r.ProcessId)
	if err != nil {
		return nil, err
	}
	if p.stdin == nil || p.kind != "background" || !p.Running() {
		return nil, wire.Errorf(connect.CodeFailedPrecondition, "the process takes no input, or has ended")
	}
	// The call ends even when the program does not read.
	deadline, ok := ctx.Deadline()
	if limit := time.Now().Add(10 * time.Second); !ok || deadline.After(limit) {
		deadline = limit
	}
	p.stdin.SetWriteDeadline(deadline)
	n, err := p.stdin.Write(r.Data)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, wire.Errorf(connect.CodeResourceExhausted,
			"the process does not read its input; %d bytes were taken", n)
	}
	if err != nil {
		return nil, wire.Errorf(connect.CodeFailedPrecondition,
			"the process has closed its input; %d bytes were taken", n)
	}
	if r.Eof {
		p.stdin.Close()
	}
	return &agentv1.WriteProcessResponse{Written: uint32(n)}, nil
}

// StopProcess implements the wire.
func (ps *Processes) StopProcess(ctx context.Context,
	r *agentv1.StopProcessRequest) (*agentv1.StopProcessResponse, error) {
	p, err := ps.process(r.ProcessId)
	if err != nil {
		return nil, err
	}
	s := syscall.Signal(r.Signal)
	if s <= 0 || s > 64 {
		return nil, wire.Errorf(connect.CodeInvalidArgument, "signal %d is not known", s)
	}
	grace := time.Duration(min(r.GraceMillis, 60_000)) * time.Millisecond
	ends, deadline := p.Running() && (r.GraceMillis > 0 || s == unix.SIGKILL), time.Now().Add(grace)
	if s == unix.SIGKILL {
		KillTree(p)
		grace = time.Second
	} else {
		p.Signal(s)
	}
	wait := max(grace, 100*time.Millisecond)
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(wait):
		if ends {
			KillTree(p)
			select {
			case <-p.done:
			case <-time.After(2 * time.Second):
			}
		}
	}
	if ends {
		p.endGroup(ctx, deadline)
	}
	d := p.Describe()
	return &agentv1.StopProcessResponse{Running: d.Running, ExitCode: d.ExitCode}, nil
}
