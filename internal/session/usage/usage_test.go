package usage

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/quota"
)

// held has what a test says.
type held struct {
	bounds Bounds
	own    Amount
	memory int
	disk   int64
	free   int64
	broken error
	idle   atomic.Int32 // how many sessions Evict may put to sleep: each gives nothing but a session back
	mu     sync.Mutex
}

func (h *held) Bounds(string) Bounds { return h.bounds }
func (h *held) Live(owner string) (Amount, int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if owner != "ann" {
		return Amount{}, h.memory
	}
	return h.own, h.memory
}
func (h *held) DiskBytes(owner string) int64 { return h.disk }
func (h *held) FreeBytes() (int64, error)    { return h.free, h.broken }
func (h *held) Evict(context.Context, string) bool {
	if h.idle.Add(-1) < 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.own.Sessions--
	return true
}

// TestReserve: each limit is named that is reached, the last bit of it can be had, and what is released can be had again.
func TestReserve(t *testing.T) {
	size := Of(false, image.Flavor{MemoryMB: 512, CPUs: 0.5})
	limited := func(l quota.Limits) *held { return &held{bounds: Bounds{Sessions: 100, Quota: l}} }
	for _, tt := range []struct {
		name, resource string
		held           *held
		want           Amount
		fit            int
	}{
		{"sessions", "sessions", &held{bounds: Bounds{Sessions: 3}}, size, 3},
		{"beside live ones", "sessions", &held{bounds: Bounds{Sessions: 3}, own: Amount{Sessions: 2}}, size, 1},
		{"memory of all", "memory", &held{bounds: Bounds{Sessions: 9, MemoryMB: 1536}, memory: 512}, size, 2},
		{"quota of sessions", "sessions", limited(quota.Limits{Sessions: 2}), size, 2},
		{"quota of memory", "memory_mb", limited(quota.Limits{MemoryMB: 1100}), size, 2},
		{"quota of CPUs", "cpus", limited(quota.Limits{CPUs: 1.4}), size, 2},
		{"quota of the disk", "disk_mb", &held{bounds: Bounds{Quota: quota.Limits{DiskMB: 3}}, disk: 1 << 20}, Amount{Disk: 1 << 20}, 2},
		{"the disk", "", &held{free: keepFree + 250}, Amount{Copies: 100}, 2},
		{"an idle one", "sessions", func() *held {
			h := &held{bounds: Bounds{Sessions: 3}, own: Amount{Sessions: 3}}
			h.idle.Store(2)
			return h
		}(), size, 2},
	} {
		l := New(tt.held)
		var all []func()
		for {
			release, err := l.Reserve(t.Context(), "ann", tt.want)
			if err != nil {
				f := fault.From(err)
				if len(all) != tt.fit || !fault.Is(err, fault.ResourceLimit) || tt.resource != "" && f.Context["resource_type"] != tt.resource {
					t.Errorf("%s: %d fit, want %d; then %v %v", tt.name, len(all), tt.fit, err, f.Context)
				}
				break
			}
			if all = append(all, release); len(all) > tt.fit {
				t.Fatalf("%s: %d fit, want %d", tt.name, len(all), tt.fit)
			}
		}
		all[0]()
		all[0]() // counts once
		if again, err := l.Reserve(t.Context(), "ann", tt.want); err != nil {
			t.Errorf("%s: what was released cannot be had: %v", tt.name, err)
		} else {
			all[0] = again
		}
		if _, err := l.Reserve(t.Context(), "ann", tt.want); err == nil {
			t.Errorf("%s: releasing it twice counts twice", tt.name)
		}
		for _, release := range all {
			release()
		}
		if len(l.reserved) != 0 {
			t.Errorf("%s: %v is left", tt.name, l.reserved)
		}
	}
}

// Those who reserve at once have no more together than the limits, of each and of all.
func TestReserveAtOnce(t *testing.T) {
	l := New(&held{bounds: Bounds{Sessions: 4, MemoryMB: 2000}, free: keepFree + 100})
	var now, most, copies atomic.Int64
	var work sync.WaitGroup
	for n := range 64 {
		owner := []string{"bob", "eve"}[n%2]
		work.Go(func() {
			for range 200 {
				if release, err := l.Reserve(t.Context(), owner, Amount{Sessions: 1, MemoryMB: 300}); err == nil {
					most.Store(max(most.Load(), now.Add(1)))
					now.Add(-1)
					release()
				}
				if release, err := l.Reserve(t.Context(), owner, Amount{Copies: 60}); err == nil {
					if copies.Add(1) > 1 {
						t.Error("copies have more room together than there is")
					}
					copies.Add(-1)
					release()
				}
			}
		})
	}
	work.Wait()
	if most.Load() > 6 || len(l.reserved) != 0 {
		t.Errorf("%d sessions at once, and %v is left", most.Load(), l.reserved)
	}
}

// A disk that cannot be looked at has no room, and nothing stays reserved of what does not fit as a whole.
func TestNothingOfWhatDoesNotFit(t *testing.T) {
	h := &held{bounds: Bounds{Sessions: 1, Quota: quota.Limits{DiskMB: 1}}, broken: errors.New("no disk")}
	l := New(h)
	if _, err := l.Reserve(t.Context(), "ann", Amount{Sessions: 1, Disk: 1, Copies: 1}); !strings.Contains(err.Error(), "could not be found out") {
		t.Errorf("got %v", err)
	}
	if len(l.reserved) != 0 || !l.Fits("ann", Amount{Sessions: 1}) {
		t.Errorf("%v is reserved", l.reserved)
	}
}
