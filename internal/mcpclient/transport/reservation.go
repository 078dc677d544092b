package transport

import (
	"context"
	"time"
)

// Reservation accounts for the memory of one large message, against a limit of the session's user.
type Reservation interface {
	// Wait reserves n more bytes. It waits, for a bounded time, until the limit allows them.
	Wait(ctx context.Context, n int64) error
	// Keep gives back what was reserved beyond n bytes.
	Keep(n int64)
	// Release gives back all bytes. It may be called more than once.
	Release()
}

// NoReservation is the reservation of a message that needs none.
type NoReservation struct{}

// Wait implements Reservation.
func (NoReservation) Wait(context.Context, int64) error { return nil }

// Keep implements Reservation.
func (NoReservation) Keep(int64) {}

// Release implements Reservation.
func (NoReservation) Release() {}

const (
	// large is the size in bytes above which a message needs a reservation.
	large = 64 << 10
	// largeTimeout is how long the rest of a large message may take once its memory is
	// reserved: other messages of the user wait for that memory.
	largeTimeout = 2 * time.Minute
)

// noMemory wraps an error of Reservation.Wait.
type noMemory struct{ error }

func (n noMemory) Unwrap() error { return n.error }

// memory makes the reservations for the messages of one stream, one message at a time.
// The zero value reserves nothing.
type memory struct {
	ctx     context.Context
	reserve func() Reservation
	size    int    // bytes to reserve for one message
	stop    func() // ends the stream when a large message takes too long

	held  Reservation // of the message that is being read; nil: none yet
	timer *time.Timer
}

// grow makes the reservation of the current message once size, read so far, is large.
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

// take returns the reservation of the current message, which was read completely, to the
// caller, who has to release it.
func (m *memory) take() Reservation {
	if m.held == nil {
		return NoReservation{}
	}
	m.timer.Stop()
	r := m.held
	m.held = nil
	return r
}

// release releases the reservation of the current message.
func (m *memory) release() { m.take().Release() }
