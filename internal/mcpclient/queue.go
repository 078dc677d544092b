package mcpclient

import (
	"encoding/json"
	"sync"
	"time"

	"sandlot/internal/mcpclient/transport"
)

const (
	maxQueued      = 1 << 20 // bytes of progress that may wait for a slow caller
	queuedOverhead = 256     // bytes that each notification counts in addition to its own
)

// queue holds the progress and the outcome of one call until the caller takes them. When
// it is full, push blocks, and with it the reading of the session's messages.
type queue struct {
	ready chan struct{} // of capacity 1: signals that there is progress or an outcome

	mu           sync.Mutex
	notFull      *sync.Cond
	progress     []json.RawMessage
	bytes        int
	outcome      *outcome  // nil: the call has not ended
	closed       bool      // the caller takes nothing any more
	lastProgress time.Time // when the call began, or the server last sent progress
}

// outcome is the result or the error of a call.
type outcome struct {
	result      json.RawMessage
	err         error
	reservation transport.Reservation // of the result; never nil
}

func newQueue() *queue {
	q := &queue{ready: make(chan struct{}, 1), lastProgress: time.Now()}
	q.notFull = sync.NewCond(&q.mu)
	return q
}

func queuedSize(p json.RawMessage) int { return len(p) + queuedOverhead }

// push adds progress.
func (q *queue) push(p json.RawMessage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lastProgress = time.Now()
	for q.bytes > 0 && q.bytes+queuedSize(p) > maxQueued && !q.closed {
		q.notFull.Wait()
	}
	if q.closed || q.outcome != nil {
		return
	}
	q.progress = append(q.progress, p)
	q.bytes += queuedSize(p)
	q.signal()
}

// finish sets the outcome. Later progress and outcomes are dropped.
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

// drain removes and returns the queued progress, and returns the outcome, or nil if the
// call has not ended. The progress came before the outcome.
func (q *queue) drain() (progress []json.RawMessage, end *outcome) {
	q.mu.Lock()
	defer q.mu.Unlock()
	progress, q.progress, q.bytes = q.progress, nil, 0
	q.notFull.Broadcast()
	return progress, q.outcome
}

// close ends blocked pushes, and releases the reservation of the outcome.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.progress = true, nil
	if q.outcome != nil {
		q.outcome.reservation.Release()
	}
	q.notFull.Broadcast()
}

func (q *queue) lastSeen() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lastProgress
}
