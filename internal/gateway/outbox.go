package gateway

import (
	"context"
	"slices"
	"sync"
	"time"
)

// maxUnsent and maxUnsentBytes bound what waits for one client that does not read.
const maxUnsent, maxUnsentBytes = 64, 128 << 10

// outbox sends notifications in order, from a goroutine of its own, so that a
// client that does not read stops nobody but itself. When it is full, the oldest
// log message goes first. The goroutine ends when all is sent.
type outbox struct {
	mu    sync.Mutex
	queue []notice
	bytes int           // of what is in the queue
	idle  chan struct{} // closed when all is sent; nil: it is
	ended bool
}

// notice is one notification.
type notice struct {
	log  bool   // it may be dropped before others
	key  string // a later one with this key is as good; empty: none is
	send func()
	size int // in bytes, about
}

// put keeps a notification to be sent; it never waits.
func (o *outbox) put(n notice) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended || n.key != "" && slices.ContainsFunc(o.queue, func(q notice) bool { return q.key == n.key }) {
		return
	}
	for len(o.queue) >= maxUnsent || len(o.queue) > 0 && o.bytes+n.size > maxUnsentBytes {
		drop := max(0, slices.IndexFunc(o.queue, func(q notice) bool { return q.log }))
		o.bytes -= o.queue[drop].size
		o.queue = slices.Delete(o.queue, drop, drop+1)
	}
	o.queue = append(o.queue, n)
	o.bytes += n.size
	if o.idle == nil {
		o.idle = make(chan struct{})
		go o.drain()
	}
}

func (o *outbox) drain() {
	for {
		o.mu.Lock()
		if len(o.queue) == 0 {
			close(o.idle)
			o.idle = nil
			o.mu.Unlock()
			return
		}
		n := o.queue[0]
		o.bytes -= n.size
		o.queue = slices.Delete(o.queue, 0, 1)
		o.mu.Unlock()
		n.send()
	}
}

// flush waits until all is sent, but not for long.
func (o *outbox) flush(ctx context.Context, most time.Duration) {
	o.mu.Lock()
	idle := o.idle
	o.mu.Unlock()
	if idle == nil {
		return
	}
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-idle:
	case <-ctx.Done():
	case <-t.C:
	}
}

// end drops what is not sent, and what comes later.
func (o *outbox) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended, o.queue, o.bytes = true, nil, 0
}

// sending says whether there is anything left to send.
func (o *outbox) sending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.idle != nil
}
