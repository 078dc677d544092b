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
	"sandlot/internal/guest/user"
)

// Start starts a program. The channel receives its exit status.
type Start func(argv []string, attr *syscall.ProcAttr) (pid int, status <-chan syscall.WaitStatus, err error)

// Config says what to run and how.
type Config struct {
	Driver    string   // python, node or bash
	Command   []string // the interpreter's program
	Dir       string
	OutputDir string // the folder for files with values that results link to; "": no such files
	Env       func() []string
	User      *user.User // of the interpreter's process
	Start     Start
	// KilledSince returns the limit of the sandbox because of which a process was killed since
	// then, or "".
	KilledSince func(since time.Time) string
}

// Interp is one interpreter. Its process starts when it is first used, and again after it died.
type Interp struct {
	config Config
	slot   chan struct{}  // held by the cell that runs
	stop   chan struct{}  // asks that cell to stop
	shared *direct.Shared // nil: the driver gets no cells from the host directly

	mu             sync.Mutex
	process        *process
	cellBegan      time.Time // when the cell that runs began; zero: none runs
	lossReason     string    // why the variables were lost, until a result has contained it
	killedBy       string    // the limit that a process was killed for while the cell ran
	lastCell       int       // the number of the last cell
	lastSupervised int64     // the id of the last cell that was supervised for the host
	change         *Change   // of the process's environment, which it has not got yet; nil: none
	savedState     string    // bash: the file with the state that the last shell saved
	left           *process  // bash: the last shell, of which the next gets the output
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
func (i *Interp) Busy() bool { return i.currentCell() != 0 }

// Idle reports whether no cell runs, also none that the driver has got from the host directly.
func (i *Interp) Idle() bool { return !i.Busy() && (i.shared == nil || i.shared.Idle()) }

// PID returns the id of the interpreter's process; 0: none runs.
func (i *Interp) PID() int {
	pid, _ := i.Process()
	return pid
}

// Process returns the id of the interpreter's process, and when it was started; 0: none runs.
func (i *Interp) Process() (pid int, started time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.process == nil || !i.process.alive() {
		return 0, time.Time{}
	}
	return i.process.pid, i.process.startedAt
}

// RecordKill records the limit that the process, or one that it started, was killed for.
func (i *Interp) RecordKill(limit string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.killedBy = limit
}

// Interrupt stops the cell that runs, as its timeout would, and waits until it has stopped. The
// next cell that waits for the slot runs then.
func (i *Interp) Interrupt(ctx context.Context) {
	n := i.currentCell()
	if n == 0 {
		return
	}
	select {
	case i.stop <- struct{}{}:
	default: // another call of Interrupt has asked the cell to stop already
	}
	for i.currentCell() == n && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
}

// currentCell returns the number of the cell that runs; 0: none runs.
func (i *Interp) currentCell() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.cellBegan.IsZero() {
		return 0
	}
	return i.lastCell
}

// Warm starts the process, unless it runs, and waits until the driver is ready. It does not
// hold the slot meanwhile, so other calls wait no longer than their own contexts allow.
func (i *Interp) Warm(ctx context.Context) error {
	if err := i.acquire(ctx, nil); err != nil {
		return err
	}
	p, err := i.ensureRunning()
	i.release()
	if err != nil {
		return err
	}
	return i.awaitReady(ctx, p, 0)
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
			since := i.cellBegan
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
	p, left := i.process, i.left
	i.left = nil
	i.mu.Unlock()
	if left != nil {
		left.close()
		left.work.Wait()
		left.reading.Wait()
	}
	if p != nil {
		p.kill()
		<-p.done
		p.close()
		p.work.Wait()
		p.reading.Wait()
	}
}

// ensureStarted returns the process, after it has started one where none runs and its driver is
// ready. Limit is the timeout of the cell that waits for that; 0: it has none. The caller holds
// the slot.
func (i *Interp) ensureStarted(ctx context.Context, limit time.Duration) (*process, error) {
	arrived := time.Now()
	p, err := i.ensureRunning()
	if err != nil {
		return nil, err
	}
	// When a process that another call has started hangs, this call starts another one: the user
	// may have removed the cause since.
	if age := arrived.Sub(p.startedAt); age > 0 && !p.isReady() {
		if remaining := max(joinLimit-age, time.Millisecond); limit == 0 || remaining < limit {
			if err := i.awaitReady(ctx, p, remaining); err == nil || ctx.Err() != nil {
				return p, err
			}
			if p, err = i.ensureRunning(); err != nil {
				return nil, err
			}
			if limit > 0 {
				limit = max(limit-time.Since(arrived), time.Millisecond)
			}
		}
	}
	return p, i.awaitReady(ctx, p, limit)
}

// ensureRunning returns the process, after it has started one where none runs. The driver may
// not be ready yet. The caller holds the slot.
func (i *Interp) ensureRunning() (*process, error) {
	i.mu.Lock()
	p := i.process
	i.mu.Unlock()
	if p != nil && p.alive() && i.config.Driver == "bash" && p.signalPending {
		p.awaitSignal()
	}
	switch {
	case p == nil:
	case p.alive():
		return p, nil
	case p.isReady():
		i.recordDeath(p, "")
	default:
		_ = i.failStart(p, "")
	}
	p, err := i.launch()
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	i.process = p
	i.mu.Unlock()
	return p, nil
}

// recordDeath records why a process died, for the next result, unless the next process gets its
// state.
func (i *Interp) recordDeath(p *process, reason string) {
	// The file is not that of an earlier shell: that one was removed when this shell started.
	saved := i.savedState != "" && i.hasSavedState()
	if saved {
		p.leave()
	} else {
		p.kill() // processes of its group may still run
		p.close()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.process = nil
	if saved {
		i.left = p
		return // the next shell restores the state from the file
	}
	i.savedState = ""
	switch {
	case i.killedBy != "":
		i.lossReason = "it was killed because the sandbox reached its limit of " + i.killedBy
	case reason != "":
		i.lossReason = reason
	case i.driverEnded(p) != "":
		i.lossReason = i.driverEnded(p)
	case p.exit.Signaled():
		i.lossReason = fmt.Sprintf("it died of signal %d", p.exit.Signal())
	default:
		i.lossReason = fmt.Sprintf("the interpreter exited with code %d", p.exit.ExitStatus())
	}
}

// hasSavedState reports whether the last shell has saved its state in the file savedState.
func (i *Interp) hasSavedState() (saved bool) {
	_ = i.config.User.Do(func() error {
		st, err := os.Stat(i.savedState)
		saved = err == nil && st.Size() > 0
		return nil
	})
	return saved
}

// Cell is a cell of code to run.
type Cell struct {
	Code           string
	Language       string        // of the code, for a driver of several languages
	Timeout        time.Duration // counted from when the cell begins; 0: none
	Stdout, Stderr io.Writer
	Waiting        func(time.Duration) // see acquire
	// Ticks has a tick for each call of Tick while the code runs.
	Ticks <-chan time.Time
	Tick  func() error
}

// Run waits for the slot and runs one cell. When ctx ends meanwhile the cell is stopped, and
// its result is returned all the same.
func (i *Interp) Run(ctx context.Context, c Cell) (*Result, error) {
	if err := i.acquire(ctx, c.Waiting); err != nil {
		return nil, err
	}
	defer i.release()
	start := time.Now()
	p, err := i.awaitIdle(ctx, c.Timeout)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return i.startFailure(err, start), nil
	}
	i.applyEnvironment(ctx, p)
	start = time.Now()
	n := i.beginCell(start)
	p.out.attach(c.Stdout)
	p.err.attach(c.Stderr)
	id := newCellID()
	if err := p.send(i.config.Driver, id, n, c); err != nil && p.alive() {
		p.kill()
	}
	return i.finish(ctx, p, id, start, c), nil
}

// startFailure returns the result of a cell whose interpreter did not start. Mostly files and
// settings of the user are the cause.
func (i *Interp) startFailure(err error, start time.Time) *Result {
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
func newCellID() int64 {
	var b [8]byte
	unix.Getrandom(b[:], 0)
	return 1 + int64(binary.NativeEndian.Uint64(b[:])>>11)
}

// beginCell records that a cell runs, and returns its number.
func (i *Interp) beginCell(start time.Time) int {
	select {
	case <-i.stop: // an Interrupt that came too late for the last cell
	default:
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cellBegan, i.killedBy = start, ""
	i.lastCell++
	return i.lastCell
}

// takeLoss returns why the variables were lost, and forgets it: only one result contains it.
func (i *Interp) takeLoss() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	lost := i.lossReason
	i.lossReason = ""
	return lost
}

// finish waits until the cell that runs has ended, and returns its result.
func (i *Interp) finish(ctx context.Context, p *process, id int64, start time.Time, c Cell) *Result {
	r, lost := &Result{}, i.takeLoss()
	i.await(ctx, p, id, c, r)
	detachAll(p.out, p.err)
	r.Took = time.Since(start)
	if !p.alive() {
		i.completeDead(p, r, start)
	}
	if lost != "" && !r.StateLost {
		r.Reason = "before this call: " + lost
		r.StateLost = true
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cellBegan = time.Time{}
	if r.KilledBy == "" && !r.OK {
		r.KilledBy = i.killedBy
	}
	if r.StateLost && ctx.Err() != nil {
		i.lossReason = r.Reason // nobody reads this result: the next one contains it
	}
	return r
}

// Pauses between the steps of stopping a cell: SIGINT, SIGINT again, and KILL. Within the first pause programs in
// sessions of their own get a SIGINT.
const (
	firstStopPause  = 2 * time.Second
	secondStopPause = time.Second
	ownSessionPause = 500 * time.Millisecond
)

// interrupt sends a SIGINT to the cell that runs, and to what it has started. The driver gets the number of signals
// that were sent, so that one that arrives late does not stop the next cell. The caller holds the slot.
func (i *Interp) interrupt(p *process, o *offspring) {
	p.signalsSent++
	if i.shared != nil {
		i.shared.SetSignalsSent(p.signalsSent)
	}
	if p.alive() {
		o.interrupt()
	}
}

// offspringOf returns what the cell that runs has started.
func (i *Interp) offspringOf(p *process) *offspring {
	i.mu.Lock()
	defer i.mu.Unlock()
	return newOffspring(p, i.cellBegan, i.config.Driver == "bash")
}

// await waits for the driver's reply to the cell, or the process's death, and stops the cell when
// its timeout is over, ctx ends, or Interrupt was called.
func (i *Interp) await(ctx context.Context, p *process, id int64, c Cell, r *Result) {
	var timeout, nextStep <-chan time.Time
	if c.Timeout > 0 {
		t := time.NewTimer(c.Timeout)
		defer t.Stop()
		timeout = t.C
	}
	canceled := ctx.Done()
	stopSteps := 0
	started := i.offspringOf(p)
	stop := func() {
		timeout, canceled = nil, nil
		switch stopSteps++; stopSteps {
		case 1:
			i.interrupt(p, started)
			nextStep = time.After(ownSessionPause)
		case 2:
			started.interruptAll()
			nextStep = time.After(firstStopPause - ownSessionPause)
		case 3:
			i.interrupt(p, started)
			nextStep = time.After(secondStopPause)
		default:
			nextStep = nil
			started.kill()
		}
	}
	defer started.end()
	ticks := c.Ticks
	flush, stopFlush := p.flushTicks()
	defer stopFlush()
	for {
		select {
		case <-flush:
			p.requestFlush()
		case reply := <-p.replies:
			if reply.ID != id {
				continue
			}
			r.Reply = reply
			p.signalPending = stopSteps > 0 && !reply.Stopped
			r.Interrupted = reply.Stopped
			if r.TimedOut {
				r.OK = false
			}
			return
		case <-p.done:
			return
		case <-timeout:
			r.TimedOut = true
			stop()
		case <-canceled:
			r.Interrupted = true
			stop()
		case <-i.stop:
			r.Interrupted = true
			stop()
		case <-nextStep:
			stop()
		case <-ticks:
			if c.Tick() != nil {
				ticks = nil
			}
		}
	}
}

// completeDead completes the result of a cell whose process died.
func (i *Interp) completeDead(p *process, r *Result, start time.Time) {
	// When r has an id, the driver replied just before it died.
	if r.ID == 0 {
		r.OK = false
		if r.Exit = int32(p.exit.ExitStatus()); i.driverEnded(p) != "" {
			r.Exit = 1
		}
		if p.exit.Signaled() {
			r.Exit = 128 + int32(p.exit.Signal())
			if limit := i.config.KilledSince(start); limit != "" && p.exit.Signal() == unix.SIGKILL && !r.TimedOut &&
				!r.Interrupted {
				i.mu.Lock()
				i.killedBy = limit
				i.mu.Unlock()
			}
		}
		if i.config.Driver == "bash" && !p.exit.Signaled() && r.Exit == 0 {
			r.OK = true // the code was `exit 0`
		}
	}
	reason := ""
	if r.TimedOut || r.Interrupted {
		reason = "the code did not stop when it was interrupted"
	}
	i.recordDeath(p, reason)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.lossReason != "" {
		r.StateLost, r.Reason = true, i.lossReason
		i.lossReason = ""
	}
	r.KilledBy = i.killedBy
}
