// Package limit bounds the resources of the server that each principal uses at once, over
// all of their tokens and connections, so that no principal can starve the others. A
// request over a limit is refused at once; only large answers wait for a short time. The largest,
// of which there are few in the whole server at once, wait for each other (large.go).
package limit

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"sandlot/internal/auth"
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
	PortConns
	// RequestBytes are the bytes of request bodies in memory.
	RequestBytes
	// Calls are MCP calls that are being answered. They are counted apart from Requests, as
	// one stream carries many calls, and a call may outlive its HTTP request.
	Calls
	// WaitingCalls are suspended calls: they outlive their requests while they wait for an
	// answer of the user.
	WaitingCalls
	// AnswerBytes are the bytes of large answers until their clients have read them.
	AnswerBytes
	// IncomingAnswerBytes are the bytes of large answers of third-party servers while they
	// are read and checked.
	IncomingAnswerBytes
	numKinds
)

// Limits are how many of each kind a principal may hold.
type Limits [numKinds]int64

// Default keeps the memory that one principal can use below 300 MB.
var Default = Limits{Requests: 512, Streams: 64, PortConns: 192, RequestBytes: 32 << 20, Calls: 512, WaitingCalls: 64,
	AnswerBytes: 24 << 20, IncomingAnswerBytes: 24 << 20}

// serviceFactor is how much more of each kind all users of one service may hold together, and the service
// itself, than one principal: a service can name any number of users.
var serviceFactor = Limits{Requests: 8, Streams: 8, PortConns: 8, RequestBytes: 4, Calls: 8, WaitingCalls: 8,
	AnswerBytes: 4, IncomingAnswerBytes: 4}

// kindText is a kind's name in the context of a fault, and its name in the message.
type kindText struct{ resource, text string }

var kindTexts = [numKinds]kindText{
	Requests:            {"requests", "requests at once"},
	Streams:             {"streams", "processes, stdio connections, ports and files open at once"},
	PortConns:           {"visits", "connections to exposed ports at once"},
	RequestBytes:        {"request_bytes", "bytes of requests in memory at once"},
	Calls:               {"calls", "calls at once"},
	WaitingCalls:        {"waiting_calls", "calls that wait for their user"},
	AnswerBytes:         {"answer_bytes", "bytes of answers that were not read yet"},
	IncomingAnswerBytes: {"incoming_answer_bytes", "bytes of answers on their way"},
}

// Limiter counts what each principal uses. It stores nothing about principals that use
// nothing.
type Limiter struct {
	limits Limits
	large  large

	mu     sync.Mutex
	shares map[string]*share // by the principal's id
}

// share counts what one principal uses, or all users of a service.
type share struct {
	limits     Limits
	semaphores [numKinds]*semaphore.Weighted
	reserved   [numKinds]atomic.Int64
	service    *share // of the service whose user the principal is; nil: of none
	references int    // reservations and shares that use the share; guarded by the limiter's mu
}

// New returns a limiter with these limits for each principal.
func New(limits Limits) *Limiter { return &Limiter{limits: limits, shares: map[string]*share{}} }

// Acquire counts n of a kind for a principal until release is called. It does not wait: the
// error is a fault that names the limit.
func (l *Limiter) Acquire(owner string, k Kind, n int64) (release func(), err error) {
	reservation := l.NewReservation(owner, k)
	if err := reservation.TryReserve(n); err != nil {
		reservation.Release()
		return nil, err
	}
	return reservation.Release, nil
}

// overLimit returns the fault for a principal for whom n more of a kind do not fit in a share.
func overLimit(k Kind, s *share, n int64) error {
	whose := "one user"
	if s.service != nil && s.reserved[k].Load()+n <= s.limits[k] {
		s, whose = s.service, "all users of a service together"
	}
	f := fault.Limit(kindTexts[k].resource, s.reserved[k].Load(), s.limits[k],
		"there are as many %s as %s may have (%d)", kindTexts[k].text, whose, s.limits[k]).
		Advise("Wait for some of them to end, and try again", "End what you no longer need")
	if k == AnswerBytes || k == IncomingAnswerBytes {
		f.Advice = []string{"Read the answers of other calls first, and try again", "Ask for less at once"}
	}
	return f
}

// acquireShare returns the principal's share. Each call needs a call of releaseShare; the
// last one deletes the share.
func (l *Limiter) acquireShare(owner string) *share {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.shares[owner]; s != nil {
		s.references++
		return s
	}
	s := l.reference(owner, l.limits)
	if service, ok := auth.ServiceOf(owner); ok {
		together := l.limits
		for k := range together {
			together[k] *= serviceFactor[k]
		}
		s.service = l.reference(usersOf(service), together)
	}
	return s
}

// usersOf is the key of the share of all users of a service. It is no principal's id.
func usersOf(service string) string { return service + "/" }

// reference returns a share and counts the reference. The caller holds l.mu.
func (l *Limiter) reference(key string, limits Limits) *share {
	s := l.shares[key]
	if s == nil {
		s = &share{limits: limits}
		for k := range s.semaphores {
			s.semaphores[k] = semaphore.NewWeighted(limits[k])
		}
		l.shares[key] = s
	}
	s.references++
	return s
}

func (l *Limiter) releaseShare(owner string, s *share) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.references--; s.references > 0 {
		return
	}
	delete(l.shares, owner)
	if s.service == nil {
		return
	}
	if s.service.references--; s.service.references == 0 {
		service, _ := auth.ServiceOf(owner)
		delete(l.shares, usersOf(service))
	}
}

// tryAcquire takes n of a kind, of the principal's share and of the service's.
func (s *share) tryAcquire(k Kind, n int64) bool {
	if !s.semaphores[k].TryAcquire(n) {
		return false
	}
	if s.service != nil && !s.service.tryAcquire(k, n) {
		s.semaphores[k].Release(n)
		return false
	}
	s.reserved[k].Add(n)
	return true
}

// acquire waits until n of a kind are free, of the principal's share and of the service's. All callers wait
// for the shares in this order.
func (s *share) acquire(ctx context.Context, k Kind, n int64) error {
	if err := s.semaphores[k].Acquire(ctx, n); err != nil {
		return err
	}
	if s.service != nil {
		if err := s.service.acquire(ctx, k, n); err != nil {
			s.semaphores[k].Release(n)
			return err
		}
	}
	s.reserved[k].Add(n)
	return nil
}

// release gives n of a kind back.
func (s *share) release(k Kind, n int64) {
	s.reserved[k].Add(-n)
	s.semaphores[k].Release(n)
	if s.service != nil {
		s.service.release(k, n)
	}
}
