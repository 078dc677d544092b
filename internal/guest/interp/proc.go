package interp

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
	//go:embed drivers/python.py
	pythonDriver string
	//go:embed drivers/notebook.py
	notebook string
	//go:embed drivers/node.js
	nodeDriver string
	//go:embed drivers/bash.sh
	bashDriver string
)

// proc is one life of the language's process.
type proc struct {
	pid      int
	up       chan struct{} // closed when its driver has started
	done     chan struct{} // closed when it has ended
	exit     syscall.WaitStatus
	requests *os.File
	replies  chan Reply
	bell     *os.File // python: asks the driver to write what the code has printed
	out, err *output
	started  time.Time
	sent     int            // how many SIGINT code was sent in this life; guarded by the slot
	unheard  bool           // the last cell ended by itself although it was sent a SIGINT
	answers  *os.File       // the driver's replies, as bytes
	work     sync.WaitGroup // goroutines that read of it, and wait for it
	failed   sync.Once
	failure  error // why it did not start
}

// Reply is a driver's answer to a cell.
type Reply = wire.Reply

func (p *proc) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *proc) kill() { _ = syscall.Kill(-p.pid, syscall.SIGKILL) }

func (p *proc) close() {
	p.requests.Close()
	p.answers.Close()
	p.bell.Close() // nil is closed already
	p.out.close()
	p.err.close()
}

// driver is the command line of the interpreter with its driver.
func (i *Interp) driver() []string {
	args := []string{"--norc", "--noprofile", "-c", bashDriver, "bash"}
	switch i.config.Driver {
	case "python":
		args = []string{"-u", "-X", "utf8", "-c", pythonDriver, notebook, i.config.Output}
	case "node":
		args = []string{"--expose-internals", "--no-warnings", "-e", nodeDriver}
	}
	return slices.Concat(i.config.Command, args)
}

const (
	// startLimit is how long an interpreter may take to start.
	startLimit = 60 * time.Second
	// slowStart is how long one takes to start that most likely hangs. One that is
	// younger goes on when a call has no more time for it: the next call has it.
	slowStart = 3 * time.Second
	// joinLimit is how old a start may get that somebody else has begun.
	joinLimit = 10 * time.Second
	// signalLimit is how long a signal may be on its way to a shell.
	signalLimit = 250 * time.Millisecond
)

// maxStartText is how much of what an interpreter said is told when it does not
// start, in bytes.
const maxStartText = 4 << 10

// pipeSize is how many bytes a program may print before it waits for the agent.
const pipeSize = 256 << 10

// launch starts the process.
func (i *Interp) launch() (*proc, error) {
	p := &proc{started: time.Now(), up: make(chan struct{}), done: make(chan struct{}), replies: make(chan Reply, 4)}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	childs := []*os.File{null}
	defer func() {
		for _, f := range childs {
			f.Close()
		}
	}()
	pipe := func(childReads bool) (*os.File, error) {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		if childReads {
			r, w = w, r
		}
		childs = append(childs, w)
		return r, nil
	}
	out, e1 := pipe(false)
	errOut, e2 := pipe(false)
	requests, e3 := pipe(true)
	replies, e4 := pipe(false)
	if err := errors.Join(e1, e2, e3, e4); err != nil {
		return nil, err
	}
	for _, f := range []*os.File{out, errOut} {
		_, _ = unix.FcntlInt(number(f), unix.F_SETPIPE_SZ, pipeSize) // at best
	}
	files := make([]uintptr, len(childs))
	for n, f := range childs {
		files[n] = f.Fd()
	}
	if i.shared != nil {
		i.shared.Reset()
		// The driver reads its own output where the host gives it cells.
		bell, e := pipe(true)
		if e != nil {
			return nil, e
		}
		p.bell = bell
		files = append(files, i.shared.Fd(), number(out), number(errOut), childs[len(childs)-1].Fd())
	}
	attr := &syscall.ProcAttr{Dir: i.config.Dir, Env: i.environment(), Files: files}
	pid, status, err := i.config.Start(i.driver(), attr)
	if err != nil {
		for _, f := range []*os.File{out, errOut, requests, replies, p.bell} {
			f.Close() // nil is closed already
		}
		return nil, fmt.Errorf("starting %s: %w", i.config.Command[0], err)
	}
	p.pid, p.requests, p.answers = pid, requests, replies
	p.out, p.err = newOutput(out, i.shared, direct.Stdout), newOutput(errOut, i.shared, direct.Stderr)
	p.work.Go(func() { p.exit = <-status; close(p.done) })
	p.work.Go(func() { p.listen(i.config.Driver) })
	for _, o := range []*output{p.out, p.err} {
		p.work.Go(o.read)
	}
	return p, nil
}

// environment is the environment of the process. A shell saves its state for the next
// one, and reads the state that the one before saved.
func (i *Interp) environment() []string {
	env := append(i.config.Env(), "MPLBACKEND=agg")
	if i.config.Driver != "bash" {
		return env
	}
	env = append(env, "SANDLOT_SAVE="+i.saveFile())
	if i.restore != "" {
		env = append(env, "SANDLOT_RESTORE="+i.restore)
	} else {
		os.Remove(i.saveFile())
	}
	i.restore = i.saveFile()
	return env
}

// number is a file's descriptor, which stays as it is: Fd would make it blocking.
func number(f *os.File) uintptr {
	var n uintptr
	if raw, err := f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { n = fd })
	}
	return n
}

func (i *Interp) saveFile() string { return fmt.Sprintf("/tmp/.sandlot-bash-%p", i) }

// isUp says whether the driver has started.
func (p *proc) isUp() bool {
	select {
	case <-p.up:
		return true
	default:
		return false
	}
}

// started waits until a process has started, as long as a call may that has this
// time limit; 0: none. One that hangs is ended.
func (i *Interp) started(ctx context.Context, p *proc, limit time.Duration) error {
	if p.isUp() {
		return nil
	}
	wait := startLimit - time.Since(p.started)
	if limit > 0 {
		wait = min(wait, limit)
	}
	late := time.NewTimer(max(wait, 0))
	defer late.Stop()
	select {
	case <-p.up:
		return nil
	case <-p.done:
		return i.fail(p, "")
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
	}
	age := time.Since(p.started)
	if age < slowStart {
		return fmt.Errorf("the interpreter is still starting after %v: try again, or give the call more time",
			age.Round(time.Millisecond))
	}
	return i.fail(p, fmt.Sprintf("it was not ready within %v", age.Round(100*time.Millisecond)))
}

// fail ends a process that has not started and says why it has not; "" is by its
// own end.
func (i *Interp) fail(p *proc, why string) error {
	p.failed.Do(func() {
		if !p.alive() {
			why = "it ended with code " + strconv.Itoa(p.exit.ExitStatus())
			if p.exit.Signaled() {
				why = fmt.Sprintf("it died of signal %d", p.exit.Signal())
			}
		}
		p.kill() // what it started may live
		<-p.done
		text := p.err.detach()
		p.close()
		if len(text) > maxStartText {
			text = text[len(text)-maxStartText:]
		}
		p.failure = errors.New(strings.TrimSpace("the interpreter did not start: " + why + "\n" + string(text)))
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.proc == p {
			i.proc = nil
		}
	})
	return p.failure
}

// awaitSignal gives a shell that may not have heard a signal the time to hear it. The
// signal ends the shell then, whose state is the next one's, and not the next cell.
func (p *proc) awaitSignal() {
	p.unheard = false
	select {
	case <-p.done:
	case <-time.After(signalLimit):
	}
}

// maxReply bounds what a driver may say of one cell: more than the
// drivers' own bounds come to as JSON, which writes a character in up to six
// bytes. An answer that was cut would be none.
const maxReply = 48 << 20

// listen reads the driver's replies: for bash lines of "id status", for the
// others JSON.
func (p *proc) listen(driver string) {
	defer p.answers.Close()
	// Without a way to answer it need not wait for more: that would hold its end up.
	defer p.requests.Close()
	r := bufio.NewReaderSize(p.answers, 4<<10)
	for up := false; ; {
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
		if !up {
			if up = reply.ID == 0 && reply.OK; up {
				close(p.up)
			}
			continue
		}
		select {
		case p.replies <- reply:
			runtime.Gosched() // who waits for it goes first
		case <-p.done:
			return
		case <-time.After(time.Second): // nobody asked: code of the user wrote it
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

// connect tells a Python driver where to dial.
func (p *proc) connect(id int64, where string) error {
	p.requests.SetWriteDeadline(time.Now().Add(openLimit))
	_, err := fmt.Fprintf(p.requests, "%d -1 %d %d\n%s", id, len(where), p.sent, where)
	return err
}

func (p *proc) send(driver string, id int64, n int, c Call) error {
	code := c.Code
	p.requests.SetWriteDeadline(time.Now().Add(10 * time.Second))
	switch driver {
	case "bash":
		_, err := fmt.Fprintf(p.requests, "%d %d\n%s", id, len(code), code)
		return err
	case "python":
		_, err := fmt.Fprintf(p.requests, "%d %d %d %d\n%s", id, n, len(code), p.sent, code)
		return err
	}
	b, err := json.Marshal(struct {
		ID       int64  `json:"id"`
		N        int    `json:"n"`
		Code     string `json:"code"`
		Language string `json:"language"`
		// Signalled says that the cell before may not have heard its SIGINT.
		Signalled bool `json:"signalled"`
	}{id, n, code, c.Language, p.unheard})
	p.unheard = false
	if err != nil {
		return err
	}
	_, err = p.requests.Write(append(b, '\n'))
	return err
}

// flushEvery is how long what code has printed may wait in the driver.
const flushEvery = 50 * time.Millisecond

// writes returns a channel that ticks when the driver is to be asked to write,
// and never where it does not buffer.
func (p *proc) writes() (<-chan time.Time, func()) {
	if p.bell == nil {
		return nil, func() {}
	}
	t := time.NewTicker(flushEvery)
	return t.C, t.Stop
}

// ring asks the driver to write what the code has printed. One that has not
// heard yet is not asked again.
func (p *proc) ring() {
	if raw, err := p.bell.SyscallConn(); err == nil {
		_ = raw.Write(func(fd uintptr) bool {
			_, _ = unix.Write(int(fd), []byte{1})
			return true
		})
	}
}

// closedExit is the exit code of a driver after the code has closed the descriptors of
// its requests and replies.
const closedExit = 113

// closed says that the process ended so.
func (p *proc) closed() bool { return !p.exit.Signaled() && p.exit.ExitStatus() == closedExit }
