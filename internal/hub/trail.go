package hub

import (
	"context"
	"sync"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// Trail has what a run asked policy, so that policy can be asked again before somebody else gets the run's answer. Its
// zero value is empty.
type Trail struct {
	mu       sync.Mutex
	requests []Request
}

// maxTrail is how many requests a Trail has; those of one run are fewer.
const maxTrail = 100

type trailKey struct{}

// WithTrail returns a context whose requests are added to a trail.
func WithTrail(ctx context.Context, t *Trail) context.Context {
	return context.WithValue(ctx, trailKey{}, t)
}

// trailOf returns the trail of a context, or nil.
func trailOf(ctx context.Context) *Trail {
	t, _ := ctx.Value(trailKey{}).(*Trail)
	return t
}

func (t *Trail) add(r Request) {
	if t == nil {
		return
	}
	r.call = nil
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.requests) < maxTrail {
		t.requests = append(t.requests, r)
	}
}

// Replay asks policy whether a principal may get the stored answer of a run, which had that trail, and publishes an
// event. Nobody is asked: what a rule asks about was agreed to before it ran.
func (h *Hub) Replay(ctx context.Context, p auth.Principal, t *Trail) error {
	t.mu.Lock()
	requests := append([]Request{}, t.requests...)
	t.mu.Unlock()
	for i := range requests {
		r := &requests[i]
		r.Principal = p
		d := h.Decide(policy.Question{Principal: p, Operation: r.Operation, Resource: r.Resource, Detail: r.Detail,
			DetailFollows: r.DetailFollows})
		if d.Effect == policy.Refuse {
			h.active(ctx, *r).publish(fault.From(d.Err()).Code(), 0)
			return d.Err()
		}
	}
	if len(requests) > 0 {
		h.active(ctx, requests[0]).publish(event.Replayed, 0)
	}
	return nil
}
