package transport

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Reservation accounts for the memory of one large message, against a limit of the session's user.
type Reservation interface {
	// Wait reserves n more bytes. It waits, for a bounded time, until the limit allows them.
	Reserve(ctx context.Context, n int64) error
	// Enlarge gives back what is reserved, and lets the message have up to Limits.Large bytes instead. It waits, for a
	// bounded time, until the memory for that is free. The context that it returns ends when the memory is needed by
	// others, or was held for too long: Release has to be called soon then.
	Enlarge(ctx context.Context) (context.Context, error)
	// Keep gives back what was reserved beyond n bytes.
	ShrinkTo(n int64)
	// Release gives back all bytes. It may be called more than once.
	Release()
}

// NoReservation is the reservation of a message that needs none.
type NoReservation struct{}

// Reserve implements Reservation.
func (NoReservation) Reserve(context.Context, int64) error { return nil }

// Enlarge implements Reservation.
func (NoReservation) Enlarge(context.Context) (context.Context, error) {
	return nil, errors.New("no memory is counted")
}

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
	// lostGrace is how long a server may send nothing after the memory of its message was needed by others. Until then
	// the rest of the message is discarded as it comes, and the stream goes on.
	lostGrace = 2 * time.Second
)

// Limits bound the messages of a server.
type Limits struct {
	Message int // bytes
	// Large is how many bytes a response may have that the receiver takes (TakesLarge); at most Message: none has more
	// than others. Without Reserve none has.
	Large int
	// Reserve returns a new reservation for a large message; nil: none has one.
	Reserve func() Reservation
}

// reservationError wraps an error of Reservation.Wait.
type reservationError struct{ error }

func (n reservationError) Unwrap() error { return n.error }

// reserver makes the reservations for the messages of one stream, one message at a time.
// The zero value reserves nothing.
type reserver struct {
	ctx    context.Context
	limits Limits
	size   int    // bytes to reserve for one message
	abort  func() // ends the stream when a large message takes too long
	// takesLarge reports whether the message may be larger than limits.Message; nil: no message may.
	takesLarge func() bool

	current Reservation     // of the message that is being read; nil: none yet
	lost    context.Context // ends when the memory of an enlarged message is lost; nil: it has not been enlarged
	stop    func()          // stops watching the time that the message takes
}

// admit makes the reservation of the current message, of which size bytes have been read, or returns why no more of it
// is read.
func (m *reserver) admit(size int) error {
	switch {
	case m.isLost():
		return fmt.Errorf("%w: %w", ErrSlow, context.Cause(m.lost))
	case size <= m.limits.Message:
		return m.reserveIfLarge(size)
	case m.limits.Reserve == nil || m.limits.Large <= m.limits.Message || m.takesLarge == nil || !m.takesLarge():
		return tooLarge(m.limits.Message)
	case size > m.limits.Large:
		return tooLarge(m.limits.Large)
	case m.lost == nil:
		return m.enlarge()
	}
	return nil
}

func tooLarge(limit int) error {
	return fmt.Errorf("%w: an answer of over %d bytes", ErrTooLarge, limit)
}

// enlarge lets the current message be larger than others.
func (m *reserver) enlarge() error {
	if err := m.reserveIfLarge(m.limits.Message + 1); err != nil {
		return err
	}
	m.stop() // waiting for others is no fault of the server
	lost, err := m.current.Enlarge(m.ctx)
	if err != nil {
		m.current.Release()
		m.current = nil
		return reservationError{err}
	}
	stopped := make(chan struct{})
	unwatch := context.AfterFunc(lost, func() {
		select {
		case <-stopped:
		case <-time.After(lostGrace):
			m.abort()
		}
	})
	m.lost = lost
	m.stop = func() {
		if !unwatch() {
			close(stopped)
		}
	}
	return nil
}

// reserveIfLarge makes the reservation of the current message once size, read so far, is large.
func (m *reserver) reserveIfLarge(size int) error {
	if size <= large || m.current != nil || m.limits.Reserve == nil {
		return nil
	}
	r := m.limits.Reserve()
	if err := r.Reserve(m.ctx, int64(m.size)); err != nil {
		r.Release()
		return reservationError{err}
	}
	timer := time.AfterFunc(largeTimeout, m.abort)
	m.current, m.stop = r, func() { timer.Stop() }
	return nil
}

// transfer returns the reservation of the current message, which was read completely, to the
// caller, who has to release it.
func (m *reserver) transfer() Reservation {
	if m.current == nil {
		return NoReservation{}
	}
	m.stop()
	r := m.current
	m.current, m.lost = nil, nil
	return r
}

// isLost reports whether the memory of the current message is lost.
func (m *reserver) isLost() bool { return m.lost != nil && m.lost.Err() != nil }

// release releases the reservation of the current message.
func (m *reserver) release() { m.transfer().Release() }

// extend returns b with a part appended. Large buffers double, and the largest quadruple: with append, memory for one
// message would be allocated five times over.
func extend(b, part []byte) []byte {
	need := len(b) + len(part)
	if need <= cap(b) || need <= large {
		return append(b, part...)
	}
	size := 2 * large
	for size < need {
		size *= 2
	}
	switch {
	case size > 128<<20:
		size = need + 1<<20
	case size > 16<<20:
		size = max(size, 64<<20)
	}
	return append(append(make([]byte, 0, size), b...), part...)
}
