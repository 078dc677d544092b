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
type Held struct {
	limiter *Limiter
	owner   string
	kind    Kind

	mu    sync.Mutex
	share *share // nil: nothing is reserved
	taken int64
	used  int64 // bytes counted by Add; at most what is reserved, except where Add failed
	over  bool  // Release was called
}

// NewReservation returns an empty reservation for a principal.
func (l *Limiter) Held(owner string, k Kind) *Held { return &Held{limiter: l, owner: owner, kind: k} }

// A growing reservation reserves portions. Each is as large as everything that arrived
// before it, within these bounds, in bytes.
const minPortion, maxPortion = 4 << 10, 1 << 20

// LargeAnswer is the size in bytes up to which an answer does not count.
const Large = 64 << 10

// waitTimeout is how long Reserve waits for other answers to be released.
const waitTimeout = 10 * time.Second

// Available returns how many bytes may arrive before more must be reserved. When none are
// left, it reserves the next portion first. The error is a fault that names the limit.
func (h *Held) Room() (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.used >= h.taken {
		if err := h.take(min(max(h.taken, minPortion), maxPortion)); err != nil {
			return 0, err
		}
	}
	return h.taken - h.used, nil
}

// Add counts n bytes that arrived, and reserves more if they exceed the reservation.
func (h *Held) Add(n int64) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used += n
	if h.taken >= h.used {
		return nil
	}
	return h.take(max(h.used-h.taken, minPortion))
}

// Used returns how many bytes were added.
func (h *Held) Used() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.used
}

// TryReserve reserves n more bytes, or returns an error at once.
func (h *Held) Take(n int64) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.take(n)
}

// tryReserve is TryReserve for a caller that holds h.mu.
func (h *Held) take(n int64) error {
	if h.over {
		return nil // the caller discards what arrives after Release
	}
	h.open()
	if !h.share.held[h.kind].TryAcquire(n) {
		return h.limiter.full(h.kind, h.share)
	}
	h.add(n)
	return nil
}

// Reserve reserves n more bytes. It waits up to waitTimeout until other reservations of the
// principal are released. The caller must hold no reservation of the same kind that other
// waiting callers may need: they would wait for each other.
func (h *Held) Wait(ctx context.Context, n int64) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	if h.over {
		h.mu.Unlock()
		return nil
	}
	s := h.limiter.acquire(h.owner) // not h.share: Release may be called meanwhile
	h.mu.Unlock()
	defer h.limiter.release(h.owner, s)
	if n > h.limiter.limits[h.kind] {
		return h.limiter.full(h.kind, s)
	}
	short, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	if err := s.held[h.kind].Acquire(short, n); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return h.limiter.full(h.kind, s)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		s.held[h.kind].Release(n)
		return nil
	}
	h.open()
	h.add(n)
	return nil
}

// ReserveAnswer reserves memory for an answer of n bytes before it is built, if it is
// large. It may wait until clients have read other answers.
func (h *Held) Reserve(ctx context.Context, n int) error {
	if n <= Large {
		return nil
	}
	return h.Wait(ctx, int64(n))
}

// CountAnswer makes the reservation large enough for an answer of n bytes that is in memory
// already. While it waits until clients have read other answers, the bytes count as
// IncomingAnswerBytes, so that waiting answers are bounded too.
func (h *Held) Made(ctx context.Context, n int64) error {
	if h == nil || n <= Large {
		return nil
	}
	h.mu.Lock()
	n -= h.taken
	h.mu.Unlock()
	if n <= 0 || h.Take(n) == nil {
		return nil
	}
	waits := h.Reading()
	defer waits.Release()
	if err := waits.Take(n); err != nil {
		return err
	}
	return h.Wait(ctx, n)
}

// Incoming returns an empty reservation of the same principal for the data that an answer
// is built from.
func (h *Held) Reading() *Held {
	if h == nil {
		return nil
	}
	return h.limiter.Held(h.owner, Reading)
}

// ensureShare takes a reference to the principal's share. The caller holds h.mu.
func (h *Held) open() {
	if h.share == nil {
		h.share = h.limiter.acquire(h.owner)
	}
}

// record adds n bytes that the semaphore granted. The caller holds h.mu.
func (h *Held) add(n int64) {
	h.taken += n
	h.share.used[h.kind].Add(n)
}

// ShrinkTo gives back what is reserved beyond n bytes, but nothing that is used.
func (h *Held) Keep(n int64) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if more := h.taken - max(n, h.used); h.share != nil && more > 0 {
		h.taken -= more
		h.share.give(h.kind, more)
	}
}

// Release gives everything back. Later calls succeed and count nothing.
func (h *Held) Release() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	if h.share == nil {
		return
	}
	h.share.give(h.kind, h.taken)
	h.limiter.release(h.owner, h.share)
	h.share, h.taken = nil, 0
}
