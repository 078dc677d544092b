package audit

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"sandlot/internal/event"
)

// Store stores rows.
type Store interface {
	// OpenEvents returns what the previous server left. Until CloseEvents, a crash is assumed.
	OpenEvents(ctx context.Context) (Previous, error)
	// AppendEvents links the rows to their chains and stores them: all or none. It skips those that are stored
	// already. Its error is ErrRefused if the store works, but does not store one of them.
	AppendEvents(ctx context.Context, rows []Row) error
	// OldEvents returns which rows of each chain are to be removed: the oldest, which are older than before, and those
	// above the number keep. It waits until there are some at a time.
	OldEvents(ctx context.Context, before time.Time, keep int) ([]Pruning, error)
	// PruneEvents removes these rows, some at a time. It returns whether there are more to remove.
	PruneEvents(ctx context.Context, p Pruning) (more bool, err error)
	// CloseEvents stores the last id that was given to an event.
	CloseEvents(ctx context.Context, lastID uint64) error
	// Events returns the first rows that the query selects, in the order of their ids.
	Events(ctx context.Context, q Query) ([]Row, error)
	// BeforeNewest returns the id after which the query selects as many rows as its limit.
	BeforeNewest(ctx context.Context, q Query) (uint64, error)
	// EventRange returns the ids of the newest event that was pruned, and of the newest stored one.
	EventRange(ctx context.Context) (pruned, newest uint64, err error)
}

// ErrRefused is the error of Store.AppendEvents if it will not store a row later either.
var ErrRefused = errors.New("the store refuses an event")

// Previous is what the previous server left.
type Previous struct {
	Epoch   string // random, made with the database
	LastID  uint64 // of the newest event
	Crashed bool   // the server did not call CloseEvents: newer events may have been shown, but not stored
}

// Query selects stored events.
type Query struct {
	Filter event.Filter
	After  uint64    // only events with greater ids
	Since  time.Time // only events since then; zero: all
	Limit  int       // how many rows are returned at most
}

// Config configures a Recorder.
type Config struct {
	Store Store
	// Keep is the number of events of each chain, and KeepFor the age of events, that stay stored; 0: any.
	Keep    int
	KeepFor time.Duration
	// PruneInterval is the time between two searches for old events; 0: a minute.
	PruneInterval time.Duration
	// File also gets all events as lines; nil: there is none.
	File *File
	Log  *slog.Logger
}

// Bounds and intervals of the recorder.
const (
	// maxQueue events wait for the store at most: more are lost. They take less than 8 MB.
	maxQueue = 16384
	// batchSize events are stored at once.
	batchSize = 256
	// flushDelay is how long an event waits for others to be stored with. With a store that works,
	// an event is stored within a second.
	flushDelay = 250 * time.Millisecond
	// retryDelay is the time between two attempts to store.
	retryDelay = time.Second
	// pruneInterval is the time between two searches for old events.
	pruneInterval = time.Minute
	// closeTimeout bounds the storing of the last events, when the store does not work.
	closeTimeout = 5 * time.Second
	// crashGap is how many ids are left out after a crash, for events that were shown, but not stored.
	crashGap = 1 << 20
)

// Recorder stores the events of a stream. Events are queued, and never wait for the store.
type Recorder struct {
	Config
	stream *event.Stream

	mu     sync.Mutex // guards what follows
	queue  []event.Event
	lost   uint64 // events that were not stored, and not yet reported
	total  uint64 // events that were ever lost
	stored uint64 // rows that were ever stored
	lastID uint64 // of the newest event

	wake    chan struct{}
	flushes chan chan struct{}
	failing bool // the latest attempt to store has failed; only Run uses it
}

// New returns the recorder of a stream. The stream must have no events yet. Run stores them.
func New(ctx context.Context, c Config, s *event.Stream) (*Recorder, error) {
	r := &Recorder{Config: c, stream: s, wake: make(chan struct{}, 1), flushes: make(chan chan struct{})}
	previous, err := c.Store.OpenEvents(ctx)
	if err != nil {
		return nil, err
	}
	outcome := event.OK
	r.lastID = previous.LastID
	if previous.Crashed {
		outcome = event.AfterCrash
		r.lastID += crashGap
	}
	s.RecordTo(r.add, previous.Epoch, r.lastID)
	s.Publish(event.Event{Kind: event.Server, Principal: event.ServerPrincipal, Operation: event.ServerStarted,
		Outcome: outcome})
	return r, nil
}

// add queues an event. It does not wait.
func (r *Recorder) add(e event.Event) {
	r.mu.Lock()
	r.lastID = e.ID
	n := len(r.queue)
	switch {
	case n < maxQueue:
		r.queue = append(r.queue, e)
	case e.Operation == event.EventsLost:
		r.lost += e.Count // reported later
	default:
		r.lost++
		r.total++
	}
	r.mu.Unlock()
	if n == 0 || n == batchSize {
		select {
		case r.wake <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}

// Stats counts what happened to events.
type Stats struct {
	Stored, Lost uint64
	Waiting      int
}

// Stats returns the numbers since the start.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Stats{r.stored, r.total, len(r.queue)}
}

// Run stores events until ctx ends, and then those that wait.
func (r *Recorder) Run(ctx context.Context) {
	prune := time.NewTicker(cmp.Or(r.PruneInterval, pruneInterval))
	defer prune.Stop()
	for {
		var retry <-chan time.Time
		if r.failing {
			retry = time.After(retryDelay)
		}
		select {
		case <-ctx.Done():
			r.finish()
			return
		case <-prune.C:
			r.prune(ctx)
		case <-retry:
			r.store(context.WithoutCancel(ctx))
		case done := <-r.flushes:
			r.store(context.WithoutCancel(ctx))
			close(done)
		case <-r.wake:
			if !r.failing {
				r.gather(ctx)
				r.store(context.WithoutCancel(ctx))
			}
		}
	}
}

// gather waits for more events to store with the first one.
func (r *Recorder) gather(ctx context.Context) {
	timer := time.NewTimer(flushDelay)
	defer timer.Stop()
	for r.Stats().Waiting < batchSize {
		select {
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		case done := <-r.flushes:
			r.store(context.WithoutCancel(ctx))
			close(done)
			return
		case <-r.wake:
		}
	}
}

// Flush waits until the events that were published before are stored. If the store does not work, it
// returns after an attempt.
func (r *Recorder) Flush(ctx context.Context) {
	done := make(chan struct{})
	select {
	case r.flushes <- done:
		select {
		case <-done:
		case <-ctx.Done():
		}
	case <-ctx.Done():
	case <-time.After(retryDelay): // Run has ended, or the store hangs
	}
}

// storeTimeout bounds one attempt to store. The database waits 10 seconds for a lock.
const storeTimeout = 30 * time.Second

// store stores the queued events. On an error the rest stays in the queue.
func (r *Recorder) store(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	for {
		r.reportLost()
		r.mu.Lock()
		batch := r.queue[:min(len(r.queue), batchSize)]
		full := len(r.queue) >= maxQueue
		r.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		rows := make([]Row, 0, len(batch))
		for _, e := range batch { // nobody changes queued events
			if row, err := NewRow(e); err == nil { // an event has no value that is not valid in JSON
				rows = append(rows, row)
			}
		}
		done, refused, err := r.append(ctx, rows)
		if err != nil && !r.failing {
			r.Log.Error("events cannot be stored; they wait, and when too many wait, they are lost", "error", err)
		}
		if err == nil && r.failing {
			r.Log.Info("events are stored again")
		}
		r.failing = err != nil
		if r.File != nil && (err != nil || refused > 0) {
			r.File.current = false // rows that are stored already have no hashes here
		}
		if err != nil {
			r.remove(done, refused)
			if full { // make room, so that newer events are not the ones that are missing
				r.remove(len(batch)-done, len(batch)-done)
			}
			return
		}
		r.remove(len(batch), refused)
		if r.File != nil {
			r.File.add(ctx, r.Store, rows)
		}
	}
}

// append stores rows: if the store refuses one, singly, so that the others are stored. It returns how many rows it is
// done with, and how many of these were refused.
func (r *Recorder) append(ctx context.Context, rows []Row) (done, refused int, err error) {
	if err := r.Store.AppendEvents(ctx, rows); !errors.Is(err, ErrRefused) {
		return 0, 0, err
	}
	for i := range rows {
		err := r.Store.AppendEvents(ctx, rows[i:i+1])
		switch {
		case errors.Is(err, ErrRefused):
			r.Log.Error("an event cannot be stored, and is lost", "id", rows[i].ID, "error", err)
			refused++
		case err != nil:
			return i, refused, err
		}
	}
	return len(rows), refused, nil
}

// remove takes the first n events off the queue. Of these, lost are lost, and the others are stored.
func (r *Recorder) remove(n, lost int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stored += uint64(n - lost)
	r.lost += uint64(lost)
	r.total += uint64(lost)
	clear(r.queue[:n])
	if r.queue = r.queue[n:]; len(r.queue) == 0 {
		r.queue = nil
	}
}

// reportLost publishes how many events were lost, once the queue has room for that event.
func (r *Recorder) reportLost() {
	r.mu.Lock()
	lost := r.lost
	if len(r.queue) >= maxQueue {
		lost = 0
	}
	r.lost -= lost
	r.mu.Unlock()
	if lost > 0 {
		r.Log.Warn("events were lost", "count", lost)
		r.stream.Publish(event.Event{Kind: event.Server, Principal: event.ServerPrincipal,
			Operation: event.EventsLost, Outcome: event.Error, Count: lost})
	}
}

// prune removes old events from the store. Each removal is an event first: a chain whose beginning was cut off
// otherwise has none.
func (r *Recorder) prune(ctx context.Context) {
	var before time.Time
	if r.KeepFor > 0 {
		before = time.Now().Add(-r.KeepFor)
	}
	old, err := r.Store.OldEvents(ctx, before, r.Keep)
	for _, p := range old {
		if err == nil {
			r.stream.Publish(p.event())
			r.store(context.WithoutCancel(ctx))
		}
		if r.failing { // the event is not stored
			return
		}
		for more := err == nil; more && err == nil; {
			if more, err = r.Store.PruneEvents(ctx, p); more {
				r.store(context.WithoutCancel(ctx)) // new events must not wait for long
			}
		}
	}
	if err != nil && ctx.Err() == nil {
		r.Log.Error("old events cannot be removed", "error", err)
	}
}

// finish stores the last events.
func (r *Recorder) finish() {
	if r.File != nil {
		defer r.File.close()
	}
	r.stream.Publish(event.Event{Kind: event.Server, Principal: event.ServerPrincipal, Operation: event.ServerStopped,
		Outcome: event.OK})
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	r.store(ctx)
	if n := r.Stats().Waiting; n > 0 {
		r.Log.Error("events are lost, because the store does not work and the server stops", "count", n)
		return
	}
	r.mu.Lock()
	last := r.lastID
	r.mu.Unlock()
	if err := r.Store.CloseEvents(ctx, last); err != nil {
		r.Log.Error("the end of the events cannot be stored", "error", err)
	}
}
