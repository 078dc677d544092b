package process

import "sync"

// ring is the newest part of an output that has no end: a background process's.
type ring struct {
	mu      sync.Mutex
	data    []byte // ring once it has its full size
	start   uint64 // offset of the oldest byte
	end     uint64
	closed  bool
	changed chan struct{} // closed, and replaced, when something happens
}

// RingSize is how much of the output of a background process is kept, in bytes.
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
		if len(r.data) < RingSize { // a jump over a part that was too long
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

// read returns at most max bytes from cursor on, and how many bytes before them
// are no longer kept.
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
