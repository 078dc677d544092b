package mcpclient

import (
	"encoding/json"
	"sync"
	"time"

	"sandlot/internal/mcpclient/transport"
)

const (
	maxQueued  = 1 << 20 // bytes of progress that wait for a slow caller
	queuedCost = 256     // what each notification counts beside its own bytes
)

// queue holds what came for one call, in wire order, until its caller takes it.
// When it is full, those who fill it wait: nothing more is read.
type queue struct {
	ready chan struct{} // holds one when there is something to take

	mu       sync.Mutex
	room     *sync.Cond
	progress []json.RawMessage
	bytes    int
	outcome  *outcome  // nothing comes after it; nil: it has not come
	closed   bool      // nobody takes anything any more
	sign     time.Time // when the server last gave a sign of life for the call
}

// outcome is how a call ended.
type outcome struct {
	result      json.RawMessage
	err         error
	reservation transport.Reservation // of the result; never nil
}

func newQueue() *queue {
	q := &queue{ready: make(chan struct{}, 1), sign: time.Now()}
	q.room = sync.NewCond(&q.mu)
	return q
}

func cost(p json.RawMessage) int { return len(p) + queuedCost }

// push adds progress.
func (q *queue) push(p json.RawMessage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sign = time.Now()
	for q.bytes > 0 && q.bytes+cost(p) > maxQueued && !q.closed {
		q.room.Wait()
	}
	if q.closed || q.outcome != nil {
		return
	}
	q.progress = append(q.progress, p)
	q.bytes += cost(p)
	q.signal()
}

// finish adds the outcome; nothing comes after it.
func (q *queue) finish(o outcome) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.outcome != nil || q.closed {
		o.reservation.Release()
		return
	}
	q.outcome = &o
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take returns the progress that waits and, if it has come, the outcome, which follows
// that.
func (q *queue) take() (progress []json.RawMessage, end *outcome) {
	q.mu.Lock()
	defer q.mu.Unlock()
	progress, q.progress, q.bytes = q.progress, nil, 0
	q.room.Broadcast()
	return progress, q.outcome
}

// close wakes those who wait, and releases the outcome's reservation.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.progress = true, nil
	if q.outcome != nil {
		q.outcome.reservation.Release()
	}
	q.room.Broadcast()
}

func (q *queue) lastSign() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.sign
}
