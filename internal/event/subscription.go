package event

import (
	"cmp"
	"context"
	"maps"
	"slices"
)

// Filter selects events.
type Filter struct {
	// Principal selects the events of one principal; empty: of all principals, which only
	// operators may read.
	Principal string
	Kinds     []Kind // empty: all
	Session   string // empty: all events, with or without a session
}

func (f *Filter) matches(e *Event) bool {
	return (len(f.Kinds) == 0 || slices.Contains(f.Kinds, e.Kind)) && (f.Session == "" || f.Session == e.Session)
}

// Lost counts the events that a subscription lost because it did not read them in time. It
// counts events of all kinds, also those that the filter does not select.
type Lost struct {
	Count uint64
	// Unknown: an unknown number of events was lost in addition to Count.
	Unknown bool
}

// Any reports whether events were lost.
func (l Lost) Any() bool { return l.Count > 0 || l.Unknown }

// Subscription is one reader's position in the stream. Only one goroutine may use it at a
// time.
type Subscription struct {
	reader
	stream *Stream
	filter Filter
	read   map[*log]uint64 // how many of a log's events, since its beginning, were read
	lost   Lost
}

// Subscribe returns a subscription to the events after the one with the id since; 0 means
// from the oldest stored event on. Close ends it.
func (s *Stream) Subscribe(f Filter, since uint64) *Subscription {
	sub := &Subscription{reader: reader{wakeup: make(chan struct{}, 1)}, stream: s, filter: f, read: map[*log]uint64{}}
	s.subscribe(&sub.reader, f.Principal)
	for _, l := range sub.currentLogs() {
		l.mu.Lock()
		n := l.added - uint64(l.stored)
		for n < l.added && l.event(n).ID <= since {
			n++
		}
		sub.read[l] = n
		sub.lost.Unknown = sub.lost.Unknown || since > 0 && l.lastDropped > since
		l.mu.Unlock()
	}
	return sub
}

// Newest returns the id of the newest event. Subscribe with it to get only later events.
func (s *Stream) Newest() uint64 { return s.lastID.Load() }

// MarkLost makes the next read report that an unknown number of events was lost.
func (sub *Subscription) MarkLost() { sub.lost.Unknown = true }

// Close ends the subscription.
func (sub *Subscription) Close() { sub.stream.unsubscribe(&sub.reader, sub.filter.Principal) }

// Next returns the next events, in the order of their ids, and how many were lost before
// them. It waits until there is something to return, ctx ends, or the stream is closed.
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
		case <-sub.wakeup:
		case <-sub.stream.closed:
			return nil, Lost{}, ErrClosed
		case <-ctx.Done():
			return nil, Lost{}, context.Cause(ctx)
		}
	}
}

// batchSize is how many events of one log are read at once.
const batchSize = 64

// logBatch is the events that were read from one log.
type logBatch struct {
	log    *log
	first  uint64 // number of the first event, counted from the log's beginning
	events []Event
}

// Read returns the next events without waiting, at most batchSize of each log, and whether
// there are more.
func (sub *Subscription) Read() (events []Event, lost Lost, more bool) {
	// An event gets its id under its log's lock. So all events with ids up to this one are in
	// their logs as soon as we can lock them.
	limit := sub.stream.lastID.Load()
	var batches []logBatch
	for _, l := range sub.currentLogs() {
		p, rest := sub.readLog(l, limit)
		if rest { // to keep the order, later events of the other logs wait for the next Read
			limit, more = p.events[len(p.events)-1].ID, true
		}
		batches = append(batches, p)
	}
	for _, p := range batches {
		n := 0
		for n < len(p.events) && p.events[n].ID <= limit {
			n++
		}
		sub.read[p.log] = p.first + uint64(n)
		for _, e := range p.events[:n] {
			if sub.filter.matches(&e) {
				events = append(events, e)
			}
		}
	}
	slices.SortFunc(events, func(a, b Event) int { return cmp.Compare(a.ID, b.ID) })
	lost, sub.lost = sub.lost, Lost{}
	lost.Unknown = sub.evicted.Swap(false) || lost.Unknown
	return events, lost, more
}

// readLog copies the next events of a log with ids up to limit. It also returns whether
// there are more of these.
func (sub *Subscription) readLog(l *log, limit uint64) (p logBatch, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.added - uint64(l.stored)
	from := sub.read[l] // 0 for a log that is newer than the subscription: nothing of it was read
	if from < first {
		sub.lost.Count += first - from
		from = first
	}
	p = logBatch{log: l, first: from}
	for n := from; n < l.added; n++ {
		e := l.event(n)
		if e.ID > limit {
			break
		}
		if len(p.events) == batchSize {
			return p, true
		}
		p.events = append(p.events, *e)
	}
	return p, false
}

// currentLogs returns the logs that the subscription reads. The unread events of an evicted
// log are counted as lost.
func (sub *Subscription) currentLogs() []*log {
	var logs []*log
	if sub.filter.Principal == "" {
		logs = slices.Collect(maps.Values(*sub.stream.logs.Load()))
	} else {
		for class := range numClasses {
			l := sub.stream.log(sub.filter.Principal, class)
			if _, known := sub.read[l]; !known && len(sub.read) > 0 {
				l.subscribe(&sub.reader) // it replaces an evicted log; if it is evicted too, the next call notices
			}
			logs = append(logs, l)
		}
	}
	for l, read := range sub.read {
		if slices.Contains(logs, l) {
			continue
		}
		l.mu.Lock()
		sub.lost.Count += l.added - read
		l.mu.Unlock()
		delete(sub.read, l)
	}
	return logs
}
