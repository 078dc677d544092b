package guest

import (
	"context"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
)

// renewInterpreters gives the interpreters of a copy other random numbers than those of the original.
func (a *Agent) renewInterpreters(ctx context.Context) error {
	a.mu.Lock()
	all := slices.Collect(maps.Values(a.interps))
	a.mu.Unlock()
	var work errgroup.Group
	for _, i := range all {
		work.Go(func() error { return i.Renew(ctx) })
	}
	return work.Wait()
}
