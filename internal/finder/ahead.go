package finder

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

const (
	// maxAhead is how many indexes are made at once in the background.
	maxAhead = 2
	// delay is how long a change waits for those that follow at once, and rest how many times as long as an index took
	// nothing is made after it: what servers offer may change all the time, and be large.
	delay, rest = 50 * time.Millisecond, 4
)

// ahead makes indexes in the background, before they are searched.
type ahead struct {
	log   *slog.Logger
	index func(auth.Principal)
	stop  chan struct{}
	work  sync.WaitGroup

	mu      sync.Mutex
	waiting map[string]auth.Principal // by their ids; at most maxIndexes
	workers int
	closed  bool
}

// add has a principal's index made. It returns at once.
func (a *ahead) add(p auth.Principal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.waiting[p.ID]; ok || a.closed || len(a.waiting) >= maxIndexes {
		return
	}
	a.waiting[p.ID] = p
	if a.workers < maxAhead {
		a.workers++
		a.work.Go(a.run)
	}
}

// run makes indexes until nobody waits.
func (a *ahead) run() {
	for pause := delay; ; {
		select {
		case <-time.After(pause):
		case <-a.stop:
		}
		p, ok := a.next()
		if !ok {
			return
		}
		began := time.Now()
		a.one(p)
		pause = max(delay, rest*time.Since(began))
	}
}

// next returns a principal that waits. Without one, the worker has to end.
func (a *ahead) next() (p auth.Principal, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		for id, p := range a.waiting {
			delete(a.waiting, id)
			return p, true
		}
	}
	a.workers--
	return p, false
}

func (a *ahead) one(p auth.Principal) {
	var err error // it is logged
	defer fault.Recover(context.Background(), a.log, "making an index of tools", &err)
	a.index(p)
}

// close waits for what is being made. It can be called twice.
func (a *ahead) close() {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.stop)
	}
	a.mu.Unlock()
	a.work.Wait()
}
