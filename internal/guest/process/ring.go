package process

import "sync"

// ring is a ring buffer: it keeps the last RingSize bytes of a background process's output.
type ring struct {
	mu      sync.Mutex
	data    []byte // it grows to RingSize, and is overwritten in circles from then on
	start   uint64 // offset in the output of the oldest byte that is kept
	end     uint64 // how many bytes the process has written
	closed  bool
	changed chan struct{} // closed, and replaced, by Write and close
}

// RingSize is how many bytes of the output of a background process are kept.
const RingSize = 1 << 20

func newRing() *ring { return &ring{changed: make(chan struct{})} }

func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(p)
	if len(p) > RingSize {
		r.end += uint64(len(p) - RingSize)
		p = p[len(p)-RingSize:]
	}
	for len(p) > 0 {
		at := int(r.end % RingSize)
		if len(r.data) < RingSize && at == len(r.data) {
			k := min(len(p), RingSize-at)
			r.data = append(r.data, p[:k]...)
			p, r.end = p[k:], r.end+uint64(k)
			continue
		}
		if len(r.data) < RingSize { // bytes of a write longer than RingSize were skipped
			r.data = append(r.data, make([]byte, RingSize-len(r.data))...)
		}
		k := copy(r.data[at:], p)
		p, r.end = p[k:], r.end+uint64(k)
	}
	if r.end > RingSize {
		r.start = max(r.start, r.end-RingSize)
	}
	r.wake()
	return n, nil
}

func (r *ring) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *ring) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.wake()
}

// read returns at most max bytes from the offset cursor on, the offset after them, and how many
// bytes between cursor and them are no longer kept.
func (r *ring) read(cursor uint64, max int) (data []byte, next, skipped uint64, closed bool, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	cursor = min(cursor, r.end)
	if cursor < r.start {
		skipped = r.start - cursor
		cursor = r.start
	}
	n := int(min(uint64(max), r.end-cursor))
	data = make([]byte, 0, n)
	for len(data) < n {
		at := int((cursor + uint64(len(data))) % RingSize)
		data = append(data, r.data[at:min(len(r.data), at+n-len(data))]...)
	}
	return data, cursor + uint64(n), skipped, r.closed, r.changed
}
