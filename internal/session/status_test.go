package session

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// TestStopWhileClearing: a home that its user stops does not sleep any more, though what was left of a sandbox that did
// not wake is still there.
func TestStopWhileClearing(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		home := w.use(ann, OpenRequest{}).ID()
		w.sleepUnused(context.Background(), w.byID(home), "it was idle")
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepWaking {
				return errors.Join(syscall.EIO, sandbox.ErrRemains)
			}
			return nil
		}
		w.fails(ann, OpenRequest{}, fault.SessionState, "nothing of the session is lost")
		if got := w.status(home); got != "hibernated" {
			t.Errorf("it is %s", got)
		}
		w.Stop(context.Background(), ann, home)
		if got := w.status(home); got != "stopped" {
			t.Errorf("its user has stopped it, and it is %s", got)
		}
		w.wantImages(0)
		w.fake.OnStep = nil
		w.use(ann, OpenRequest{})
	})
}

// TestStopWhileReplacing: a session is stopped while it gets another content, and what it had does not end. Neither
// sandbox is forgotten.
func TestStopWhileReplacing(t *testing.T) {
	bubble(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.use(ann, OpenRequest{ID: "new"}).ID()
		kept, err := w.keep(id)
		if err != nil {
			t.Fatal(err)
		}
		var work sync.WaitGroup
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepWoken {
				w.fake.StopHangs.Store(true)
				work.Go(func() { w.Stop(context.Background(), ann, id) })
				for w.byID(id).current().booted != nil {
					time.Sleep(time.Millisecond)
				}
			}
			return nil
		}
		if _, err := w.Replace(t.Context(), ann, id, kept, Parent{Session: id}); err != nil {
			t.Error(err)
		}
		w.fake.StopHangs.Store(false)
		work.Wait()
		w.left.remove(t.Context())
		if _, alive := w.fake.Count(); alive != 0 || w.byID(id) != nil {
			t.Errorf("%d sandboxes live on", alive)
		}
	})
}

// A panic while a session stands still does not leave it so: its next use finds all that it has.
func TestPanicWhileFreezing(t *testing.T) {
	for _, step := range []sandboxtest.Step{sandboxtest.StepFreeze, sandboxtest.StepFrozen} {
		in(t, sleeps, func(t *testing.T, w *testSessions) {
			id := w.use(ann, OpenRequest{ID: "new"}).ID()
			w.box(id).SetMemory("x")
			broken := true
			w.fake.OnStep = func(s sandboxtest.Step) error {
				if s == step && broken {
					broken = false
					panic("a fault of the server")
				}
				return nil
			}
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: nothing broke", step)
					}
				}()
				w.WhileStill(t.Context(), ann, id, func(context.Context, string, Content, int64) error { return nil })
			}()
			w.use(ann, OpenRequest{ID: id})
			if got := w.box(id).Memory(); got != "x" {
				t.Errorf("%s: it has %q, and was %s", step, got, w.byID(id).current().State)
			}
		})
	}
}
