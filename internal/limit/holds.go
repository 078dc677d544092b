package limit

import "sync"

// Holds is what the answers to one request, or to one line, hold of their
// principal's bytes until the client has taken them. A nil one counts nothing.
type Holds struct {
	limits *Book
	owner  string

	mu   sync.Mutex
	all  []*Held
	over bool
}

// Holds returns one for the answers to one request.
func (b *Book) Holds(owner string) *Holds { return &Holds{limits: b, owner: owner} }

// Held returns what one answer may hold.
func (a *Holds) Held() *Held {
	if a == nil {
		return nil
	}
	h := a.limits.Held(a.owner, Answers)
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

// Release says that the answers were written, or that nobody takes them.
func (a *Holds) Release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	for _, h := range a.all {
		h.Release()
	}
	a.all = nil
}
