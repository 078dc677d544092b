package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sandlot/internal/egress"
)

// Run takes over the sandboxes of an earlier server, puts idle sessions to sleep or stops them, removes old ones,
// measures workspaces, and stores counts, until ctx ends.
func (s *Sessions) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { s.runCountStore(ctx) }) // in a goroutine of its own, as sweep may wait for a sandbox
	work.Go(func() { s.runMeasure(ctx) })
	work.Go(func() { s.images().Run(ctx, s.SweepInterval) })
	work.Go(func() { s.adoptAll(ctx) })
	work.Go(func() { s.endUnowned(ctx) })
	defer work.Wait()
	tick := time.NewTicker(s.SweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.sweep(ctx, time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// sweep puts idle sessions to sleep, or stops them, and removes stopped ones after their retention, and the traffic of
// days that are over.
func (s *Sessions) sweep(ctx context.Context, now time.Time) {
	if today := egress.Today(); today != s.removedDays {
		if err := s.Store.RemoveDays(ctx, today); err != nil {
			s.Log.Error("could not remove the traffic of days that are over; it is tried again", "error", err)
		} else {
			s.removedDays = today
		}
	}
	for _, session := range s.all() {
		c := session.current()
		unused := now.Sub(c.rec.Used)
		switch {
		case c.hasSandbox() && unused > s.IdleTimeout:
			if !session.busy(ctx) && now.Sub(session.record().Used) > s.IdleTimeout {
				s.sleepUnused(ctx, session, fmt.Sprintf("it was idle for %s", s.IdleTimeout))
			}
		case c.hasSandbox():
			session.persistUse(ctx)
		case !c.rec.Home && unused > s.Retention:
			s.removeIfStopped(ctx, session)
		}
	}
	s.images().Limit(ctx, now)
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
