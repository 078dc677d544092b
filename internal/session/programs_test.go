package session

import (
	"context"
	"testing"

	"sandlot/internal/auth"
)

// TestPrograms: what asks for a session's programs wakes none, and knows others from those that were there.
func TestPrograms(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.asleep("x")
		programs := func(kept, run bool) Programs {
			t.Helper()
			p, err := w.Programs(ann.ID, id)
			if err != nil || p.Kept != kept || (p.Agent != nil) != run {
				t.Errorf("%+v, %v; want kept %v, run %v", p, err, kept, run)
			}
			return p
		}
		first := programs(true, false)
		if w.box(id) != nil {
			t.Error("it was woken")
		}
		if l := w.use(ann, OpenRequest{ID: id}); l.Life() != first.Life || programs(true, true).Life != first.Life {
			t.Errorf("awake, it has another life: %d, %d", l.Life(), first.Life)
		}
		before := w.use(ann, OpenRequest{ID: id})
		w.box(id).Kill("out of memory")
		w.byID(id).dropSandbox(before.Booted, "it died")
		programs(false, false)
		if before.Life() == first.Life {
			t.Error("a lease of a sandbox that has died has its life")
		}
		if l := w.use(ann, OpenRequest{ID: id}); l.Life() == first.Life || programs(true, true).Life == first.Life {
			t.Error("another sandbox has the same life")
		}
		for _, who := range []string{auth.User("eve", false).ID, ""} {
			if p, err := w.Programs(who, id); err == nil {
				t.Errorf("%q gets %+v", who, p)
			}
		}
		w.Stop(context.Background(), ann, id)
		if p, err := w.Programs(ann.ID, id); err == nil {
			t.Errorf("removed, it has %+v", p)
		}
	})
}
