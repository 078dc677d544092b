package limit

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/fault"
)

// enlarge returns a reservation that is enlarged.
func enlarge(t *testing.T, l *Limiter, owner string) (*Reservation, context.Context) {
	t.Helper()
	r := l.NewReservation(owner, IncomingAnswerBytes)
	if err := r.TryReserve(1 << 20); err != nil {
		t.Fatal(err)
	}
	lost, err := r.Enlarge(t.Context())
	if err != nil {
		t.Fatalf("%s: %v", owner, err)
	}
	return r, lost
}

// What is enlarged counts no bytes of its principal, can be taken over, and is held until Release.
func TestEnlarge(t *testing.T) {
	l := New(Default)
	ann, lost := enlarge(t, l, "ann")
	if release, err := l.Acquire("ann", IncomingAnswerBytes, Default[IncomingAnswerBytes]); err != nil {
		t.Error(err)
	} else {
		release()
	}
	answers := l.NewAnswers("ann")
	if a := answers.NewReservation(); answers.Lost() != nil || !a.TakeLarge(ann) || a.TakeLarge(ann) ||
		answers.Lost() != lost {
		t.Error("it was not taken over")
	}
	ann.Release()
	if len(l.large.held) != 1 || lost.Err() != nil {
		t.Error("who gave it away released it")
	}
	answers.Release()
	if len(l.large.held) != 0 || lost.Err() == nil || len(l.large.last) != 0 {
		t.Errorf("it is held: %+v", l.large.held)
	}
	late := l.NewReservation("ann", AnswerBytes)
	late.Release()
	ann, _ = enlarge(t, l, "ann")
	if late.TakeLarge(ann); len(l.large.held) != 0 {
		t.Error("what was released holds it")
	}
	if _, err := late.Enlarge(t.Context()); err != nil || len(l.large.held) != 0 {
		t.Errorf("what was released is enlarged: %v", err)
	}
	var none *Reservation
	if none.TakeLarge(ann) || none.Lost() != nil {
		t.Error("nothing takes it over")
	}
}

// Who holds a permit that others wait for loses it, and gives way when it is released.
func TestLostToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Default)
		began := time.Now()
		after := func(lost context.Context, want time.Duration) {
			t.Helper()
			if <-lost.Done(); time.Since(began) != want {
				t.Errorf("lost after %v, want %v", time.Since(began), want)
			}
		}
		ann, annLost := enlarge(t, l, "ann")
		after(annLost, largeAlone)
		ann.Release()
		began = time.Now()
		ann, annLost = enlarge(t, l, "ann")
		time.Sleep(5 * time.Second)
		bob, bobLost := enlarge(t, l, "bob")
		var done sync.WaitGroup
		done.Go(func() {
			eve, _ := enlarge(t, l, "eve")
			if time.Since(began) != largeShared+time.Second {
				t.Errorf("eve waited for %v", time.Since(began))
			}
			eve.Release()
		})
		after(annLost, largeShared)
		time.Sleep(time.Second) // until it is released there is no memory for eve
		ann.Release()
		done.Wait()
		if bobLost.Err() != nil {
			t.Error("bob lost his too")
		}
		bob.Release()
	})
}

// A principal has one at a time, and so have all users of a service; who had none for longest is next.
func TestFairness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Default)
		var mu sync.Mutex
		var order []string
		var all sync.WaitGroup
		for n, owner := range []string{"ann", "ann", "ann", "user:s/1", "user:s/1", "user:s/2", "bob"} {
			all.Go(func() {
				r, lost := enlarge(t, l, owner)
				mu.Lock()
				order = append(order, owner)
				mu.Unlock()
				time.Sleep(time.Second + time.Duration(n)*time.Millisecond)
				if lost.Err() != nil {
					t.Error("it was lost")
				}
				r.Release()
			})
			synctest.Wait()
		}
		all.Wait()
		want := "[ann user:s/1 bob ann user:s/2 ann user:s/1]"
		if got := fmt.Sprint(order); got != want {
			t.Errorf("the order is %s, want %s", got, want)
		}
	})
}

// Nobody waits for ever, and who stops waiting is forgotten.
func TestLargeWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Default)
		ann, _ := enlarge(t, l, "ann")
		again := l.NewReservation("ann", IncomingAnswerBytes)
		began := time.Now()
		_, err := again.Enlarge(t.Context())
		if f := fault.From(err); err == nil || f.Kind != fault.ResourceLimit || time.Since(began) != largeWait {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := again.Enlarge(ctx); err != context.DeadlineExceeded {
			t.Error(err)
		}
		if len(l.large.waiting) != 0 {
			t.Error("it is not forgotten")
		}
		again.Release()
		ann.Release()
	})
}
