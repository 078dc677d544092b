package session

import (
	"context"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
)

// trafficInterval is how often traffic is stored. A server that is killed loses at most the
// traffic of one interval from the count.
const trafficInterval = 2 * time.Second

// runTrafficStore stores the sessions' traffic at each interval until ctx ends.
func (b *Sessions) runTrafficStore(ctx context.Context) {
	tick := time.NewTicker(trafficInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b.storeTraffic(context.WithoutCancel(ctx))
		case <-ctx.Done():
			return
		}
	}
}

// storeTraffic stores the traffic that has changed, in one write. If that fails, the next
// call stores it.
func (b *Sessions) storeTraffic(ctx context.Context) {
	b.traffic.Lock()
	defer b.traffic.Unlock()
	changed := map[string]egress.Traffic{}
	all := b.all()
	for _, s := range all {
		if t := s.meter.Traffic(); t != s.stored {
			changed[s.record().ID] = t
		}
	}
	if len(changed) == 0 {
		return
	}
	if err := b.Store.PutTraffic(ctx, changed); err != nil {
		b.Log.Error("could not store what sessions moved over the network", "error", err)
		return
	}
	for _, s := range all {
		if t, ok := changed[s.record().ID]; ok {
			s.stored = t
		}
	}
}

// ResetTraffic sets a session's traffic to zero, first in the store, so that the session may
// transfer as much as a new one. Only operators may call it.
func (b *Sessions) ResetTraffic(ctx context.Context, p auth.Principal, id string) (Network, error) {
	s, err := b.findAny(p, id)
	if err != nil {
		return Network{}, err
	}
	id = s.record().ID
	b.traffic.Lock()
	defer b.traffic.Unlock()
	if err := b.Store.PutTraffic(ctx, map[string]egress.Traffic{id: {}}); err != nil {
		return Network{}, err
	}
	s.meter.Reset()
	s.stored = egress.Traffic{}
	return b.Network(p, id)
}

// maxBytes is how much a session may transfer; 0: no limit.
func (b *Sessions) maxBytes() int64 {
	if b.Egress == nil {
		return 0
	}
	return b.Egress.MaxBytes()
}
