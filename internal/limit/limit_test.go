package limit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/fault"
)

func TestTake(t *testing.T) {
	l := New(Limits{Requests: 2, Streams: 1, Visits: 1, Bytes: 100})
	take := func(owner string, k Kind, n int64) func() {
		t.Helper()
		release, err := l.Take(owner, k, n)
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
		_, err := l.Take(owner, k, n)
		f := fault.From(err)
		if err == nil || f.Kind != fault.ResourceLimit || f.HTTP() != 429 || len(f.Advice) == 0 ||
			f.Context["limit"] != l.limits[k] || f.Context["current_usage"] != used {
			t.Errorf("%s takes %d of %d: %v", owner, n, k, err)
		}
	}
	one, two := take("ann", Requests, 1), take("ann", Requests, 1)
	full("ann", Requests, 1)
	bob := take("bob", Requests, 2) // has his own limits
	stream := take("ann", Streams, 1)
	bytes := take("ann", Bytes, 60)
	full("ann", Bytes, 41)
	more := take("ann", Bytes, 40)
	full("ann", Bytes, 1)
	full("ann", Bytes, 101)
	one()
	one() // the second call does nothing
	three := take("ann", Requests, 1)
	full("ann", Requests, 1)
	for _, release := range []func(){two, three, bob, stream, bytes, more} {
		release()
	}
	if len(l.shares) != 0 {
		t.Errorf("%d principals hold nothing and are kept", len(l.shares))
	}
	take("ann", Bytes, 100)()
}

func TestTakeAtOnce(t *testing.T) {
	l := New(Default)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 200 {
				if release, err := l.Take("ann", Requests, 1); err == nil {
					release()
				} else {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if len(l.shares) != 0 {
		t.Errorf("%d are kept", len(l.shares))
	}
}

// A growing reservation reserves larger and larger portions, and is refused when the rest is
// reserved by another one.
func TestHeld(t *testing.T) {
	l := New(Limits{Bytes: 20 << 10, Answers: 100})
	body := l.Held("ann", Bytes)
	for _, want := range []int64{4 << 10, 4 << 10, 8 << 10} {
		if n, err := body.Room(); n != want || err != nil {
			t.Fatalf("there is room for %d, want %d: %v", n, want, err)
		}
		if err := body.Add(want); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := body.Room(); fault.From(err).Kind != fault.ResourceLimit {
		t.Errorf("a share that is not there: %v", err)
	}
	line := l.Held("ann", Bytes)
	if err := line.Add(5 << 10); err == nil {
		t.Error("another line has more than is left")
	}
	line.Release()
	body.Release()
	body.Release()
	if err := line.Add(1); err != nil || len(l.shares) != 0 {
		t.Errorf("one that is over counts still: %v, %d principals", err, len(l.shares))
	}
	answer := l.Held("ann", Answers)
	if err := answer.Take(100); err != nil || l.Held("ann", Answers).Take(1) == nil {
		t.Errorf("all of it: %v", err)
	}
	answer.Keep(200)
	answer.Keep(30)
	if other := l.Held("ann", Answers); other.Take(71) == nil || other.Take(70) != nil {
		t.Error("what is given back is not there, or more than that is")
	} else {
		other.Release()
	}
	answer.Release()
	answer.Keep(0)
	var none *Held
	none.Keep(0)
	if none.Add(1<<40) != nil || none.Take(1<<40) != nil || none.Wait(t.Context(), 1<<40) != nil {
		t.Error("none refuses")
	}
	none.Release()
}

// Reserve waits until bytes are released, and returns an error if that takes too long. Other
// principals do not wait.
func TestHeldWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{Answers: 100})
		first, second, third := l.Held("ann", Answers), l.Held("ann", Answers), l.Held("ann", Answers)
		if err := first.Wait(t.Context(), 80); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Second)
			first.Release()
		}()
		if err := second.Wait(t.Context(), 60); err != nil {
			t.Errorf("they were given back: %v", err)
		}
		began := time.Now()
		if err := third.Wait(t.Context(), 60); fault.From(err).Kind != fault.ResourceLimit ||
			time.Since(began) != waitTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if err := third.Wait(t.Context(), 101); fault.From(err).Kind != fault.ResourceLimit {
			t.Errorf("more than there ever is: %v", err)
		}
		other := l.Held("bob", Answers)
		if err := other.Take(100); err != nil {
			t.Errorf("another user: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := third.Wait(ctx, 60); !errors.Is(err, context.Canceled) {
			t.Errorf("one whose client left: %v", err)
		}
		go third.Release() // while it waits
		if err := third.Wait(t.Context(), 60); err == nil {
			second.Release()
		}
		for _, h := range []*Held{second, third, other} {
			h.Release()
		}
		if len(l.shares) != 0 {
			t.Errorf("%d principals hold nothing and are kept", len(l.shares))
		}
	})
}
