package transport

import (
	"context"
	"time"
)

// Reservation is the memory that one large message takes, of what its owner may have.
type Reservation interface {
	// Wait takes n bytes more. It waits until they are free, for a bounded time.
	Wait(ctx context.Context, n int64) error
	// Keep gives back what was taken beyond n bytes.
	Keep(n int64)
	// Release gives all back. It may be called twice.
	Release()
}

// NoReservation is that of a message which needs none.
type NoReservation struct{}

// Wait implements Reservation.
func (NoReservation) Wait(context.Context, int64) error { return nil }

// Keep implements Reservation.
func (NoReservation) Keep(int64) {}

// Release implements Reservation.
func (NoReservation) Release() {}

const (
	// large is from how many bytes on a message needs a reservation.
	large = 64 << 10
	// largeTimeout is how long a large message may take from when it has its
	// reservation: other messages of its owner wait for that.
	largeTimeout = 2 * time.Minute
)

// noMemory is an error of Reservation.Wait.
type noMemory struct{ error }

func (n noMemory) Unwrap() error { return n.error }

// memory makes the reservations for the messages of one stream, one after the other.
// The zero value reserves nothing.
type memory struct {
	ctx     context.Context
	reserve func() Reservation
	size    int    // bytes to reserve for one message
	stop    func() // ends the stream, when a large message takes too long

	held  Reservation // of the message that is read; nil: it needs none
	timer *time.Timer
}

// grow makes the reservation of the message that is read when it has become large.
func (m *memory) grow(size int) error {
	if size <= large || m.held != nil || m.reserve == nil {
		return nil
	}
	r := m.reserve()
	if err := r.Wait(m.ctx, int64(m.size)); err != nil {
		r.Release()
		return noMemory{err}
	}
	m.held, m.timer = r, time.AfterFunc(largeTimeout, m.stop)
	return nil
}

// take returns the reservation of a message that is whole. It is the caller's then.
func (m *memory) take() Reservation {
	if m.held == nil {
		return NoReservation{}
	}
	m.timer.Stop()
	r := m.held
	m.held = nil
	return r
}

// release gives back the reservation of a message that nobody took.
func (m *memory) release() { m.take().Release() }
