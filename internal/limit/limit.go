// Package limit bounds what each principal holds of the server at once, by however
// many tokens and connections, so that no principal can take what the others need. A
// principal who is over a limit is refused, and does not wait.
package limit

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"sandlot/internal/fault"
)

// Kind is something that a principal holds.
type Kind int

const (
	// Requests are HTTP requests that are being served, streams of events among them.
	Requests Kind = iota
	// Streams are connections for processes, stdio, ports and files: each has
	// buffers of its own.
	Streams
	// Visits are connections to the ports that a principal exposed, whoever makes them.
	Visits
	// Bytes are the bytes of request bodies in memory.
	Bytes
	// Calls are MCP calls that are being answered: a stream brings many, and a call may
	// outlive the request that brought it.
	Calls
	// Waiting are calls that outlive their requests, as they wait for their users.
	Waiting
	// Answers are the bytes of large answers until their readers have taken them.
	Answers
	// Reading are the bytes of large answers while they are read and checked.
	Reading
	kinds
)

// Limits are how many of each kind a principal may hold.
type Limits [kinds]int64

// Default keeps what one principal can take below 300 MB.
var Default = Limits{Requests: 512, Streams: 64, Visits: 192, Bytes: 32 << 20, Calls: 512, Waiting: 64,
	Answers: 24 << 20, Reading: 24 << 20}

// name is how a kind is called in the context of a fault, and what is said of it.
type name struct{ resource, text string }

var names = [kinds]name{
	Requests: {"requests", "requests at once"},
	Streams:  {"streams", "processes, stdio connections, ports and files open at once"},
	Visits:   {"visits", "connections to exposed ports at once"},
	Bytes:    {"request_bytes", "bytes of requests in memory at once"},
	Calls:    {"calls", "calls at once"},
	Waiting:  {"waiting_calls", "calls that wait for their user"},
	Answers:  {"answer_bytes", "bytes of answers that were not read yet"},
	Reading:  {"incoming_answer_bytes", "bytes of answers on their way"},
}

// Limiter counts what each principal holds. A principal who holds nothing takes no
// memory.
type Limiter struct {
	limits Limits

	mu     sync.Mutex
	shares map[string]*share // by the principal's id
}

// share is what one principal holds.
type share struct {
	held [kinds]*semaphore.Weighted
	used [kinds]atomic.Int64
	uses int // how many Helds have the share; the limiter's mu guards it
}

// New returns a limiter with those limits.
func New(limits Limits) *Limiter { return &Limiter{limits: limits, shares: map[string]*share{}} }

// Take takes n of a kind for a principal, until release is called. The fault says
// what the limit is.
func (l *Limiter) Take(owner string, k Kind, n int64) (release func(), err error) {
	h := l.Held(owner, k)
	if err := h.Take(n); err != nil {
		h.Release()
		return nil, err
	}
	return h.Release, nil
}

// full is the fault for a principal who is over a limit.
func (l *Limiter) full(k Kind, s *share) error {
	f := fault.New(fault.ResourceLimit, "there are as many %s as one user may have (%d)", names[k].text, l.limits[k]).
		With("resource_type", names[k].resource).With("current_usage", s.used[k].Load()).With("limit", l.limits[k])
	f.Advice = []string{"Wait for some of them to end, and try again", "End what is not needed any more"}
	if k == Answers || k == Reading {
		f.Advice = []string{"Read the answers of other calls first, and try again", "Ask for less at once"}
	}
	return f
}

// acquire returns the principal's share, which stays until release is called as often.
func (l *Limiter) acquire(owner string) *share {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.shares[owner]
	if s == nil {
		s = &share{}
		for k := range s.held {
			s.held[k] = semaphore.NewWeighted(l.limits[k])
		}
		l.shares[owner] = s
	}
	s.uses++
	return s
}

func (l *Limiter) release(owner string, s *share) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.uses--; s.uses == 0 {
		delete(l.shares, owner)
	}
}

// give gives n of a kind back.
func (s *share) give(k Kind, n int64) {
	s.used[k].Add(-n)
	s.held[k].Release(n)
}
