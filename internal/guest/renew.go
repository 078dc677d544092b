package guest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
)

// renewInterpreters gives the interpreters of a copy other random numbers than the original's.
func (a *Agent) renewInterpreters(ctx context.Context) error {
	a.mu.Lock()
	all := slices.Collect(maps.Values(a.interps))
	a.mu.Unlock()
	errs := make([]error, len(all))
	var work sync.WaitGroup
	for n, i := range all {
		work.Go(func() { errs[n] = i.Renew(ctx) })
	}
	work.Wait()
	return errors.Join(errs...)
}
