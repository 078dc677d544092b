package transport

import (
	"context"
	"time"
)

// Reservation accounts for the memory of one large message, against a limit of the session's user.
type Reservation interface {
	// Wait reserves n more bytes. It waits, for a bounded time, until the limit allows them.
	Reserve(ctx context.Context, n int64) error
	// Keep gives back what was reserved beyond n bytes.
	ShrinkTo(n int64)
	// Release gives back all bytes. It may be called more than once.
	Release()
}

// NoReservation is the reservation of a message that needs none.
type NoReservation struct{}

// Reserve implements Reservation.
func (NoReservation) Reserve(context.Context, int64) error { return nil }

// ShrinkTo implements Reservation.
func (NoReservation) ShrinkTo(int64) {}

// Release implements Reservation.
func (NoReservation) Release() {}

const (
	// large is the size in bytes above which a message needs a reservation.
	large = 64 << 10
	// largeTimeout is how long the rest of a large message may take once its memory is
	// reserved: other messages of the user wait for that memory.
	largeTimeout = 2 * time.Minute
)

// reservationError wraps an error of Reservation.Wait.
type reservationError struct{ error }

func (n reservationError) Unwrap() error { return n.error }

// reserver makes the reservations for the messages of one stream, one message at a time.
// The zero value reserves nothing.
type reserver struct {
	ctx     context.Context
	reserve func() Reservation
	size    int    // bytes to reserve for one message
	abort   func() // ends the stream when a large message takes too long

	current Reservation // of the message that is being read; nil: none yet
	timer   *time.Timer
}

// reserveIfLarge makes the reservation of the current message once size, read so far, is large.
func (m *reserver) reserveIfLarge(size int) error {
	if size <= large || m.current != nil || m.reserve == nil {
		return nil
	}
	r := m.reserve()
	if err := r.Reserve(m.ctx, int64(m.size)); err != nil {
		r.Release()
		return reservationError{err}
	}
	m.current, m.timer = r, time.AfterFunc(largeTimeout, m.abort)
	return nil
}

// transfer returns the reservation of the current message, which was read completely, to the
// caller, who has to release it.
func (m *reserver) transfer() Reservation {
	if m.current == nil {
		return NoReservation{}
	}
	m.timer.Stop()
	r := m.current
	m.current = nil
	return r
}

// release releases the reservation of the current message.
func (m *reserver) release() { m.transfer().Release() }
