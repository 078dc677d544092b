package limit

import (
	"context"
	"sync"
	"time"
)

// Reservation is the memory that one request body, line of stdio or answer takes, of one
// kind, for its principal. It grows while bytes arrive, until Release gives everything
// back. An empty reservation costs the limiter nothing. A nil Reservation counts nothing
// and never refuses.
//
// Lock order: the reservation's mu, then the limiter's.
type Reservation struct {
	limiter *Limiter
	owner   string
	kind    Kind

	mu       sync.Mutex
	share    *share // nil: nothing is reserved
	reserved int64
	used     int64   // bytes counted by Add; at most what is reserved, except where Add failed
	released bool    // Release was called
	permit   *permit // of a reservation that was enlarged; else nil
}

// NewReservation returns an empty reservation for a principal.
func (l *Limiter) NewReservation(owner string, k Kind) *Reservation {
	return &Reservation{limiter: l, owner: owner, kind: k}
}

// A growing reservation reserves portions. Each is as large as everything that arrived
// before it, within these bounds, in bytes.
const minPortion, maxPortion = 4 << 10, 1 << 20

// LargeAnswer is the size in bytes up to which an answer does not count.
const LargeAnswer = 64 << 10

// waitTimeout is how long Reserve waits for other answers to be released.
const waitTimeout = 10 * time.Second

// Available returns how many bytes may arrive before more must be reserved. When none are
// left, it reserves the next portion first. The error is a fault that names the limit.
func (h *Reservation) Available() (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.used >= h.reserved {
		if err := h.tryReserve(min(max(h.reserved, minPortion), maxPortion)); err != nil {
			return 0, err
		}
	}
	return h.reserved - h.used, nil
}

// Add counts n bytes that arrived, and reserves more if they exceed the reservation.
func (h *Reservation) Add(n int64) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used += n
	if h.reserved >= h.used {
		return nil
	}
	return h.tryReserve(max(h.used-h.reserved, minPortion))
}

// Used returns how many bytes were added.
func (h *Reservation) Used() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.used
}

// TryReserve reserves n more bytes, or returns an error at once.
func (h *Reservation) TryReserve(n int64) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tryReserve(n)
}

// tryReserve is TryReserve for a caller that holds h.mu.
func (h *Reservation) tryReserve(n int64) error {
	if h.released {
		return nil // the caller discards what arrives after Release
	}
	h.ensureShare()
	if !h.share.tryAcquire(h.kind, n) {
		return overLimit(h.kind, h.share, n)
	}
	h.reserved += n
	return nil
}

// Reserve reserves n more bytes. It waits up to waitTimeout until other reservations of the
// principal are released. The caller must hold no reservation of the same kind that other
// waiting callers may need: they would wait for each other.
func (h *Reservation) Reserve(ctx context.Context, n int64) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	if h.released {
		h.mu.Unlock()
		return nil
	}
	s := h.limiter.acquireShare(h.owner) // not h.share: Release may be called meanwhile
	h.mu.Unlock()
	defer h.limiter.releaseShare(h.owner, s)
	if n > h.limiter.limits[h.kind] {
		return overLimit(h.kind, s, n)
	}
	waitCtx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	if err := s.acquire(waitCtx, h.kind, n); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return overLimit(h.kind, s, n)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		s.release(h.kind, n)
		return nil
	}
	h.ensureShare()
	h.reserved += n
	return nil
}

// ReserveAnswer reserves memory for an answer of n bytes before it is built, if it is
// large. It may wait until clients have read other answers.
func (h *Reservation) ReserveAnswer(ctx context.Context, n int) error {
	if n <= LargeAnswer {
		return nil
	}
	return h.Reserve(ctx, int64(n))
}

// CountAnswer makes the reservation large enough for an answer of n bytes that is in memory
// already. While it waits until clients have read other answers, the bytes count as
// IncomingAnswerBytes, so that waiting answers are bounded too.
func (h *Reservation) CountAnswer(ctx context.Context, n int64) error {
	if h == nil || n <= LargeAnswer {
		return nil
	}
	h.mu.Lock()
	n -= h.reserved
	h.mu.Unlock()
	if n <= 0 || h.TryReserve(n) == nil {
		return nil
	}
	incoming := h.Incoming()
	defer incoming.Release()
	if err := incoming.TryReserve(n); err != nil {
		return err
	}
	return h.Reserve(ctx, n)
}

// Incoming returns an empty reservation of the same principal for the data that an answer
// is built from.
func (h *Reservation) Incoming() *Reservation {
	if h == nil {
		return nil
	}
	return h.limiter.NewReservation(h.owner, IncomingAnswerBytes)
}

// ensureShare takes a reference to the principal's share. The caller holds h.mu.
func (h *Reservation) ensureShare() {
	if h.share == nil {
		h.share = h.limiter.acquireShare(h.owner)
	}
}

// ShrinkTo gives back what is reserved beyond n bytes, but nothing that is used.
func (h *Reservation) ShrinkTo(n int64) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if excess := h.reserved - max(n, h.used); h.share != nil && excess > 0 {
		h.reserved -= excess
		h.share.release(h.kind, excess)
	}
}

// Release gives everything back. Later calls succeed and count nothing.
func (h *Reservation) Release() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.released = true
	if h.permit != nil {
		h.limiter.large.release(h.permit)
		h.permit = nil
	}
	if h.share == nil {
		return
	}
	h.share.release(h.kind, h.reserved)
	h.limiter.releaseShare(h.owner, h.share)
	h.share, h.reserved = nil, 0
}
