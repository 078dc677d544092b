package limit

import (
	"context"
	"sync"
	"time"
)

// Held is what one body, line or answer holds of a kind for its principal: bytes that
// grow while they come, until Release gives all back. It takes no memory of the
// book's while it holds nothing. A nil Held counts nothing, and never refuses.
type Held struct {
	limits *Book
	owner  string
	kind   Kind

	mu    sync.Mutex
	share *share // nil: nothing is held
	taken int64
	used  int64 // by Add, of what was taken
	over  bool
}

// Held returns one that holds nothing yet.
func (b *Book) Held(owner string, k Kind) *Held { return &Held{limits: b, owner: owner, kind: k} }

// What grows is counted in shares, each as large as all that came before it.
const leastShare, mostShare = 4 << 10, 1 << 20

// Large is from how many bytes on an answer counts.
const Large = 64 << 10

// waitTimeout is how long Wait waits.
const waitTimeout = 10 * time.Second

// Room returns how many bytes may come before more has to be taken, and takes the
// next share when none are left. The fault says what the limit is.
func (h *Held) Room() (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.used >= h.taken {
		if err := h.take(min(max(h.taken, leastShare), mostShare)); err != nil {
			return 0, err
		}
	}
	return h.taken - h.used, nil
}

// Add counts n bytes that came, and takes what they need beside.
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
	return h.take(max(h.used-h.taken, leastShare))
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
		return nil // what comes is thrown away
	}
	h.keep()
	if !h.share.held[h.kind].TryAcquire(n) {
		return h.limits.full(h.kind, h.share)
	}
	h.got(n)
	return nil
}

// Wait takes n more when there is room, for which it waits some seconds. Who waits
// must hold nothing of that kind that others who wait may need.
func (h *Held) Wait(ctx context.Context, n int64) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	if h.over {
		h.mu.Unlock()
		return nil
	}
	s := h.limits.enter(h.owner) // of its own: Release may come while it waits
	h.mu.Unlock()
	defer h.limits.leave(h.owner, s)
	if n > h.limits.most[h.kind] {
		return h.limits.full(h.kind, s)
	}
	short, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	if err := s.held[h.kind].Acquire(short, n); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return h.limits.full(h.kind, s)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		s.held[h.kind].Release(n)
		return nil
	}
	h.keep()
	h.got(n)
	return nil
}

// Reserve counts an answer of n bytes that is about to be put together, if it is large.
// It may have to wait for others to be read.
func (h *Held) Reserve(ctx context.Context, n int) error {
	if n <= Large {
		return nil
	}
	return h.Wait(ctx, int64(n))
}

// Made counts an answer of n bytes that is in memory already, beside what was taken
// for it before. There may be few such ones that wait for others to be read.
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

// Reading returns one for what the same principal's answer is made of.
func (h *Held) Reading() *Held {
	if h == nil {
		return nil
	}
	return h.limits.Held(h.owner, Reading)
}

// keep makes the book keep the share. The lock is held.
func (h *Held) keep() {
	if h.share == nil {
		h.share = h.limits.enter(h.owner)
	}
}

func (h *Held) got(n int64) {
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
		h.share.used[h.kind].Add(-more)
		h.share.held[h.kind].Release(more)
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
	h.share.used[h.kind].Add(-h.taken)
	h.share.held[h.kind].Release(h.taken)
	h.limits.leave(h.owner, h.share)
	h.share, h.taken = nil, 0
}
