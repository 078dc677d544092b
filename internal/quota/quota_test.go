package quota

import (
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// An exception counts before the defaults; users of services are users, and a service is one from its first
// request on.
func TestOf(t *testing.T) {
	q := New()
	q.Set(Settings{Users: Limits{Sessions: 1}, Services: Limits{Sessions: 2},
		Principals: map[string]Limits{"user:ann": {Sessions: 3}, "user:gitu/bob": {Sessions: 4}}})
	q.AddService("user:gitu")
	for id, want := range map[string]int{"user:ann": 3, "user:bob": 1, "user:gitu": 2, "user:gitu/bob": 4,
		"user:gitu/ann": 1, "local": 1} {
		if got := q.Of(id).Sessions; got != want {
			t.Errorf("%s may have %d sessions, want %d", id, got, want)
		}
	}
	if (*Quotas)(nil).Of("user:ann") != (Limits{}) {
		t.Error("no quotas limit something")
	}
}

func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New()
		q.Set(Settings{Users: Limits{Calls: 2, CallsPerMinute: 5}})
		ann, bob := auth.User("ann", false), auth.User("bob", false)
		full := func(p auth.Principal, resource string, limit int) {
			t.Helper()
			_, err := q.BeginCall(p)
			if f := fault.From(err); err == nil || f.Kind != fault.ResourceLimit ||
				f.Context["resource_type"] != resource || f.Context["limit"] != limit ||
				f.Context["current_usage"] != limit {
				t.Errorf("%v: want the quota %s", err, resource)
			}
		}
		begin := func(p auth.Principal) func() {
			t.Helper()
			end, err := q.BeginCall(p)
			if err != nil {
				t.Fatal(err)
			}
			return end
		}
		first, second := begin(ann), begin(ann)
		full(ann, "calls", 2)
		begin(bob)()
		first()
		first() // the second call does nothing
		third := begin(ann)
		full(ann, "calls", 2)
		second()
		third()
		begin(ann)()
		begin(ann)()
		full(ann, "calls_per_minute", 5)
		time.Sleep(time.Minute)
		begin(ann)()
		q.Set(Settings{Users: Limits{CallsPerMinute: 1}})
		full(ann, "calls_per_minute", 1)
		q.Set(Settings{})
		begin(ann)()
		q.Set(Settings{Users: Limits{Calls: 1}})
		time.Sleep(2 * time.Minute)
		begin(bob)()
		if len(q.callers) != 1 {
			t.Errorf("%d callers are remembered", len(q.callers))
		}
	})
}

func BenchmarkBeginCall(b *testing.B) {
	q, p := New(), auth.User("ann", false)
	q.Set(Settings{Users: Limits{Calls: 10, CallsPerMinute: 1 << 40}})
	for b.Loop() {
		end, err := q.BeginCall(p)
		if err != nil {
			b.Fatal(err)
		}
		end()
	}
}
