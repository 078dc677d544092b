package session

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

// boxID names a sandbox of an earlier server.
type boxID struct{ Runtime, Sandbox string }

// leftovers is the list of the sandboxes that belong to no session, until they are removed.
type leftovers struct {
	pool  *pool.Pool
	log   *slog.Logger
	added chan struct{} // receives after add

	mu  sync.Mutex
	ids []boxID
}

func newLeftovers(p *pool.Pool, log *slog.Logger) *leftovers {
	return &leftovers{pool: p, log: log, added: make(chan struct{}, 1)}
}

// find returns the sandboxes of an earlier server, of all runtimes. Away are the names of the runtimes that could not
// say.
func (q *leftovers) find(ctx context.Context) (found map[boxID]bool, away map[string]bool, err error) {
	found, away = map[boxID]bool{}, map[string]bool{}
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
			found[boxID{rt.Name(), id}] = true
		}
	}
	return found, away, nil
}

// recover takes over one sandbox of an earlier server.
func (q *leftovers) recover(ctx context.Context, id boxID) (sandbox.Sandbox, error) {
	rt := q.pool.RuntimeNamed(id.Runtime)
	if rt == nil {
		return nil, fmt.Errorf("%w: its runtime %s is not among the setting runtimes", sandbox.ErrGone, id.Runtime)
	}
	return rt.Recover(ctx, id.Sandbox)
}

// endBox ends a sandbox that was to be stopped. If it has ended, the error is sandbox.ErrGone, as that of
// sandbox.Runtime.Recover.
func endBox(ctx context.Context, box sandbox.Sandbox) error {
	if st, err := box.Status(ctx); err == nil && st.State == sandbox.Dead {
		return errors.Join(sandbox.ErrGone, sandbox.ErrRemains)
	}
	if err := box.Stop(ctx); err != nil {
		return err
	}
	return sandbox.ErrGone
}

// hold adds sandboxes for the next remove.
func (q *leftovers) hold(ids []boxID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ids = append(q.ids, ids...)
}

// add adds sandboxes, and says so to whoever receives from added.
func (q *leftovers) add(ids ...boxID) {
	q.hold(ids)
	select {
	case q.added <- struct{}{}:
	default:
	}
}

// removeTimeout is how long removing the sandboxes may take.
const removeTimeout = 20 * time.Second

// remove removes the sandboxes without a session: those of an earlier server's pool, those that were booting when that
// server died, and those of sessions that were removed. It does so even if ctx has ended, as nobody will use them. A
// sandbox that cannot be removed stays in the list; if the server ends, the next one removes it.
func (q *leftovers) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	q.mu.Lock()
	all := q.ids
	q.ids = nil
	q.mu.Unlock()
	_ = each(ctx, all, func(ctx context.Context, id boxID) error {
		box, err := q.recover(ctx, id)
		if err == nil {
			err = box.Stop(ctx)
		}
		if err != nil && !sandbox.Removed(err) {
			q.log.Error("could not remove an unowned sandbox; it is tried again", "sandbox", id.Sandbox, "runtime",
				id.Runtime, "error", err)
			q.add(id)
		}
		return nil
	})
}

// adoptedAtOnce is how many sandboxes are taken over at once. There are more than processors, as most of the time agents are
// awaited.
func adoptedAtOnce() int { return 4 * runtime.NumCPU() }

// each calls do for each element of a list, several at a time, until ctx ends, and returns the first error.
func each[T any](ctx context.Context, list []T, do func(context.Context, T) error) error {
	var work errgroup.Group
	work.SetLimit(adoptedAtOnce())
	for _, x := range list {
		if ctx.Err() != nil {
			break
		}
		work.Go(func() error { return do(ctx, x) })
	}
	return work.Wait()
}
