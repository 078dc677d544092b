package limit

import (
	"context"
	"sync"
)

// Answers are the reservations for the answers to one request, or to one line of stdio,
// until the client has read them. A nil Answers counts nothing.
type Answers struct {
	limiter *Limiter
	owner   string

	mu           sync.Mutex
	reservations []*Reservation
	released     bool
}

// NewAnswers returns an Answers without reservations for one request of a principal.
func (l *Limiter) NewAnswers(owner string) *Answers { return &Answers{limiter: l, owner: owner} }

// NewReservation returns an empty reservation for one answer. Release releases it too.
func (a *Answers) NewReservation() *Reservation {
	if a == nil {
		return nil
	}
	h := a.limiter.NewReservation(a.owner, AnswerBytes)
	a.Add(h)
	return h
}

// Add takes over the reservation of an answer: Release releases it. After Release, and on a
// nil Answers, Add releases it at once.
func (a *Answers) Add(h *Reservation) {
	if a == nil {
		h.Release()
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.released {
		h.Release() // the client reads no more answers
		return
	}
	a.reservations = append(a.reservations, h)
}

// Lost returns the context that ends when the memory of an answer that was enlarged is lost; nil: there is none.
func (a *Answers) Lost() context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.reservations {
		if lost := h.Lost(); lost != nil {
			return lost
		}
	}
	return nil
}

// Release releases all reservations: the answers were written, or the client is gone.
func (a *Answers) Release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.released = true
	for _, h := range a.reservations {
		h.Release()
	}
	a.reservations = nil
}
