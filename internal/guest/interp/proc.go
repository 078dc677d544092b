package interp

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/interp/direct"
)

var (
	//go:embed drivers/start.py
	pythonStart string
	//go:embed drivers/python.py
	pythonDriver string
	//go:embed drivers/notebook.py
	notebook string
	//go:embed drivers/pretty.py
	pretty string
	//go:embed drivers/node.js
	nodeDriver string
	//go:embed drivers/bash.sh
	bashDriver string
)

// process is one process of an interpreter, with the driver in it.
type process struct {
	pid           int
	ready         chan struct{} // closed when the driver is ready
	done          chan struct{} // closed when the process has ended
	exit          syscall.WaitStatus
	requestPipe   *os.File
	replies       chan Reply
	flushPipe     *os.File // python: a byte asks the driver to write buffered output
	out, err      *output
	outputEnds    []*os.File // bash: the ends of the pipes of out and err that shells have
	failures      bool       // bash: the code may have made the shell follow failures
	startedAt     time.Time
	signalsSent   int             // how many SIGINT it was sent; guarded by the slot
	signalPending bool            // the last cell was sent a SIGINT, and ended without being interrupted
	replyPipe     *os.File        // the pipe with the driver's replies
	work          sync.WaitGroup  // goroutines that wait for the process, and read its replies
	reading       *sync.WaitGroup // goroutines that read out and err
	failOnce      sync.Once
	startErr      error // why the driver did not start
}

// Reply is a driver's reply to a cell.
type Reply = wire.Reply

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) kill() { _ = syscall.Kill(-p.pid, syscall.SIGKILL) }

func (p *process) close() {
	p.leave()
	p.out.close()
	p.err.close()
	for _, f := range p.outputEnds {
		f.Close()
	}
}

// leave closes all but the output, which programs in the background of a shell that has ended go on to write.
func (p *process) leave() {
	p.requestPipe.Close()
	p.replyPipe.Close()
	p.flushPipe.Close() // does nothing when it is nil
}

// pythonSources returns a file without a name that has the parts of Python's driver.
func pythonSources() (*os.File, error) {
	fd, err := unix.MemfdCreate("driver", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "driver")
	if _, err := f.WriteString(pythonDriver + "\x00" + notebook + "\x00" + pretty); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// title is what the command line of an interpreter begins its code with, for who lists the processes.
const title = "sandlot-cells"

// bashLoop is the command line of a shell, without its title and the length of the driver. The loop is in it, and read
// as a whole before there are aliases and functions of the code. The code runs directly in it: each level more would show
// in traces and in BASH_SOURCE.
const bashLoop = `: %s; builtin read -rN %d -u 3 sandlot_cells; builtin eval "$sandlot_cells"; while :; do ` +
	// Break and continue of the code, too, lead to the reply.
	`for __sandlot_once in 1; do { builtin read -rN 40 -u 253 __sandlot_code || builtin exit 0; ` +
	`__sandlot_id=${__sandlot_code:0:20} __sandlot_size=${__sandlot_code:20}; ` +
	`LC_ALL=C builtin read -rN "$__sandlot_size" -u 253 __sandlot_code; ` +
	// The code has unset the driver's variables: this shell ends, and the result says so.
	`case ${__sandlot_code_file-} in "") builtin exit 1;; esac; ` +
	`builtin printf %%s "${__sandlot_trace-}$__sandlot_code" >|"$__sandlot_code_file"; ` +
	// With && a status other than 0 does not end the shell (set -e).
	`__sandlot_set_status "$__sandlot_status" && :; } 2>/dev/null; ` +
	`builtin source "$__sandlot_code_file" 251>&- 252>&- 253<&- 254>&-; done; ` +
	// A line behind the code keeps its status (send): a source that fails would end the shell (set -e), or call a trap.
	`{ __sandlot_status=${__sandlot_ended:-$?} __sandlot_ended= __sandlot_trace=; ` +
	// The next code turns the traces on again.
	`case $- in *x*) __sandlot_trace="set -x; "; builtin set +x;; esac; __sandlot_follow_output || :; ` +
	// The code may have closed fd 254: then this shell ends, and the next restores its state.
	`builtin echo "$__sandlot_id $__sandlot_status" >&254 || builtin exit "$__sandlot_status"; } 2>/dev/null; done`

// driver returns the command line that starts the interpreter, and the text that it then reads from its requests: the
// driver, which would fill lists of processes as an argument. Each process gets its own, by a pipe that nothing else
// has. Sources is the descriptor of Python's.
func (i *Interp) driver(sources int, env []string) (argv []string, text string) {
	var args []string
	switch i.config.Driver {
	case "python": // the text is shorter than what a pipe takes at once
		text = pythonStart
		args = []string{"-u", "-X", "utf8", "-c", fmt.Sprintf("%q; exec(__import__(\"os\").read(3, %d)); _start()", title,
			len(text)), strconv.Itoa(sources), i.config.OutputDir}
	case "node":
		text = nodeDriver
		args = []string{"--expose-internals", "--no-warnings", "-e", fmt.Sprintf("/* %s */ (0, eval)((() => "+
			"{ for (var b = Buffer.alloc(%d), n = 0, m; n < b.length && (m = require('fs').readSync(3, b, n, b.length - n, null)); ) n += m; "+
			"return String(b); })())", title, len(text))}
	default:
		text = bashDriver // ASCII: the shell counts characters
		args = []string{"--norc", "--noprofile", "-c", fmt.Sprintf(bashLoop, title, len(text)), "bash"}
	}
	return slices.Concat(i.command(env), args), text
}

const (
	// startLimit is how long an interpreter may take to start.
	startLimit = 60 * time.Second
	// slowStart is how long an interpreter starts before it counts as hanging. When the timeout
	// of a call is over before that, the interpreter is not killed: the next call uses it.
	slowStart = 3 * time.Second
	// joinLimit is how long an interpreter that another call has started may take in all.
	joinLimit = 10 * time.Second
	// signalLimit is how long a SIGINT may take to arrive at a shell.
	signalLimit = 250 * time.Millisecond
)

// maxStartOutput bounds the output of an interpreter that did not start in the error, in bytes.
const maxStartOutput = 4 << 10

// pipeSize is the size of the pipes for output: how many bytes a program can write before it
// has to wait for the agent.
const pipeSize = 256 << 10

// launch starts a process. Its driver becomes ready later.
func (i *Interp) launch() (*process, error) {
	p := &process{startedAt: time.Now(), ready: make(chan struct{}), done: make(chan struct{}),
		replies: make(chan Reply, 4)}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	childFiles := []*os.File{null}
	defer func() {
		for _, f := range childFiles {
			f.Close()
		}
	}()
	pipe := func(childReads bool) (agentEnd *os.File, err error) {
		var r, w *os.File
		// Programs may open their own streams again by name, in /dev.
		err = i.config.User.Do(func() error { r, w, err = os.Pipe(); return err })
		if err != nil {
			return nil, err
		}
		if childReads {
			r, w = w, r
		}
		childFiles = append(childFiles, w)
		return r, nil
	}
	i.mu.Lock()
	left := i.left
	i.left = nil
	i.mu.Unlock()
	var out, errOut *os.File
	var e1, e2 error
	if left != nil {
		p.out, p.err, p.reading = left.out, left.err, left.reading
		childFiles = append(childFiles, left.outputEnds...)
		defer func() {
			if p.pid == 0 {
				p.out.close()
				p.err.close()
			}
		}()
	} else {
		p.reading = &sync.WaitGroup{}
		out, e1 = pipe(false)
		errOut, e2 = pipe(false)
	}
	requests, e3 := pipe(true)
	replies, e4 := pipe(false)
	if err := errors.Join(e1, e2, e3, e4); err != nil {
		return nil, err
	}
	if left == nil {
		for _, f := range []*os.File{out, errOut} {
			_, _ = unix.FcntlInt(descriptor(f), unix.F_SETPIPE_SZ, pipeSize) // smaller pipes work as well
		}
		p.out, p.err = newOutput(out, i.shared, direct.Stdout), newOutput(errOut, i.shared, direct.Stderr)
	}
	if i.config.Driver == "bash" {
		for _, f := range childFiles[1:3] {
			again, err := duplicate(f)
			if err != nil {
				return nil, err
			}
			p.outputEnds = append(p.outputEnds, again)
		}
	}
	files := make([]uintptr, len(childFiles))
	for n, f := range childFiles {
		files[n] = f.Fd()
	}
	if i.shared != nil {
		i.shared.Reset()
		// The driver reads the output of cells that it gets from the host directly.
		bell, e := pipe(true)
		if e != nil {
			return nil, e
		}
		p.flushPipe = bell
		files = append(files, i.shared.Fd(), descriptor(out), descriptor(errOut), childFiles[len(childFiles)-1].Fd())
	}
	if i.config.Driver == "python" {
		f, err := pythonSources()
		if err != nil {
			return nil, err
		}
		childFiles, files = append(childFiles, f), append(files, f.Fd())
	}
	attr := &syscall.ProcAttr{Dir: i.config.Dir, Env: i.environment(), Files: files}
	argv, text := i.driver(len(files)-1, attr.Env)
	pid, status, err := i.config.Start(argv, attr)
	if err != nil {
		p.requestPipe, p.replyPipe = requests, replies
		p.close()
		return nil, fmt.Errorf("starting %s: %w", argv[0], err)
	}
	p.pid, p.requestPipe, p.replyPipe = pid, requests, replies
	p.work.Go(func() { p.exit = <-status; close(p.done) })
	p.work.Go(func() { _, _ = io.WriteString(requests, text) }) // an interpreter that has ended reads none of it
	p.work.Go(func() { p.readReplies(i.config.Driver) })
	if left == nil {
		for _, o := range []*output{p.out, p.err} {
			p.reading.Go(o.read)
		}
	}
	return p, nil
}

// duplicate returns another descriptor of a file, which no program inherits.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(descriptor(f), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// environment returns the environment of the process. A shell that ends saves its state in a
// file, and the next shell restores it from there.
func (i *Interp) environment() []string {
	env := append(i.config.Env(), "MPLBACKEND=agg")
	if i.config.Driver != "bash" {
		return env
	}
	env = append(env, "SANDLOT_SAVE="+i.stateFile())
	if i.savedState != "" {
		env = append(env, "SANDLOT_RESTORE="+i.savedState)
	} else {
		_ = i.config.User.Do(func() error { return os.Remove(i.stateFile()) }) // mostly there is none
	}
	i.savedState = i.stateFile()
	return env
}

// descriptor returns the descriptor of a file. Unlike File.Fd it does not make the file
// blocking.
func descriptor(f *os.File) uintptr {
	var n uintptr
	if raw, err := f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { n = fd })
	}
	return n
}

func (i *Interp) stateFile() string { return fmt.Sprintf("/tmp/.sandlot-bash-%p", i) }

// isReady reports whether the driver is ready.
func (p *process) isReady() bool {
	select {
	case <-p.ready:
		return true
	default:
		return false
	}
}

// awaitReady waits until the driver of a process is ready. Limit is the timeout of the cell that
// waits for that; 0: it has none. A process that hangs is killed.
func (i *Interp) awaitReady(ctx context.Context, p *process, limit time.Duration) error {
	if p.isReady() {
		return nil
	}
	wait := startLimit - time.Since(p.startedAt)
	if limit > 0 {
		wait = min(wait, limit)
	}
	timeout := time.NewTimer(max(wait, 0))
	defer timeout.Stop()
	select {
	case <-p.ready:
		return nil
	case <-p.done:
		return i.failStart(p, "")
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
	}
	age := time.Since(p.startedAt)
	if age < slowStart {
		return fmt.Errorf("the interpreter is still starting after %v: try again, or give the call more time",
			age.Round(time.Millisecond))
	}
	return i.failStart(p, fmt.Sprintf("it was not ready within %v", age.Round(100*time.Millisecond)))
}

// failStart kills a process whose driver is not ready, and returns the error for it. Reason may be
// empty when the process has ended by itself.
func (i *Interp) failStart(p *process, reason string) error {
	p.failOnce.Do(func() {
		if !p.alive() {
			reason = "it ended with code " + strconv.Itoa(p.exit.ExitStatus())
			if p.exit.Signaled() {
				reason = fmt.Sprintf("it died of signal %d", p.exit.Signal())
			}
		}
		p.kill() // processes of its group may still run
		<-p.done
		text := p.err.detach()
		p.close()
		if len(text) > maxStartOutput {
			text = text[len(text)-maxStartOutput:]
		}
		p.startErr = errors.New(strings.TrimSpace("the interpreter did not start: " + reason + "\n" + string(text)))
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.process == p {
			i.process = nil
		}
	})
	return p.startErr
}

// awaitSignal waits for a SIGINT that may be on its way to a shell. Otherwise it would stop the
// next cell. It ends the shell, and the next shell restores the state.
func (p *process) awaitSignal() {
	p.signalPending = false
	select {
	case <-p.done:
	case <-time.After(signalLimit):
	}
}

// maxReply bounds the size of a driver's reply in bytes. A longer one is cut, and lost. It is
// more than the drivers' own bounds allow, even where JSON needs six bytes for a character.
const maxReply = 48 << 20

// readReplies reads the driver's replies: from bash lines of "id status", from other drivers
// lines of JSON.
func (p *process) readReplies(driver string) {
	defer p.replyPipe.Close()
	// A driver that has closed its replies would wait for requests for ever: it ends without them.
	defer p.requestPipe.Close()
	r := bufio.NewReaderSize(p.replyPipe, 4<<10)
	for ready := false; ; {
		line, err := readLine(r)
		if err != nil {
			return
		}
		var reply Reply
		if driver == "bash" {
			var id int64
			var status int
			if _, err := fmt.Sscanf(string(line), "%d %d", &id, &status); err != nil {
				continue
			}
			reply = Reply{ID: id, OK: status == 0, Exit: int32(status)}
		} else if json.Unmarshal(line, &reply) != nil {
			continue
		}
		if !ready {
			if ready = reply.ID == 0 && reply.OK; ready {
				close(p.ready)
			}
			continue
		}
		select {
		case p.replies <- reply:
			runtime.Gosched() // let the goroutine that waits for the reply run first
		case <-p.done:
			return
		case <-time.After(time.Second): // no call waits for it: code of the user wrote it
		}
	}
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) <= maxReply {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// sendDial makes a Python driver dial the host; target is the ticket and the socket.
func (p *process) sendDial(id int64, target string) error {
	p.requestPipe.SetWriteDeadline(time.Now().Add(openLimit))
	_, err := fmt.Fprintf(p.requestPipe, "%d -1 %d %d\n%s", id, len(target), p.signalsSent, target)
	return err
}

// followsFailures finds code that makes a shell follow failures (set -e, trap … ERR).
var followsFailures = regexp.MustCompile(`\bset +-|errexit|\bERR\b`)

// unfinished reports whether a line behind the code of a shell may be read as a part of its last command.
func unfinished(code string) bool {
	end := strings.TrimRight(code, " \t\r\n")
	return strings.Contains(code, "<<") || strings.HasSuffix(end, "\\") || strings.HasSuffix(end, "&&") ||
		strings.HasSuffix(end, "|") || strings.HasSuffix(end, ")") && strings.HasSuffix(strings.TrimRight(end[:len(end)-1], " \t"), "(")
}

// send sends a cell to the driver; n is the cell's number.
func (p *process) send(driver string, id int64, n int, c Cell) error {
	code := c.Code
	p.requestPipe.SetWriteDeadline(time.Now().Add(10 * time.Second))
	switch driver {
	case "bash":
		code += "\n"
		if p.failures = p.failures || followsFailures.MatchString(code); p.failures && !unfinished(code) {
			code += "{ __sandlot_ended=$?; } 2>/dev/null"
		}
		_, err := fmt.Fprintf(p.requestPipe, "%020d%020d%s", id, len(code), code)
		return err
	case "python":
		_, err := fmt.Fprintf(p.requestPipe, "%d %d %d %d\n%s", id, n, len(code), p.signalsSent, code)
		return err
	}
	b, err := json.Marshal(struct {
		ID       int64  `json:"id"`
		N        int    `json:"n"`
		Code     string `json:"code"`
		Language string `json:"language"`
		// Signalled says that a SIGINT for the last cell may still be on its way.
		Signalled bool `json:"signalled"`
	}{id, n, code, c.Language, p.signalPending})
	p.signalPending = false
	if err != nil {
		return err
	}
	_, err = p.requestPipe.Write(append(b, '\n'))
	return err
}

// flushInterval bounds how long output of a running cell may be buffered in the driver.
const flushInterval = 50 * time.Millisecond

// flushTicks returns a channel that ticks when requestFlush is to be called. For a driver that
// does not buffer it never ticks.
func (p *process) flushTicks() (<-chan time.Time, func()) {
	if p.flushPipe == nil {
		return nil, func() {}
	}
	t := time.NewTicker(flushInterval)
	return t.C, t.Stop
}

// requestFlush asks the driver to write the output that it buffers. It does not wait when the
// pipe is full of such requests.
func (p *process) requestFlush() {
	if raw, err := p.flushPipe.SyscallConn(); err == nil {
		_ = raw.Write(func(fd uintptr) bool {
			_, _ = unix.Write(int(fd), []byte{1})
			return true
		})
	}
}

// closedPipesExit is the exit code of a driver that finds that code has closed the descriptors of its
// requests or replies.
const closedPipesExit = 113

// driverEnded returns why the driver has ended the process; empty: it has not. A shell's exit codes are the code's own.
func (i *Interp) driverEnded(p *process) string {
	if p.exit.Signaled() || i.config.Driver == "bash" || p.exit.ExitStatus() != closedPipesExit {
		return ""
	}
	return "the code closed the interpreter's own file descriptors, from 3 on, without which it cannot answer"
}
