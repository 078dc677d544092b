package interp

import (
	"context"
	"encoding/hex"
	"errors"
	"time"
)

// ErrUnsupported is returned by OpenDirect when the driver cannot get cells from the host
// directly.
var ErrUnsupported = errors.New("this interpreter takes cells only from the agent")

// openLimit is how long a driver may take to dial the host.
const openLimit = 10 * time.Second

// OpenDirect makes the driver dial the host's socket with a ticket, and get its cells from that
// connection until the connection ends.
func (i *Interp) OpenDirect(ctx context.Context, socket string, ticket []byte) error {
	if i.shared == nil {
		return ErrUnsupported
	}
	if err := i.Warm(ctx); err != nil { // without the slot: cells must not wait for a start that hangs
		return err
	}
	if err := i.acquire(ctx, nil); err != nil {
		return err
	}
	defer i.release()
	p, err := i.awaitIdle(ctx, openLimit)
	if err != nil {
		return err
	}
	i.applyEnvironment(ctx, p)
	i.mu.Lock()
	lossReason := i.lossReason
	i.mu.Unlock()
	if lossReason != "" {
		return errors.New("the next cell goes through the agent, whose result says why variables were lost: " +
			lossReason)
	}
	id := newCellID()
	if err := p.sendDial(id, hex.EncodeToString(ticket)+" "+socket); err != nil {
		return err
	}
	timeout := time.NewTimer(openLimit)
	defer timeout.Stop()
	for {
		select {
		case r := <-p.replies:
			if r.ID == id && r.OK {
				return nil
			}
			if r.ID == id {
				return ErrUnsupported
			}
		case <-p.done:
			return errors.New("the interpreter ended")
		case <-timeout.C:
			return errors.New("the interpreter did not dial the host")
		}
	}
}

// awaitIdle returns the process as ensureStarted does. When it still runs a cell of a host that is
// gone, that cell is stopped first. The caller holds the slot.
func (i *Interp) awaitIdle(ctx context.Context, limit time.Duration) (*process, error) {
	p, err := i.ensureStarted(ctx, limit)
	if err != nil || i.shared == nil {
		return p, err
	}
	for _, pause := range []time.Duration{firstStopPause, secondStopPause} {
		if i.shared.Idle() || !p.alive() {
			break
		}
		i.interrupt(p, i.offspringOf(p))
		for deadline := time.Now().Add(pause); !i.shared.Idle() && p.alive() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	if i.shared.Idle() && p.alive() {
		return p, nil
	}
	p.kill()
	<-p.done
	return i.ensureStarted(ctx, limit)
}

// Supervise supervises a cell that the host sent to the driver directly, and which began at
// that time. It returns false when the cell is over: the driver answers the host then. With
// stop, the cell is stopped at once.
func (i *Interp) Supervise(ctx context.Context,
	id int64, began time.Time, stop bool, c Cell) (r *Result, running bool, err error) {
	if err := i.acquire(ctx, nil); err != nil {
		return nil, false, err
	}
	defer i.release()
	if ctx.Err() != nil && !stop {
		return nil, false, ctx.Err() // the host has given the cell up, and may have sent the next one
	}
	i.mu.Lock()
	p, supervisedBefore := i.process, i.lastSupervised == id
	i.mu.Unlock()
	if supervisedBefore {
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
	i.lastSupervised = id
	i.mu.Unlock()
	i.beginCell(began)
	p.out.attach(c.Stdout)
	p.err.attach(c.Stderr)
	p.out.poll()
	p.err.poll()
	p.requestFlush()
	if stop {
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		ctx = canceled
	}
	return i.finish(ctx, p, id, began, c), true, nil
}

// SetHandover sets whether the driver hands the end of each cell over to the agent.
func (i *Interp) SetHandover(on bool) {
	if i.shared != nil {
		i.shared.SetHandover(on)
	}
}
