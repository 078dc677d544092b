package interp

import (
	"context"
	"encoding/hex"
	"errors"
	"time"
)

// ErrNone is returned by Open for a language whose driver does not take cells
// from the host itself.
var ErrNone = errors.New("this interpreter takes cells from the agent alone")

// openLimit is how long a driver may take to dial the host.
const openLimit = 10 * time.Second

// Open makes the driver dial the host's socket with a ticket, and take its
// cells from there until that connection ends.
func (i *Interp) Open(ctx context.Context, socket string, ticket []byte) error {
	if i.shared == nil {
		return ErrNone
	}
	if err := i.Warm(ctx); err != nil { // nobody waits behind one that hangs
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
		return errors.New("the next result through the agent has to say first what was lost: " + lost)
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

// ready returns the living process. A cell that still runs, of a host that is gone, is
// stopped first. Limit is as for ensure. The slot is held.
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

// Supervise takes over a cell that the host gave to the driver itself, and which began
// then. Taken is false when it is over: the driver answers the host then. With stop, it
// is stopped at once.
func (i *Interp) Supervise(ctx context.Context,
	id int64, began time.Time, stop bool, c Call) (r *Result, taken bool, err error) {
	if err := i.acquire(ctx, nil); err != nil {
		return nil, false, err
	}
	defer i.release()
	if ctx.Err() != nil && !stop {
		return nil, false, ctx.Err() // the host gave it up, and may be at the next cell
	}
	i.mu.Lock()
	p, had := i.proc, i.supervised == id
	i.mu.Unlock()
	if had {
		// The host gave the cell up while its end was on the way here: the driver
		// has answered the agent, and does not answer the host as well.
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

// Notify makes the driver leave the end of each cell to the agent, or no more.
func (i *Interp) Notify(yes bool) {
	if i.shared != nil {
		i.shared.Notify(yes)
	}
}
