package relay

import (
	"context"
	"slices"
	"sync"
	"time"
)

// maxUnsent and maxUnsentBytes bound the queue of one client that does not read.
const maxUnsent, maxUnsentBytes = 64, 128 << 10

// Notifier sends notifications in order, from a goroutine of its own, so that a client
// that does not read delays nobody else. A full queue drops the oldest log message
// first. The goroutine ends when the queue is empty.
type Notifier struct {
	mu    sync.Mutex
	queue []Notification
	bytes int           // in the queue
	idle  chan struct{} // closed when the queue is empty; nil: it is
	ended bool
}

// Notification is one notification.
type Notification struct {
	Log  bool   // dropped before others
	Key  string // one queued notification with a key replaces all others with it
	Send func()
	Size int // in bytes, about
}

// Put queues a notification; it never waits.
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

// Flush waits until the queue is empty, at most that long.
func (o *Notifier) Flush(ctx context.Context, timeout time.Duration) {
	o.mu.Lock()
	idle := o.idle
	o.mu.Unlock()
	if idle == nil {
		return
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-idle:
	case <-ctx.Done():
	case <-t.C:
	}
}

// End drops the queue, and later notifications.
func (o *Notifier) End() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended, o.queue, o.bytes = true, nil, 0
}

// Sending says whether the queue is not empty.
func (o *Notifier) Sending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.idle != nil
}
