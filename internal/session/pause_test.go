package session

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/session/property"
	"sandlot/internal/session/record"
)

// paused makes a session with something in its memory, and pauses it.
func (w *testSessions) paused(memory string) (id string) {
	w.t.Helper()
	id = w.use(ann, OpenRequest{ID: "new"}).ID()
	w.box(id).SetMemory(memory)
	w.pause(ann, id)
	return id
}

func (w *testSessions) pause(p auth.Principal, id string) {
	w.t.Helper()
	if i, err := w.Pause(context.Background(), p, id); err != nil || i.Status != "paused" {
		w.t.Fatalf("it is %s: %v", i.Status, err)
	}
}

// wantPaused checks that no use of a session wakes it, and that each is told why.
func (w *testSessions) wantPaused(id string, words ...string) {
	w.t.Helper()
	words = append(words, id, "No call wakes it")
	w.fails(ann, OpenRequest{ID: id}, fault.SessionPaused, words...)
	_, wake := w.Wake(context.Background(), ann, id)
	still := w.WhileStill(context.Background(), ann, id, nil)
	_, replace := w.Replace(context.Background(), ann, id, Content{}, Parent{})
	for what, err := range map[string]error{"waking": wake, "copying": still, "replacing": replace} {
		if !fault.Is(err, fault.SessionPaused) {
			w.t.Errorf("%s: %v", what, err)
		}
	}
	if got := w.status(id); got != "paused" || w.byID(id).current().booted != nil {
		w.t.Errorf("it is %s", got)
	}
}

// TestPause: a paused session has no sandbox, and nothing wakes it, also not with the next server, before it is resumed.
// Then it goes on where it was.
func TestPause(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.paused("x")
		if _, alive := w.fake.Count(); alive != 0 {
			t.Errorf("%d sandboxes run", alive)
		}
		w.wantImages(1)
		for range 2 {
			w.wantPaused(id, "its user paused it at 20")
			w.Close(context.Background())
			w.open(sleeps)
		}
		w.sweep(t.Context(), time.Now().Add(1000*time.Hour)) // neither hibernate.keep nor the retention ends it
		w.wantPaused(id)
		w.wantImages(1)
		w.pause(ann, id) // again
		if i, notice, err := w.Resume(t.Context(), ann, id); err != nil || i.Status != "ready" || notice != "" {
			t.Fatalf("it is %s, %q: %v", i.Status, notice, err)
		}
		if l := w.use(ann, OpenRequest{ID: id}); w.box(id).Memory() != "x" ||
			!strings.HasPrefix(l.Notice, "This session was asleep for ") {
			t.Errorf("it has %q in its memory, and is told %q", w.box(id).Memory(), l.Notice)
		}
		if i, _, err := w.Resume(t.Context(), ann, id); err != nil || i.Status != "ready" { // again
			t.Errorf("it is %s: %v", i.Status, err)
		}
		w.wantImages(0)
	})
}

// TestPauseAny: a session is paused, and resumed, whatever it was before.
func TestPauseAny(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.asleep("x")
		w.pause(ann, id)
		w.wantPaused(id)
		if i, _, err := w.Resume(t.Context(), ann, id); err != nil || i.Status != "ready" || w.box(id).Memory() != "x" {
			t.Errorf("one that slept: %s, %v", i.Status, err)
		}
		home := w.use(ann, OpenRequest{}).ID()
		w.Stop(t.Context(), ann, "home")
		w.pause(ann, "home")
		w.wantPaused(home)
		if i, _, err := w.Resume(t.Context(), ann, "home"); err != nil || i.Status != "stopped" {
			t.Errorf("one with files alone: %s, %v", i.Status, err)
		}
		w.use(ann, OpenRequest{})
		w.box(home).SetMemory("y")
		w.pause(ann, "home")
		w.Prewarm(t.Context(), ann)
		w.Stop(t.Context(), ann, "home") // its memory goes, and it stays paused
		w.wantImages(0)
		w.wantPaused(home)
		w.Close(context.Background())
		w.open(sleeps)
		w.wantPaused(home)
		if _, _, err := w.Resume(t.Context(), ann, "home"); err != nil {
			t.Error(err)
		}
		if l := w.use(ann, OpenRequest{}); !strings.Contains(l.Notice, "it was stopped") {
			t.Errorf("it is told %q", l.Notice)
		}
		gone := w.paused("z")
		if found, err := w.End(t.Context(), ann, gone); !found || err != nil || w.byID(gone) != nil {
			t.Errorf("a paused session was not ended: %v", err)
		}
		w.wantImages(0)
	})
}

// TestPauseUsed: a session that a call uses is not paused, and one that could not be frozen, or stored, goes on.
func TestPauseUsed(t *testing.T) {
	bubble(t, sleeps, func(t *testing.T, w *testSessions) {
		l, err := w.Open(t.Context(), ann, OpenRequest{ID: "new"})
		if err != nil {
			t.Fatal(err)
		}
		id := l.ID()
		w.box(id).SetMemory("x")
		if _, err := w.Pause(t.Context(), ann, id); !fault.Is(err, fault.ResourceLimit) ||
			!strings.Contains(err.Error(), "calls are using the session") {
			t.Errorf("while a call uses it: %v", err)
		}
		l.Release()
		var fails atomic.Bool
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepFreeze && fails.Load() {
				return syscall.ENOSPC
			}
			return nil
		}
		fails.Store(true)
		if _, err := w.Pause(t.Context(), ann, id); !strings.Contains(err.Error(), "could not be paused: the server's disk") {
			t.Errorf("with a full disk: %v", err)
		}
		fails.Store(false)
		w.store.fail(errors.New("the store is away"))
		if _, err := w.Pause(t.Context(), ann, id); err == nil {
			t.Error("it was paused, and that is not stored")
		}
		w.store.fail(nil)
		if w.use(ann, OpenRequest{ID: id}); w.box(id).Memory() != "x" || w.status(id) != "ready" {
			t.Errorf("then it has %q in its memory, and is %s", w.box(id).Memory(), w.status(id))
		}
		w.wantImages(0)
	})
}

// TestPauseOfOthers: nobody sees, pauses or resumes the session of somebody else, but for operators. What an operator has
// paused, its owner neither resumes nor ends.
func TestPauseOfOthers(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		operator := bob
		operator.Roles = auth.NewRoles(auth.Operator)
		id := w.paused("x")
		w.fails(bob, OpenRequest{ID: id}, fault.SessionNotFound)
		_, errPause := w.Pause(t.Context(), bob, id)
		_, _, errResume := w.Resume(t.Context(), bob, id)
		for _, err := range []error{errPause, errResume} {
			if !fault.Is(err, fault.SessionNotFound) {
				t.Errorf("by somebody else: %v", err)
			}
		}
		if found, err := w.End(t.Context(), bob, id); found || err != nil {
			t.Errorf("it was ended by somebody else: %v", err)
		}
		w.pause(operator, id)
		w.pause(ann, id) // which does not make it hers
		_, _, errResume = w.Resume(t.Context(), ann, id)
		_, errEnd := w.End(t.Context(), ann, id)
		for _, err := range []error{errResume, errEnd} {
			if !fault.Is(err, fault.SessionPaused) || !strings.Contains(err.Error(), "an operator of this server paused it") {
				t.Errorf("by its owner: %v", err)
			}
		}
		w.wantPaused(id, "an operator of this server")
		ends := "1ms"
		if _, err := w.Change(t.Context(), ann, id, property.Change{EndsIn: &ends}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
		w.endDue(t.Context()) // it stays, though its life has ended
		w.wantPaused(id, "an operator of this server")
		if i, _, err := w.Resume(t.Context(), operator, id); err != nil || i.Status == "paused" {
			t.Errorf("by the operator: %s, %v", i.Status, err)
		}
		w.endDue(t.Context())
		if w.byID(id) != nil {
			t.Error("then it does not end")
		}
	})
}

// TestPauseUnable: a server that does not write memory to the disk says what to do instead.
func TestPauseUnable(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		id := w.use(ann, OpenRequest{ID: "new"}).ID()
		_, err := w.Pause(t.Context(), ann, id)
		if f := fault.From(err); f.Kind != fault.Configuration || !strings.Contains(f.Text(), "hibernate.enabled is false") ||
			!strings.Contains(f.Text(), "files in /workspace") {
			t.Errorf("%v", err)
		}
		pause := string(record.PauseOnEnd)
		in := "1h"
		w.fails(ann, OpenRequest{ID: "new", Set: property.Change{EndsIn: &in, OnEnd: &pause}}, fault.Configuration,
			"cannot be paused")
		if _, err := w.Change(t.Context(), ann, id, property.Change{EndsIn: &in, OnEnd: &pause}); !fault.Is(err,
			fault.Configuration) {
			t.Errorf("at its end: %v", err)
		}
		if w.status(id) != "ready" {
			t.Error("it does not go on")
		}
	})
}

// TestPausedBounds: paused sessions do not count as live ones, nor among those that are stopped. There is a bound of
// their own, and when all images are too large, theirs go last.
func TestPausedBounds(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		w.fake.ImageBytes = 10
		var all []string
		for range maxStopped * w.MaxSessions {
			all = append(all, w.paused("x"))
		}
		w.limitStopped(t.Context(), ann.ID)
		id := w.use(ann, OpenRequest{ID: "new"}).ID()
		if _, err := w.Pause(t.Context(), ann, id); !fault.Is(err, fault.ResourceLimit) {
			t.Errorf("one more: %v", err)
		}
		operator := bob
		operator.Roles = auth.NewRoles(auth.Operator)
		ends := func(id string) {
			w.set(ann, id, property.New{EndsIn: "1ms", OnEnd: "pause"})
			time.Sleep(2 * time.Millisecond)
			w.endDue(t.Context())
		}
		if _, err := w.Pause(t.Context(), operator, id); err != nil { // whoever the owner is, and whatever they have paused
			t.Errorf("by an operator: %v", err)
		}
		first, second := w.use(ann, OpenRequest{ID: "new"}).ID(), ""
		if ends(first); w.byID(first) != nil {
			t.Errorf("one too many at its end is %s", w.status(first))
		}
		w.Resume(t.Context(), operator, id)
		w.Resume(t.Context(), ann, all[0])
		w.Resume(t.Context(), ann, all[1])
		all = append(all[2:], id)
		for _, one := range []*string{&first, &second} {
			*one = w.use(ann, OpenRequest{ID: "new"}).ID()
			w.sleepUnused(t.Context(), w.byID(*one), "it was idle")
			ends(*one)
		}
		if w.Pause(t.Context(), operator, id); w.status(id) != "paused" {
			t.Fatalf("by an operator: it is %s", w.status(id))
		}
		w.limitStopped(t.Context(), ann.ID)
		if w.byID(first) != nil || w.status(second) != "paused" {
			t.Errorf("the older of two that were paused at their end stays, or the other one is %s", w.status(second))
		}
		all = append(all, second)
		for _, id := range all {
			if w.status(id) != "paused" {
				t.Fatalf("one of the paused sessions is %s", w.status(id))
			}
		}
		asleep := w.asleep("y")
		w.Hibernation.DiskBytes = 1
		w.limitImages(t.Context(), time.Now())
		if got := w.status(asleep); got != "stopped" {
			t.Errorf("the one that sleeps is %s", got)
		}
		for _, id := range all { // each has lost its image in turn, and stays paused
			w.wantPaused(id)
		}
	})
}

// TestPausedImageLost: of a paused session whose image is lost, the files stay, and it stays paused.
func TestPausedImageLost(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.paused("x")
		w.byID(id).loseImage(t.Context(), "the disk was full")
		w.wantImages(0)
		w.wantPaused(id)
		if _, _, err := w.Resume(t.Context(), ann, id); err != nil {
			t.Fatal(err)
		}
		if l := w.use(ann, OpenRequest{ID: id}); !strings.Contains(l.Notice, "the disk was full") {
			t.Errorf("it is told %q", l.Notice)
		}
	})
}

// TestResumeLater: a session that is resumed and cannot be woken now can be used later, and its image is kept as long as
// that of one that has just fallen asleep.
func TestResumeLater(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.paused("x")
		session := w.byID(id)
		session.mu.Lock()
		session.cur.rec.Slept = time.Now().Add(-1000 * time.Hour)
		session.mu.Unlock()
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepWaking {
				return syscall.EIO
			}
			return nil
		}
		i, notice, err := w.Resume(t.Context(), ann, id)
		if err != nil || i.Status != "hibernated" || !strings.Contains(notice, "was not woken yet") {
			t.Fatalf("it is %s, %q: %v", i.Status, notice, err)
		}
		w.sweep(t.Context(), time.Now())
		w.fake.OnStep = nil
		if w.use(ann, OpenRequest{ID: id}); w.box(id).Memory() != "x" {
			t.Errorf("it has %q in its memory", w.box(id).Memory())
		}
	})
}

// TestCrashPausing: when the server is killed at any step of pausing and resuming, the session has what was in its memory,
// and is paused if that was stored. Nothing else is left.
func TestCrashPausing(t *testing.T) {
	type crash struct {
		step    sandboxtest.Step // empty: before the record is stored
		resumes bool             // the server is killed while the session is resumed
		paused  bool             // it is paused then
		stores  int              // how often the record is stored before
	}
	for name, c := range map[string]crash{
		"before the image":         {step: sandboxtest.StepFreeze},
		"with the image":           {step: sandboxtest.StepFrozen},
		"before it is stored":      {},
		"before the sandbox's end": {step: sandboxtest.StepStop, paused: true},
		"before it is resumed":     {resumes: true, paused: true},
		"before it is to wake":     {resumes: true, stores: 1},
		"before it wakes":          {resumes: true, step: sandboxtest.StepWake},
		"before the image's end":   {resumes: true, step: sandboxtest.StepRemove},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, sleeps, func(t *testing.T, w *testSessions) {
				id := w.use(ann, OpenRequest{ID: "new"}).ID()
				w.box(id).SetMemory("x")
				if c.resumes {
					w.pause(ann, id)
				}
				if c.step != "" {
					w.fake.OnStep = func(s sandboxtest.Step) error {
						if s == c.step {
							runtime.Goexit()
						}
						return nil
					}
				} else {
					w.store.exitBefore(c.stores)
				}
				var work sync.WaitGroup
				work.Go(func() {
					if c.resumes {
						_, _, _ = w.Resume(context.Background(), ann, id)
						return
					}
					_, _ = w.Pause(context.Background(), ann, id)
				})
				work.Wait()
				w.fake.OnStep = nil
				w.store.before.Store(nil)
				w.fake.KillServer()
				w.open(sleeps)
				w.left.remove(t.Context())
				if c.paused {
					w.wantPaused(id)
					if _, _, err := w.Resume(t.Context(), ann, id); err != nil {
						t.Error(err)
					}
				}
				if l := w.use(ann, OpenRequest{ID: id}); w.box(id).Memory() != "x" {
					t.Errorf("it has %q in its memory, and was told %q", w.box(id).Memory(), l.Notice)
				}
				if _, alive := w.fake.Count(); alive != 1 {
					t.Errorf("%d sandboxes run", alive)
				}
				w.wantImages(0)
			})
		})
	}
}

// TestPausedMeanwhile: what somebody does with a session counts when it is its turn, not when it was asked for: its user
// does not end what an operator is pausing, and it does not end at a time that was moved.
func TestPausedMeanwhile(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		operator := bob
		operator.Roles = auth.NewRoles(auth.Operator)
		asleep, late := w.asleep("x"), w.use(ann, OpenRequest{ID: "new"}).ID()
		busy := func(id string) (end func()) {
			if err := w.byID(id).acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
			return w.byID(id).release
		}
		end := busy(asleep)
		stopped := make(chan error)
		go func() {
			_, err := w.End(context.Background(), ann, asleep)
			stopped <- err
		}()
		time.Sleep(20 * time.Millisecond) // it waits for its turn
		if err := w.pauseLocked(t.Context(), w.byID(asleep), operator.ID); err != nil {
			t.Fatal(err)
		}
		end()
		if err := <-stopped; !fault.Is(err, fault.SessionPaused) || w.byID(asleep) == nil {
			t.Errorf("its user has ended it: %v", err)
		}
		w.set(ann, late, property.New{EndsIn: "1ms"})
		time.Sleep(2 * time.Millisecond)
		end = busy(late)
		ended := make(chan error)
		go func() { ended <- w.reachEnd(context.Background(), w.byID(late)) }()
		time.Sleep(20 * time.Millisecond)
		if err := w.changeLocked(w.byID(late), property.New{EndsIn: "1h"}.Change()); err != nil {
			t.Fatal(err)
		}
		end()
		if <-ended; w.byID(late) == nil || w.byID(late).current().booted == nil {
			t.Error("it has ended though its end was moved")
		}
	})
}

// TestTakenName: a name that another session has costs no sandbox, and puts no session to sleep.
func TestTakenName(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		named := OpenRequest{ID: "new", Set: property.New{Name: "build"}.Change()}
		for range w.MaxSessions {
			w.use(ann, named)
			named = OpenRequest{ID: "new"}
		}
		before, _ := w.fake.Count()
		named.Set = property.New{Name: "build"}.Change()
		w.fails(ann, named, fault.InvalidParameters, "you have a session build already")
		if after, _ := w.fake.Count(); after != before {
			t.Errorf("%d sandboxes were made, or ended", after-before)
		}
		for _, session := range w.all() {
			if session.record().State != Live {
				t.Errorf("a session is %s", session.record().State)
			}
		}
	})
}
