package event

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/secret"
)

// Bounds of what is kept: of each log's events, and of how many logs. Together that
// is less than 32 MB. A principal with many events loses their own oldest ones, and
// nobody else's.
const (
	maxEvents = 256
	maxBytes  = 64 << 10
	maxLogs   = 256
)

// Each principal has two logs: the noisy one for what programs in sandboxes and
// visitors of links do, as often as they want, and one for all else, of which those
// must not push anything out.
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

// Stream keeps the latest events of each principal, for those who subscribe.
// A nil Stream keeps nothing.
type Stream struct {
	// Epoch tells the ids of this server from those of one before it.
	Epoch string

	last atomic.Uint64                   // id of the newest event
	logs [classes]sync.Map               // *log by the principal's id
	all  atomic.Pointer[[]*Subscription] // those of all principals' events

	closed chan struct{}
	close  sync.Once

	mu    sync.Mutex // held while logs come and go, and while all changes; before a log's
	count int        // of logs
}

// New returns an empty stream.
func New() *Stream { return &Stream{Epoch: secret.ID()[:8], closed: make(chan struct{})} }

// ErrClosed is what readers get when the stream has ended.
var ErrClosed = errors.New("the server stops")

// Close ends what is read of the stream. It may be called twice.
func (s *Stream) Close() { s.close.Do(func() { close(s.closed) }) }

// log is the latest events of one class of one principal.
type log struct {
	mu      sync.Mutex
	events  []Event // a ring, once it has maxEvents
	oldest  int     // its place in events
	bytes   int
	put     uint64 // how many there were
	kept    int    // how many of them are there
	dropped uint64 // id of the last one that is not
	subs    []*Subscription
	evicted bool
	used    time.Time
}

// Publish adds an event, and gives it its id, and its time if it has none. It waits
// for no subscriber.
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
	if all := s.all.Load(); all != nil {
		for _, sub := range *all {
			sub.wake()
		}
	}
}

// add puts an event into the log. False: the log is no longer the principal's.
func (l *log) add(s *Stream, e Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.evicted {
		return false
	}
	e.ID = s.last.Add(1) // with the lock: whoever holds it next finds all ids that there were
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
	for _, sub := range l.subs {
		sub.wake()
	}
	return true
}

// drop forgets the oldest event. The lock is held.
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
	logs := &s.logs[class]
	if l, ok := logs.Load(principal); ok {
		return l.(*log)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := logs.Load(principal); ok {
		return l.(*log)
	}
	if s.count >= maxLogs {
		s.evict()
	}
	l := &log{used: time.Now()}
	logs.Store(principal, l)
	s.count++
	return l
}

// evict forgets the log that was used least lately, of those that nobody reads but who
// reads all. Where all are read there are more logs: streams of events are bounded
// for each principal. The lock is held.
func (s *Stream) evict() {
	var victim, key any
	var from *sync.Map
	var used time.Time
	var read bool
	for i := range s.logs {
		s.logs[i].Range(func(k, v any) bool {
			l := v.(*log)
			l.mu.Lock()
			at, reads := l.used, len(l.subs) > 0
			l.mu.Unlock()
			if victim == nil || read && !reads || read == reads && at.Before(used) {
				victim, key, from, used, read = v, k, &s.logs[i], at, reads
			}
			return true
		})
	}
	if victim == nil || read { // readers would wake each other without end; there are not many
		return
	}
	l := victim.(*log)
	l.mu.Lock()
	l.evicted = true
	subs := l.subs
	if all := s.all.Load(); all != nil {
		subs = append(slices.Clone(subs), *all...)
	}
	for _, sub := range subs {
		sub.evicted.Store(true)
		sub.wake()
	}
	l.mu.Unlock()
	from.Delete(key)
	s.count--
}

// at returns the event of that number, of those that were put.
func (l *log) at(n uint64) *Event {
	return &l.events[(l.oldest+int(n-(l.put-uint64(l.kept))))%maxEvents]
}

// subscribe makes sub one of those that are woken by events of the principal.
func (s *Stream) subscribe(sub *Subscription) {
	if sub.filter.Principal == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		var all []*Subscription
		if now := s.all.Load(); now != nil {
			all = slices.Clone(*now)
		}
		all = append(all, sub)
		s.all.Store(&all)
		return
	}
	for class := range classes {
		for !s.log(sub.filter.Principal, class).subscribe(sub) {
		}
	}
}

// subscribe makes sub one of those that are woken by the log's events. False: the
// log is no longer the principal's.
func (l *log) subscribe(sub *Subscription) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.evicted && !slices.Contains(l.subs, sub) {
		l.subs = append(l.subs, sub)
	}
	return !l.evicted
}

// unsubscribe takes sub out again.
func (s *Stream) unsubscribe(sub *Subscription) {
	is := func(other *Subscription) bool { return other == sub }
	if sub.filter.Principal != "" {
		for i := range s.logs {
			if v, ok := s.logs[i].Load(sub.filter.Principal); ok {
				l := v.(*log)
				l.mu.Lock()
				l.subs = slices.DeleteFunc(l.subs, is)
				l.mu.Unlock()
			}
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(*s.all.Load()), is)
	if len(all) == 0 {
		s.all.Store(nil)
		return
	}
	s.all.Store(&all)
}
