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
	// memoryFloor is the lowest memory limit, in bytes.
	memoryFloor = 224 << 20
	// memoryInterval is the interval in which the limit is adapted to the memory in use.
	memoryInterval = time.Second
)

// boundMemory sets the Go runtime's memory limit to memoryFloor or, if that is more, to about twice the
// live heap, until ctx ends. Above the limit, the runtime returns free memory to the machine at once;
// without it, the buffers of large responses would stay allocated for minutes. A limit too close to the
// live heap would make the garbage collector run all the time, so the limit is adapted to the heap. If
// the operator has set GOMEMLIMIT, that limit stays.
func boundMemory(ctx context.Context) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	heapLive := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	limit := int64(math.MaxInt64)
	tick := time.NewTicker(memoryInterval)
	defer tick.Stop()
	for {
		metrics.Read(heapLive)
		newLimit := memoryFloor + max(0, 2*int64(heapLive[0].Value.Uint64())-memoryFloor*3/4)
		if newLimit > limit || newLimit < limit*3/4 { // a change stops all goroutines for a moment
			limit = newLimit
			debug.SetMemoryLimit(limit)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
