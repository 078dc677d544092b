package limit

import "sync"

// Answers are the reservations for the answers to one request, or to one line of stdio,
// until the client has read them. A nil Answers counts nothing.
type Holds struct {
	limiter *Limiter
	owner   string

	mu   sync.Mutex
	all  []*Held
	over bool
}

// NewAnswers returns an Answers without reservations for one request of a principal.
func (l *Limiter) Holds(owner string) *Holds { return &Holds{limiter: l, owner: owner} }

// NewReservation returns an empty reservation for one answer. Release releases it too.
func (a *Holds) Held() *Held {
	if a == nil {
		return nil
	}
	h := a.limiter.Held(a.owner, Answers)
	a.Add(h)
	return h
}

// Add takes over the reservation of an answer: Release releases it. After Release, and on a
// nil Answers, Add releases it at once.
func (a *Holds) Add(h *Held) {
	if a == nil {
		h.Release()
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		h.Release() // the client reads no more answers
		return
	}
	a.all = append(a.all, h)
}

// Release releases all reservations: the answers were written, or the client is gone.
func (a *Holds) Release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	for _, h := range a.all {
		h.Release()
	}
	a.all = nil
}
