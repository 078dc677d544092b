// Package leftover owns the list of sandboxes that belong to no session, until they are removed.
package leftover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
)

// ID names a sandbox of an earlier server.
type ID struct{ Runtime, Sandbox string }

// Queue is the list.
type Queue struct {
	pool  *pool.Pool
	log   *slog.Logger
	added chan struct{}

	mu  sync.Mutex
	ids []ID
}

// New returns an empty list.
func New(p *pool.Pool, log *slog.Logger) *Queue {
	return &Queue{pool: p, log: log, added: make(chan struct{}, 1)}
}

// Find returns the sandboxes of an earlier server, of all runtimes. Away are the names of the runtimes that could not
// say.
func (q *Queue) Find(ctx context.Context) (found map[ID]bool, away map[string]bool, err error) {
	found, away = map[ID]bool{}, map[string]bool{}
	all := q.pool.Runtimes()
	for _, rt := range all {
		ids, err := rt.Leftovers(ctx)
		if err != nil && len(all) == 1 {
			return nil, nil, fmt.Errorf("looking for sandboxes: %w", err)
		}
		if err != nil {
			q.log.Error("a runtime does not say which of its sandboxes are left; its sessions wait for it", "runtime",
				rt.Name(), "error", err)
			away[rt.Name()] = true
		}
		for _, id := range ids {
			found[ID{rt.Name(), id}] = true
		}
	}
	return found, away, nil
}

// Recover takes over one sandbox of an earlier server.
func (q *Queue) Recover(ctx context.Context, id ID) (sandbox.Sandbox, error) {
	rt := q.pool.RuntimeNamed(id.Runtime)
	if rt == nil {
		return nil, fmt.Errorf("%w: its runtime %s is not among the setting runtimes", sandbox.ErrGone, id.Runtime)
	}
	return rt.Recover(ctx, id.Sandbox)
}

// End ends a sandbox that was to be stopped. If it has ended, the error is sandbox.ErrGone, as that of
// sandbox.Runtime.Recover.
func End(ctx context.Context, box sandbox.Sandbox) error {
	if st, err := box.Status(ctx); err == nil && st.State == sandbox.Dead {
		return errors.Join(sandbox.ErrGone, sandbox.ErrRemains)
	}
	if err := box.Stop(ctx); err != nil {
		return err
	}
	return sandbox.ErrGone
}

// Hold adds sandboxes for the next Remove.
func (q *Queue) Hold(ids []ID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ids = append(q.ids, ids...)
}

// Add adds sandboxes, and says so to whoever receives from Added.
func (q *Queue) Add(ids ...ID) {
	q.Hold(ids)
	select {
	case q.added <- struct{}{}:
	default:
	}
}

// Added receives after Add.
func (q *Queue) Added() <-chan struct{} { return q.added }

// removeTimeout is how long removing the sandboxes may take.
const removeTimeout = 20 * time.Second

// Remove removes the sandboxes without a session: those of an earlier server's pool, those that were booting when that
// server died, and those of sessions that were removed. It does so even if ctx has ended, as nobody will use them. A
// sandbox that cannot be removed stays in the list; if the server ends, the next one removes it.
func (q *Queue) Remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	q.mu.Lock()
	all := q.ids
	q.ids = nil
	q.mu.Unlock()
	_ = Each(ctx, all, func(ctx context.Context, id ID) error {
		box, err := q.Recover(ctx, id)
		if err == nil {
			err = box.Stop(ctx)
		}
		if err != nil && !sandbox.Removed(err) {
			q.log.Error("could not remove an unowned sandbox; it is tried again", "sandbox", id.Sandbox, "runtime",
				id.Runtime, "error", err)
			q.Add(id)
		}
		return nil
	})
}

// AtOnce is how many sandboxes are taken over at once. There are more than processors, as most of the time agents are
// awaited.
func AtOnce() int { return 4 * runtime.NumCPU() }

// Each calls do for each element of a list, several at a time, until ctx ends, and returns the first error.
func Each[T any](ctx context.Context, list []T, do func(context.Context, T) error) error {
	var work errgroup.Group
	work.SetLimit(AtOnce())
	for _, x := range list {
		if ctx.Err() != nil {
			break
		}
		work.Go(func() error { return do(ctx, x) })
	}
	return work.Wait()
}
