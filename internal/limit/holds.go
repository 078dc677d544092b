package limit

import "sync"

// Holds is what the answers to one request, or to one line of stdio, hold of their
// principal's bytes until the client has read them. A nil Holds counts nothing.
type Holds struct {
	limiter *Limiter
	owner   string

	mu   sync.Mutex
	all  []*Held
	over bool
}

// Holds returns a Holds for the answers to one request.
func (l *Limiter) Holds(owner string) *Holds { return &Holds{limiter: l, owner: owner} }

// Held returns what one answer may hold.
func (a *Holds) Held() *Held {
	if a == nil {
		return nil
	}
	h := a.limiter.Held(a.owner, Answers)
	a.Add(h)
	return h
}

// Add takes over what an answer holds that was made before.
func (a *Holds) Add(h *Held) {
	if a == nil {
		h.Release()
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		h.Release() // nobody reads it
		return
	}
	a.all = append(a.all, h)
}

// Release says that the answers were written, or that nobody will read them.
func (a *Holds) Release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	for _, h := range a.all {
		h.Release()
	}
	a.all = nil
}
