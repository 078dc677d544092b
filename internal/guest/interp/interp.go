// Package interp runs interpreters. An interpreter is a process of a language that runs cells
// of code, and keeps variables from one cell to the next. In the process runs a driver, a
// program in the language itself, which gets cells and sends replies over two pipes. A cell
// is stopped by an interrupt, which keeps the variables; the process is killed only if that
// does not help.
package interp

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/guest/interp/direct"
)

// Start starts a program. The channel receives its exit status.
type Start func(argv []string, attr *syscall.ProcAttr) (pid int, status <-chan syscall.WaitStatus, err error)

// Config says what to run and how.
type Config struct {
	Driver  string   // python, node or bash
	Command []string // the interpreter's program
	Dir     string
	Output  string // the folder for files with values that results link to; "": no such files
	Env     func() []string
	Start   Start
	// KilledSince returns the limit of the sandbox because of which a process was killed since
	// then, or "".
	Killed func(since time.Time) string
}

// Interp is one interpreter. Its process starts when it is first used, and again after it died.
type Interp struct {
	config Config
	slot   chan struct{}  // held by the cell that runs
	stop   chan struct{}  // asks that cell to stop
	shared *direct.Shared // nil: the driver gets no cells from the host directly

	mu         sync.Mutex
	proc       *proc
	running    time.Time // when the cell that runs began; zero: none runs
	lost       string    // why the variables were lost, until a result has contained it
	killedBy   string    // the limit that a process was killed for while the cell ran
	seq        int       // the number of the last cell
	supervised int64     // the id of the last cell that was supervised for the host
	restore    string    // bash: the file with the state that the last shell saved
}

// New returns an interpreter that has not started.
func New(c Config) *Interp {
	i := &Interp{config: c, slot: make(chan struct{}, 1), stop: make(chan struct{}, 1)}
	if c.Driver == "python" {
		i.shared, _ = direct.New() // without it the driver gets no cells from the host directly
	}
	return i
}

// Result is how a cell ended.
type Result struct {
	Reply
	TimedOut    bool
	Interrupted bool
	StateLost   bool   // the variables are lost
	Reason      string // why they are lost
	KilledBy    string // the limit that a process was killed for
	Took        time.Duration
}

// Busy reports whether a cell runs.
func (i *Interp) Busy() bool { return i.cell() != 0 }

// PID returns the id of the interpreter's process; 0: none runs.
func (i *Interp) PID() int {
	pid, _ := i.Process()
	return pid
}

// Process returns the id of the interpreter's process, and when it was started; 0: none runs.
func (i *Interp) Process() (pid int, started time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.proc == nil || !i.proc.alive() {
		return 0, time.Time{}
	}
	return i.proc.pid, i.proc.started
}

// RecordKill records the limit that the process, or one that it started, was killed for.
func (i *Interp) Blame(by string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.killedBy = by
}

// Interrupt stops the cell that runs, as its timeout would, and waits until it has stopped. The
// next cell that waits for the slot runs then.
func (i *Interp) Interrupt(ctx context.Context) {
	n := i.cell()
	if n == 0 {
		return
	}
	select {
	case i.stop <- struct{}{}:
	default: // another call of Interrupt has asked the cell to stop already
	}
	for i.cell() == n && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
}

// currentCell returns the number of the cell that runs; 0: none runs.
func (i *Interp) cell() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running.IsZero() {
		return 0
	}
	return i.seq
}

// Warm starts the process, unless it runs, and waits until the driver is ready. It does not
// hold the slot meanwhile, so other calls wait no longer than their own contexts allow.
func (i *Interp) Warm(ctx context.Context) error {
	if err := i.acquire(ctx, nil); err != nil {
		return err
	}
	p, err := i.current()
	i.release()
	if err != nil {
		return err
	}
	return i.started(ctx, p, 0)
}

// acquire waits for the slot. It calls waiting, which may be nil, at once and then once a second
// with how long the cell that holds the slot has run.
func (i *Interp) acquire(ctx context.Context, waiting func(time.Duration)) error {
	select {
	case i.slot <- struct{}{}:
		return nil
	default:
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if waiting != nil {
			i.mu.Lock()
			since := i.running
			i.mu.Unlock()
			if !since.IsZero() {
				waiting(time.Since(since))
			}
		}
		select {
		case i.slot <- struct{}{}:
			return nil
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (i *Interp) release() { <-i.slot }

// Close kills the process.
func (i *Interp) Close() {
	i.mu.Lock()
	p := i.proc
	i.mu.Unlock()
	if p != nil {
		p.kill()
		<-p.done
		p.close()
		p.work.Wait()
	}
}

// ensureStarted returns the process, after it has started one where none runs and its driver is
// ready. Limit is the timeout of the cell that waits for that; 0: it has none. The caller holds
// the slot.
func (i *Interp) ensure(ctx context.Context, limit time.Duration) (*proc, error) {
	arrived := time.Now()
	p, err := i.current()
	if err != nil {
		return nil, err
	}
	// When a process that another call has started hangs, this call starts another one: the user
	// may have removed the cause since.
	if age := arrived.Sub(p.started); age > 0 && !p.isUp() {
		if rest := max(joinLimit-age, time.Millisecond); limit == 0 || rest < limit {
			if err := i.started(ctx, p, rest); err == nil || ctx.Err() != nil {
				return p, err
			}
			if p, err = i.current(); err != nil {
				return nil, err
			}
			if limit > 0 {
				limit = max(limit-time.Since(arrived), time.Millisecond)
			}
		}
	}
	return p, i.started(ctx, p, limit)
}

// ensureRunning returns the process, after it has started one where none runs. The driver may
// not be ready yet. The caller holds the slot.
func (i *Interp) current() (*proc, error) {
	i.mu.Lock()
	p := i.proc
	i.mu.Unlock()
	if p != nil && p.alive() && i.config.Driver == "bash" && p.unheard {
		p.awaitSignal()
	}
	switch {
	case p == nil:
	case p.alive():
		return p, nil
	case p.isUp():
		i.bury(p, "")
	default:
		_ = i.fail(p, "")
	}
	p, err := i.launch()
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	i.proc = p
	i.mu.Unlock()
	return p, nil
}

// recordDeath records why a process died, for the next result, unless the next process gets its
// state.
func (i *Interp) bury(p *proc, why string) {
	p.kill() // processes of its group may still run
	p.close()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.proc = nil
	if i.restore != "" {
		// The file is not that of an earlier shell: that one was removed when this shell started.
		if st, err := os.Stat(i.restore); err == nil && st.Size() > 0 {
			return // the next shell restores the state from the file
		}
	}
	i.restore = ""
	switch {
	case i.killedBy != "":
		i.lost = "it was killed because the sandbox reached its limit of " + i.killedBy
	case why != "":
		i.lost = why
	case p.closed():
		i.lost = "the code closed the interpreter's own file descriptors, from 3 on, without which it cannot answer"
	case p.exit.Signaled():
		i.lost = fmt.Sprintf("it died of signal %d", p.exit.Signal())
	default:
		i.lost = fmt.Sprintf("the interpreter exited with code %d", p.exit.ExitStatus())
	}
}

// Cell is a cell of code to run.
type Call struct {
	Code           string
	Language       string        // of the code, for a driver of several languages
	Timeout        time.Duration // counted from when the cell begins; 0: none
	Stdout, Stderr io.Writer
	Waiting        func(time.Duration) // see acquire
	// Tick is called on each tick of Ticks while the code runs.
	Ticks <-chan time.Time
	Tick  func() error
}

// Run waits for the slot and runs one cell. When ctx ends meanwhile the cell is stopped, and
// its result is returned all the same.
func (i *Interp) Run(ctx context.Context, c Call) (*Result, error) {
	if err := i.acquire(ctx, c.Waiting); err != nil {
		return nil, err
	}
	defer i.release()
	start := time.Now()
	p, err := i.ready(ctx, c.Timeout)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return i.unstarted(err, start), nil
	}
	start = time.Now()
	n := i.begin(start)
	p.out.attach(c.Stdout)
	p.err.attach(c.Stderr)
	id := token()
	if err := p.send(i.config.Driver, id, n, c); err != nil && p.alive() {
		p.kill()
	}
	return i.finish(ctx, p, id, start, c), nil
}

// startFailure returns the result of a cell whose interpreter did not start. Mostly files and
// settings of the user are the cause.
func (i *Interp) unstarted(err error, start time.Time) *Result {
	text := err.Error()
	if i.config.Driver == "python" {
		text += "\nCommands and other languages work. What Python loads at its start may be broken: files .pth, " +
			"sitecustomize.py and usercustomize.py among the installed packages, modules in /workspace with names of " +
			"Python's own, variables such as PYTHONPATH."
	}
	r := &Result{Reply: Reply{Exit: 1, Error: text, Traceback: text}, Took: time.Since(start)}
	if lost := i.takeLoss(); lost != "" {
		r.StateLost, r.Reason = true, "before this call: "+lost
	}
	return r
}

// newCellID returns a random id for a cell. Code that writes to the driver's pipe must not guess
// the id of the next cell. The kernel makes the id, since this process's own generator has the
// same state in all sandboxes that were started from one snapshot.
func token() int64 {
	var b [8]byte
	unix.Getrandom(b[:], 0)
	return 1 + int64(binary.NativeEndian.Uint64(b[:])>>11)
}

// beginCell records that a cell runs, and returns its number.
func (i *Interp) begin(start time.Time) int {
	select {
	case <-i.stop: // an Interrupt that came too late for the last cell
	default:
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.running, i.killedBy = start, ""
	i.seq++
	return i.seq
}

// takeLoss returns why the variables were lost, and forgets it: only one result contains it.
func (i *Interp) takeLoss() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	lost := i.lost
	i.lost = ""
	return lost
}

// finish waits until the cell that runs has ended, and returns its result.
func (i *Interp) finish(ctx context.Context, p *proc, id int64, start time.Time, c Call) *Result {
	r, lost := &Result{}, i.takeLoss()
	i.await(ctx, p, id, c, r)
	flush(p.out, p.err)
	r.Took = time.Since(start)
	if !p.alive() {
		i.ended(p, r, start)
	}
	if lost != "" && !r.StateLost {
		r.Reason = "before this call: " + lost
		r.StateLost = true
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.running = time.Time{}
	if r.KilledBy == "" && !r.OK {
		r.KilledBy = i.killedBy
	}
	if r.StateLost && ctx.Err() != nil {
		i.lost = r.Reason // nobody reads this result: the next one contains it
	}
	return r
}

// Pauses between the steps of stopping a cell: SIGINT, SIGINT again, and KILL.
const (
	firstPause  = 2 * time.Second
	secondPause = time.Second
)

// interrupt sends a SIGINT to the cell that runs. The driver gets the number of signals that
// were sent, so that one that arrives late does not stop the next cell. The caller holds the
// slot.
func (i *Interp) interrupt(p *proc) {
	p.sent++
	if i.shared != nil {
		i.shared.Signals(p.sent)
	}
	if p.alive() {
		_ = syscall.Kill(-p.pid, unix.SIGINT)
	}
}

// await waits for the driver's reply to the cell, or the process's death, and stops the cell when
// its timeout is over, ctx ends, or Interrupt was called.
func (i *Interp) await(ctx context.Context, p *proc, id int64, c Call, r *Result) {
	var over, next <-chan time.Time
	if c.Timeout > 0 {
		t := time.NewTimer(c.Timeout)
		defer t.Stop()
		over = t.C
	}
	gone := ctx.Done()
	stops := 0
	stop := func() {
		over, gone = nil, nil
		switch stops++; stops {
		case 1:
			i.interrupt(p)
			next = time.After(firstPause)
		case 2:
			i.interrupt(p)
			next = time.After(secondPause)
		default:
			next = nil
			p.kill()
		}
	}
	ticks := c.Ticks
	write, stopWriting := p.writes()
	defer stopWriting()
	for {
		select {
		case <-write:
			p.ring()
		case reply := <-p.replies:
			if reply.ID != id {
				continue
			}
			r.Reply = reply
			p.unheard = stops > 0 && !reply.Stopped
			r.Interrupted = reply.Stopped
			if r.TimedOut {
				r.OK = false
			}
			return
		case <-p.done:
			return
		case <-over:
			r.TimedOut = true
			stop()
		case <-gone:
			r.Interrupted = true
			stop()
		case <-i.stop:
			r.Interrupted = true
			stop()
		case <-next:
			stop()
		case <-ticks:
			if c.Tick() != nil {
				ticks = nil
			}
		}
	}
}

// completeDead completes the result of a cell whose process died.
func (i *Interp) ended(p *proc, r *Result, start time.Time) {
	// When r has an id, the driver replied just before it died.
	if r.ID == 0 {
		r.OK = false
		if r.Exit = int32(p.exit.ExitStatus()); p.closed() {
			r.Exit = 1
		}
		if p.exit.Signaled() {
			r.Exit = 128 + int32(p.exit.Signal())
			if by := i.config.Killed(start); by != "" && p.exit.Signal() == unix.SIGKILL && !r.TimedOut &&
				!r.Interrupted {
				i.mu.Lock()
				i.killedBy = by
				i.mu.Unlock()
			}
		}
		if i.config.Driver == "bash" && !p.exit.Signaled() && r.Exit == 0 {
			r.OK = true // the code was `exit 0`
		}
	}
	why := ""
	if r.TimedOut || r.Interrupted {
		why = "the code did not stop when it was interrupted"
	}
	i.bury(p, why)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.lost != "" {
		r.StateLost, r.Reason = true, i.lost
		i.lost = ""
	}
	r.KilledBy = i.killedBy
}
