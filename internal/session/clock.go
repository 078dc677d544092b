package session

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Run takes over the sandboxes of an earlier server, stops idle sessions, removes old ones,
// and stores sessions' traffic, until ctx ends.
func (b *Sessions) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { b.runTrafficStore(ctx) }) // in a goroutine of its own, as sweep may wait for a sandbox
	work.Go(func() { b.adoptAll(ctx) })
	work.Go(func() { b.endUnowned(ctx) })
	defer work.Wait()
	tick := time.NewTicker(b.SweepInterval)
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

// sweep stops idle sessions and removes stopped ones after their retention.
func (b *Sessions) sweep(ctx context.Context, now time.Time) {
	for _, s := range b.all() {
		c := s.current()
		unused := now.Sub(c.rec.Used)
		switch {
		case c.hasSandbox() && unused > b.IdleTimeout:
			if !s.busy(ctx) && now.Sub(s.record().Used) > b.IdleTimeout {
				b.stopUnused(ctx, s, fmt.Sprintf("it was idle for %s", b.IdleTimeout))
			}
		case c.hasSandbox():
			s.persistUse(ctx)
		case !c.rec.Home && unused > b.Retention:
			b.removeIfStopped(ctx, s)
		}
	}
}

// persistUse stores the time of the session's last use.
func (s *Session) persistUse(ctx context.Context) {
	if err := s.acquire(ctx); err != nil {
		return
	}
	defer s.release()
	if !s.current().removed {
		s.updateOrLog("a session's last use", func(*Record) {})
	}
}
