package session

import (
	"context"
	"strings"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/session/property"
	"sandlot/internal/session/record"
)

// set changes what a principal has set of a session.
func (w *testSessions) set(p auth.Principal, id string, n property.New) {
	w.t.Helper()
	if _, err := w.Change(context.Background(), p, id, n.Change()); err != nil {
		w.t.Fatal(err)
	}
}

// while runs do while Run does.
func (w *testSessions) while(do func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	do()
	cancel()
	<-done
}

// TestEnds: a session ends when its life does, or is paused, whatever it is then, and without being woken for that.
func TestEnds(t *testing.T) {
	live := func(w *testSessions) string { return w.use(ann, OpenRequest{ID: "new"}).ID() }
	for what, begin := range map[string]func(w *testSessions) string{
		"live": live, "asleep": func(w *testSessions) string { return w.asleep("x") },
		"paused": func(w *testSessions) string { return w.paused("x") },
		"made with it": func(w *testSessions) string {
			return w.use(ann, OpenRequest{ID: "new", Set: property.New{EndsIn: "2h"}.Change()}).ID()
		},
	} {
		for _, on := range []record.OnEnd{record.StopOnEnd, record.PauseOnEnd} {
			for _, down := range []bool{false, true} {
				t.Run(what+", "+string(on), func(t *testing.T) {
					bubble(t, sleeps, func(t *testing.T, w *testSessions) {
						id := begin(w)
						w.set(ann, id, property.New{EndsIn: "1h", OnEnd: string(on)})
						booted := func() int { n, _ := w.fake.Count(); return n }
						before := booted()
						if down { // the end is reached while no server runs
							w.EndAll(context.Background(), true, time.Minute)
							w.Close(context.Background())
							time.Sleep(2 * time.Hour)
							w.open(sleeps)
						}
						w.IdleTimeout = 3 * time.Hour
						w.while(func() {
							if !down {
								time.Sleep(time.Hour - time.Second)
								if w.byID(id) == nil {
									t.Error("it has ended too soon")
								}
							}
							time.Sleep(2 * time.Second)
						})
						if on == record.PauseOnEnd {
							w.wantPaused(id, "it reached its end")
						} else {
							w.fails(ann, OpenRequest{ID: id}, fault.SessionNotFound, "as it reached its end (ends_at)")
							w.wantImages(0)
						}
						if n := booted(); n != before {
							t.Errorf("%d sandboxes were made for that", n-before)
						}
					})
				})
			}
		}
	}
}

// TestEndsInUse: what is to be stopped at its end is, whatever runs. What is to be paused waits for the calls that run,
// and lets no other one in.
func TestEndsInUse(t *testing.T) {
	bubble(t, sleeps, func(t *testing.T, w *testSessions) {
		stops, pauses := w.use(ann, OpenRequest{ID: "new"}).ID(), w.use(ann, OpenRequest{ID: "new"}).ID()
		w.set(ann, stops, property.New{EndsIn: "1m"})
		w.set(ann, pauses, property.New{EndsIn: "1m", OnEnd: "pause"})
		w.while(func() {
			a, err := w.Open(t.Context(), ann, OpenRequest{ID: stops})
			if err != nil {
				t.Fatal(err)
			}
			b, err := w.Open(t.Context(), ann, OpenRequest{ID: pauses})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
			err = a.Fault(t.Context(), context.DeadlineExceeded, fault.CommandExecution)
			if !strings.Contains(err.Error(), "reached its end (ends_at), which ended this call") {
				t.Errorf("the call that was ended: %v", err)
			}
			a.Release()
			w.fails(ann, OpenRequest{ID: stops}, fault.SessionNotFound)
			w.fails(ann, OpenRequest{ID: pauses}, fault.SessionPaused, "as soon as the calls that use it have ended")
			b.Release()
			time.Sleep(time.Minute)
		})
		w.wantPaused(pauses, "it reached its end")
		if _, _, err := w.Resume(t.Context(), ann, pauses); err != nil {
			t.Fatal(err)
		}
		w.use(ann, OpenRequest{ID: pauses}) // its end is over
	})
}

// TestEndOfHome: at its end a home keeps its files, and goes on at its next use.
func TestEndOfHome(t *testing.T) {
	bubble(t, sleeps, func(t *testing.T, w *testSessions) {
		home := w.use(ann, OpenRequest{}).ID()
		w.set(ann, "home", property.New{EndsIn: "1m"})
		time.Sleep(2 * time.Minute) // and no clock has looked
		l := w.use(ann, OpenRequest{})
		if l.ID() != home || !strings.Contains(l.Notice, "it reached its end (ends_at)") || !l.record().EndsAt.IsZero() {
			t.Errorf("it is told %q", l.Notice)
		}
	})
}

// TestEndsSoon: in the last minutes each result says when the session ends, and what is gone then.
func TestEndsSoon(t *testing.T) {
	bubble(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.use(ann, OpenRequest{ID: "new"}).ID()
		w.set(ann, id, property.New{EndsIn: "10m"})
		if l := w.use(ann, OpenRequest{ID: id}); l.Notice != "" {
			t.Errorf("ten minutes before: %q", l.Notice)
		}
		time.Sleep(6 * time.Minute)
		for range 2 {
			l := w.use(ann, OpenRequest{ID: id})
			if !strings.Contains(l.Notice, "ends in 4m0s") || !strings.Contains(l.Notice, "it is gone, with its variables") {
				t.Errorf("four minutes before: %q", l.Notice)
			}
		}
		w.set(ann, id, property.New{EndsAt: "never"})
		if l := w.use(ann, OpenRequest{ID: id}); l.Notice != "" {
			t.Errorf("without an end: %q", l.Notice)
		}
	})
}

// TestEndUnfrozen: what is to be paused at its end, and cannot be frozen, keeps its files, and no call wakes it.
func TestEndUnfrozen(t *testing.T) {
	bubble(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.use(ann, OpenRequest{ID: "new"}).ID()
		w.set(ann, id, property.New{EndsIn: "1m", OnEnd: "pause"})
		w.Hibernation.Enabled = false
		w.while(func() { time.Sleep(2 * time.Minute) })
		w.Hibernation.Enabled = true
		w.wantPaused(id, "it reached its end")
		if i, _, err := w.Resume(t.Context(), ann, id); err != nil || i.Status != "stopped" {
			t.Errorf("it is %s: %v", i.Status, err)
		}
		if l := w.use(ann, OpenRequest{ID: id}); !strings.Contains(l.Notice, "could not be frozen") {
			t.Errorf("it is told %q", l.Notice)
		}
	})
}

// TestSessionNames: a name stands for the id of one session of its owner, also with the next server, and can be changed
// and used again.
func TestSessionNames(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		named := func(p auth.Principal, name string) string {
			return w.use(p, OpenRequest{ID: "new", Set: property.New{Name: name, Labels: map[string]string{"a": "b"}}.Change()}).
				ID()
		}
		id, bobs := named(ann, "build"), named(bob, "build")
		other := w.use(ann, OpenRequest{ID: "new"}).ID()
		for range 2 {
			if w.use(ann, OpenRequest{ID: "build"}).ID() != id || w.use(bob, OpenRequest{ID: "build"}).ID() != bobs {
				t.Error("a name stands for the session of somebody else")
			}
			w.fails(ann, OpenRequest{ID: "new", Set: property.New{Name: "build"}.Change()}, fault.InvalidParameters,
				"you have a session build already", id)
			if _, err := w.Change(t.Context(), ann, other, property.New{Name: "build"}.Change()); err == nil {
				t.Error("two sessions have one name")
			}
			if found, err := w.Find(ann, "build"); err != nil || found != id || w.byID(id).record().Labels["a"] != "b" {
				t.Errorf("%s, %v", found, err)
			}
			w.Close(context.Background())
			w.open(sleeps)
		}
		for _, hostile := range []string{"home", "new", other, bobs, "a/b", "A"} {
			if _, err := w.Change(t.Context(), ann, id, property.New{Name: hostile}.Change()); !fault.Is(err,
				fault.InvalidParameters) {
				t.Errorf("%q: %v", hostile, err)
			}
		}
		w.set(ann, "build", property.New{Name: "release"})
		w.fails(ann, OpenRequest{ID: "build"}, fault.SessionNotFound)
		w.set(ann, other, property.New{Name: "build"})
		if w.use(ann, OpenRequest{ID: "build"}).ID() != other || w.use(ann, OpenRequest{ID: "release"}).ID() != id {
			t.Error("a name was not passed on")
		}
		w.pause(ann, "release")
		if _, _, err := w.Resume(t.Context(), ann, "release"); err != nil {
			t.Error(err)
		}
		if found, err := w.End(t.Context(), ann, "release"); !found || err != nil {
			t.Errorf("%v, %v", found, err)
		}
		named(ann, "release")
		w.store.fail(errStore)
		if _, err := w.Open(t.Context(), ann, OpenRequest{ID: "new", Set: property.New{Name: "third"}.Change()}); err == nil {
			t.Error("a session was made, and is not stored")
		}
		if _, err := w.Change(t.Context(), ann, "build", property.New{Name: "third"}.Change()); err == nil {
			t.Error("it was renamed, and that is not stored")
		}
		w.store.fail(nil)
		w.use(ann, OpenRequest{ID: "build"})
		named(ann, "third")
	})
}

var errStore = fault.New(fault.Internal, "the store is away")

// TestParents: a copy tells what it is a copy of.
func TestParents(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.use(ann, OpenRequest{ID: "new", Set: property.New{Name: "first"}.Change()}).ID()
		c, err := w.keep(id)
		if err != nil {
			t.Fatal(err)
		}
		from := Parent{Session: id, Snapshot: "good"}
		made, err := w.MakeAsleep(t.Context(), ann, c, from)
		if err != nil {
			t.Fatal(err)
		}
		w.Close(context.Background())
		w.open(sleeps)
		if r := w.byID(made).record(); r.Parent != from || r.Name != "" {
			t.Errorf("%+v", r)
		}
		if r := w.byID(id).record(); r.Parent != (Parent{}) {
			t.Errorf("%+v", r)
		}
	})
}
