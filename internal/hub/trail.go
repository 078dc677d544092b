package hub

import (
	"context"
	"sync"
	"unsafe"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// Trail has what a run asked policy, so that policy can be asked again before somebody else gets the run's answer. Its
// zero value is empty.
type Trail struct {
	hub   *Hub   // for Recheck
	outer *Trail // of the run that this one is a part of; nil: none

	mu       sync.Mutex
	requests []Request // each once
	known    map[Request]bool
	size     int
	overflow bool // requests are missing: nobody gets the answer again
}

// maxTrail is the largest size of a Trail in bytes. The answer of a run that asks more is not given again.
const maxTrail = 1 << 20

type trailKey struct{}

// WithTrail returns a context whose requests are added to a trail, and to that of the context.
func WithTrail(ctx context.Context, t *Trail) context.Context {
	t.outer = trailOf(ctx)
	return context.WithValue(ctx, trailKey{}, t)
}

// trailOf returns the trail of a context, or nil.
func trailOf(ctx context.Context) *Trail {
	t, _ := ctx.Value(trailKey{}).(*Trail)
	return t
}

func (t *Trail) add(r Request) {
	r.user, r.snapshot = nil, nil
	for ; t != nil; t = t.outer {
		t.addOne(r)
	}
}

func (t *Trail) addOne(r Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.overflow || t.known[r] {
		return
	}
	t.size += 2*int(unsafe.Sizeof(r)) + len(r.Detail) + len(r.Resource.ID) + len(r.Name)
	if t.size > maxTrail {
		t.overflow, t.requests, t.known = true, nil, nil
		return
	}
	if t.known == nil {
		t.known = map[Request]bool{}
	}
	t.known[r] = true
	t.requests = append(t.requests, r)
}

// Size implements tool.Trail.
func (t *Trail) Size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return min(t.size, maxTrail)
}

// Replay asks policy whether a principal may get the stored answer of a run, which had that trail, and publishes an
// event. Nobody is asked: what a rule asks about was agreed to before it ran.
func (h *Hub) Replay(ctx context.Context, p auth.Principal, t *Trail) error {
	requests, err := h.recheck(ctx, p, t)
	if err == nil && len(requests) > 0 {
		h.active(ctx, requests[0]).publish(event.Replayed, 0)
	}
	return err
}

// recheck asks policy about all requests of a trail, and returns those that it allows. It publishes a refusal.
func (h *Hub) recheck(ctx context.Context, p auth.Principal, t *Trail) ([]Request, error) {
	t.mu.Lock()
	requests, overflow := append([]Request{}, t.requests...), t.overflow
	t.mu.Unlock()
	switch {
	case len(requests) == 0 && !overflow:
		return nil, nil
	case overflow:
		return nil, fault.New(fault.Forbidden, "the answer is not given again, as the first request did too much to "+
			"ask the rules about all of it once more").
			Advise("It was done: look at what is there, and use a new idempotency key for what comes next")
	}
	rules := h.takeSnapshot()
	for i := range requests {
		r := &requests[i]
		r.Principal = p
		trailOf(ctx).add(*r) // the answer becomes a part of another one
		r.snapshot = rules
		if d := h.decide(*r); d.Effect == policy.Refuse {
			h.active(ctx, *r).publish(fault.From(d.Err()).Code(), 0)
			return nil, d.Err()
		}
	}
	return requests, nil
}

// Recheck implements tool.Trail.
func (t *Trail) Recheck(ctx context.Context, p auth.Principal) error {
	_, err := t.hub.recheck(ctx, p, t)
	return err
}
