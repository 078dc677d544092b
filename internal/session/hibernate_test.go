package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/template"
)

// sleeps are rules with which idle sessions sleep.
func sleeps(r *Rules) {
	r.Hibernation = Hibernation{Enabled: true, ImageBytes: 1 << 30, DiskBytes: 1 << 30, Keep: time.Hour,
		PackAfter: time.Minute}
}

// box returns the sandbox of a session, or nil.
func (w *testSessions) box(id string) *sandboxtest.FakeBox {
	if b := w.byID(id).current().booted; b != nil {
		return b.Box.(*sandboxtest.FakeBox)
	}
	return nil
}

// asleep makes a session with something in its memory, and puts it to sleep.
func (w *testSessions) asleep(memory string) (id string) {
	w.t.Helper()
	id = w.use(ann, OpenRequest{ID: "new"}).ID()
	w.box(id).SetMemory(memory)
	w.sleepUnused(context.Background(), w.byID(id), "it was idle")
	if r := w.byID(id).record(); r.State != Asleep || r.Image == "" || r.Sandbox != "" {
		w.t.Fatalf("it does not sleep: %+v", r)
	}
	return id
}

func (w *testSessions) status(id string) string {
	w.t.Helper()
	infos, err := w.List(context.Background(), ann, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return infos[0].Status
}

func (w *testSessions) wantImages(n int) {
	w.t.Helper()
	if all, err := w.fake.FrozenImages(w.t.Context()); err != nil || len(all) != n {
		w.t.Errorf("there are %d images, not %d: %v", len(all), n, err)
	}
}

// TestHibernate: an idle session sleeps, uses nothing, and goes on with its next use, and so it does with the next
// server. An image is used once.
func TestHibernate(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.asleep("x")
		if got := w.status(id); got != "hibernated" {
			t.Errorf("its status is %q", got)
		}
		if owners := w.fake.ImageOwners(); !slices.Equal(owners, []string{ann.ID}) {
			t.Errorf("its image is one of %q", owners)
		}
		if _, alive := w.fake.Count(); alive != 0 || w.Live() != 0 {
			t.Errorf("%d sandboxes run, %d sessions are live", alive, w.Live())
		}
		for _, restart := range []bool{false, true} {
			if restart {
				w.sleepUnused(context.Background(), w.byID(id), "it was idle")
				w.Close(context.Background())
				w.open(sleeps)
				w.wantImages(1)
			}
			l := w.use(ann, OpenRequest{ID: id})
			if !strings.HasPrefix(l.Notice, "This session was asleep for 1s, and goes on where it was.") ||
				w.box(id).Memory() != "x" || w.status(id) != "ready" {
				t.Errorf("it woke with %q in its memory, status %q, and was told %q", w.box(id).Memory(), w.status(id),
					l.Notice)
			}
			if l := w.use(ann, OpenRequest{ID: id}); l.Notice != "" {
				t.Errorf("it is told twice: %q", l.Notice)
			}
			w.wantImages(0)
		}
		w.sleepUnused(context.Background(), w.byID(id), "it was idle")
		w.wantImages(1)
		if !w.Stop(t.Context(), ann, id) || w.byID(id) != nil {
			t.Error("a session that sleeps was not ended")
		}
		w.wantImages(0)
		home := w.use(ann, OpenRequest{}).ID()
		w.sleepUnused(context.Background(), w.byID(home), "it was idle")
		if w.Stop(t.Context(), ann, "home"); w.byID(home).record().Image != "" {
			t.Error("a home that was ended still sleeps")
		}
		w.wantImages(0)
	})
}

// TestInUse: a session that is used does not fall asleep, and a call that comes while it does waits, and wakes it.
func TestInUse(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		l, err := w.Open(t.Context(), ann, OpenRequest{ID: "new"})
		if err != nil {
			t.Fatal(err)
		}
		id := l.ID()
		if w.sleepUnused(t.Context(), l.Session, "it was idle") {
			t.Error("it fell asleep while it was used")
		}
		l.Release()
		w.box(id).SetMemory("x")
		var calls sync.WaitGroup
		var told atomic.Int32
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepFrozen {
				if got := w.status(id); got != "ready" {
					t.Errorf("while it falls asleep its status is %q", got)
				}
				for range 3 {
					calls.Go(func() {
						if l := w.use(ann, OpenRequest{ID: id}); strings.Contains(l.Notice, "was asleep") {
							told.Add(1)
						}
					})
				}
			}
			return nil
		}
		if !w.sleepUnused(t.Context(), l.Session, "it was idle") {
			t.Error("it did not fall asleep")
		}
		calls.Wait()
		if created, alive := w.fake.Count(); w.box(id).Memory() != "x" || created != 2 || alive != 1 ||
			told.Load() != 1 {
			t.Errorf("%d sandboxes were made, %d run; %d calls were told", created, alive, told.Load())
		}
		w.wantImages(0)
	})
}

// TestHibernateFails: what cannot sleep or wake is stopped, and its user is told why. What cannot be stored goes on.
func TestHibernateFails(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		failAt := func(step sandboxtest.Step) {
			w.fake.OnStep = func(s sandboxtest.Step) error {
				if s == step {
					return sandbox.Explain("no luck with "+string(s), errors.New("open /var/lib/sandlot/x: broken"))
				}
				return nil
			}
		}
		home := w.use(ann, OpenRequest{}).ID()
		for _, step := range []sandboxtest.Step{sandboxtest.StepFreeze, sandboxtest.StepFrozen, sandboxtest.StepWake,
			sandboxtest.StepWaking} {
			failAt(step)
			w.sleepUnused(t.Context(), w.byID(home), "it was idle")
			l := w.use(ann, OpenRequest{})
			if !strings.Contains(l.Notice, "no luck with "+string(step)) || strings.Contains(l.Notice, "/var/lib") || w.use(ann, OpenRequest{}).Notice != "" {
				t.Errorf("%s: told: %q", step, l.Notice)
			}
			w.fake.OnStep = nil
			w.removeUnownedImages(t.Context()) // what Freeze has made although it failed
			w.wantImages(0)
		}
		w.fake.HibernateErr = errors.New("not here")
		w.sleepUnused(t.Context(), w.byID(home), "it was idle")
		if l := w.use(ann, OpenRequest{}); !strings.Contains(l.Notice, "(it was idle)") {
			t.Errorf("where nothing can sleep: told: %q", l.Notice)
		}
		w.fake.HibernateErr = nil

		w.box(home).SetMemory("x")
		broken := errors.New("the disk is full")
		w.fake.OnStep = func(s sandboxtest.Step) error {
			w.store.mu.Lock()
			defer w.store.mu.Unlock()
			w.store.broken = nil
			if s == sandboxtest.StepFrozen {
				w.store.broken = broken
			}
			return nil
		}
		if err := w.sleepNow(home); !errors.Is(err, broken) {
			t.Errorf("it could not be stored: %v", err)
		}
		if l := w.use(ann, OpenRequest{}); l.Notice != "" || w.box(home).Memory() != "x" {
			t.Errorf("it did not go on: %q, told: %q", w.box(home).Memory(), l.Notice)
		}
		w.fake.OnStep = nil
		w.wantImages(0)
	})
}

// TestIdleClock: which background processes keep a session awake.
func TestIdleClock(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		waits := agent.Usage{Busy: true, Idle: time.Minute, Quiet: time.Minute}
		listens := agent.Usage{Busy: true, Idle: time.Minute}
		calls := agent.Usage{Busy: true, Attached: true, Idle: time.Minute, Quiet: time.Minute}
		for _, c := range []struct {
			background Background
			enabled    bool
			usage      agent.Usage
			idle       time.Duration
			busy       bool
		}{
			{BackgroundActive, true, waits, time.Minute, false}, {BackgroundActive, true, listens, 0, true},
			{BackgroundActive, true, calls, time.Minute, true}, {BackgroundAll, true, waits, time.Minute, true},
			{BackgroundNone, true, listens, time.Minute, false}, {BackgroundNone, true, calls, time.Minute, true},
			{BackgroundNone, false, waits, time.Minute, true}, // it would be stopped
		} {
			w.Hibernation.Background, w.Hibernation.Enabled = c.background, c.enabled
			if idle, busy := w.idle(Record{}, c.usage); idle != c.idle || busy != c.busy {
				t.Errorf("%+v: idle for %v, busy %v", c, idle, busy)
			}
		}
	})
}

// TestCannotSleep: what cannot sleep is not stopped while background processes run in it, or when it can sleep later.
func TestCannotSleep(t *testing.T) {
	in(t, func(r *Rules) { sleeps(r); r.Hibernation.Background = BackgroundNone }, func(t *testing.T, w *testSessions) {
		id := w.use(ann, OpenRequest{}).ID()
		w.box(id).SetBusy(true)
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepFreeze {
				return errors.New("no luck")
			}
			return nil
		}
		w.sweep(t.Context(), time.Now().Add(time.Hour))
		if got := w.status(id); got != "running" {
			t.Errorf("its status is %q", got)
		}
		if !w.byID(id).busy(t.Context()) {
			t.Error("it is tried again at once")
		}
		w.box(id).SetBusy(false)
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepFreeze {
				return fmt.Errorf("%w: no room", sandbox.ErrLater)
			}
			return nil
		}
		w.byID(id).stayAwake(time.Time{}, nil)
		w.sweep(t.Context(), time.Now().Add(time.Hour))
		if got := w.status(id); got != "ready" {
			t.Errorf("its status is %q, and it can sleep later", got)
		}
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepFreeze {
				return sandbox.Explain("no luck", nil)
			}
			return nil
		}
		w.byID(id).stayAwake(time.Time{}, nil)
		w.sweep(t.Context(), time.Now().Add(time.Hour))
		if l := w.use(ann, OpenRequest{}); !strings.Contains(l.Notice, "no luck") {
			t.Errorf("told %q", l.Notice)
		}
	})
}

// sleepNow is putToSleep with the lock.
func (w *testSessions) sleepNow(id string) error {
	session := w.byID(id)
	if err := session.acquire(context.Background()); err != nil {
		return err
	}
	defer session.release()
	return w.putToSleep(context.Background(), session)
}

// TestImagesAreBounded: who sleeps for too long, or longest of too many, keeps the files alone, and is told.
func TestImagesAreBounded(t *testing.T) {
	in(t, func(r *Rules) { sleeps(r); r.MaxSessions, r.Hibernation.DiskBytes = 5, 25<<20 },
		func(t *testing.T, w *testSessions) {
			w.fake.ImageBytes = 10 << 20
			var ids []string
			for range 3 {
				ids = append(ids, w.asleep("x"))
			}
			w.limitImages(t.Context(), time.Now())
			w.wantImages(2)
			if l := w.use(ann, OpenRequest{ID: ids[0]}); !strings.Contains(l.Notice, "hibernate.disk_mb") {
				t.Errorf("the oldest was told: %q", l.Notice)
			}
			w.limitImages(t.Context(), time.Now().Add(2*time.Hour))
			w.wantImages(0)
			if l := w.use(ann, OpenRequest{ID: ids[1]}); !strings.Contains(l.Notice, "hibernate.keep") {
				t.Errorf("after too long: told: %q", l.Notice)
			}
		})
}

// TestPacking: images of sessions that have slept for long enough become smaller, once.
func TestPacking(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		w.fake.ImageBytes = 8 << 20
		id := w.asleep("x")
		steps := 0
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepPack {
				steps++
			}
			return nil
		}
		for _, after := range []time.Duration{0, time.Hour, time.Hour} {
			w.packDue(t.Context(), time.Now().Add(after))
		}
		all, err := w.fake.FrozenImages(t.Context())
		if err != nil || len(all) != 1 || !all[0].Packed || all[0].Bytes != 2<<20 || steps != 1 {
			t.Errorf("after %d steps: %+v, %v", steps, all, err)
		}
		if l := w.use(ann, OpenRequest{ID: id}); w.box(id).Memory() != "x" {
			t.Errorf("it woke with %q, and was told %q", w.box(id).Memory(), l.Notice)
		}
	})
}

// TestWakeLater: a session that cannot be woken now sleeps on.
func TestWakeLater(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.asleep("x")
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepWake {
				return fmt.Errorf("%w: %w", sandbox.ErrLater, sandbox.Explain("no room", errors.New("/var/lib/x")))
			}
			return nil
		}
		w.fails(ann, OpenRequest{ID: id}, fault.SessionState, "nothing of the session is lost", "now: no room")
		if got := w.status(id); got != "hibernated" {
			t.Errorf("its status is %q", got)
		}
		w.fake.OnStep = nil
		if l := w.use(ann, OpenRequest{ID: id}); w.box(id).Memory() != "x" {
			t.Errorf("it woke with %q, and was told %q", w.box(id).Memory(), l.Notice)
		}
	})
}

// passing are errors of a machine that cannot read or write at the moment.
var passing = []error{syscall.EIO, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EACCES, syscall.ENOSPC,
	syscall.EDQUOT, context.DeadlineExceeded}

// TestUnreadAsleep: a session whose image the machine cannot read at the moment sleeps on with all that it has, and its
// user is told what to do. What is left of the sandbox that could not be made is removed before it wakes.
func TestUnreadAsleep(t *testing.T) {
	for _, step := range []sandboxtest.Step{sandboxtest.StepWake, sandboxtest.StepWaking} {
		for _, cause := range passing {
			for _, remains := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %v, %v", step, cause, remains), func(t *testing.T) {
					in(t, sleeps, func(t *testing.T, w *testSessions) {
						id := w.asleep("x")
						w.fake.OnStep = func(s sandboxtest.Step) error {
							switch {
							case s == step && remains:
								return errors.Join(&fs.PathError{Op: "read", Path: "/var/lib/x", Err: cause}, sandbox.ErrRemains)
							case s == step:
								return &fs.PathError{Op: "read", Path: "/var/lib/x", Err: cause}
							}
							return nil
						}
						_, err := w.Open(t.Context(), ann, OpenRequest{ID: id})
						var f *fault.Error
						if !errors.As(err, &f) || !strings.Contains(f.Message, "nothing of the session is lost") ||
							strings.Contains(f.Message, "/var/lib") || len(f.Advice) < 2 {
							t.Fatalf("it does not say what to do: %v", err)
						}
						if got := w.status(id); got != "hibernated" {
							t.Errorf("its status is %q", got)
						}
						w.wantImages(1)
						w.fake.OnStep = nil
						if l := w.use(ann, OpenRequest{ID: id}); w.box(id).Memory() != "x" || strings.Contains(l.Notice, "gone") {
							t.Errorf("it woke with %q, and was told %q", w.box(id).Memory(), l.Notice)
						}
						if _, alive := w.fake.Count(); alive != 1 {
							t.Errorf("%d sandboxes run", alive)
						}
						w.wantImages(0)
					})
				})
			}
		}
	}
}

// TestLateWakes: a sandbox that does not answer in time is waked again, and not for ever.
func TestLateWakes(t *testing.T) {
	bubble(t, sleeps, func(t *testing.T, w *testSessions) {
		home := w.use(ann, OpenRequest{}).ID()
		w.sleepUnused(context.Background(), w.byID(home), "it was idle")
		w.fake.Silent = true
		for range maxLate - 1 {
			w.fails(ann, OpenRequest{}, fault.SessionState, "nothing of the session is lost", "did not get ready")
		}
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepRemove {
				w.fake.Silent = false // the next one answers
			}
			return nil
		}
		if l := w.use(ann, OpenRequest{}); !strings.Contains(l.Notice, "its agent did not get ready") {
			t.Errorf("told: %q", l.Notice)
		}
		w.fake.OnStep = nil
		w.wantImages(0)
	})
}

// TestUnwrittenAwake: a session that the machine cannot write at the moment goes on, and is put to sleep later, though
// nothing runs in it. One that stands still and cannot go on is not lost either.
func TestUnwrittenAwake(t *testing.T) {
	for _, step := range []sandboxtest.Step{sandboxtest.StepFreeze, sandboxtest.StepFrozen, sandboxtest.StepThaw} {
		for _, cause := range passing {
			t.Run(fmt.Sprintf("%s, %v", step, cause), func(t *testing.T) {
				in(t, sleeps, func(t *testing.T, w *testSessions) {
					id := w.use(ann, OpenRequest{}).ID()
					w.box(id).SetMemory("x")
					w.fake.OnStep = func(s sandboxtest.Step) error {
						if s == step || s == sandboxtest.StepFrozen {
							return fmt.Errorf("writing /var/lib/x: %w", cause)
						}
						return nil
					}
					if w.sleepUnused(t.Context(), w.byID(id), "it was idle") {
						t.Error("it was stopped")
					}
					w.removeUnownedImages(t.Context()) // what Freeze has made although it failed
					w.fake.OnStep = nil
					l := w.use(ann, OpenRequest{})
					if w.box(id).Memory() != "x" || strings.Contains(l.Notice, "gone") {
						t.Errorf("it has %q in its memory, and was told %q", w.box(id).Memory(), l.Notice)
					}
					if atomicfile.IsDiskFull(cause) && step != sandboxtest.StepThaw && !strings.Contains(l.Notice, "disk is full") {
						t.Errorf("what would be lost is not said: %q", l.Notice)
					}
					if !w.sleepUnused(t.Context(), w.byID(id), "it was idle") || w.status(id) != "hibernated" {
						t.Errorf("it was not put to sleep later: %s", w.status(id))
					}
				})
			})
		}
	}
}

// TestRecoveredWithoutDisk: while the machine cannot read or write what is left of an earlier server, nothing is dropped.
func TestRecoveredWithoutDisk(t *testing.T) {
	for _, cause := range passing {
		t.Run(cause.Error(), func(t *testing.T) {
			in(t, sleeps, func(t *testing.T, w *testSessions) {
				id := w.use(ann, OpenRequest{}).ID()
				w.box(id).SetMemory("x")
				w.fake.OnStep = func(s sandboxtest.Step) error { // killed while it puts the session to sleep
					if s == sandboxtest.StepFrozen {
						runtime.Goexit()
					}
					return nil
				}
				var work sync.WaitGroup
				work.Go(func() { w.sleepUnused(context.Background(), w.byID(id), "it was idle") })
				work.Wait()
				w.fake.KillServer()
				broken := fmt.Errorf("reading /var/lib/x: %w", cause)
				w.fake.OnRecover = func(context.Context, string) error { return broken }
				w.fake.OnStep = nil
				w.open(sleeps)
				w.left.remove(t.Context())
				w.fails(ann, OpenRequest{}, fault.SandboxCreation, "nothing of the session is lost")
				w.fake.OnRecover = nil
				w.fake.OnStep = func(s sandboxtest.Step) error {
					if s == sandboxtest.StepThaw {
						return broken
					}
					return nil
				}
				w.fails(ann, OpenRequest{}, fault.SandboxCreation, "nothing of the session is lost")
				w.fake.OnStep = nil
				if l := w.use(ann, OpenRequest{}); w.box(id).Memory() != "x" || l.Notice != "" {
					t.Errorf("it has %q in its memory, and was told %q", w.box(id).Memory(), l.Notice)
				}
				if created, alive := w.fake.Count(); created != 1 || alive != 1 {
					t.Errorf("%d sandboxes were made, %d run", created, alive)
				}
			})
		})
	}
}

// TestCrashAsleep: when the server is killed at any step of going to sleep and waking, the session has what was in its
// memory, or its user is told why not. Nothing else is left.
func TestCrashAsleep(t *testing.T) {
	type crash struct {
		step   sandboxtest.Step // empty: before the record is stored
		wakes  bool             // the server is killed while the session wakes
		stores int              // how often the record is stored before
		lost   bool
	}
	for name, c := range map[string]crash{
		"before the image":           {step: sandboxtest.StepFreeze},
		"with the image":             {step: sandboxtest.StepFrozen},
		"before it is stored":        {},
		"before the sandbox's end":   {step: sandboxtest.StepStop},
		"before it is to wake":       {wakes: true},
		"before there is a sandbox":  {step: sandboxtest.StepWake, wakes: true},
		"before anything runs in it": {step: sandboxtest.StepWaking, wakes: true},
		"when it runs":               {step: sandboxtest.StepWoken, wakes: true},
		"before that is stored":      {wakes: true, stores: 1},
		"before the image's removal": {step: sandboxtest.StepRemove, wakes: true},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, sleeps, func(t *testing.T, w *testSessions) {
				id := w.use(ann, OpenRequest{ID: "new"}).ID()
				w.box(id).SetMemory("x")
				if c.wakes {
					w.sleepUnused(t.Context(), w.byID(id), "it was idle")
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
					if c.wakes {
						w.use(ann, OpenRequest{ID: id})
						return
					}
					w.sleepUnused(context.Background(), w.byID(id), "it was idle")
				})
				work.Wait()
				w.fake.OnStep = nil
				w.store.before.Store(nil)
				w.fake.KillServer()
				w.open(sleeps)
				w.left.remove(t.Context())
				l := w.use(ann, OpenRequest{ID: id})
				if kept := w.box(id).Memory() == "x"; kept == c.lost || kept == strings.Contains(l.Notice, "gone") {
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

// exitBefore ends the goroutine that stores a record, after n that were stored.
func (m *fakeStore) exitBefore(n int) {
	var hook func()
	hook = func() {
		if n--; n < 0 {
			runtime.Goexit()
		}
		m.before.Store(&hook)
	}
	m.before.Store(&hook)
}

// TestUnkeptIsSaid: files of the machine without which a session does not wake are named while it sleeps, also by the next
// server, and once when it has woken.
func TestUnkeptIsSaid(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		w.fake.Unkept = []string{"/usr/lib/a.so", "/usr/lib/b\n.so", "/c", "/d", "/e", "/f", "/g"}
		id := w.asleep("x")
		unkept := func() []string {
			t.Helper()
			infos, err := w.List(t.Context(), ann, id)
			if err != nil {
				t.Fatal(err)
			}
			return infos[0].Unkept
		}
		if got := unkept(); !slices.Equal(got, w.fake.Unkept) {
			t.Errorf("named: %q", got)
		}
		w.Close(context.Background())
		w.open(sleeps)
		if got := unkept(); !slices.Equal(got, w.fake.Unkept) {
			t.Errorf("named by the next server: %q", got)
		}
		l := w.use(ann, OpenRequest{ID: id})
		if !strings.Contains(l.Notice, "/usr/lib/a.so") || !strings.Contains(l.Notice, "and 2 more") ||
			strings.Contains(l.Notice, "\n") || len(unkept()) != 0 {
			t.Errorf("named when it woke: %q; %q", l.Notice, unkept())
		}
		w.fake.Unkept = nil
		w.sleepUnused(context.Background(), w.byID(id), "it was idle")
		if l := w.use(ann, OpenRequest{ID: id}); !strings.Contains(l.Notice, "was asleep") ||
			strings.Contains(l.Notice, "no copy") {
			t.Errorf("told again: %q", l.Notice)
		}
	})
}

// TestWakeHasItsTime: a wake takes as long as it may, whatever the deadline of the call is for which the session wakes,
// and however long it has waited for its turn.
func TestWakeHasItsTime(t *testing.T) {
	bubble(t, func(r *Rules) { sleeps(r); r.MaxSessions = 1000 }, func(t *testing.T, w *testSessions) {
		var ids []string
		for n := range 2 * runtime.NumCPU() {
			ids = append(ids, w.asleep(fmt.Sprint(n)))
		}
		w.fake.BootDelay = 1500 * time.Millisecond // of two seconds
		var calls sync.WaitGroup
		for _, id := range ids {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if l, err := w.Open(ctx, ann, OpenRequest{ID: id}); err == nil {
					l.Release()
				} else if w.status(id) != "ready" {
					t.Errorf("its call ended with %v, and its status is %s", err, w.status(id))
				}
			})
		}
		calls.Wait()
		for n, id := range ids {
			if b := w.box(id); b == nil || b.Memory() != fmt.Sprint(n) {
				t.Errorf("session %d has lost its memory", n)
			}
		}
		w.wantImages(0)
	})
}

// TestWokenLimits: limits that have become other ones while a session slept hold when it has woken, but for those that it
// has in use: what runs in it would end. So it is when its flavor was removed from the settings.
func TestWokenLimits(t *testing.T) {
	const mb = 1 << 20
	narrow := image.Flavor{Name: "small", CPUs: 0.5, MemoryMB: 128}
	for name, c := range map[string]struct {
		memory, processes     int64 // in use
		keeps, keepsProcesses bool
	}{
		"little":               {10 * mb, 5, false, false},
		"more memory":          {300 * mb, 5, true, false},
		"almost all memory":    {120 * mb, 5, true, false},
		"more processes":       {10 * mb, 60, false, true},
		"almost all processes": {10 * mb, 48, false, true},
		"more of both":         {300 * mb, 60, true, true},
	} {
		for flavor, hadMB := range map[string]int{"small": 1024, "medium": 2048} {
			t.Run(name+", "+flavor, func(t *testing.T) {
				in(t, sleeps, func(t *testing.T, w *testSessions) {
					again := func(memory, processes int64) *Lease {
						w.box(w.all()[0].record().ID).SetUsed(memory, processes)
						w.sleepUnused(context.Background(), w.all()[0], "it was idle")
						w.Close(context.Background())
						w.open(func(r *Rules) { sleeps(r); r.Flavors = []image.Flavor{narrow} })
						w.Pool.Processes = 50
						return w.use(ann, OpenRequest{ID: w.all()[0].record().ID})
					}
					check := func(l *Lease, keeps, keepsProcesses bool) {
						t.Helper()
						want := w.Pool.Limits(narrow)
						if keeps {
							want.MemoryBytes = int64(hadMB) * mb
						}
						if keepsProcesses {
							want.Processes = 200
						}
						b := w.box(l.ID())
						memory, processes := b.Told()
						if got := b.Spec().Limits; got != want || memory != want.MemoryBytes || processes != want.Processes ||
							b.Memory() != "x" || int64(l.Booted.Flavor.MemoryMB)*mb != want.MemoryBytes {
							t.Errorf("it has %+v and %+v, its agent was told %d and %d, and not %+v; it has %q in its memory",
								got, l.Booted.Flavor, memory, processes, want, b.Memory())
						}
						said := strings.Contains(l.Notice, fmt.Sprintf("keeps its limit of %d MB", hadMB))
						if said != keeps {
							t.Errorf("told: %q", l.Notice)
						}
					}
					w.Pool.Processes = 200
					w.box(w.use(ann, OpenRequest{ID: "new", Flavor: flavor}).ID()).SetMemory("x")
					check(again(c.memory, c.processes), c.keeps, c.keepsProcesses)
					check(again(10*mb, 5), false, false) // it has freed what it had
				})
			})
		}
	}
}

// TestAdoptedLimits: a sandbox that the next server takes over has the limits that it was made with, whatever the settings
// say by now, and its agent is told nothing else.
func TestAdoptedLimits(t *testing.T) {
	for _, flavor := range []string{"small", "medium"} { // of which the second one is removed
		in(t, sleeps, func(t *testing.T, w *testSessions) {
			id := w.use(ann, OpenRequest{ID: "new", Flavor: flavor}).ID()
			w.box(id).SetMemory("x")
			limits := w.box(id).Spec().Limits
			w.fake.KillServer()
			w.open(func(r *Rules) {
				sleeps(r)
				r.Flavors = []image.Flavor{{Name: "small", CPUs: 0.5, MemoryMB: 128}}
			})
			w.left.remove(t.Context())
			w.Bound = &fakeBound{version: 1} // makes the agent get settings
			l := w.use(ann, OpenRequest{ID: id})
			if memory, _ := w.box(id).Told(); memory != limits.MemoryBytes || w.box(id).Spec().Limits != limits ||
				w.box(id).Memory() != "x" || l.Notice != "" {
				t.Errorf("%s: it has %+v and %q, its agent was told %d, its user %q", flavor, w.box(id).Spec().Limits,
					w.box(id).Memory(), memory, l.Notice)
			}
		})
	}
}

// TestWakesAsLarge: a session that fell asleep with more memory in use than its flavor allows by now counts with what it
// keeps, before it wakes. What does not fit sleeps on, and loses nothing.
func TestWakesAsLarge(t *testing.T) {
	const mb = 1 << 20
	narrow := func(r *Rules) { sleeps(r); r.Flavors = []image.Flavor{{Name: "small", CPUs: 1, MemoryMB: 256}} }
	for name, c := range map[string]struct {
		inUse int64
		fits  bool
	}{"much": {600 * mb, false}, "it is not known": {0, false}, "little": {100 * mb, true}} {
		t.Run(name, func(t *testing.T) {
			in(t, sleeps, func(t *testing.T, w *testSessions) {
				id := w.use(ann, OpenRequest{}).ID() // of 1024 MB
				w.box(id).SetMemory("x")
				w.box(id).SetUsed(c.inUse, 5)
				w.sleepUnused(t.Context(), w.byID(id), "it was idle")
				w.Close(context.Background())
				w.open(func(r *Rules) { narrow(r); r.MaxMemoryMB = 512 })
				w.Prewarm(t.Context(), ann)
				if awake := w.box(id) != nil; awake != c.fits {
					t.Errorf("it was made ready: %t", awake)
				}
				if !c.fits {
					w.fails(ann, OpenRequest{}, fault.ResourceLimit, "a session of 1024 MB does not fit", "nothing of it is lost")
					w.wantImages(1)
					w.MaxMemoryMB = 1024
				}
				if l := w.use(ann, OpenRequest{}); w.box(id).Memory() != "x" || !strings.Contains(l.Notice, "was asleep") {
					t.Errorf("it has %q, and was told %q", w.box(id).Memory(), l.Notice)
				}
				_, live := holder{w.Sessions}.Live(ann.ID)
				counted := *w.usage.Uses(ann.ID)[1].Used
				if want := w.byID(id).current().booted.Flavor.MemoryMB; live != want || counted != float64(want) {
					t.Errorf("%d MB are counted, and %g with what is reserved; it has %d", live, counted, want)
				}
			})
		})
	}
}

// TestRuntimeRemovedWaking: a session that was waking when its server ended loses nothing while its runtime is not among
// the settings, unless it is used: neither its image nor, if it had got that far, its sandbox.
func TestRuntimeRemovedWaking(t *testing.T) {
	for _, woken := range []bool{false, true} {
		in(t, sleeps, func(t *testing.T, w *testSessions) {
			id := w.asleep("x")
			if woken {
				w.fake.OnStep = func(s sandboxtest.Step) error {
					if s == sandboxtest.StepWoken {
						w.store.fail(errors.New("the machine is cut off"))
					}
					return nil
				}
				w.use(ann, OpenRequest{ID: id})
				w.fake.OnStep = nil
				w.store.fail(nil)
				w.box(id).SetMemory("y")
				w.fake.KillServer()
			} else {
				w.store.mu.Lock()
				r := w.store.all[id]
				r.Sandbox, r.State = "begun", Live
				w.store.all[id] = r
				w.store.mu.Unlock()
			}
			before := w.fake
			w.fake = &sandboxtest.Fake{Called: "another"}
			w.open(sleeps)
			w.byID(id).updateOrLog("something", func(*Record) {})
			w.Close(context.Background())
			w.fake = before
			w.open(sleeps)
			l := w.use(ann, OpenRequest{ID: id})
			want := "x"
			if woken {
				want = "y"
			}
			if got := w.box(id).Memory(); got != want || !strings.Contains(l.Notice, "was asleep") {
				t.Errorf("woken: %t: it has %q, and was told %q", woken, got, l.Notice)
			}
			w.wantImages(0)
		})
	}
}

// TestTemplateRemovedWaking: so it is when its template was removed, which is there again later.
func TestTemplateRemovedWaking(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.asleep("x")
		w.store.mu.Lock()
		r := w.store.all[id]
		r.Sandbox, r.State = "begun", Live
		w.store.all[id] = r
		w.store.mu.Unlock()
		if _, err := w.fake.Create(t.Context(), sandbox.Spec{ID: "begun", Template: hostAndOther[0],
			Secret: make([]byte, wire.SecretLen)}); err != nil {
			t.Fatal(err)
		}
		w.Close(context.Background())
		w.open(func(r *Rules) { sleeps(r); r.Templates = template.New(w.Log, hostAndOther[1:], nil, false) })
		w.left.remove(t.Context())
		w.byID(id).updateOrLog("something", func(*Record) {})
		w.Close(context.Background())
		w.open(sleeps)
		if l := w.use(ann, OpenRequest{ID: id}); w.box(id).Memory() != "x" || !strings.Contains(l.Notice, "was asleep") {
			t.Errorf("it has %q, and was told %q", w.box(id).Memory(), l.Notice)
		}
	})
}

// TestRuntimeRemoved: whoever has a session whose runtime is not among the settings any more is told so.
func TestRuntimeRemoved(t *testing.T) {
	for _, sleep := range []bool{false, true} {
		in(t, sleeps, func(t *testing.T, w *testSessions) {
			id := w.use(ann, OpenRequest{ID: "new"}).ID()
			if sleep {
				w.sleepUnused(context.Background(), w.byID(id), "it was idle")
			}
			w.Close(context.Background())
			before := w.fake
			defer func() {
				for _, b := range before.List() {
					b.(*sandboxtest.FakeBox).Kill("the test is over")
				}
			}()
			w.fake = &sandboxtest.Fake{Called: "another"}
			w.open(sleeps)
			if l := w.use(ann, OpenRequest{ID: id}); !strings.Contains(l.Notice, "its runtime fake is not among the setting") {
				t.Errorf("asleep %v: told: %q", sleep, l.Notice)
			}
		})
	}
}

// fakeBound counts how often it is asked for the bound secrets of a sandbox.
type fakeBound struct {
	version uint64
	asked   int
}

func (b *fakeBound) Version(string) uint64 { return b.version }

func (b *fakeBound) Settings(string, string) (*agent.Bound, error) {
	b.asked++
	return &agent.Bound{}, nil
}

// TestSecretsMeanwhile: a session that wakes has the bound secrets of now: others than when it fell asleep, or none.
func TestSecretsMeanwhile(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		bound := &fakeBound{}
		w.Bound = bound
		use := func(what, id string, version uint64, asked int) string {
			t.Helper()
			bound.version, bound.asked = version, 0
			for range 2 {
				id = w.use(ann, OpenRequest{ID: id}).ID()
			}
			if bound.asked != asked {
				t.Errorf("%s: it got them %d times, not %d", what, bound.asked, asked)
			}
			return id
		}
		id := use("without any", "home", 0, 0)
		use("with one", id, 2, 1)
		for _, restart := range []bool{false, true} {
			for what, version := range map[string]uint64{"others": 3, "the same": 2, "none": 0} {
				w.sleepUnused(context.Background(), w.byID(id), "it was idle")
				if restart {
					w.Close(context.Background())
					w.open(sleeps)
					w.Bound = bound
				}
				use(what, id, version, 1)
			}
		}
	})
}
