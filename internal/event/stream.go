package event

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/secret"
)

// Limits of the stored events: the number and bytes of each log's events, and the number of
// logs. Together they take less than 32 MB. A principal with too many events loses only their
// own oldest events.
const (
	maxEvents = 256
	maxBytes  = 112 << 10
	maxLogs   = 256
)

// Each principal has two logs. Programs in sandboxes and visitors of exposed ports can cause
// any number of events; these go to the noisy log, so that they cannot push out the other
// events, which go to the quiet log.
const (
	quiet = iota
	noisy
	numClasses
)

// Noisy reports whether not only the principal's clients cause such events, at any number.
func (e *Event) Noisy() bool { return e.class() == noisy }

func (e *Event) class() int {
	if e.Kind == Egress || e.ByOthers {
		return noisy
	}
	return quiet
}

// logKey identifies a log by the principal's id and the class.
type logKey struct {
	principal string
	class     int
}

// Stream stores the latest events of each principal for readers. Publishing to a nil Stream
// does nothing.
//
// Lock order: the stream's mu, then a log's mu, then orderMu.
type Stream struct {
	// Epoch distinguishes the ids of events of this stream from others. It is random, unless
	// RecordTo sets it.
	Epoch string

	lastID     atomic.Uint64 // id of the newest event
	logs       atomic.Pointer[map[logKey]*log]
	allReaders atomic.Pointer[[]*reader] // those that read the events of all principals

	closed chan struct{}
	close  sync.Once

	record  func(Event) // nil: events are only in memory
	observe func(Event) // nil: nobody observes
	orderMu sync.Mutex  // held while an event gets its id and is recorded, so that ids are in order there

	mu sync.Mutex // held while logs and allReaders are replaced
}

// New returns an empty stream.
func New() *Stream {
	s := &Stream{Epoch: secret.ID()[:8], closed: make(chan struct{})}
	s.logs.Store(&map[logKey]*log{})
	s.allReaders.Store(new([]*reader))
	return s
}

// RecordTo makes record get each event, in the order of their ids, which continue after lastID.
// record must not wait. RecordTo is called before the first event is published.
func (s *Stream) RecordTo(record func(Event), epoch string, lastID uint64) {
	s.record, s.Epoch = record, epoch
	s.lastID.Store(lastID)
}

// ObserveBy makes observe get each event, in any order and without its id. observe must not wait.
// ObserveBy is called before the first event is published.
func (s *Stream) ObserveBy(observe func(Event)) { s.observe = observe }

// ErrClosed is the error of Subscription.Next when the stream is closed.
var ErrClosed = errors.New("the server stops")

// Close ends all subscriptions' reads. It may be called more than once.
func (s *Stream) Close() { s.close.Do(func() { close(s.closed) }) }

// Closed returns a channel that is closed with the stream.
func (s *Stream) Closed() <-chan struct{} { return s.closed }

// reader is the part of a subscription that publishing wakes.
type reader struct {
	wakeup  chan struct{}
	evicted atomic.Bool // a log was evicted; the reader may not have read all of it
}

func (r *reader) wake() {
	select {
	case r.wakeup <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// log stores the latest events of one class of one principal.
type log struct {
	mu          sync.Mutex
	events      []Event // a ring buffer once it has maxEvents elements
	oldest      int     // index of the oldest event in events
	bytes       int
	added       uint64 // how many events were ever added
	stored      int    // how many of them are stored
	lastDropped uint64 // id of the newest event that was removed
	readers     []*reader
	evicted     bool
	lastUsed    time.Time
}

// Publish adds an event. It sets the event's id, and its time if it has none. It does not
// wait for readers.
func (s *Stream) Publish(e Event) {
	if s == nil {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Principal = clean(e.Principal) // not clipped: two principals would become one
	e.Session, e.Name, e.Operation, e.Outcome = clip(e.Session), clip(e.Name), clip(e.Operation), clip(e.Outcome)
	e.Token, e.Service, e.Address = clip(e.Token), clip(e.Service), clip(e.Address)
	e.Trace, e.Method, e.ClientSession = clip(e.Trace), clip(e.Method), clip(e.ClientSession)
	e.Refused.Rule, e.Refused.Program = clip(e.Refused.Rule), clip(e.Refused.Program)
	for !s.log(e.Principal, e.class()).add(s, e) {
	}
	if s.observe != nil {
		s.observe(e)
	}
	for _, r := range *s.allReaders.Load() {
		r.wake()
	}
}

// add adds an event to the log. It returns false if the log was evicted.
func (l *log) add(s *Stream, e Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.evicted {
		return false
	}
	// Under the lock, so that a reader that locks the log finds all ids up to s.lastID.
	if s.record == nil {
		e.ID = s.lastID.Add(1)
	} else {
		s.orderMu.Lock()
		e.ID = s.lastID.Add(1)
		s.record(e)
		s.orderMu.Unlock()
	}
	l.lastUsed = e.Time
	size := e.size()
	for l.stored > 0 && (l.stored == maxEvents || l.bytes+size > maxBytes) {
		l.drop()
	}
	if index := l.oldest + l.stored; index < len(l.events) {
		l.events[index] = e
	} else if len(l.events) < maxEvents {
		l.events = append(l.events, e)
	} else {
		l.events[index%maxEvents] = e
	}
	l.added++
	l.stored++
	l.bytes += size
	for _, r := range l.readers {
		r.wake()
	}
	return true
}

// drop removes the oldest event. The caller holds l.mu.
func (l *log) drop() {
	e := &l.events[l.oldest]
	l.bytes -= e.size()
	l.lastDropped = e.ID
	*e = Event{}
	l.stored--
	l.oldest++
	if l.oldest == maxEvents || l.stored == 0 && len(l.events) < maxEvents {
		l.oldest = 0
	}
}

// log returns a principal's log of a class, and creates it if there is none.
func (s *Stream) log(principal string, class int) *log {
	k := logKey{principal, class}
	if l := (*s.logs.Load())[k]; l != nil {
		return l
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	logs := maps.Clone(*s.logs.Load())
	if l := logs[k]; l != nil {
		return l
	}
	if len(logs) >= maxLogs {
		s.evict(logs)
	}
	l := &log{lastUsed: time.Now()}
	logs[k] = l
	s.logs.Store(&logs)
	return l
}

// evict removes the least recently used log that no principal's subscription reads. If there
// is none, it removes nothing, and there are more than maxLogs logs: their number is still
// bounded, as each principal's event streams are limited. The caller holds s.mu.
func (s *Stream) evict(logs map[logKey]*log) {
	var victim logKey
	var oldestUse time.Time
	for k, l := range logs {
		l.mu.Lock()
		if len(l.readers) == 0 && (oldestUse.IsZero() || l.lastUsed.Before(oldestUse)) {
			victim, oldestUse = k, l.lastUsed
		}
		l.mu.Unlock()
	}
	l := logs[victim]
	if l == nil { // readers of evicted logs would create them again, and evict each other's logs forever
		return
	}
	l.mu.Lock()
	l.evicted = true
	for _, r := range slices.Concat(l.readers, *s.allReaders.Load()) {
		r.evicted.Store(true)
		r.wake()
	}
	l.mu.Unlock()
	delete(logs, victim)
}

// event returns the n-th event that was ever added. It must still be stored.
func (l *log) event(n uint64) *Event {
	return &l.events[(l.oldest+int(n-(l.added-uint64(l.stored))))%maxEvents]
}

// subscribe makes the events of a principal wake r; an empty principal means all.
func (s *Stream) subscribe(r *reader, principal string) {
	if principal == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		all := append(slices.Clone(*s.allReaders.Load()), r)
		s.allReaders.Store(&all)
		return
	}
	for class := range numClasses {
		for !s.log(principal, class).subscribe(r) {
		}
	}
}

// subscribe makes the log's events wake r. It returns false if the log was evicted.
func (l *log) subscribe(r *reader) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.evicted && !slices.Contains(l.readers, r) {
		l.readers = append(l.readers, r)
	}
	return !l.evicted
}

// unsubscribe undoes subscribe.
func (s *Stream) unsubscribe(r *reader, principal string) {
	isReader := func(other *reader) bool { return other == r }
	if principal == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		all := slices.DeleteFunc(slices.Clone(*s.allReaders.Load()), isReader)
		s.allReaders.Store(&all)
		return
	}
	for class := range numClasses {
		if l := (*s.logs.Load())[logKey{principal, class}]; l != nil {
			l.mu.Lock()
			l.readers = slices.DeleteFunc(l.readers, isReader)
			l.mu.Unlock()
		}
	}
}
