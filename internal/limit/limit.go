// Package limit bounds what each principal holds of the server at once, whatever
// number of tokens and connections they have, so that none can take what the others
// need. Who is over a limit is refused, and does not wait.
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
	// Requests are those on their way, streams of events among them.
	Requests Kind = iota
	// Streams are connections for processes, stdio, ports and files: each has
	// buffers of its own.
	Streams
	// Visits are connections of others to the ports that a principal exposed.
	Visits
	// Bytes are those of bodies that are held in memory.
	Bytes
	// Calls are those that are being answered: a stream brings many, and one may
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

var words = [kinds][2]string{Requests: {"requests", "requests at once"}, Streams: {"streams", "processes, stdio connections, ports and files open at once"},
	Visits: {"visits", "connections to exposed ports at once"}, Bytes: {"request_bytes", "bytes of requests in memory at once"},
	Calls:   {"calls", "calls at once"},
	Waiting: {"waiting_calls", "calls that wait for their user"},
	Answers: {"answer_bytes", "bytes of answers that were not read yet"},
	Reading: {"incoming_answer_bytes", "bytes of answers on their way"}}

// Book keeps what all principals hold. Those who hold nothing take no memory.
type Book struct {
	most Limits

	mu  sync.Mutex
	all map[string]*share
}

// share is what one principal holds.
type share struct {
	held [kinds]*semaphore.Weighted
	used [kinds]atomic.Int64
	uses int // that will give something back; the book's mu guards it
}

// New returns a book with those limits.
func New(most Limits) *Book { return &Book{most: most, all: map[string]*share{}} }

// Take takes n of a kind for a principal, until release is called. The fault says
// what the limit is.
func (b *Book) Take(owner string, k Kind, n int64) (release func(), err error) {
	s := b.enter(owner)
	if !s.held[k].TryAcquire(n) {
		defer b.leave(owner, s)
		return nil, b.full(k, s)
	}
	s.used[k].Add(n)
	return sync.OnceFunc(func() {
		s.used[k].Add(-n)
		s.held[k].Release(n)
		b.leave(owner, s)
	}), nil
}

// full is the fault for who is over a limit.
func (b *Book) full(k Kind, s *share) error {
	f := fault.New(fault.ResourceLimit, "there are as many %s as one user may have (%d)", words[k][1], b.most[k]).
		With("resource_type", words[k][0]).With("current_usage", s.used[k].Load()).With("limit", b.most[k])
	f.Advice = []string{"Wait for some of them to end, and try again", "End what is not needed any more"}
	if k == Answers || k == Reading {
		f.Advice = []string{"Read the answers of other calls first, and try again", "Ask for less at once"}
	}
	return f
}

func (b *Book) enter(owner string) *share {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.all[owner]
	if s == nil {
		s = &share{}
		for k := range s.held {
			s.held[k] = semaphore.NewWeighted(b.most[k])
		}
		b.all[owner] = s
	}
	s.uses++
	return s
}

func (b *Book) leave(owner string, s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.uses--; s.uses == 0 {
		delete(b.all, owner)
	}
}
