package limit

import (
	"sync"
	"testing"

	"sandlot/internal/fault"
)

func TestTake(t *testing.T) {
	b := New(Limits{Requests: 2, Streams: 1, Visits: 1, Bytes: 100})
	take := func(owner string, k Kind, n int64) func() {
		t.Helper()
		release, err := b.Take(owner, k, n)
		if err != nil {
			t.Fatalf("%s: %v", owner, err)
		}
		return release
	}
	full := func(owner string, k Kind, n int64) {
		t.Helper()
		used := map[Kind]int64{Requests: 2, Bytes: 100}[k]
		if k == Bytes && n == 41 {
			used = 60
		}
		_, err := b.Take(owner, k, n)
		if f := fault.From(err); err == nil || f.Kind != fault.ResourceLimit || f.HTTP() != 429 || f.Context["limit"] != b.most[k] || f.Context["current_usage"] != used || len(f.Advice) == 0 {
			t.Errorf("%s takes %d of %d: %v", owner, n, k, err)
		}
	}
	one, two := take("ann", Requests, 1), take("ann", Requests, 1)
	full("ann", Requests, 1)
	bob := take("bob", Requests, 2) // has limits of his own
	stream := take("ann", Streams, 1)
	bytes := take("ann", Bytes, 60)
	full("ann", Bytes, 41)
	more := take("ann", Bytes, 40)
	full("ann", Bytes, 1)
	full("ann", Bytes, 101)
	one()
	one() // twice is once
	three := take("ann", Requests, 1)
	full("ann", Requests, 1)
	for _, release := range []func(){two, three, bob, stream, bytes, more} {
		release()
	}
	if len(b.all) != 0 {
		t.Errorf("%d principals hold nothing and are kept", len(b.all))
	}
	take("ann", Bytes, 100)()
}

func TestTakeAtOnce(t *testing.T) {
	b := New(Default)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 200 {
				if release, err := b.Take("ann", Requests, 1); err == nil {
					release()
				} else {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if len(b.all) != 0 {
		t.Errorf("%d are kept", len(b.all))
	}
}
