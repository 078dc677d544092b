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

// wait takes one event of a limiter in any case, and returns how long to wait so that
// its rate is kept: a second at most.
func wait(l *rate.Limiter) time.Duration {
	r := l.Reserve()
	d := r.Delay()
	if d > time.Second {
		r.Cancel()
		return time.Second
	}
	return d
}

// logRate bounds the lines about what did not become a connection.
const logRate = 10

// limitedLog writes one sandbox's lines. Lines about failures, of which a sandbox can make
// any number, have a limit of their own, so that they hide no connection; a second later
// one line says how many were left out, by verdict. The lock of the Outlet, mu, guards it.
type limitedLog struct {
	log     *slog.Logger
	events  *event.Stream
	owner   Owner
	mu      *sync.Mutex
	lines   *rate.Limiter
	omitted map[string]int // by verdict
	timer   *time.Timer    // calls flush; nil: nothing was left out
}

// summary is how long lines that are left out are counted before they are logged.
const summary = time.Second

// publish makes an event of what happened to one of the sandbox's requests.
func (l *limitedLog) publish(e event.Event) {
	e.Principal, e.Session = l.owner.Principal, l.owner.Session
	l.events.Publish(e)
}

func (l *limitedLog) failure(failed event.Event, args ...any) {
	verdict := failed.Outcome
	if l.lines.Allow() {
		l.log.Info("network: failed", args...)
		l.publish(failed)
		return
	}
	if l.omitted == nil {
		l.omitted = map[string]int{}
	}
	l.omitted[verdict]++
	if l.timer == nil {
		l.timer = time.AfterFunc(summary, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.flush()
		})
	}
}

func (l *limitedLog) flush() {
	if l.timer == nil {
		return
	}
	l.timer.Stop()
	lines := 0
	var args []any
	for _, v := range slices.Sorted(maps.Keys(l.omitted)) {
		lines += l.omitted[v]
		args = append(args, v, l.omitted[v])
	}
	l.log.Info("network: lines left out", append([]any{"lines", lines}, args...)...)
	l.timer, l.omitted = nil, nil
}
