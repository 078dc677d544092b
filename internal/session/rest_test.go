package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/session/reason"
	"sandlot/internal/session/record"
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
		if ctx.Err() != nil || other.record().State != record.Asleep || copied.record().State != record.Live {
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

// TestEndAll: at the end of the server a session that resists takes neither the time of others nor more than there is. Its
// sandbox is left to the next server.
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
		if _, alive := w.fake.Count(); alive != 1 {
			t.Errorf("%d sandboxes run", alive)
		}
		asleep, left := 0, 0
		for _, s := range []*Session{resists, other} {
			switch r := s.record(); {
			case r.State == record.Asleep:
				asleep++
			case r.State == record.Left && strings.Contains(r.Lost, "there was no time to put it to sleep"):
				left++
			default:
				t.Errorf("it is %s: %q", r.State, r.Lost)
			}
		}
		if asleep != 1 || left != 1 {
			t.Errorf("%d sleep, %d are left, as there was no time", asleep, left)
		}
	})
}

// TestLeftToNext: what can sleep, and cannot be put to sleep at the stop of a server, runs on, whatever the reason, and the
// next server takes it over, without a word. If it has ended by then, its user is told why it did not sleep.
func TestLeftToNext(t *testing.T) {
	causes := append(slices.Clone(passing), sandbox.ErrReplaced, fmt.Errorf("%w: no room", sandbox.ErrLater),
		errors.New("encoding error: unknown"), &sandbox.Explained{Limit: true, Words: "it has 3 MB, and 2 MB are allowed"})
	for _, step := range []sandboxtest.Step{sandboxtest.StepFreeze, sandboxtest.StepThaw} {
		for _, cause := range causes {
			if step == sandboxtest.StepThaw && !reason.Passes(cause) {
				continue // nothing that goes on is told so, or it cannot go on
			}
			for _, stores := range []bool{true, false} {
				for _, dies := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s, %v, %v, %v", step, cause, stores, dies), func(t *testing.T) {
						in(t, sleeps, func(t *testing.T, w *testSessions) {
							id := w.use(ann, OpenRequest{ID: "new"}).ID()
							w.box(id).SetMemory("x")
							w.fake.OnStep = func(s sandboxtest.Step) error {
								if s == sandboxtest.StepFrozen && step == sandboxtest.StepThaw || s == step {
									return fmt.Errorf("writing /var/lib/x: %w", cause)
								}
								return nil
							}
							if !stores {
								w.store.fail(cause)
							}
							w.EndAll(t.Context(), true, time.Second)
							w.fake.OnStep = nil
							w.store.fail(nil)
							if _, alive := w.fake.Count(); alive != 1 {
								t.Fatalf("%d sandboxes run without a server", alive)
							}
							w.Close(context.Background())
							if dies {
								for _, b := range w.fake.List() {
									b.(*sandboxtest.FakeBox).Kill("the machine was stopped")
								}
							} else {
								w.fake.KillServer()
							}
							w.open(sleeps)
							w.removeUnownedImages(t.Context()) // what Freeze has made although it failed
							l := w.use(ann, OpenRequest{ID: id})
							switch told := l.Notice; {
							case !dies && (told != "" || w.box(id).Memory() != "x"):
								t.Errorf("it has %q in its memory, and was told %q", w.box(id).Memory(), told)
							case dies && stores && (!strings.Contains(told, "its server was stopped, and ") ||
								strings.Contains(told, "/var/lib")):
								t.Errorf("told: %q", told)
							case dies && !stores && !strings.Contains(told, lostWhileDown):
								t.Errorf("told: %q", told)
							}
							if l := w.use(ann, OpenRequest{ID: id}); l.Notice != "" || l.record().State != record.Live {
								t.Errorf("then it is %s, and told %q", l.record().State, l.Notice)
							}
							w.wantImages(0)
						})
					})
				}
			}
		}
	}
}

// TestLeftInUse: a session that a call uses at the stop of the server falls asleep when the call ends, and is left to the
// next server when it does not.
func TestLeftInUse(t *testing.T) {
	for name, c := range map[string]struct {
		callEnds, noTime bool
		want             record.State
	}{"the call ends": {callEnds: true, want: record.Asleep}, "it goes on": {want: record.Left},
		"there is no time": {noTime: true, want: record.Left}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, sleeps, func(t *testing.T, w *testSessions) {
				l, err := w.Open(t.Context(), ann, OpenRequest{ID: "new"})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Release()
				if c.callEnds {
					time.AfterFunc(time.Second, l.Release)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
				defer cancel()
				if c.noTime {
					cancel()
				}
				w.EndAll(ctx, true, time.Second)
				if got := l.record(); got.State != c.want || c.want == record.Left && got.Lost == "" {
					t.Errorf("it is %s: %q", got.State, got.Lost)
				}
			})
		})
	}
}

// TestSilentIsNotIdle: an agent that does not say in time what it does, and a runtime that does not answer, say nothing
// about a session: it is not stopped for being idle, whether it could sleep or not, as long as it is not known to be dead.
func TestSilentIsNotIdle(t *testing.T) {
	for name, c := range map[string]struct {
		silent, hangs, unlinked, full, ends bool
	}{
		"the agent is slow":                      {silent: true},
		"the runtime is, too":                    {silent: true, hangs: true},
		"a daemon that carries the link is away": {unlinked: true, hangs: true},
		"there are no descriptors":               {unlinked: true, full: true},
		"it says that it does nothing":           {ends: true},
		"it has no link, and could have one":     {unlinked: true, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, w *testSessions) {
				id := w.use(ann, OpenRequest{}).ID()
				box := w.box(id)
				if c.silent {
					box.Silence()
				}
				w.fake.StatusHangs.Store(c.hangs)
				if c.full {
					w.canOpen = func() error { return syscall.EMFILE }
				}
				if c.unlinked {
					box.RefuseLinks()
				}
				synctest.Wait() // until the link is gone
				w.sweep(t.Context(), time.Now().Add(time.Hour))
				w.fake.StatusHangs.Store(false)
				if ended := w.byID(id).current().booted == nil; ended != c.ends {
					t.Errorf("its sandbox was ended: %v: %q", ended, w.byID(id).record().Lost)
				}
			})
		})
	}
}

// TestSilentWithItsRuntime: while a runtime does not say what has come of a sandbox, the silence of its agent is no reason
// to end it: the daemon that carries the link may be away. When the runtime says that it runs, it is.
func TestSilentWithItsRuntime(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *testSessions) {
		silent := fmt.Errorf("waiting for a connection: %w", context.DeadlineExceeded)
		l := w.use(ann, OpenRequest{})
		box := w.box(l.ID())
		w.fake.StatusHangs.Store(true)
		box.Silence()
		f := fault.From(l.Fault(t.Context(), silent, fault.CommandExecution))
		if f.Data().Context["lost"] != nil || !strings.Contains(f.Error(), "the runtime of the session's sandbox does not answer") {
			t.Errorf("an agent that is silent: %v, %v", f, f.Data().Context)
		}
		box.RefuseLinks()
		synctest.Wait() // until the link is gone
		w.fails(ann, OpenRequest{}, fault.SandboxCreation, "as soon as the runtime answers")
		if _, alive := w.fake.Count(); alive != 1 || w.box(l.ID()) != box {
			t.Errorf("%d sandboxes run", alive)
		}
		w.fake.StatusHangs.Store(false)
		if again := w.use(ann, OpenRequest{}); !strings.Contains(again.Notice, "its agent stopped answering") {
			t.Errorf("when the runtime answers: %q", again.Notice)
		}
	})
}

// TestGoneSaysWhy: whoever names a session that was removed is told why, and nobody else is told that there was one.
func TestGoneSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		goes  func(t *testing.T, w *testSessions, id string)
		files bool
		why   string
	}{
		"its user has stopped it": {func(t *testing.T, w *testSessions, id string) { w.Stop(t.Context(), ann, id) }, true,
			"it was stopped"},
		"it was idle, without files": {func(t *testing.T, w *testSessions, id string) {
			w.stopUnused(t.Context(), w.byID(id), "it was idle for 1m0s")
		}, false, "it had no files, and it was idle for 1m0s"},
		"it was not used for long": {func(t *testing.T, w *testSessions, id string) {
			w.stopUnused(t.Context(), w.byID(id), "it was idle for 1m0s")
			w.sweep(t.Context(), time.Now().Add(w.Retention+time.Minute))
		}, true, "nothing had used it for 1h0m0s (workspace_retention)"},
		"there are too many": {func(t *testing.T, w *testSessions, id string) {
			w.stopUnused(t.Context(), w.byID(id), "it was idle for 1m0s")
			for range maxStopped * w.MaxSessions {
				l := w.use(ann, OpenRequest{ID: "new"})
				w.put(l, "f", 1)
				w.stopUnused(t.Context(), l.Session, "it was idle for 1m0s")
			}
		}, true, "the 15 that were used last are kept"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, nil, func(t *testing.T, w *testSessions) {
				l := w.use(ann, OpenRequest{ID: "new"})
				if c.files {
					w.put(l, "f", 1)
				}
				c.goes(t, w, l.ID())
				w.fails(ann, OpenRequest{ID: l.ID()}, fault.SessionNotFound, "it was removed, with all that it had, as ", c.why)
				_, err := w.Open(t.Context(), bob, OpenRequest{ID: l.ID()})
				if err == nil || strings.Contains(err.Error(), "removed") {
					t.Errorf("another user is told: %v", err)
				}
			})
		})
	}
}

// TestLeftNotice: what a call was to tell, and nobody has read, the next one tells, before what is new.
func TestLeftNotice(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.asleep("x")
		l := w.use(ann, OpenRequest{ID: id})
		asleep := l.Notice
		l.LeaveNotice()
		w.byID(id).dropSandbox(w.byID(id).current().booted, "it was killed")
		l = w.use(ann, OpenRequest{ID: id})
		if asleep == "" || !strings.HasPrefix(l.Notice, asleep+" ") || !strings.Contains(l.Notice, "it was killed") {
			t.Errorf("told %q, after %q", l.Notice, asleep)
		}
		if l := w.use(ann, OpenRequest{ID: id}); l.Notice != "" {
			t.Errorf("told again: %q", l.Notice)
		}
	})
}
