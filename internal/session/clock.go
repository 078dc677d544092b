package session

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Run takes over what an earlier server left, looks at the clocks, and stores
// what sessions moved, until ctx ends.
func (b *Sessions) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { b.keepTraffic(ctx) }) // no sandbox that is slow to answer keeps it waiting
	work.Go(func() { b.adoptAll(ctx) })
	work.Go(func() { b.endUnowned(ctx) })
	defer work.Wait()
	tick := time.NewTicker(b.Sweep)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b.sweep(ctx, time.Now())
		case <-ctx.Done():
			return
		}
	}
}

func (b *Sessions) sweep(ctx context.Context, now time.Time) {
	for _, s := range b.all() {
		r := s.record()
		switch {
		case s.live() && now.Sub(r.Used) > b.Idle:
			if !s.busy(ctx) && now.Sub(s.record().Used) > b.Idle {
				b.expire(ctx, s, fmt.Sprintf("it was idle for %s", b.Idle))
			}
		case s.live():
			s.persistUse(ctx)
		case !r.Home && now.Sub(r.Used) > b.Retention:
			b.lapse(ctx, s)
		}
	}
}

// persistUse stores when the session was used last.
func (s *Session) persistUse(ctx context.Context) {
	if err := s.acquire(ctx); err != nil {
		return
	}
	defer s.release()
	if s.gone() {
		return
	}
	if err := s.update(func(*Record) {}); err != nil {
		s.sessions.Log.Error("could not store a session's last use", "session", s.record().ID, "error", err)
	}
}
