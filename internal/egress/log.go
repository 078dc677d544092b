package egress

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"sandlot/internal/event"
)

// reserveDelay takes one token of a limiter, and returns how long the caller must wait to keep its rate,
// at most a second.
func reserveDelay(l *rate.Limiter) time.Duration {
	r := l.Reserve()
	d := r.Delay()
	if d > time.Second {
		r.Cancel()
		return time.Second
	}
	return d
}

// logRate bounds the log lines per second about requests that failed.
const logRate = 10

// limitedLog logs the connections and failures of one sandbox. A sandbox can cause any number
// of failures, so their lines are limited by rate; lines about connections are not. A
// second after the first line that was left out, one line says how many were, by outcome, and an
// event for each operation and outcome has the Count.
// The mutex of the Outlet, mu, guards it.
type limitedLog struct {
	log     *slog.Logger
	events  *event.Stream
	owner   Owner
	mu      *sync.Mutex
	limiter *rate.Limiter
	omitted map[event.Event]uint64 // failures that were left out, by operation and outcome
	timer   *time.Timer            // calls flush; nil: nothing was left out
}

// summaryDelay is how long lines that are left out are counted before their number is logged.
const summaryDelay = time.Second

// publish publishes an event of one of the sandbox's requests.
func (l *limitedLog) publish(e event.Event) {
	e.Principal, e.Session = l.owner.Principal, l.owner.Session
	l.events.Publish(e)
}

// logFailure logs and publishes a failure, or counts it if there were too many.
func (l *limitedLog) logFailure(failed event.Event, args ...any) {
	if l.limiter.Allow() {
		l.log.Info("network: failed", args...)
		l.publish(failed)
		return
	}
	if l.omitted == nil {
		l.omitted = map[event.Event]uint64{}
	}
	l.omitted[event.Event{Kind: failed.Kind, Operation: failed.Operation, Outcome: failed.Outcome}]++
	if l.timer == nil {
		l.timer = time.AfterFunc(summaryDelay, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.flush()
		})
	}
}

// flush logs how many lines were left out, and publishes an event for each operation and outcome of them.
func (l *limitedLog) flush() {
	if l.timer == nil {
		return
	}
	l.timer.Stop()
	var lines uint64
	outcomes := map[string]uint64{}
	for e, n := range l.omitted {
		lines += n
		outcomes[e.Outcome] += n
		e.Count = n
		l.publish(e)
	}
	args := []any{"lines", lines}
	for _, outcome := range slices.Sorted(maps.Keys(outcomes)) {
		args = append(args, outcome, outcomes[outcome])
	}
	l.log.Info("network: lines left out", args...)
	l.timer, l.omitted = nil, nil
}
