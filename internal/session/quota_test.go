package session

import (
	"context"
	"sync"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	quotas "sandlot/internal/quota"
)

// A principal has what its quota allows, counted over all of its live sessions and the home; others have their
// own. A change counts for the next session.
func TestQuotas(t *testing.T) {
	in(t, func(r *Rules) { r.MaxSessions, r.EvictIdle = 10, false }, func(t *testing.T, w *testSessions) {
		w.Quotas = quotas.New()
		set := func(l quotas.Limits) { w.Quotas.Set(quotas.Settings{Users: l}) }
		reached := func(p auth.Principal, a OpenRequest, resource string, used, limit any) {
			t.Helper()
			_, err := w.Open(context.Background(), p, a)
			if f := fault.From(err); err == nil || f.Kind != fault.ResourceLimit ||
				f.Context["resource_type"] != resource || f.Context["current_usage"] != used ||
				f.Context["limit"] != limit {
				t.Errorf("%+v: %v, want the quota %s", a, err, resource)
			}
		}
		another := OpenRequest{ID: "new"} // small: 1 CPU and 1024 MB
		set(quotas.Limits{Sessions: 2})
		w.use(ann, OpenRequest{})
		w.use(ann, another)
		last := w.use(ann, another)
		reached(ann, another, "sessions", 2, 2)
		set(quotas.Limits{MemoryMB: 3500})
		reached(ann, another, "memory_mb", 3072, 3500)
		set(quotas.Limits{CPUs: 3.5})
		reached(ann, another, "cpus", 3.0, 3.5)
		w.use(bob, another)
		w.Stop(context.Background(), ann, last.ID())
		w.use(ann, another)
		set(quotas.Limits{CPUs: 4, MemoryMB: 4096, Sessions: 3})
		w.use(ann, another)
		if text := w.QuotaText(ann.ID); text != "3 of 3 sessions, 4096 of 4096 MB of memory, 4 of 4 CPUs" {
			t.Errorf("in use are %s", text)
		}
		set(quotas.Limits{})
		if text := w.QuotaText(ann.ID); text != "" {
			t.Errorf("without quotas: %s", text)
		}
		set(quotas.Limits{CPUs: 1})
		w.use(ann, OpenRequest{}) // what lives stays
		w.Quotas.Set(quotas.Settings{Users: quotas.Limits{Sessions: 1},
			Principals: map[string]quotas.Limits{ann.ID: {Sessions: 5}}})
		w.use(ann, another)
		reached(bob, another, "sessions", 1, 1)
		if n := w.usage.Reserved(); n != 0 {
			t.Errorf("%d principals have reservations still", n)
		}
	})
}

// Calls that come at once get no more than the quota together.
func TestQuotaAtOnce(t *testing.T) {
	in(t, func(r *Rules) { r.MaxSessions, r.EvictIdle = 100, false }, func(t *testing.T, w *testSessions) {
		w.Quotas = quotas.New()
		w.Quotas.Set(quotas.Settings{Users: quotas.Limits{CPUs: 3}})
		w.fake.BootDelay = 300 * time.Millisecond
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if l, err := w.Open(context.Background(), ann, OpenRequest{ID: "new"}); err == nil {
					l.Release()
				}
			})
		}
		all.Wait()
		if n, _ := w.fake.Count(); n != 3 {
			t.Errorf("%d sandboxes of one CPU where 3 CPUs are allowed", n)
		}
	})
}

// A home boots ahead of its first call only while there is room, and ends no other session for that.
func TestPrewarmNeedsRoom(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		w.Quotas = quotas.New()
		w.Quotas.Set(quotas.Settings{Users: quotas.Limits{CPUs: 1}})
		first := w.use(ann, OpenRequest{ID: "new"})
		w.Prewarm(context.Background(), ann)
		if n, alive := w.fake.Count(); n != 1 || alive != 1 {
			t.Errorf("%d sandboxes were booted, and %d live", n, alive)
		}
		w.use(ann, OpenRequest{ID: first.ID()})
		w.Prewarm(context.Background(), bob)
		if _, alive := w.fake.Count(); alive != 2 {
			t.Errorf("%d live", alive)
		}
		w.use(ann, OpenRequest{}) // a call makes room
	})
}
