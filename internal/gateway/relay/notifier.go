package relay

import (
	"context"
	"slices"
	"sync"
	"time"
)

// maxUnsent and maxUnsentBytes bound what waits for one client that does not read.
const maxUnsent, maxUnsentBytes = 64, 128 << 10

// Notifier sends notifications in order, from a goroutine of its own, so that a
// client that does not read stops nobody but itself. When it is full, the oldest
// log message goes first. The goroutine ends when all is sent.
type Notifier struct {
	mu    sync.Mutex
	queue []Notification
	bytes int           // of what is in the queue
	idle  chan struct{} // closed when all is sent; nil: it is
	ended bool
}

// Notification is one notification.
type Notification struct {
	Log  bool   // it may be dropped before others
	Key  string // a later one with this key is as good; empty: none is
	Send func()
	Size int // in bytes, about
}

// Put keeps a notification to be sent; it never waits.
func (o *Notifier) Put(n Notification) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended || n.Key != "" && slices.ContainsFunc(o.queue, func(q Notification) bool { return q.Key == n.Key }) {
		return
	}
	for len(o.queue) >= maxUnsent || len(o.queue) > 0 && o.bytes+n.Size > maxUnsentBytes {
		drop := max(0, slices.IndexFunc(o.queue, func(q Notification) bool { return q.Log }))
		o.bytes -= o.queue[drop].Size
		o.queue = slices.Delete(o.queue, drop, drop+1)
	}
	o.queue = append(o.queue, n)
	o.bytes += n.Size
	if o.idle == nil {
		o.idle = make(chan struct{})
		go o.deliver()
	}
}

func (o *Notifier) deliver() {
	for {
		o.mu.Lock()
		if len(o.queue) == 0 {
			close(o.idle)
			o.idle = nil
			o.mu.Unlock()
			return
		}
		n := o.queue[0]
		o.bytes -= n.Size
		o.queue = slices.Delete(o.queue, 0, 1)
		o.mu.Unlock()
		n.Send()
	}
}

// Flush waits until all is sent, but not for long.
func (o *Notifier) Flush(ctx context.Context, most time.Duration) {
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

// End drops what is not sent, and what comes later.
func (o *Notifier) End() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended, o.queue, o.bytes = true, nil, 0
}

// Sending says whether there is anything left to send.
func (o *Notifier) Sending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.idle != nil
}
