package limit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// LargestAnswer is the size in bytes of the largest answer of a third-party server to code in a sandbox.
const LargestAnswer = 128 << 20

const (
	// largeAnswers is how many answers of up to LargestAnswer bytes there are in memory at once, of all principals.
	largeAnswers = 2
	// largeWait is how long an answer waits to become one of them.
	largeWait = time.Minute
	// largeAlone is how long one may be, until its client has it, and largeShared is how long if others wait.
	largeAlone  = 2 * time.Minute
	largeShared = 20 * time.Second
)

var (
	errHeldTooLong = fmt.Errorf("it took over %s until code had all of it", largeAlone)
	errOthersWait  = fmt.Errorf("it took over %s until code had all of it, and answers to others wait for the memory",
		largeShared)
)

// large gives permits to hold a large answer. There is one at a time for each principal, and for all users of one
// service, so that nobody holds all. The next one is for who has waited longest since their last one.
type large struct {
	mu      sync.Mutex
	held    []*permit
	waiting []*permit
	granted uint64            // how many permits there have been
	last    map[string]uint64 // the number of the last permit of a principal, and of a group
}

// permit allows to hold one large answer.
type permit struct {
	owner, group string        // the principal, and the service whose user it is, or the principal again
	granted      chan struct{} // closed when the permit is held
	since        time.Time     // when it was granted
	lost         context.Context
	lose         context.CancelCauseFunc
	timer        *time.Timer // loses it
}

// acquire waits for a permit. Each needs a call of release.
func (l *large) acquire(ctx context.Context, owner string) (*permit, error) {
	p := &permit{owner: owner, group: owner, granted: make(chan struct{})}
	if service, ok := auth.ServiceOf(owner); ok {
		p.group = usersOf(service)
	}
	p.lost, p.lose = context.WithCancelCause(context.Background())
	l.mu.Lock()
	l.waiting = append(l.waiting, p)
	l.grant()
	l.mu.Unlock()
	timer := time.NewTimer(largeWait)
	defer timer.Stop()
	var err error
	select {
	case <-p.granted:
		return p, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		err = fault.Limit("large_answers", largeAnswers, largeAnswers,
			"an answer of over 16 MiB waited %s for memory: there are at most %d of them at once in the whole server, "+
				"and one of one user", largeWait, largeAnswers).
			Advise("Make calls with large answers one after the other", "Try again", "Ask for less at once")
	}
	l.release(p)
	return nil, err
}

// release gives a permit back, or waits for it no longer. Its memory is free before somebody else gets it.
func (l *large) release(p *permit) {
	select {
	case <-p.granted:
		runtime.GC()
	default:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	is := func(o *permit) bool { return o == p }
	l.held, l.waiting = slices.DeleteFunc(l.held, is), slices.DeleteFunc(l.waiting, is)
	if p.timer != nil {
		p.timer.Stop()
	}
	p.lose(errors.New("it was released"))
	l.grant()
	if len(l.waiting) == 0 {
		l.last = nil
	}
}

// grant gives permits to those whose turn it is. If others have to wait, what is held must not be held for long. The
// caller holds l.mu.
func (l *large) grant() {
	for len(l.held) < largeAnswers {
		p := l.next()
		if p == nil {
			break
		}
		l.waiting = slices.DeleteFunc(l.waiting, func(o *permit) bool { return o == p })
		if l.last == nil {
			l.last = map[string]uint64{}
		}
		l.granted++
		l.last[p.owner], l.last[p.group] = l.granted, l.granted
		p.since = time.Now()
		p.timer = time.AfterFunc(largeAlone, func() { p.lose(errHeldTooLong) })
		l.held = append(l.held, p)
		close(p.granted)
	}
	for _, p := range l.held {
		if slices.ContainsFunc(l.waiting, func(o *permit) bool { return o.owner != p.owner }) {
			p.hurry()
		}
	}
}

// hurry makes a permit get lost after largeShared.
func (p *permit) hurry() {
	if p.timer.Stop() {
		p.timer = time.AfterFunc(time.Until(p.since.Add(largeShared)), func() { p.lose(errOthersWait) })
	}
}

// next returns who gets the next permit; nil: nobody can have one. The caller holds l.mu.
func (l *large) next() (first *permit) {
	for _, p := range l.waiting {
		switch {
		case slices.ContainsFunc(l.held, func(o *permit) bool { return o.group == p.group }):
		case first == nil, l.last[p.group] < l.last[first.group],
			p.group == first.group && l.last[p.owner] < l.last[first.owner]:
			first = p
		}
	}
	return first
}

// Enlarge replaces what is reserved by the right to an answer of up to LargestAnswer bytes, for which it may wait. The
// context ends when the answer has been in memory for too long; its cause says why. The caller then calls Release.
func (h *Reservation) Enlarge(ctx context.Context) (lost context.Context, err error) {
	p, err := h.limiter.large.acquire(ctx, h.owner)
	if err != nil {
		return nil, err
	}
	h.ShrinkTo(0)
	h.take(p)
	return p.lost, nil
}

// take keeps a permit until Release, or gives it back if that was called.
func (h *Reservation) take(p *permit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		h.limiter.large.release(p)
	} else {
		h.permit = p
	}
}

// Lost returns the context that Enlarge returned; nil: the reservation is not enlarged.
func (h *Reservation) Lost() context.Context {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.permit == nil {
		return nil
	}
	return h.permit.lost
}

// TakeLarge takes over what Enlarge gave another reservation, and reports whether that was enlarged.
func (h *Reservation) TakeLarge(from *Reservation) bool {
	if h == nil {
		return false
	}
	from.mu.Lock()
	p := from.permit
	from.permit = nil
	from.mu.Unlock()
	if p == nil {
		return false
	}
	h.take(p)
	return true
}
