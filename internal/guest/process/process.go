// Package process runs the programs of a sandbox: it starts and reaps them, keeps the output
// of background processes, ends programs with their descendants, and enforces the sandbox's
// limits.
package process

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/user"
	"sandlot/proto/agentv1"
)

// Process is a program that the agent started, with its process group.
type Process struct {
	id        string
	kind      string // background, exec or interactive
	argv      []string
	pid       int
	startedAt time.Time
	timeout   time.Duration // after this time the process is ended; 0: never
	unread    time.Duration // the process is ended once nobody has read its output for this time; 0: never
	tag       string        // of the call of the host that it runs for; see wire.ToolConn
	server    string        // stands for the third-party server whose program it is; empty: of none
	mark      string        // the variable of its environment by which those that it has started are found
	user      *user.User    // of the process
	terminal  *agentv1.Pty  // the size of the terminal that it was given; nil: it has pipes

	stdin    *os.File       // nil when the process has no input
	output   *ring          // of a background process
	copying  sync.WaitGroup // goroutines that copy the output
	readEnds []outputEnd    // of the output; wait closes them
	done     chan struct{}

	mu       sync.Mutex
	endedAt  time.Time
	exitCode int32
	killedBy string
	resized  *agentv1.Pty // the size of the terminal, since it was changed; nil: it was not
	reads    uint64       // how often its output was asked for
	readers  int          // that wait for its output now
}

// outputEnd is the read end of a stream of a process. At the deadline its reader gets what is there already, and then ends.
type outputEnd interface {
	io.Closer
	SetReadDeadline(time.Time) error
}

// readEnd is an outputEnd that is read by itself.
type readEnd interface {
	outputEnd
	io.Reader
}

// Done returns a channel that is closed when the process has ended and its output is read.
func (p *Process) Done() <-chan struct{} { return p.done }

// ID returns the id by which the host names the process.
func (p *Process) ID() string { return p.id }

// Ended returns how the process ended: its exit code, and the limit that ended it, or "".
func (p *Process) Ended() (exit int32, killedBy string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exitCode, p.killedBy
}

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal to the process and to all that it has started.
func (p *Process) Signal(s syscall.Signal) {
	if !p.Running() {
		return
	}
	tree := p.others()
	_ = syscall.Kill(-p.pid, s)
	for _, pid := range tree {
		_ = syscall.Kill(pid, s)
	}
}

// others returns the processes that it has started and that are not in its group.
func (p *Process) others() []int {
	var tree []int
	if p.Running() { // later another process may have its id
		tree = descendants(p.pid)
	}
	for _, pid := range p.marked() {
		if !slices.Contains(tree, pid) {
			tree = append(tree, pid)
		}
	}
	return slices.DeleteFunc(tree, func(pid int) bool {
		group, err := syscall.Getpgid(pid)
		return err != nil || group == p.pid
	})
}

// markVariable is the variable of the environment by which processes are found that have left the tree of the process
// that started them: in a session of their own, as children of process 1.
const markVariable = "SANDLOT_PROCESS"

func newMark() string { return markVariable + "=" + strings.ToLower(rand.Text()) }

// marked returns the processes that have the mark, and are not the process itself.
func (p *Process) marked() (found []int) {
	want := []byte(p.mark + "\x00")
	_ = p.user.Do(func() error { // who shows its environment to the user alone
		for _, pid := range allPIDs() {
			if pid == p.pid || pid == os.Getpid() {
				continue
			}
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if i := bytes.Index(text, want); err == nil && (i == 0 || i > 0 && text[i-1] == 0) {
				found = append(found, pid)
			}
		}
		return nil
	})
	return found
}

// recordKill records which limit the process was killed for.
func (p *Process) recordKill(limit string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killedBy == "" && (limit != killedByTimeout || p.endedAt.IsZero()) {
		p.killedBy = limit
	}
}

// Stdio says what a process's standard streams are connected to.
type Stdio struct {
	Stdin          io.Reader      // copied to the process; nil: no input, unless keepStdin is set
	Stdout, Stderr io.Writer      // nil Stderr: both streams go to Stdout, in the order of the writes
	Direct         [2]*os.File    // connections in place of Stdin and Stdout
	TerminalSize   *agentv1.Pty   // the size of a terminal in place of pipes; nil: pipes
	OnTerminal     func(*os.File) // gets the master side of the terminal
	Tag            string         // of the call of the host that it runs for; see wire.ToolConn

	keepStdin bool          // keep stdin open for WriteProcess
	output    *ring         // Stdout of a background process
	timeout   time.Duration // Process.timeout
	unread    time.Duration // Process.unread
}

// Processes has the processes that the agent has started for the host.
type Processes struct {
	Reaper   *Reaper
	Enforcer *Enforcer
	Activity Activity
	// Dir is the working directory of commands without one, and the base of relative ones.
	Dir func() string
	// Env returns the environment of a process, given the call's own variables. NoColor is set
	// for a program whose output no terminal shows.
	Env func(call map[string]string, noColor bool) []string
	// OnEnded is called when a process has ended.
	OnEnded func()
	// User is the user of all programs.
	User *user.User

	work sync.WaitGroup // goroutines that wait for a process, or write its input

	mu     sync.Mutex
	byID   map[string]*Process
	lastID uint64
}

// Close ends all processes, and returns when they have ended.
func (ps *Processes) Close() {
	ps.mu.Lock()
	all := slices.Collect(maps.Values(ps.byID))
	ps.mu.Unlock()
	for _, p := range all {
		KillTree(p)
		<-p.done
	}
	ps.work.Wait()
}

// Busy reports whether a process runs.
func (ps *Processes) Busy() bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byID {
		if p.Running() {
			return true
		}
	}
	return false
}

// Attached reports whether a process runs whose streams somebody has.
func (ps *Processes) Attached() bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byID {
		if p.kind != "background" && p.Running() {
			return true
		}
	}
	return false
}

// RecordKill records which limit the processes with these ids were killed for.
func (ps *Processes) RecordKill(pids map[int]bool, limit string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byID {
		if pids[p.pid] {
			p.recordKill(limit)
		}
	}
}

// Spawn starts a user's program.
func (ps *Processes) Spawn(kind string, c *agentv1.Command, stdio Stdio) (*Process, error) {
	if c == nil || len(c.Argv) == 0 || c.Argv[0] == "" {
		return nil, wire.Errorf(connect.CodeInvalidArgument, "the command is empty")
	}
	dir, err := ps.directory(c.Cwd)
	if err != nil {
		return nil, err
	}
	p := &Process{kind: kind, argv: c.Argv, startedAt: time.Now(), output: stdio.output, timeout: stdio.timeout,
		unread: stdio.unread, tag: stdio.Tag, server: c.Server, mark: newMark(), user: ps.User,
		terminal: stdio.TerminalSize, done: make(chan struct{})}
	noColor := kind != "interactive" && stdio.TerminalSize == nil
	attr := &syscall.ProcAttr{Dir: dir, Env: append(ps.Env(c.Env, noColor), p.mark)}
	var closeAfter []*os.File
	err = ps.User.Do(func() (err error) { // programs may open their own streams again by name, in /dev
		if stdio.TerminalSize != nil {
			closeAfter, err = p.openTerminal(attr, stdio)
		} else {
			closeAfter, err = p.openPipes(attr, stdio)
		}
		return err
	})
	defer func() {
		for _, f := range closeAfter {
			f.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	argv := c.Argv
	if n := len(argv); n == 3 && isShell(argv[0]) && argv[1] == "-c" && len(argv[2]) > maxArgument {
		line, err := asFile(argv[2])
		if err != nil {
			return nil, startError(c.Argv[0], err)
		}
		closeAfter = append(closeAfter, line)
		attr.Files = append(attr.Files[:3:3], line.Fd())
		argv = []string{argv[0], argv[1], evalFile}
	}
	pid, status, err := ps.Fork(argv, attr)
	if err != nil {
		p.closeOutput()
		if p.stdin != nil {
			p.stdin.Close()
		}
		return nil, startError(c.Argv[0], err)
	}
	p.pid = pid
	ps.offer(pid)
	if stdio.Stdin != nil && stdio.TerminalSize == nil {
		ps.work.Go(func() { copyInput(p.stdin, stdio.Stdin, stdio.keepStdin) })
	}
	ps.add(p)
	ps.work.Go(func() { ps.wait(p, status) })
	return p, nil
}

// maxArgument is how many bytes Linux takes as one argument of a program (MAX_ARG_STRLEN, with the zero byte).
const maxArgument = 128<<10 - 1

// evalFile is a line of a shell that runs what is in the file of descriptor 3, which the programs in it do not have.
const evalFile = `eval "$(cat <&3)
" 3<&-`

func isShell(program string) bool {
	return slices.Contains([]string{"sh", "bash", "dash", "ash", "ksh", "zsh"}, path.Base(program))
}

// asFile returns a file without a name that has a text.
func asFile(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "command")
	if _, err = f.WriteString(text); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
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
	if err != nil {
		err = cmp.Or(ps.checkDirectory(attr.Dir), err)
	}
	return pid, st, err
}

// checkDirectory returns an error that names the working directory when a program cannot start in
// it. The kernel's error is the same as for a program that is missing, or may not be executed.
func (ps *Processes) checkDirectory(dir string) error {
	err := ps.User.Do(func() error {
		_, err := os.Stat(dir + "/.") // a dot, as the user has to be allowed to enter it
		return err
	})
	switch {
	case errors.Is(err, syscall.ENOENT):
		return wire.Errorf(connect.CodeFailedPrecondition, "the sandbox has no folder %s, in which programs start: "+
			"make it, or pass another working directory", dir)
	case errors.Is(err, syscall.EACCES):
		return wire.Errorf(connect.CodePermissionDenied, "programs start in %s, which the user %s of the sandbox may "+
			"not enter: pass another working directory", dir, ps.User.Label())
	}
	return nil
}

func startError(name string, err error) error {
	switch {
	case errors.As(err, new(*connect.Error)):
		return err
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, syscall.ENOENT):
		return wire.Errorf(connect.CodeNotFound, "command not found: %s", name)
	case errors.Is(err, syscall.EACCES):
		return wire.Errorf(connect.CodePermissionDenied, "not executable: %s", name)
	case errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL): // gVisor gives the second
		return wire.Errorf(connect.CodeInvalidArgument,
			"the arguments or variables are too long (one may have 128 KiB), or hold a zero byte: %s; put them into a file, "+
				"or write them to the program's input", name)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return wire.Errorf(connect.CodeResourceExhausted,
			"no process can be started: the sandbox has reached its limit of processes or memory")
	}
	return connect.NewError(connect.CodeInternal, err)
}

// openPipes gives the process pipes. It returns the child's ends, which the caller closes
// once the process has started.
func (p *Process) openPipes(attr *syscall.ProcAttr, stdio Stdio) (childFiles []*os.File, err error) {
	if stdio.Direct[0] != nil {
		return p.openDirect(attr, stdio)
	}
	in, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	childFiles = append(childFiles, in)
	if stdio.Stdin != nil || stdio.keepStdin {
		r, wr, err := os.Pipe()
		if err != nil {
			return childFiles, err
		}
		childFiles = append(childFiles, r)
		in, p.stdin = r, wr
	}
	attr.Files = []uintptr{in.Fd()}
	if p.kind == "exec" && stdio.Stderr != nil {
		both, ends, err := newPair([2]io.Writer{stdio.Stdout, stdio.Stderr})
		if err != nil {
			return childFiles, err
		}
		attr.Files = append(attr.Files, ends[0].Fd(), ends[1].Fd())
		p.readEnds = append(p.readEnds, both.pipes[0], both.pipes[1])
		p.copying.Go(both.copy)
		return append(childFiles, ends[0], ends[1]), nil
	}
	for _, sink := range []io.Writer{stdio.Stdout, stdio.Stderr} {
		if sink == nil {
			attr.Files = append(attr.Files, attr.Files[1])
			continue
		}
		r, wr, err := newLatePipe()
		if err != nil {
			return childFiles, err
		}
		childFiles = append(childFiles, wr)
		attr.Files = append(attr.Files, wr.Fd())
		p.copyOutput(r, sink)
	}
	return childFiles, nil
}

// openDirect gives the process connections in place of pipes for input and output.
func (p *Process) openDirect(attr *syscall.ProcAttr, stdio Stdio) ([]*os.File, error) {
	r, errOut, err := newLatePipe()
	if err != nil {
		return nil, err
	}
	attr.Files = []uintptr{stdio.Direct[0].Fd(), stdio.Direct[1].Fd(), errOut.Fd()}
	p.copyOutput(r, stdio.Stderr)
	return []*os.File{errOut}, nil
}

func (p *Process) openTerminal(attr *syscall.ProcAttr, stdio Stdio) ([]*os.File, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("opening a terminal: %w", err)
	}
	rows, cols := min(stdio.TerminalSize.Rows, maxSize), min(stdio.TerminalSize.Cols, maxSize)
	if err := SetSize(master, uint16(rows), uint16(cols)); err != nil {
		return []*os.File{master, slave}, err
	}
	if raw, err := master.SyscallConn(); err == nil { // the library makes it one whose writes wait beyond deadlines
		_ = raw.Control(func(fd uintptr) { _ = unix.SetNonblock(int(fd), true) })
	}
	fd := slave.Fd()
	attr.Files = []uintptr{fd, fd, fd}
	attr.Sys = &syscall.SysProcAttr{Setctty: true, Ctty: 0}
	p.stdin = master
	if stdio.OnTerminal != nil {
		stdio.OnTerminal(master)
	}
	p.copyOutput(&lateFile{File: master}, stdio.Stdout)
	return []*os.File{slave}, nil
}

// copyOutput copies one stream of the process to sink until the stream ends.
func (p *Process) copyOutput(r readEnd, sink io.Writer) {
	p.readEnds = append(p.readEnds, r)
	p.copying.Go(func() { io.CopyBuffer(struct{ io.Writer }{sink}, struct{ io.Reader }{r}, make([]byte, 32<<10)) })
}

// closeOutput ends the copying of output, and closes the read ends.
func (p *Process) closeOutput() {
	for _, f := range p.readEnds {
		f.SetReadDeadline(time.Now())
	}
	p.copying.Wait()
	for _, f := range p.readEnds {
		f.Close()
	}
}

func copyInput(stdin *os.File, from io.Reader, keepOpen bool) {
	io.Copy(stdin, from) // an error is ignored: a program need not read its input
	if !keepOpen {
		stdin.Close()
	}
}

// descendantOutputLimit is how long output is read after a process has ended while descendants
// of it, such as that of `sleep 1000 &`, keep the pipes open.
const descendantOutputLimit = 100 * time.Millisecond

// wait waits for the process and for its output.
func (ps *Processes) wait(p *Process, status <-chan syscall.WaitStatus) {
	st := <-status
	copied := make(chan struct{})
	go func() { p.copying.Wait(); close(copied) }()
	limit := descendantOutputLimit
	if p.kind == "background" {
		limit = time.Second
	}
	select {
	case <-copied:
	case <-time.After(limit):
	}
	p.closeOutput()
	if p.stdin != nil {
		p.stdin.Close()
	}
	p.mu.Lock()
	if p.exitCode, p.endedAt = exitCode(st), time.Now(); p.killedBy == killedByTimeout {
		p.exitCode = 124 // as timeout(1) has it
	}
	p.mu.Unlock()
	if p.output != nil {
		p.output.close()
	}
	close(p.done)
	ps.OnEnded()
	ps.forgetEnded(p)
}

// killedByTimeout is in place of a limit's name for a process that ran for longer than its
// timeout.
const killedByTimeout = "time"

// timeoutGrace is the time between TERM and KILL for a background process whose timeout is
// over.
const timeoutGrace = 5 * time.Second

// enforceTimeout ends a process when its timeout is over.
func (ps *Processes) enforceTimeout(p *Process) {
	t := time.NewTimer(p.timeout)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		p.recordKill(killedByTimeout)
		ps.End(p, timeoutGrace)
	}
}

// endUnread ends a process whose output nobody reads any more, as when a person closes the window of a terminal. Time in
// which the sandbox sleeps does not count: its clock jumps over that, and so parts of the time are counted.
func (ps *Processes) endUnread(p *Process) {
	const parts = 8
	t := time.NewTicker(max(p.unread/parts, time.Millisecond))
	defer t.Stop()
	for unread, reads := 0, uint64(0); unread < parts; unread++ {
		select {
		case <-p.done:
			return
		case <-t.C:
		}
		p.mu.Lock()
		if p.reads != reads || p.readers > 0 {
			unread, reads = -1, p.reads
		}
		p.mu.Unlock()
	}
	ps.endBy(p, syscall.SIGHUP, timeoutGrace)
}

// reading notes that the output of the process is read, until the function that it returns is called.
func (p *Process) reading() (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	p.readers++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.readers--
	}
}

// End ends a process and its descendants: it sends TERM, and KILL after grace.
func (ps *Processes) End(p *Process, grace time.Duration) { ps.endBy(p, syscall.SIGTERM, grace) }

func (ps *Processes) endBy(p *Process, s syscall.Signal, grace time.Duration) {
	p.Signal(s)
	select {
	case <-p.done:
	case <-time.After(grace):
	}
	KillTree(p)
}

// endGroup waits until all that a process has started that has just ended have ended, too, and at the
// deadline kills what is left: a member may ignore the signal, or may have been forked
// while the signal was sent.
func (p *Process) endGroup(ctx context.Context, deadline time.Time) {
	const poll = 20 * time.Millisecond
	for (syscall.Kill(-p.pid, 0) == nil || len(p.others()) > 0) && time.Now().Before(deadline) && ctx.Err() == nil {
		time.Sleep(poll)
	}
	KillTree(p)
}

// KillTree kills the process group, and what it has started that is in other groups.
func KillTree(p *Process) {
	const most = 5 // rounds: what is killed may have forked meanwhile
	for range most {
		tree := p.others()
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
		for _, pid := range tree {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(tree) == 0 {
			return
		}
	}
}

// directory returns the absolute path of the working directory of a process.
func (ps *Processes) directory(cwd string) (string, error) {
	base := ps.Dir()
	if cwd == "" {
		return base, nil
	}
	if !filepath.IsAbs(cwd) {
		cwd = filepath.Join(base, cwd)
	}
	var st os.FileInfo
	err := ps.User.Do(func() (err error) {
		st, err = os.Stat(cwd)
		return err
	})
	if err != nil {
		return "", wire.Errorf(connect.CodeNotFound, "directory not found in sandbox: %s", cwd)
	}
	if !st.IsDir() {
		return "", wire.Errorf(connect.CodeFailedPrecondition, "not a directory: %s", cwd)
	}
	return cwd, nil
}

// How many background processes may run, and how many of those that have ended are kept.
const (
	maxBackground = 128
	MaxEnded      = 64
)

// add gives a process its id.
func (ps *Processes) add(p *Process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.lastID++
	p.id = "p" + strconv.FormatUint(ps.lastID, 36)
	if ps.byID == nil {
		ps.byID = map[string]*Process{}
	}
	ps.byID[p.id] = p
}

// forgetEnded removes a process that has ended from the table. Of background processes the
// last MaxEnded stay in it.
func (ps *Processes) forgetEnded(p *Process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p.kind != "background" {
		delete(ps.byID, p.id)
		return
	}
	var ended []*Process
	for _, q := range ps.byID {
		if !q.Running() {
			ended = append(ended, q)
		}
	}
	slices.SortFunc(ended, func(x, y *Process) int { return x.startedAt.Compare(y.startedAt) })
	for len(ended) > MaxEnded {
		delete(ps.byID, ended[0].id)
		ended = ended[1:]
	}
}

func (ps *Processes) find(id string) (*Process, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.byID[id]; p != nil {
		return p, nil
	}
	return nil, wire.Errorf(connect.CodeNotFound, "process not found: %.40s", id)
}

// ToolConn says what runs as the process with an id, for its calls of tools; false: none of these.
func (ps *Processes) ToolConn(pid int) (wire.ToolConn, bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byID {
		if p.pid != pid || p.kind != "background" && !p.Running() {
			continue
		}
		c := wire.ToolConn{Tag: p.tag}
		if p.kind == "background" {
			c.Process = p.id
		}
		return c, true
	}
	return wire.ToolConn{}, false
}

// StartedAs says what runs as the process with an id: the id of a background process, and what stands for a third-party
// server, as far as it is either; false: the host has not started it.
func (ps *Processes) StartedAs(pid int) (id, server string, ok bool) {
	return ps.started(func(p *Process) bool { return pid > 1 && p.pid == pid && p.Running() })
}

// Marked is StartedAs for a process that has the mark of the one that has started it, and has left its tree.
func (ps *Processes) Marked(pid int) (id, server string, ok bool) {
	var environment string
	_ = ps.User.Do(func() error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		environment = "\x00" + string(text)
		return err
	})
	return ps.started(func(p *Process) bool { return strings.Contains(environment, "\x00"+p.mark+"\x00") })
}

// OnlyServer returns what stands for a third-party server if no other program runs that the host has started.
func (ps *Processes) OnlyServer() (only string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byID {
		switch {
		case !p.Running():
		case p.server == "" || only != "" && only != p.server:
			return ""
		default:
			only = p.server
		}
	}
	return only
}

func (ps *Processes) started(is func(*Process) bool) (id, server string, ok bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byID {
		if is(p) {
			if p.kind == "background" {
				id = p.id
			}
			return id, p.server, true
		}
	}
	return "", "", false
}

// StartProcess implements the RPC.
func (ps *Processes) StartProcess(_ context.Context,
	r *agentv1.StartProcessRequest) (*agentv1.StartProcessResponse, error) {
	ps.mu.Lock()
	running := 0
	for _, p := range ps.byID {
		if p.kind == "background" && p.Running() {
			running++
		}
	}
	ps.mu.Unlock()
	if running >= maxBackground {
		return nil, wire.Errorf(connect.CodeResourceExhausted,
			"%d background processes run already; stop one first", running)
	}
	out := newRing()
	stdio := Stdio{keepStdin: r.StdinOpen, Stdout: out, output: out,
		timeout: wire.Milliseconds(r.TimeoutMillis), unread: wire.Milliseconds(r.UnreadMillis)}
	if stdio.TerminalSize = r.Command.GetPty(); stdio.TerminalSize == nil && len(r.Stdin) > 0 {
		stdio.Stdin = bytes.NewReader(r.Stdin)
	}
	p, err := ps.Spawn("background", r.Command, stdio)
	if err != nil {
		return nil, err
	}
	if p.timeout > 0 {
		ps.work.Go(func() { ps.enforceTimeout(p) })
	}
	if p.unread > 0 {
		ps.work.Go(func() { ps.endUnread(p) })
	}
	if p.terminal != nil && len(r.Stdin) > 0 {
		ps.work.Go(func() { _, _ = p.stdin.Write(typed(r.Stdin)) }) // a program need not read it
	}
	return &agentv1.StartProcessResponse{ProcessId: p.id}, nil
}

// List returns the descriptions of the processes, the oldest first.
func (ps *Processes) List() (list []*agentv1.Process) {
	ps.mu.Lock()
	all := slices.Collect(maps.Values(ps.byID))
	ps.mu.Unlock()
	slices.SortFunc(all, func(x, y *Process) int { return x.startedAt.Compare(y.startedAt) })
	for _, p := range all {
		list = append(list, p.Describe())
	}
	return list
}

// Describe returns a description of the process as it is now.
func (p *Process) Describe() *agentv1.Process {
	running := p.Running()
	p.mu.Lock()
	defer p.mu.Unlock()
	d := &agentv1.Process{ProcessId: p.id, Running: running, Kind: p.kind, Pid: uint32(p.pid),
		StartedUnixMillis: uint64(p.startedAt.UnixMilli()), KilledBy: p.killedBy,
		TimeoutMillis: uint64(p.timeout.Milliseconds()), Terminal: cmp.Or(p.resized, p.terminal),
		UnreadMillis: uint64(p.unread.Milliseconds())}
	size := 0
	for _, s := range p.argv {
		if size += len(s); size > 2000 {
			d.Argv = append(d.Argv, "…")
			break
		}
		d.Argv = append(d.Argv, wire.UTF8(s))
	}
	if !running {
		d.ExitCode, d.EndedUnixMillis = p.exitCode, uint64(p.endedAt.UnixMilli())
	}
	if p.output != nil {
		p.output.mu.Lock()
		d.OutputBytes = p.output.end
		p.output.mu.Unlock()
	}
	return d
}

// ReadProcess implements the RPC.
func (ps *Processes) ReadProcess(ctx context.Context,
	r *agentv1.ReadProcessRequest) (*agentv1.ReadProcessResponse, error) {
	p, err := ps.find(r.ProcessId)
	if err != nil {
		return nil, err
	}
	out := p.output
	if out == nil {
		return nil, wire.Errorf(connect.CodeFailedPrecondition, "only background processes keep their output")
	}
	defer p.reading()()
	deadline := time.NewTimer(time.Duration(min(r.WaitMillis, 600_000)) * time.Millisecond)
	defer deadline.Stop()
	for {
		ended := !p.Running()
		data, next, skipped, closed, changed := out.read(r.Cursor, int(min(max(r.MaxBytes, 1), 4<<20)))
		if len(data) > 0 || closed && ended || r.WaitMillis == 0 {
			return p.readResponse(data, next, skipped), nil
		}
		select {
		case <-changed:
		case <-p.done:
			if !closed {
				<-changed
			}
		case <-deadline.C:
			return p.readResponse(data, next, skipped), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *Process) readResponse(data []byte, next, skipped uint64) *agentv1.ReadProcessResponse {
	d := p.Describe()
	return &agentv1.ReadProcessResponse{Output: data, Cursor: next, Skipped: skipped, Left: d.OutputBytes - next,
		Running: d.Running, ExitCode: d.ExitCode, KilledBy: d.KilledBy, TimeoutMillis: d.TimeoutMillis, Terminal: d.Terminal}
}

// endOfInput is what a terminal takes for the end of its input, while the program leaves lines to it.
const endOfInput = 4 // Ctrl-D

// typed returns what a person types who enters a text: the Enter key for the ends of lines.
func typed(text []byte) []byte {
	keys := bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	return bytes.ReplaceAll(keys, []byte("\n"), []byte("\r"))
}

// WriteProcess implements the RPC.
func (ps *Processes) WriteProcess(ctx context.Context,
	r *agentv1.WriteProcessRequest) (*agentv1.WriteProcessResponse, error) {
	p, err := ps.find(r.ProcessId)
	if err != nil {
		return nil, err
	}
	if p.stdin == nil || p.kind != "background" || !p.Running() {
		return nil, wire.Errorf(connect.CodeFailedPrecondition, "the process takes no input, or has ended")
	}
	if r.Resize != nil {
		if err := p.resize(r.Resize); err != nil {
			return nil, err
		}
		if len(r.Data) == 0 && !r.Eof {
			return &agentv1.WriteProcessResponse{}, nil
		}
	}
	// The deadline ends the call when the program does not read.
	deadline, ok := ctx.Deadline()
	if limit := time.Now().Add(10 * time.Second); !ok || deadline.After(limit) {
		deadline = limit
	}
	p.stdin.SetWriteDeadline(deadline)
	data := r.Data
	if p.terminal != nil {
		if !r.Keys {
			data = typed(data)
		}
		if r.Eof {
			data = append(data, endOfInput)
		}
	}
	n, err := p.stdin.Write(data)
	if n = min(n, len(r.Data)); err == nil {
		n = len(r.Data) // an end of a line of Windows is one key
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, wire.Errorf(connect.CodeResourceExhausted,
			"the process does not read its input; %d bytes were taken", n)
	}
	if err != nil {
		return nil, wire.Errorf(connect.CodeFailedPrecondition,
			"the process has closed its input; %d bytes were taken", n)
	}
	if r.Eof && p.terminal == nil {
		p.stdin.Close()
	}
	return &agentv1.WriteProcessResponse{Written: uint32(n)}, nil
}

// maxSize is how many rows or columns a terminal has at most.
const maxSize = 4096

// SetSize changes the size of a terminal. Unlike pty.Setsize it leaves the file one whose deadlines count: File.Fd makes
// a file wait in the kernel, where no deadline ends a read or a write.
func SetSize(f *os.File, rows, cols uint16) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	return cmp.Or(err, failed)
}

// resize changes the size of the process's terminal.
func (p *Process) resize(to *agentv1.Pty) error {
	if p.terminal == nil {
		return wire.Errorf(connect.CodeFailedPrecondition, "the process has no terminal")
	}
	size := &agentv1.Pty{Rows: min(max(to.Rows, 1), maxSize), Cols: min(max(to.Cols, 1), maxSize)}
	if err := SetSize(p.stdin, uint16(size.Rows), uint16(size.Cols)); err != nil {
		return wire.Errorf(connect.CodeFailedPrecondition, "the terminal has no other size: %v", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resized = size
	return nil
}

// StopProcess implements the RPC.
func (ps *Processes) StopProcess(ctx context.Context,
	r *agentv1.StopProcessRequest) (*agentv1.StopProcessResponse, error) {
	p, err := ps.find(r.ProcessId)
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
