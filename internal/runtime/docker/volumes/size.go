package volumes

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/moby/moby/client"
)

// sizeFactor is how many times as long as the last measuring took the sizes are good.
const sizeFactor = 20

// Sizes has the sizes of all volumes of a daemon, as the daemon measures them. It asks for them once in a while, for
// all who want to know.
type Sizes struct {
	Daemon   *client.Client
	Interval time.Duration // how long the sizes are good at least

	mu     sync.Mutex
	sizes  map[string]int64
	err    error
	asked  time.Time // when the daemon was asked last
	oldest time.Time // the time from which on the daemon is to be asked again
}

// Get returns the sizes in bytes by the volumes' names, and when the daemon began to measure them. A volume that the
// daemon has not measured is missing. The map must not be changed.
func (s *Sizes) Get(ctx context.Context) (sizes map[string]int64, at time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.asked.IsZero() || !now.Before(s.oldest) {
		s.asked = now
		s.sizes, s.err = s.measure(ctx)
		s.oldest = time.Now().Add(max(s.Interval, sizeFactor*time.Since(now)))
	}
	return s.sizes, s.asked, s.err
}

func (s *Sizes) measure(ctx context.Context) (map[string]int64, error) {
	used, err := s.Daemon.DiskUsage(ctx, client.DiskUsageOptions{Volumes: true, Verbose: true})
	if err != nil {
		return nil, fmt.Errorf("asking the Docker daemon for the sizes of volumes: %w", err)
	}
	sizes := map[string]int64{}
	for _, v := range used.Volumes.Items {
		if v.UsageData != nil && v.UsageData.Size >= 0 {
			sizes[v.Name] = v.UsageData.Size
		}
	}
	return sizes, nil
}
