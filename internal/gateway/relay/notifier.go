package relay

import (
	"context"
	"slices"
	"sync"
	"time"
)

// maxUnsent and maxUnsentBytes limit the queue for one client.
const maxUnsent, maxUnsentBytes = 64, 128 << 10

// Notifier sends notifications in order, from its own goroutine, so that a client that does not
// read delays only itself. If the queue is full, it drops the oldest log message, or else the
// oldest notification. The goroutine ends when the queue is empty.
type Notifier struct {
	mu    sync.Mutex
	queue []Notification
	bytes int           // in the queue
	idle  chan struct{} // closed when all notifications are sent; nil: they are
	ended bool
}

// Notification is one notification.
type Notification struct {
	Log  bool   // a log message: dropped before other notifications
	Key  string // not empty: dropped if one with the same key is in the queue
	Send func()
	Size int // about, in bytes
}

// Put queues a notification. It does not wait.
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
		go o.sendAll()
	}
}

// sendAll sends notifications until the queue is empty.
func (o *Notifier) sendAll() {
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

// Flush waits until all notifications are sent, at most for timeout.
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

// End drops all queued and later notifications.
func (o *Notifier) End() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended, o.queue, o.bytes = true, nil, 0
}

// Sending reports whether notifications are not sent yet.
func (o *Notifier) Sending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.idle != nil
}
