package session

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"sandlot/internal/sandbox/sandboxtest"
)

// TestWokenNotStored: when it cannot be stored that a session has woken, it is awake all the same, and the image is not
// used again, whatever happens next.
func TestWokenNotStored(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.asleep("x")
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepWoken {
				w.store.fail(errors.New("the disk is full"))
			}
			return nil
		}
		w.use(ann, OpenRequest{ID: id})
		w.fake.OnStep = nil
		w.store.fail(nil)
		if got := w.box(id).Memory(); got != "x" {
			t.Errorf("it woke with %q in its memory", got)
		}
		w.wantImages(0)
		w.box(id).SetMemory("y")
		w.sleepUnused(t.Context(), w.byID(id), "it was idle")
		if w.use(ann, OpenRequest{ID: id}); w.box(id).Memory() != "y" {
			t.Errorf("then it has %q in its memory", w.box(id).Memory())
		}
	})
}

// fail makes the store fail from now on, or, with nil, work.
func (m *fakeStore) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = err
}

// TestSweepWaitsForNobody: while a session is being copied, or resists, those of others fall asleep.
func TestSweepWaitsForNobody(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		copied, used, other := w.use(ann, OpenRequest{ID: "new"}).Session, w.use(ann, OpenRequest{ID: "new"}).Session,
			w.use(bob, OpenRequest{ID: "new"}).Session
		for _, s := range []*Session{copied, used} {
			if err := s.acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer s.release()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		soon := time.Now().Add(w.IdleTimeout + time.Second)
		used.mu.Lock()
		used.cur.rec.Used = soon
		used.mu.Unlock()
		w.sweep(ctx, soon)
		if ctx.Err() != nil || other.record().State != Asleep || copied.record().State != Live {
			t.Errorf("after the sweep the states are %s and %s: %v", other.record().State, copied.record().State,
				ctx.Err())
		}
	})
}

// TestNobodyWaits: a session whose snapshot nobody waits for any more goes on.
func TestNobodyWaits(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.use(ann, OpenRequest{ID: "new"}).ID()
		w.box(id).SetMemory("x")
		ctx, cancel := context.WithCancel(t.Context())
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepFreeze {
				cancel()
			}
			return nil
		}
		err := w.WhileStill(ctx, ann, id, func(context.Context, string, Content, int64) error { return nil })
		w.fake.OnStep = nil
		if err == nil {
			t.Error("it was copied for nobody")
		}
		if l := w.use(ann, OpenRequest{ID: id}); l.Notice != "" || w.box(id).Memory() != "x" {
			t.Errorf("it has %q in its memory, and was told %q", w.box(id).Memory(), l.Notice)
		}
		w.wantImages(0)
	})
}

// TestEndAll: at the end of the server a session that resists takes neither the time of others nor more than there is.
func TestEndAll(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		resists, other := w.use(ann, OpenRequest{ID: "new"}).Session, w.use(bob, OpenRequest{ID: "new"}).Session
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		w.box(resists.record().ID).SetMemory("x")
		var first string // the sandbox that begins to be written first is the one that resists
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s != sandboxtest.StepFreeze {
				return nil
			}
			w.mu.Lock()
			resisting := first == ""
			first = "taken"
			w.mu.Unlock()
			if resisting {
				<-ctx.Done()
				time.Sleep(300 * time.Millisecond) // until there is no overtime left
			}
			return nil
		}
		w.EndAll(ctx, true, 100*time.Millisecond)
		w.fake.OnStep = nil
		if _, alive := w.fake.Count(); alive != 0 {
			t.Errorf("%d sandboxes run", alive)
		}
		asleep, told := 0, 0
		for _, s := range []*Session{resists, other} {
			switch r := s.record(); {
			case r.State == Asleep:
				asleep++
			case strings.Contains(r.Lost, "there was no time to put it to sleep"):
				told++
			default:
				t.Errorf("it is %s: %q", r.State, r.Lost)
			}
		}
		if asleep != 1 || told != 1 {
			t.Errorf("%d sleep, %d are told that there was no time", asleep, told)
		}
	})
}
