package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

	"sandlot/proto/agentv1"
)

// process is one program that the agent started, and its group.
type process struct {
	id      string
	kind    string // background, exec or interactive
	argv    []string
	pid     int
	started time.Time
	limit   time.Duration // after which it is ended; 0: never

	stdin  *os.File // nil when it has none
	output *window  // of a background process
	pumps  sync.WaitGroup
	pipes  []*os.File // read ends, closed at the end
	done   chan struct{}

	mu       sync.Mutex
	ended    time.Time
	exit     int32
	killedBy string
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// signal reaches the whole group.
func (p *process) signal(s syscall.Signal) {
	if p.running() {
		_ = syscall.Kill(-p.pid, s)
	}
}

// blame remembers which limit ended it.
func (p *process) blame(by string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killedBy == "" {
		p.killedBy = by
	}
}

// wiring is where a process's streams go.
type wiring struct {
	stdin          io.Reader   // copied in; nil: no input, unless open
	open           bool        // keep stdin for writes
	stdout, stderr io.Writer   // nil stderr: in one with stdout, in the order of the writes
	output         *window     // what stdout is, where it is kept
	direct         [2]*os.File // in place of stdin and stdout
	size           *agentv1.Pty
	terminal       func(*os.File) // gets the terminal's own side
	limit          time.Duration  // what the process remembers as its limit; 0: none
}

// spawn starts a program of a user.
func (a *Agent) spawn(kind string, c *agentv1.Command, w wiring) (*process, error) {
	if c == nil || len(c.Argv) == 0 || c.Argv[0] == "" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the command is empty"))
	}
	dir, err := a.directory(c.Cwd)
	if err != nil {
		return nil, err
	}
	p := &process{kind: kind, argv: c.Argv, started: time.Now(), output: w.output, limit: w.limit, done: make(chan struct{})}
	attr := &syscall.ProcAttr{Dir: dir, Env: a.environment(c.Env)}
	if kind != "interactive" {
		attr.Env = a.quietEnvironment(c.Env)
	}
	var closeAfter []*os.File
	if w.size != nil {
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
	pid, status, err := a.fork(c.Argv, attr)
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
	if w.stdin != nil && w.size == nil {
		go feed(p.stdin, w.stdin, w.open)
	}
	a.adopt(p)
	go a.attend(p, status)
	return p, nil
}

// fork starts a program. When there are too many processes it ends the group
// with the most, and tries once more.
func (a *Agent) fork(argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	pid, st, err := a.nursery.start(argv, attr)
	if errors.Is(err, syscall.EAGAIN) {
		a.guard.thin()
		time.Sleep(50 * time.Millisecond)
		pid, st, err = a.nursery.start(argv, attr)
	}
	return pid, st, err
}

func startError(name string, err error) error {
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, syscall.ENOENT):
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("command not found: %s", name))
	case errors.Is(err, syscall.EACCES):
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("not executable: %s", name))
	case errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.EINVAL):
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the arguments or variables are too long, or hold a zero byte: %s", name))
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("no process can be started: the sandbox has reached its limit of processes or memory"))
	}
	return connect.NewError(connect.CodeInternal, err)
}

func (p *process) openPipes(attr *syscall.ProcAttr, w wiring) (childs []*os.File, err error) {
	if w.direct[0] != nil {
		return p.openDirect(attr, w)
	}
	in, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	childs = append(childs, in)
	if w.stdin != nil || w.open {
		r, wr, err := os.Pipe()
		if err != nil {
			return childs, err
		}
		childs = append(childs, r)
		in, p.stdin = r, wr
	}
	attr.Files = []uintptr{in.Fd()}
	for _, sink := range []io.Writer{w.stdout, w.stderr} {
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

// openDirect gives the process connections in place of pipes. They are closed
// here once it has them.
func (p *process) openDirect(attr *syscall.ProcAttr, w wiring) ([]*os.File, error) {
	r, errOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	attr.Files = []uintptr{w.direct[0].Fd(), w.direct[1].Fd(), errOut.Fd()}
	p.pump(r, w.stderr)
	return []*os.File{errOut}, nil
}

func (p *process) openTerminal(attr *syscall.ProcAttr, w wiring) ([]*os.File, error) {
	ours, theirs, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("opening a terminal: %w", err)
	}
	size := &pty.Winsize{Rows: uint16(min(w.size.Rows, 4096)), Cols: uint16(min(w.size.Cols, 4096))}
	if err := pty.Setsize(ours, size); err != nil {
		return []*os.File{ours, theirs}, err
	}
	fd := theirs.Fd()
	attr.Files = []uintptr{fd, fd, fd}
	attr.Sys = &syscall.SysProcAttr{Setctty: true, Ctty: 0}
	p.stdin = ours
	w.terminal(ours)
	p.pump(ours, w.stdout)
	return []*os.File{theirs}, nil
}

// pump copies one stream of the process until its end.
func (p *process) pump(r *os.File, sink io.Writer) {
	p.pipes = append(p.pipes, r)
	p.pumps.Go(func() {
		buf := make([]byte, 32<<10)
		for {
			n, err := r.Read(buf)
			if n > 0 {
				if _, werr := sink.Write(buf[:n]); werr != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
}

func feed(stdin *os.File, from io.Reader, open bool) {
	io.Copy(stdin, from) // a program need not read its input
	if !open {
		stdin.Close()
	}
}

// leftover is how long output is still taken from what a process left behind
// when it ended, such as `sleep 1000 &`.
const leftover = 100 * time.Millisecond

// attend waits for the process and for its output.
func (a *Agent) attend(p *process, status <-chan syscall.WaitStatus) {
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
	a.touch()
	a.retire(p)
}

// byTime is what killed a process whose time was over.
const byTime = "time"

// farewell is how long a background process may take to end when its time is
// over.
const farewell = 5 * time.Second

// expire ends a process when its time is over.
func (a *Agent) expire(p *process) {
	t := time.NewTimer(p.limit)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		p.overdue()
		a.end(p, farewell)
	}
}

// overdue remembers that its time was over, unless it has ended.
func (p *process) overdue() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killedBy == "" && p.ended.IsZero() {
		p.killedBy = byTime
	}
}

// end stops a process and all that it started: TERM, then KILL.
func (a *Agent) end(p *process, grace time.Duration) {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
	}
	a.slay(p)
}

// slay kills the group and those who left it.
func (a *Agent) slay(p *process) {
	strays := descendants(p.pid)
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	for _, pid := range strays {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// descendants finds a process's children's children, and those of its session.
func descendants(root int) []int {
	parent, session := map[int]int{}, map[int]int{}
	for _, pid := range pids() {
		if f, err := procStat(pid); err == nil {
			parent[pid], _ = strconv.Atoi(f[1])
			session[pid], _ = strconv.Atoi(f[3])
		}
	}
	var found []int
	for pid := range parent {
		if pid == root || pid == os.Getpid() {
			continue
		}
		if session[pid] == root {
			found = append(found, pid)
			continue
		}
		for up := parent[pid]; up > 1; up = parent[up] {
			if up == root {
				found = append(found, pid)
				break
			}
		}
	}
	return found
}

func pids() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// directory resolves where a process starts.
func (a *Agent) directory(cwd string) (string, error) {
	base := a.Base()
	if cwd == "" {
		return base, nil
	}
	if !filepath.IsAbs(cwd) {
		cwd = filepath.Join(base, cwd)
	}
	st, err := os.Stat(cwd)
	if err != nil {
		return "", connect.NewError(connect.CodeNotFound, fmt.Errorf("directory not found in sandbox: %s", cwd))
	}
	if !st.IsDir() {
		return "", connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("not a directory: %s", cwd))
	}
	return cwd, nil
}

// limits of the table of processes.
const (
	maxLive  = 128
	maxEnded = 64
)

func (a *Agent) adopt(p *process) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next++
	p.id = "p" + strconv.FormatUint(a.next, 36)
	a.processes[p.id] = p
}

// retire forgets a process that nobody can ask about any more.
func (a *Agent) retire(p *process) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.kind != "background" {
		delete(a.processes, p.id)
		return
	}
	var ended []*process
	for _, q := range a.processes {
		if !q.running() {
			ended = append(ended, q)
		}
	}
	slices.SortFunc(ended, func(x, y *process) int { return x.started.Compare(y.started) })
	for len(ended) > maxEnded {
		delete(a.processes, ended[0].id)
		ended = ended[1:]
	}
}

func (a *Agent) process(id string) (*process, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.processes[id]; p != nil {
		return p, nil
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process not found: %.40s", id))
}

// StartProcess implements the wire.
func (a *Agent) StartProcess(_ context.Context, r *connect.Request[agentv1.StartProcessRequest]) (*connect.Response[agentv1.StartProcessResponse], error) {
	a.mu.Lock()
	live := 0
	for _, p := range a.processes {
		if p.kind == "background" && p.running() {
			live++
		}
	}
	a.mu.Unlock()
	if live >= maxLive {
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%d background processes run already; stop one first", live))
	}
	out := newWindow()
	w := wiring{open: r.Msg.StdinOpen, stdout: out, output: out}
	if len(r.Msg.Stdin) > 0 {
		w.stdin = bytes.NewReader(r.Msg.Stdin)
	}
	w.limit = time.Duration(min(r.Msg.TimeoutMillis, 1<<40)) * time.Millisecond
	p, err := a.spawn("background", r.Msg.Command, w)
	if err != nil {
		return nil, err
	}
	if p.limit > 0 {
		a.work.Go(func() { a.expire(p) })
	}
	return connect.NewResponse(&agentv1.StartProcessResponse{ProcessId: p.id}), nil
}

// ListProcesses implements the wire.
func (a *Agent) ListProcesses(context.Context, *connect.Request[agentv1.ListProcessesRequest]) (*connect.Response[agentv1.ListProcessesResponse], error) {
	a.mu.Lock()
	list := make([]*process, 0, len(a.processes))
	for _, p := range a.processes {
		list = append(list, p)
	}
	a.mu.Unlock()
	slices.SortFunc(list, func(x, y *process) int { return x.started.Compare(y.started) })
	out := &agentv1.ListProcessesResponse{}
	for _, p := range list {
		out.Processes = append(out.Processes, p.describe())
	}
	out.Processes = append(out.Processes, a.interpreters()...)
	return connect.NewResponse(out), nil
}

func (p *process) describe() *agentv1.Process {
	running := p.running()
	p.mu.Lock()
	defer p.mu.Unlock()
	d := &agentv1.Process{ProcessId: p.id, Running: running, Kind: p.kind, Pid: uint32(p.pid), StartedUnixMillis: uint64(p.started.UnixMilli()), KilledBy: p.killedBy,
		TimeoutMillis: uint64(p.limit.Milliseconds())}
	size := 0
	for _, s := range p.argv {
		if size += len(s); size > 2000 {
			d.Argv = append(d.Argv, "…")
			break
		}
		d.Argv = append(d.Argv, toUTF8(s))
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
func (a *Agent) ReadProcess(ctx context.Context, r *connect.Request[agentv1.ReadProcessRequest]) (*connect.Response[agentv1.ReadProcessResponse], error) {
	p, err := a.process(r.Msg.ProcessId)
	if err != nil {
		return nil, err
	}
	out := p.output
	if out == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("only background processes keep their output"))
	}
	deadline := time.NewTimer(time.Duration(min(r.Msg.WaitMillis, 600_000)) * time.Millisecond)
	defer deadline.Stop()
	for {
		ended := !p.running()
		data, next, skipped, closed, changed := out.read(r.Msg.Cursor, int(min(max(r.Msg.MaxBytes, 1), 4<<20)))
		if len(data) > 0 || closed && ended || r.Msg.WaitMillis == 0 {
			return connect.NewResponse(p.answer(data, next, skipped)), nil
		}
		select {
		case <-changed:
		case <-p.done:
			if !closed {
				<-changed
			}
		case <-deadline.C:
			return connect.NewResponse(p.answer(data, next, skipped)), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *process) answer(data []byte, next, skipped uint64) *agentv1.ReadProcessResponse {
	d := p.describe()
	return &agentv1.ReadProcessResponse{Output: data, Cursor: next, Skipped: skipped, Left: d.OutputBytes - next, Running: d.Running,
		ExitCode: d.ExitCode, KilledBy: d.KilledBy, TimeoutMillis: d.TimeoutMillis}
}

// WriteProcess implements the wire.
func (a *Agent) WriteProcess(ctx context.Context, r *connect.Request[agentv1.WriteProcessRequest]) (*connect.Response[agentv1.WriteProcessResponse], error) {
	p, err := a.process(r.Msg.ProcessId)
	if err != nil {
		return nil, err
	}
	if p.stdin == nil || p.kind != "background" || !p.running() {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the process takes no input, or has ended"))
	}
	// A program that does not read must not hold the call for ever.
	deadline, ok := ctx.Deadline()
	if limit := time.Now().Add(10 * time.Second); !ok || deadline.After(limit) {
		deadline = limit
	}
	p.stdin.SetWriteDeadline(deadline)
	n, err := p.stdin.Write(r.Msg.Data)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("the process does not read its input; %d bytes were taken", n))
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("the process has closed its input; %d bytes were taken", n))
	}
	if r.Msg.Eof {
		p.stdin.Close()
	}
	return connect.NewResponse(&agentv1.WriteProcessResponse{Written: uint32(n)}), nil
}

// StopProcess implements the wire.
func (a *Agent) StopProcess(ctx context.Context, r *connect.Request[agentv1.StopProcessRequest]) (*connect.Response[agentv1.StopProcessResponse], error) {
	if i := a.named(r.Msg.ProcessId); i != nil {
		return connect.NewResponse(halt(ctx, i, syscall.Signal(r.Msg.Signal))), nil
	}
	p, err := a.process(r.Msg.ProcessId)
	if err != nil {
		return nil, err
	}
	s := syscall.Signal(r.Msg.Signal)
	if s <= 0 || s > 64 {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("signal %d is not known", s))
	}
	grace := time.Duration(min(r.Msg.GraceMillis, 60_000)) * time.Millisecond
	if s == unix.SIGKILL {
		a.slay(p)
		grace = time.Second
	} else {
		p.signal(s)
	}
	wait := max(grace, 100*time.Millisecond)
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(wait):
		if r.Msg.GraceMillis > 0 || s == unix.SIGKILL {
			a.slay(p)
			select {
			case <-p.done:
			case <-time.After(2 * time.Second):
			}
		}
	}
	d := p.describe()
	return connect.NewResponse(&agentv1.StopProcessResponse{Running: d.Running, ExitCode: d.ExitCode}), nil
}
