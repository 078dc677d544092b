package mcpclient

import (
	"encoding/json"
	"sync"
	"time"
)

const (
	maxQueued  = 1 << 20 // bytes of progress that wait for a slow caller
	queuedCost = 256     // what each notification counts beside its own bytes
)

// queue holds what came for one call, in wire order, until its caller takes it.
// When it is full, those who fill it wait: nothing more is read.
type queue struct {
	ready chan struct{} // something is there

	mu       sync.Mutex
	room     *sync.Cond
	progress []json.RawMessage
	bytes    int
	answered bool // the last there is: the outcome
	outcome  outcome
	gone     bool      // nobody takes anything any more
	heard    time.Time // the last sign of life
}

// outcome is how a call ended.
type outcome struct {
	result json.RawMessage
	err    error
	room   Room // that the result holds; never nil
}

func newQueue() *queue {
	q := &queue{ready: make(chan struct{}, 1), heard: time.Now()}
	q.room = sync.NewCond(&q.mu)
	return q
}

func cost(p json.RawMessage) int { return len(p) + queuedCost }

// push adds progress.
func (q *queue) push(p json.RawMessage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.heard = time.Now()
	for q.bytes > 0 && q.bytes+cost(p) > maxQueued && !q.gone {
		q.room.Wait()
	}
	if q.gone || q.answered {
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
	if q.answered || q.gone {
		o.room.Release()
		return
	}
	q.answered, q.outcome = true, o
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// pop returns the progress that waits, and then, with last, the outcome.
func (q *queue) pop() (progress []json.RawMessage, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	progress, q.progress, q.bytes = q.progress, nil, 0
	q.room.Broadcast()
	return progress, q.answered
}

// take returns the outcome, whose room is the caller's from then on.
func (q *queue) take() outcome {
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.outcome
	q.outcome = outcome{}
	return o
}

// leave lets those who wait go, and gives back what nobody took.
func (q *queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gone, q.progress = true, nil
	if q.outcome.room != nil {
		q.outcome.room.Release()
	}
	q.outcome = outcome{}
	q.room.Broadcast()
}

func (q *queue) lastHeard() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.heard
}
