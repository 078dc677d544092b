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

// Bounds of what is stored: the events of each log, their bytes, and the logs. Together
// that is less than 32 MB. A principal with many events loses their own oldest events,
// and nobody else's.
const (
	maxEvents = 256
	maxBytes  = 64 << 10
	maxLogs   = 256
)

// Each principal has two logs: the noisy one for what programs in sandboxes and visitors
// of links do, as often as they want, and the quiet one for everything else, which must
// not be pushed out by that.
const (
	quiet = iota
	noisy
	classes
)

func (e *Event) class() int {
	if e.Kind == Egress || e.Others {
		return noisy
	}
	return quiet
}

// key names a log: a principal's id, and a class.
type key struct {
	principal string
	class     int
}

// Stream stores the latest events of each principal for readers. A nil Stream stores
// nothing.
//
// Order of locks: the Stream's, then a log's.
type Stream struct {
	// Epoch tells the ids of this server from those of a server before it.
	Epoch string

	last atomic.Uint64 // id of the newest event
	logs atomic.Pointer[map[key]*log]
	all  atomic.Pointer[[]*reader] // of all principals' events

	closed chan struct{}
	close  sync.Once

	mu sync.Mutex // held while logs and all are replaced
}

// New returns an empty stream.
func New() *Stream {
	s := &Stream{Epoch: secret.ID()[:8], closed: make(chan struct{})}
	s.logs.Store(&map[key]*log{})
	s.all.Store(new([]*reader))
	return s
}

// ErrClosed is what readers get when the stream is closed.
var ErrClosed = errors.New("the server stops")

// Close ends all reading. It may be called twice.
func (s *Stream) Close() { s.close.Do(func() { close(s.closed) }) }

// reader is woken by the events of one principal, or of all.
type reader struct {
	woken   chan struct{}
	evicted atomic.Bool // a log was evicted that the reader may not have read to its end
}

func (r *reader) wake() {
	select {
	case r.woken <- struct{}{}:
	default: // it will read anyway
	}
}

// log is the latest events of one class of one principal.
type log struct {
	mu      sync.Mutex
	events  []Event // a ring, once it has maxEvents
	oldest  int     // index of the oldest event in events
	bytes   int
	put     uint64 // how many events were added
	kept    int    // how many of them are stored
	dropped uint64 // id of the newest event that is not
	readers []*reader
	evicted bool
	used    time.Time
}

// Publish adds an event, sets its id, and its time if it has none. It waits for no
// reader.
func (s *Stream) Publish(e Event) {
	if s == nil {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Session, e.Name, e.Operation, e.Outcome = clip(e.Session), clip(e.Name), clip(e.Operation), clip(e.Outcome)
	for !s.log(e.Principal, e.class()).add(s, e) {
	}
	for _, r := range *s.all.Load() {
		r.wake()
	}
}

// add puts an event into the log. False: the log was evicted.
func (l *log) add(s *Stream, e Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.evicted {
		return false
	}
	e.ID = s.last.Add(1) // with the lock: its next holder finds every id up to s.last in the logs
	l.used = e.Time
	size := e.size()
	for l.kept > 0 && (l.kept == maxEvents || l.bytes+size > maxBytes) {
		l.drop()
	}
	if at := l.oldest + l.kept; at < len(l.events) {
		l.events[at] = e
	} else if len(l.events) < maxEvents {
		l.events = append(l.events, e)
	} else {
		l.events[at%maxEvents] = e
	}
	l.put++
	l.kept++
	l.bytes += size
	for _, r := range l.readers {
		r.wake()
	}
	return true
}

// drop removes the oldest event. The lock is held.
func (l *log) drop() {
	e := &l.events[l.oldest]
	l.bytes -= e.size()
	l.dropped = e.ID
	*e = Event{}
	l.kept--
	l.oldest++
	if l.oldest == maxEvents || l.kept == 0 && len(l.events) < maxEvents {
		l.oldest = 0
	}
}

// log returns the log of a principal, and makes it when there is none.
func (s *Stream) log(principal string, class int) *log {
	k := key{principal, class}
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
	l := &log{used: time.Now()}
	logs[k] = l
	s.logs.Store(&logs)
	return l
}

// evict removes the least recently used log that has no reader of its own. Where every
// log has one, there are more logs: streams of events are limited for each principal. The
// lock is held.
func (s *Stream) evict(logs map[key]*log) {
	var victim key
	var used time.Time
	for k, l := range logs {
		l.mu.Lock()
		if len(l.readers) == 0 && (used.IsZero() || l.used.Before(used)) {
			victim, used = k, l.used
		}
		l.mu.Unlock()
	}
	l := logs[victim]
	if l == nil { // evicting logs with readers would make these wake each other without end
		return
	}
	l.mu.Lock()
	l.evicted = true
	for _, r := range slices.Concat(l.readers, *s.all.Load()) {
		r.evicted.Store(true)
		r.wake()
	}
	l.mu.Unlock()
	delete(logs, victim)
}

// at returns the n-th of all events that were added.
func (l *log) at(n uint64) *Event {
	return &l.events[(l.oldest+int(n-(l.put-uint64(l.kept))))%maxEvents]
}

// subscribe has r woken by the events of a principal, or, with none, of all.
func (s *Stream) subscribe(r *reader, principal string) {
	if principal == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		all := append(slices.Clone(*s.all.Load()), r)
		s.all.Store(&all)
		return
	}
	for class := range classes {
		for !s.log(principal, class).subscribe(r) {
		}
	}
}

// subscribe has r woken by the log's events. False: the log was evicted.
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
	is := func(other *reader) bool { return other == r }
	if principal == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		all := slices.DeleteFunc(slices.Clone(*s.all.Load()), is)
		s.all.Store(&all)
		return
	}
	for class := range classes {
		if l := (*s.logs.Load())[key{principal, class}]; l != nil {
			l.mu.Lock()
			l.readers = slices.DeleteFunc(l.readers, is)
			l.mu.Unlock()
		}
	}
}
