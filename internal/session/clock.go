package session

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sandlot/internal/egress"
)

// Run takes over the sandboxes of an earlier server, puts idle sessions to sleep or stops them, ends those that reach
// the end of their life, removes old ones, measures workspaces, and stores counts, until ctx ends.
func (s *Sessions) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { s.runCountStore(ctx) }) // in a goroutine of its own, as sweep may wait for a sandbox
	work.Go(func() { s.runHistory(ctx) })
	work.Go(func() { s.runMeasure(ctx) })
	work.Go(func() { s.packImages(ctx, s.SweepInterval) })
	work.Go(func() { s.runEnds(ctx) })
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
	var unused []liveSession
	for _, session := range s.all() {
		c := session.current()
		since := now.Sub(c.rec.Used)
		switch {
		case c.hasSandbox() && since > s.IdleTimeout:
			unused = append(unused, liveSession{session: session})
		case c.hasSandbox():
			session.persistUse()
			session.tellReplaced(c.booted)
		case !c.rec.Home && since > s.Retention && !c.State.IsPaused():
			s.removeIfStopped(ctx, session, func(c current) bool {
				return now.Sub(c.rec.Used) > s.Retention && !c.State.IsPaused()
			}, fmt.Sprintf("nothing had used it for %s (workspace_retention)", s.Retention))
		}
	}
	s.restUnused(ctx, now, unused)
	s.limitImages(ctx, now)
}

// restUnused puts sessions to sleep, or stops them, if they are idle. A session that resists takes long: nobody's
// sessions keep those of others awake.
func (s *Sessions) restUnused(ctx context.Context, now time.Time, unused []liveSession) {
	var work errgroup.Group
	work.SetLimit(sleepAtOnce())
	for _, l := range inTurns(unused, liveSession.owner) {
		work.Go(func() error {
			if !l.session.busy(ctx) && now.Sub(l.session.record().Used) > s.IdleTimeout {
				s.sleepUnused(ctx, l.session, fmt.Sprintf("it was idle for %s", s.IdleTimeout))
			}
			return nil
		})
	}
	_ = work.Wait() // there are no errors
}

// sleepAtOnce is how many sessions are put to sleep at once.
func sleepAtOnce() int { return max(2, runtime.NumCPU()) }

// persistUse stores the time of the session's last use, unless the session is being started, ended or copied.
func (s *Session) persistUse() {
	_ = s.own(context.Background(), atOnce, func() error {
		s.updateOrLog("a session's last use", func(*Record) {})
		return nil
	})
}
