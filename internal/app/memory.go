package app

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// memoryFloor is what the server may have at any time without a reason, in bytes.
	memoryFloor = 224 << 20
	// memoryInterval is how often the limit follows what is in use.
	memoryInterval = time.Second
)

// boundMemory has the runtime give memory that is free back to the machine at once
// above memoryFloor, or twice of what is in use. Otherwise the buffers of large answers
// that are gone stay for minutes, in addition to those that are there. A limit that is
// too near to what is in use would have the collector run all the time, so it follows.
// GOMEMLIMIT in the environment is the operator's, and stays.
func boundMemory(ctx context.Context) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	limit := int64(math.MaxInt64)
	tick := time.NewTicker(memoryInterval)
	defer tick.Stop()
	for {
		metrics.Read(live)
		want := memoryFloor + max(0, 2*int64(live[0].Value.Uint64())-memoryFloor*3/4)
		if want > limit || want < limit*3/4 { // to change it stops everything for a moment
			limit = want
			debug.SetMemoryLimit(limit)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
