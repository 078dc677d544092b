package event

import (
	"cmp"
	"context"
	"maps"
	"slices"
)

// Filter selects events.
type Filter struct {
	// Principal is whose events; empty: all principals', which is for operators alone.
	Principal string
	Kinds     []Kind // empty: all
	Session   string // empty: those of all sessions, and of none
}

func (f *Filter) wants(e *Event) bool {
	return (len(f.Kinds) == 0 || slices.Contains(f.Kinds, e.Kind)) && (f.Session == "" || f.Session == e.Session)
}

// Lost is how many events, of any kind, a reader missed by not reading in time. The zero
// value is none.
type Lost struct {
	Count uint64
	// More says that an unknown number of events was lost beside Count.
	More bool
}

// Any says whether there are any.
func (l Lost) Any() bool { return l.Count > 0 || l.More }

// Subscription is one reader's place in the stream. One goroutine reads it.
type Subscription struct {
	reader
	stream *Stream
	filter Filter
	logs   map[*log]uint64 // how many of each log's events were read
	lost   Lost
}

// Subscribe begins to read after the event with the id since; with 0 it begins with the
// oldest stored event. Close ends it.
func (s *Stream) Subscribe(f Filter, since uint64) *Subscription {
	sub := &Subscription{reader: reader{woken: make(chan struct{}, 1)}, stream: s, filter: f, logs: map[*log]uint64{}}
	s.subscribe(&sub.reader, f.Principal)
	for _, l := range sub.present() {
		l.mu.Lock()
		n := l.put - uint64(l.kept)
		for n < l.put && l.at(n).ID <= since {
			n++
		}
		sub.logs[l] = n
		sub.lost.More = sub.lost.More || since > 0 && l.dropped > since
		l.mu.Unlock()
	}
	return sub
}

// Newest is the id of the newest event. A subscription since then has only later events.
func (s *Stream) Newest() uint64 { return s.last.Load() }

// Missed notes that an unknown number of events was lost before the first one.
func (sub *Subscription) Missed() { sub.lost.More = true }

// Close ends the subscription.
func (sub *Subscription) Close() { sub.stream.unsubscribe(&sub.reader, sub.filter.Principal) }

// Next returns events, in the order of their ids, and what was lost before them. It
// waits until there is something, ctx ends, or the stream is closed.
func (sub *Subscription) Next(ctx context.Context) ([]Event, Lost, error) {
	for {
		events, lost, more := sub.Read()
		if len(events) > 0 || lost.Any() {
			return events, lost, nil
		}
		if more {
			continue
		}
		select {
		case <-sub.woken:
		case <-sub.stream.closed:
			return nil, Lost{}, ErrClosed
		case <-ctx.Done():
			return nil, Lost{}, context.Cause(ctx)
		}
	}
}

// batch is how many events of one log are read at once.
const batch = 64

// part is what was read of one log.
type part struct {
	log    *log
	from   uint64 // the number of its first event
	events []Event
}

// Read returns the next events without waiting, a limited number, and says whether
// there are more.
func (sub *Subscription) Read() (events []Event, lost Lost, more bool) {
	// An event with an id up to this one is in its log once the log's lock is free.
	limit := sub.stream.last.Load()
	var parts []part
	for _, l := range sub.present() {
		p, rest := sub.read(l, limit)
		if rest { // newer events of the other logs have to wait
			limit, more = p.events[len(p.events)-1].ID, true
		}
		parts = append(parts, p)
	}
	for _, p := range parts {
		n := 0
		for n < len(p.events) && p.events[n].ID <= limit {
			n++
		}
		sub.logs[p.log] = p.from + uint64(n)
		for _, e := range p.events[:n] {
			if sub.filter.wants(&e) {
				events = append(events, e)
			}
		}
	}
	slices.SortFunc(events, func(a, b Event) int { return cmp.Compare(a.ID, b.ID) })
	lost, sub.lost = sub.lost, Lost{}
	lost.More = sub.evicted.Swap(false) || lost.More
	return events, lost, more
}

// read copies the next events of a log up to that id, and says whether there are
// more of them.
func (sub *Subscription) read(l *log, limit uint64) (p part, rest bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.put - uint64(l.kept)
	from := sub.logs[l] // 0 for a log made after the subscription: all of it is new
	if from < first {
		sub.lost.Count += first - from
		from = first
	}
	p = part{log: l, from: from}
	for n := from; n < l.put; n++ {
		e := l.at(n)
		if e.ID > limit {
			break
		}
		if len(p.events) == batch {
			return p, true
		}
		p.events = append(p.events, *e)
	}
	return p, false
}

// present returns the logs that the subscription reads. Unread events of an evicted log
// count as lost.
func (sub *Subscription) present() []*log {
	var logs []*log
	if sub.filter.Principal == "" {
		logs = slices.Collect(maps.Values(*sub.stream.logs.Load()))
	} else {
		for class := range classes {
			l := sub.stream.log(sub.filter.Principal, class)
			if _, known := sub.logs[l]; !known && len(sub.logs) > 0 {
				l.subscribe(&sub.reader) // the log before was evicted; if this one is, the next read finds out
			}
			logs = append(logs, l)
		}
	}
	for l, read := range sub.logs {
		if slices.Contains(logs, l) {
			continue
		}
		l.mu.Lock()
		sub.lost.Count += l.put - read
		l.mu.Unlock()
		delete(sub.logs, l)
	}
	return logs
}
