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
	l := New(Limits{Requests: 2, Streams: 1, PortConns: 1, RequestBytes: 100})
	take := func(owner string, k Kind, n int64) func() {
		t.Helper()
		release, err := l.Acquire(owner, k, n)
		if err != nil {
			t.Fatalf("%s: %v", owner, err)
		}
		return release
	}
	full := func(owner string, k Kind, n int64) {
		t.Helper()
		used := map[Kind]int64{Requests: 2, RequestBytes: 100}[k]
		if k == RequestBytes && n == 41 {
			used = 60
		}
		_, err := l.Acquire(owner, k, n)
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
	bytes := take("ann", RequestBytes, 60)
	full("ann", RequestBytes, 41)
	more := take("ann", RequestBytes, 40)
	full("ann", RequestBytes, 1)
	full("ann", RequestBytes, 101)
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
	take("ann", RequestBytes, 100)()
}

func TestTakeAtOnce(t *testing.T) {
	l := New(Default)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 200 {
				if release, err := l.Acquire("ann", Requests, 1); err == nil {
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
	l := New(Limits{RequestBytes: 20 << 10, AnswerBytes: 100})
	body := l.NewReservation("ann", RequestBytes)
	for _, want := range []int64{4 << 10, 4 << 10, 8 << 10} {
		if n, err := body.Available(); n != want || err != nil {
			t.Fatalf("there is room for %d, want %d: %v", n, want, err)
		}
		if err := body.Add(want); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := body.Available(); fault.From(err).Kind != fault.ResourceLimit {
		t.Errorf("a share that is not there: %v", err)
	}
	line := l.NewReservation("ann", RequestBytes)
	if err := line.Add(5 << 10); err == nil {
		t.Error("another line has more than is left")
	}
	line.Release()
	body.Release()
	body.Release()
	if err := line.Add(1); err != nil || len(l.shares) != 0 {
		t.Errorf("one that is over counts still: %v, %d principals", err, len(l.shares))
	}
	answer := l.NewReservation("ann", AnswerBytes)
	if err := answer.TryReserve(100); err != nil || l.NewReservation("ann", AnswerBytes).TryReserve(1) == nil {
		t.Errorf("all of it: %v", err)
	}
	answer.ShrinkTo(200)
	answer.ShrinkTo(30)
	if other := l.NewReservation("ann", AnswerBytes); other.TryReserve(71) == nil || other.TryReserve(70) != nil {
		t.Error("what is given back is not there, or more than that is")
	} else {
		other.Release()
	}
	answer.Release()
	answer.ShrinkTo(0)
	var none *Reservation
	none.ShrinkTo(0)
	if none.Add(1<<40) != nil || none.TryReserve(1<<40) != nil || none.Reserve(t.Context(), 1<<40) != nil {
		t.Error("none refuses")
	}
	none.Release()
}

// Reserve waits until bytes are released, and returns an error if that takes too long. Other
// principals do not wait.
func TestHeldWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{AnswerBytes: 100})
		first, second, third := l.NewReservation("ann", AnswerBytes), l.NewReservation("ann", AnswerBytes),
			l.NewReservation("ann", AnswerBytes)
		if err := first.Reserve(t.Context(), 80); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Second)
			first.Release()
		}()
		if err := second.Reserve(t.Context(), 60); err != nil {
			t.Errorf("they were given back: %v", err)
		}
		began := time.Now()
		if err := third.Reserve(t.Context(), 60); fault.From(err).Kind != fault.ResourceLimit ||
			time.Since(began) != waitTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if err := third.Reserve(t.Context(), 101); fault.From(err).Kind != fault.ResourceLimit {
			t.Errorf("more than there ever is: %v", err)
		}
		other := l.NewReservation("bob", AnswerBytes)
		if err := other.TryReserve(100); err != nil {
			t.Errorf("another user: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := third.Reserve(ctx, 60); !errors.Is(err, context.Canceled) {
			t.Errorf("one whose client left: %v", err)
		}
		go third.Release() // while it waits
		if err := third.Reserve(t.Context(), 60); err == nil {
			second.Release()
		}
		for _, h := range []*Reservation{second, third, other} {
			h.Release()
		}
		if len(l.shares) != 0 {
			t.Errorf("%d principals hold nothing and are kept", len(l.shares))
		}
	})
}

// Users of a service have limits of their own, and all of them together a limit too: neither another
// service nor a user with a token loses anything by that.
func TestLimitsOfAService(t *testing.T) {
	l := New(Limits{Requests: 2, AnswerBytes: 100})
	var releases []func()
	take := func(owner string, k Kind, n int64) error {
		release, err := l.Acquire(owner, k, n)
		if err == nil {
			releases = append(releases, release)
		}
		return err
	}
	for user := range 8 {
		owner := "user:gitu/" + string(rune('a'+user))
		for range 2 {
			if err := take(owner, Requests, 1); err != nil {
				t.Fatalf("%s: %v", owner, err)
			}
		}
		if err := take(owner, Requests, 1); !fault.Is(err, fault.ResourceLimit) ||
			fault.From(err).Context["limit"] != int64(2) {
			t.Errorf("%s holds too many: %v", owner, err)
		}
	}
	if err := take("user:gitu/z", Requests, 1); !fault.Is(err, fault.ResourceLimit) ||
		fault.From(err).Context["limit"] != int64(16) || fault.From(err).Context["current_usage"] != int64(16) {
		t.Errorf("the service holds too many: %v", err)
	}
	for _, owner := range []string{"user:gitu", "user:rival/a", "user:a"} {
		if err := take(owner, Requests, 2); err != nil {
			t.Errorf("%s: %v", owner, err)
		}
	}
	releases[0]()
	if err := take("user:gitu/z", Requests, 1); err != nil {
		t.Errorf("after one ended: %v", err)
	}
	for _, release := range releases {
		release()
	}
	if len(l.shares) != 0 {
		t.Errorf("%d are kept", len(l.shares))
	}
}

// An answer of one user waits until another user of the same service has read theirs.
func TestAnswersOfAServiceWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Limits{AnswerBytes: 100})
		var all []*Reservation
		for _, user := range []string{"a", "b", "c", "d"} {
			h := l.NewReservation("user:gitu/"+user, AnswerBytes)
			if err := h.TryReserve(100); err != nil {
				t.Fatal(err)
			}
			all = append(all, h)
		}
		waiting := l.NewReservation("user:gitu/e", AnswerBytes)
		if err := waiting.Reserve(t.Context(), 50); !fault.Is(err, fault.ResourceLimit) ||
			fault.From(err).Context["limit"] != int64(400) {
			t.Errorf("nobody reads: %v", err)
		}
		done := make(chan error)
		go func() { done <- waiting.Reserve(t.Context(), 50) }()
		synctest.Wait()
		all[0].Release()
		if err := <-done; err != nil {
			t.Errorf("after one was read: %v", err)
		}
		for _, h := range append(all, waiting) {
			h.Release()
		}
		if len(l.shares) != 0 {
			t.Errorf("%d are kept", len(l.shares))
		}
	})
}

func BenchmarkAcquire(b *testing.B) {
	for name, owner := range map[string]string{"user": "user:ann", "service's user": "user:gitu/ann"} {
		b.Run(name, func(b *testing.B) {
			l := New(Default)
			for b.Loop() {
				release, err := l.Acquire(owner, Calls, 1)
				if err != nil {
					b.Fatal(err)
				}
				release()
			}
		})
	}
}
