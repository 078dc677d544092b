// Package limit bounds the resources of the server that each principal uses at once, over
// all of their tokens and connections, so that no principal can starve the others. A
// request over a limit is refused at once; only large answers wait for a short time.
package limit

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"sandlot/internal/fault"
)

// Kind is a kind of resource that is limited.
type Kind int

const (
	// Requests are HTTP requests that are being served, including event streams.
	Requests Kind = iota
	// Streams are connections to processes, stdio, ports and files. Each has its own
	// buffers.
	Streams
	// PortConns are connections to the ports that a principal exposed, by whoever has the
	// link.
	Visits
	// RequestBytes are the bytes of request bodies in memory.
	Bytes
	// Calls are MCP calls that are being answered. They are counted apart from Requests, as
	// one stream carries many calls, and a call may outlive its HTTP request.
	Calls
	// WaitingCalls are suspended calls: they outlive their requests while they wait for an
	// answer of the user.
	Waiting
	// AnswerBytes are the bytes of large answers until their clients have read them.
	Answers
	// IncomingAnswerBytes are the bytes of large answers of third-party servers while they
	// are read and checked.
	Reading
	kinds
)

// Limits are how many of each kind a principal may hold.
type Limits [kinds]int64

// Default keeps the memory that one principal can use below 300 MB.
var Default = Limits{Requests: 512, Streams: 64, Visits: 192, Bytes: 32 << 20, Calls: 512, Waiting: 64,
	Answers: 24 << 20, Reading: 24 << 20}

// kindText is a kind's name in the context of a fault, and its name in the message.
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

// Limiter counts what each principal uses. It stores nothing about principals that use
// nothing.
type Limiter struct {
	limits Limits

	mu     sync.Mutex
	shares map[string]*share // by the principal's id
}

// share counts what one principal uses.
type share struct {
	held [kinds]*semaphore.Weighted
	used [kinds]atomic.Int64
	uses int // reservations that use the share; guarded by the limiter's mu
}

// New returns a limiter with these limits for each principal.
func New(limits Limits) *Limiter { return &Limiter{limits: limits, shares: map[string]*share{}} }

// Acquire counts n of a kind for a principal until release is called. It does not wait: the
// error is a fault that names the limit.
func (l *Limiter) Take(owner string, k Kind, n int64) (release func(), err error) {
	h := l.Held(owner, k)
	if err := h.Take(n); err != nil {
		h.Release()
		return nil, err
	}
	return h.Release, nil
}

// overLimit returns the fault for a principal that is over a limit.
func (l *Limiter) full(k Kind, s *share) error {
	f := fault.New(fault.ResourceLimit, "there are as many %s as one user may have (%d)", names[k].text, l.limits[k]).
		With("resource_type", names[k].resource).With("current_usage", s.used[k].Load()).With("limit", l.limits[k])
	f.Advice = []string{"Wait for some of them to end, and try again", "End what is not needed any more"}
	if k == Answers || k == Reading {
		f.Advice = []string{"Read the answers of other calls first, and try again", "Ask for less at once"}
	}
	return f
}

// acquireShare returns the principal's share. Each call needs a call of releaseShare; the
// last one deletes the share.
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

// release gives n of a kind back.
func (s *share) give(k Kind, n int64) {
	s.used[k].Add(-n)
	s.held[k].Release(n)
}
