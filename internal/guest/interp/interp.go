// Package interp runs an interpreter: one process of a language, whose variables outlive
// a call. It speaks to a driver, a program written in the language itself, over two
// pipes. Code that is stopped keeps its variables where that is possible.
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

// Start starts a program; the channel gives its status.
type Start func(argv []string, attr *syscall.ProcAttr) (pid int, status <-chan syscall.WaitStatus, err error)

// Config says what to run and how.
type Config struct {
	Driver  string   // python, node or bash
	Command []string // the interpreter's program
	Dir     string
	Output  string // the folder for values that a result links to; "": none are
	Env     func() []string
	Start   Start
	// Killed says which limit of the sandbox ended something since then, or "".
	Killed func(since time.Time) string
}

// Interp is one interpreter. It starts when it is first used.
type Interp struct {
	config Config
	slot   chan struct{}  // held by the cell that runs
	stop   chan struct{}  // asks that cell to stop
	shared *direct.Shared // nil for drivers that do not use it

	mu         sync.Mutex
	proc       *proc
	running    time.Time // when the present cell began; zero: none runs
	lost       string    // why the state was lost, until a result has said so
	killedBy   string
	seq        int
	supervised int64  // the id of the last cell of the host's that was supervised
	restore    string // bash: a file with the state that its last shell saved
}

// New returns an interpreter that has not started.
func New(c Config) *Interp {
	i := &Interp{config: c, slot: make(chan struct{}, 1), stop: make(chan struct{}, 1)}
	if c.Driver == "python" {
		i.shared, _ = direct.New() // without it the host gives the driver no cells
	}
	return i
}

// Result is how a cell ended.
type Result struct {
	Reply
	TimedOut    bool
	Interrupted bool
	StateLost   bool
	Reason      string
	KilledBy    string
	Took        time.Duration
}

// Busy says whether code runs now.
func (i *Interp) Busy() bool { return i.cell() != 0 }

// PID is the id of the language's process, or 0.
func (i *Interp) PID() int {
	pid, _ := i.Process()
	return pid
}

// Process is the id of the language's process, or 0, and when it was started.
func (i *Interp) Process() (pid int, started time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.proc == nil || !i.proc.alive() {
		return 0, time.Time{}
	}
	return i.proc.pid, i.proc.started
}

// Blame records which limit ended the process, or one that it started.
func (i *Interp) Blame(by string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.killedBy = by
}

// Interrupt stops the cell that runs, as the end of its time would, and
// waits until it has stopped. Cells that wait for the slot run then.
func (i *Interp) Interrupt(ctx context.Context) {
	n := i.cell()
	if n == 0 {
		return
	}
	select {
	case i.stop <- struct{}{}:
	default: // another call has asked already
	}
	for i.cell() == n && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
}

// cell is the number of the cell that runs, or 0.
func (i *Interp) cell() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.running.IsZero() {
		return 0
	}
	return i.seq
}

// Warm starts the process, if it has not, and waits until it has started. Other calls
// may use the interpreter meanwhile, and wait as long as their own contexts let them.
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

// acquire waits for the slot. Meanwhile waiting is called, at once and then once a
// second, with how long the cell has run that holds the slot. Waiting may be nil.
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

// Close ends the process.
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

// ensure returns the living process, which has started. It waits for that as long
// as a call may that has this time limit; 0: none. The slot is held.
func (i *Interp) ensure(ctx context.Context, limit time.Duration) (*proc, error) {
	arrived := time.Now()
	p, err := i.current()
	if err != nil {
		return nil, err
	}
	// A start that began before this call may hang for a reason that the user has mended
	// since: then this call starts another process.
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

// current returns the living process, which may still be starting. The slot is
// held.
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

// bury records how a process ended by itself.
func (i *Interp) bury(p *proc, why string) {
	p.kill() // its group may live
	p.close()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.proc = nil
	if i.restore != "" {
		// This life removed what an earlier one saved.
		if st, err := os.Stat(i.restore); err == nil && st.Size() > 0 {
			return // the next shell reads its state from there
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

// Call is one cell to run.
type Call struct {
	Code           string
	Language       string        // of the code, where one driver has several
	Timeout        time.Duration // from when it begins; 0: none
	Stdout, Stderr io.Writer
	Waiting        func(time.Duration)
	// Tick is called on each tick of Ticks while the code runs.
	Ticks <-chan time.Time
	Tick  func() error
}

// Run runs one cell, once it has the slot. When ctx ends the code is
// stopped, and its result is still returned.
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

// unstarted is the result of a cell whose interpreter did not start: mostly because of
// the user's own files and settings.
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

// token names a cell: code that writes to the driver's pipe cannot guess the
// next one, not even by those of a sandbox that was started from the same
// snapshot, in which this process's own generator is the same.
func token() int64 {
	var b [8]byte
	unix.Getrandom(b[:], 0)
	return 1 + int64(binary.NativeEndian.Uint64(b[:])>>11)
}

// begin says that a cell runs, and returns its number.
func (i *Interp) begin(start time.Time) int {
	select {
	case <-i.stop: // it was for the cell before
	default:
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.running, i.killedBy = start, ""
	i.seq++
	return i.seq
}

// takeLoss is why the state was lost. One result says so.
func (i *Interp) takeLoss() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	lost := i.lost
	i.lost = ""
	return lost
}

// finish waits for the end of the cell that runs, and makes its result.
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
		i.lost = r.Reason // the caller has gone: the next result says so
	}
	return r
}

// Pauses between the steps of stopping code: SIGINT, SIGINT again, KILL.
const (
	firstPause  = 2 * time.Second
	secondPause = time.Second
)

// interrupt sends a SIGINT to the code that runs. The driver learns how many were sent,
// so that one that arrives late does not stop the next cell. The slot is
// held.
func (i *Interp) interrupt(p *proc) {
	p.sent++
	if i.shared != nil {
		i.shared.Signals(p.sent)
	}
	if p.alive() {
		_ = syscall.Kill(-p.pid, unix.SIGINT)
	}
}

// await waits for the end of the cell: its reply, or its process's death.
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

// ended completes the result of a cell whose process died.
func (i *Interp) ended(p *proc, r *Result, start time.Time) {
	// The reply may have come just before the end.
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
			r.OK = true // exit 0
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
