package limit

import (
	"context"
	"sync"
	"time"
)

// Held is what one body, line or answer holds of a kind for its principal: bytes that
// grow while they arrive, until Release gives all back. The limiter keeps no share for
// a Held that holds nothing. A nil Held counts nothing, and never refuses.
//
// Order of locks: that of a Held, then that of the Limiter.
type Held struct {
	limiter *Limiter
	owner   string
	kind    Kind

	mu    sync.Mutex
	share *share // nil: nothing is held
	taken int64
	used  int64 // by Add, of what was taken
	over  bool  // Release was called
}

// Held returns one that holds nothing yet.
func (l *Limiter) Held(owner string, k Kind) *Held { return &Held{limiter: l, owner: owner, kind: k} }

// A Held that grows takes portions, each as large as all that arrived before it, between
// these bounds, in bytes.
const minPortion, maxPortion = 4 << 10, 1 << 20

// Large is the size in bytes below which an answer does not count.
const Large = 64 << 10

const waitTimeout = 10 * time.Second

// Room returns how many bytes may arrive before more has to be taken, and takes the
// next portion when none are left. The fault says what the limit is.
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

// Add counts n bytes that arrived, and takes what they need beyond what was taken.
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

// Take takes n more, or refuses at once.
func (h *Held) Take(n int64) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.take(n)
}

// take is Take for those who hold the lock.
func (h *Held) take(n int64) error {
	if h.over {
		return nil // what arrives now is thrown away
	}
	h.open()
	if !h.share.held[h.kind].TryAcquire(n) {
		return h.limiter.full(h.kind, h.share)
	}
	h.add(n)
	return nil
}

// Wait takes n more when there is room, for which it waits up to waitTimeout. A caller
// must hold nothing of that kind that other waiting callers may need.
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

// Reserve counts an answer of n bytes that is about to be put together, if it is large.
// It may have to wait until other answers are read.
func (h *Held) Reserve(ctx context.Context, n int) error {
	if n <= Large {
		return nil
	}
	return h.Wait(ctx, int64(n))
}

// Made counts an answer of n bytes that is in memory already, beyond what was taken for
// it before. While it waits for other answers to be read, it counts as Reading, of
// which a principal may have little.
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

// Reading returns a Held for what the same principal's answer is made of.
func (h *Held) Reading() *Held {
	if h == nil {
		return nil
	}
	return h.limiter.Held(h.owner, Reading)
}

// open has the limiter keep the share. The lock is held.
func (h *Held) open() {
	if h.share == nil {
		h.share = h.limiter.acquire(h.owner)
	}
}

// add counts what the semaphore gave. The lock is held.
func (h *Held) add(n int64) {
	h.taken += n
	h.share.used[h.kind].Add(n)
}

// Keep gives back what was taken beyond n bytes.
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

// Release gives all back. What is taken later does not count.
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
