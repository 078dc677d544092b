package interp

import (
	"context"
	"encoding/hex"
	"errors"
	"time"
)

// ErrUnsupported is returned by OpenDirect when the driver cannot get cells from the host
// directly.
var ErrNone = errors.New("this interpreter takes cells from the agent alone")

// openLimit is how long a driver may take to dial the host.
const openLimit = 10 * time.Second

// OpenDirect makes the driver dial the host's socket with a ticket, and get its cells from that
// connection until the connection ends.
func (i *Interp) Open(ctx context.Context, socket string, ticket []byte) error {
	if i.shared == nil {
		return ErrNone
	}
	if err := i.Warm(ctx); err != nil { // without the slot: cells must not wait for a start that hangs
		return err
	}
	if err := i.acquire(ctx, nil); err != nil {
		return err
	}
	defer i.release()
	p, err := i.ready(ctx, openLimit)
	if err != nil {
		return err
	}
	i.mu.Lock()
	lost := i.lost
	i.mu.Unlock()
	if lost != "" {
		return errors.New("the next cell goes through the agent, whose result says why variables were lost: " + lost)
	}
	id := token()
	if err := p.connect(id, hex.EncodeToString(ticket)+" "+socket); err != nil {
		return err
	}
	late := time.NewTimer(openLimit)
	defer late.Stop()
	for {
		select {
		case r := <-p.replies:
			if r.ID == id && r.OK {
				return nil
			}
			if r.ID == id {
				return ErrNone
			}
		case <-p.done:
			return errors.New("the interpreter ended")
		case <-late.C:
			return errors.New("the interpreter did not dial the host")
		}
	}
}

// ready returns the process as ensureStarted does. When it still runs a cell of a host that is
// gone, that cell is stopped first. The caller holds the slot.
func (i *Interp) ready(ctx context.Context, limit time.Duration) (*proc, error) {
	p, err := i.ensure(ctx, limit)
	if err != nil || i.shared == nil {
		return p, err
	}
	for _, pause := range []time.Duration{firstPause, secondPause} {
		if i.shared.Idle() || !p.alive() {
			break
		}
		i.interrupt(p)
		for until := time.Now().Add(pause); !i.shared.Idle() && p.alive() && time.Now().Before(until); {
			time.Sleep(time.Millisecond)
		}
	}
	if i.shared.Idle() && p.alive() {
		return p, nil
	}
	p.kill()
	<-p.done
	return i.ensure(ctx, limit)
}

// Supervise supervises a cell that the host sent to the driver directly, and which began at
// that time. It returns false when the cell is over: the driver answers the host then. With
// stop, the cell is stopped at once.
func (i *Interp) Supervise(ctx context.Context,
	id int64, began time.Time, stop bool, c Call) (r *Result, taken bool, err error) {
	if err := i.acquire(ctx, nil); err != nil {
		return nil, false, err
	}
	defer i.release()
	if ctx.Err() != nil && !stop {
		return nil, false, ctx.Err() // the host has given the cell up, and may have sent the next one
	}
	i.mu.Lock()
	p, had := i.proc, i.supervised == id
	i.mu.Unlock()
	if had {
		// The agent has supervised the cell before: the host gave it up when it had just ended.
		// The driver has answered the agent, and does not answer the host.
		return &Result{Reply: Reply{Exit: 130}, Interrupted: true, Took: time.Since(began)}, true, nil
	}
	if p == nil {
		r := &Result{Reply: Reply{Exit: 1}, Took: time.Since(began)}
		r.StateLost, r.Reason = true, i.takeLoss()
		return r, true, nil
	}
	if p.alive() && !i.shared.Supervise(id) {
		return nil, false, nil
	}
	defer i.shared.Release()
	i.mu.Lock()
	i.supervised = id
	i.mu.Unlock()
	i.begin(began)
	p.out.attach(c.Stdout)
	p.err.attach(c.Stderr)
	p.out.poll()
	p.err.poll()
	p.ring()
	if stop {
		gone, cancel := context.WithCancel(ctx)
		cancel()
		ctx = gone
	}
	return i.finish(ctx, p, id, began, c), true, nil
}

// SetHandover sets whether the driver hands the end of each cell over to the agent.
func (i *Interp) Notify(yes bool) {
	if i.shared != nil {
		i.shared.Notify(yes)
	}
}
