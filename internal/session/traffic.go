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
func (s *Sessions) runTrafficStore(ctx context.Context) {
	tick := time.NewTicker(trafficInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.storeTraffic(context.WithoutCancel(ctx))
		case <-ctx.Done():
			return
		}
	}
}

// storeTraffic stores the traffic that has changed, in one write. If that fails, the next
// call stores it.
func (s *Sessions) storeTraffic(ctx context.Context) {
	s.traffic.Lock()
	defer s.traffic.Unlock()
	changed := map[string]egress.Traffic{}
	all := s.all()
	for _, session := range all {
		if t := session.meter.Traffic(); t != session.stored {
			changed[session.record().ID] = t
		}
	}
	if len(changed) == 0 {
		return
	}
	if err := s.Store.PutTraffic(ctx, changed); err != nil {
		s.Log.Error("could not store what sessions moved over the network", "error", err)
		return
	}
	for _, session := range all {
		if t, ok := changed[session.record().ID]; ok {
			session.stored = t
		}
	}
}

// ResetTraffic sets a session's traffic to zero, first in the store, so that the session may
// transfer as much as a new one. Only operators may call it.
func (s *Sessions) ResetTraffic(ctx context.Context, p auth.Principal, id string) (Network, error) {
	session, err := s.findAny(p, id)
	if err != nil {
		return Network{}, err
	}
	id = session.record().ID
	s.traffic.Lock()
	defer s.traffic.Unlock()
	if err := s.Store.PutTraffic(ctx, map[string]egress.Traffic{id: {}}); err != nil {
		return Network{}, err
	}
	session.meter.Reset()
	session.stored = egress.Traffic{}
	return s.Network(p, id)
}

// maxBytes is how much a session may transfer; 0: no limit.
func (s *Sessions) maxBytes() int64 {
	if s.Egress == nil {
		return 0
	}
	return s.Egress.MaxBytes()
}
