package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/secret"
	"sandlot/internal/workspace"
)

// leave makes sessions of ann's with a sandbox each, and lets them go as a
// server does that ends.
func leave(w *testSessions, n int) (left []*Lease) {
	for range n {
		left = append(left, w.use(ann, OpenRequest{ID: "new"}))
	}
	w.Close(context.Background())
	return left
}

// TestAskedForFirst: who asks for a session waits for its sandbox alone, while
// all others cannot be taken over, and those follow.
func TestAskedForFirst(t *testing.T) {
	const many = 50
	in(t, func(r *Rules) { r.MaxSessions = many }, func(t *testing.T, w *testSessions) {
		left := leave(w, many)
		quick, slow := left[0], left[1]
		free := make(chan struct{})
		w.fake.OnRecover = func(_ context.Context, id string) error {
			if id != quick.Booted.ID {
				<-free
			}
			return nil
		}
		w.open(func(r *Rules) { r.MaxSessions = many })
		ctx, stop := context.WithCancel(t.Context())
		var work sync.WaitGroup
		work.Go(func() { w.Run(ctx) })
		began := time.Now()
		if l := w.use(ann, OpenRequest{ID: quick.ID()}); l.Booted.ID != quick.Booted.ID || l.Notice != "" {
			t.Errorf("another sandbox, %q", l.Notice)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it waited %s for others", took)
		}
		if w.Live() != many {
			t.Errorf("%d of %d live", w.Live(), many)
		}
		asked := make(chan error, 1)
		work.Go(func() {
			l, err := w.Open(context.Background(), ann, OpenRequest{ID: slow.ID()})
			if err == nil {
				l.Release()
			}
			asked <- err
		})
		time.Sleep(50 * time.Millisecond)
		close(free)
		if err := <-asked; err != nil {
			t.Error(err)
		}
		for i := 0; ; i++ {
			rest := slices.DeleteFunc(w.all(), func(s *Session) bool { return !s.current().untaken() })
			if len(rest) == 0 {
				break
			}
			if i == 1000 {
				t.Fatalf("%d are not taken over", len(rest))
			}
			time.Sleep(10 * time.Millisecond)
		}
		stop()
		work.Wait()
	})
}

// TestLeftCounts: what is not taken over yet counts towards the limits, keeps its
// idle clock, and is stopped, removed and evicted as if it were.
func TestLeftCounts(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		left := leave(w, 3)
		w.open(func(r *Rules) { r.EvictIdle, r.MaxMemoryMB = false, 3*1024 })
		w.fails(ann, OpenRequest{ID: "new"}, fault.ResourceLimit)
		w.fails(bob, OpenRequest{ID: "new"}, fault.ResourceLimit) // by the memory of all
		for _, l := range left {
			if !w.Owns(l.Booted.ID) {
				t.Error("its sandbox belongs to nobody")
			}
		}
		if !w.Stop(context.Background(), ann, left[0].ID()) || w.fake.Box(left[0].Booted.ID) != nil {
			t.Error("a session that was stopped has a sandbox")
		}
		w.sweep(context.Background(), time.Now().Add(w.IdleTimeout+w.SweepInterval))
		if _, alive := w.fake.Count(); alive != 0 {
			t.Errorf("%d idle ones live", alive)
		}
	})
	in(t, nil, func(t *testing.T, w *testSessions) {
		leave(w, 3)
		w.open(nil)
		w.use(ann, OpenRequest{ID: "new"}) // one makes room
		if _, alive := w.fake.Count(); alive != 3 {
			t.Errorf("%d live", alive)
		}
	})
	in(t, nil, func(t *testing.T, w *testSessions) {
		left := leave(w, 2)
		w.open(nil)
		infos, err := w.List(context.Background(), ann, "")
		if err != nil || len(infos) != 2 || infos[0].Status != "ready" || infos[0].Usage == nil {
			t.Errorf("%+v, %v", infos, err)
		}
		if w.use(ann, OpenRequest{ID: left[1].ID()}).Booted.ID != left[1].Booted.ID {
			t.Error("another sandbox")
		}
	})
}

// TestStopWhileRecovering: a server that stops, or dies, in the middle of taking
// over loses nothing for the next one.
func TestStopWhileRecovering(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *testSessions) {
		left := leave(w, 3)
		var free atomic.Value
		free.Store(left[0].Booted.ID)
		w.fake.OnRecover = func(_ context.Context, id string) error {
			if id == free.Load() || free.Load() == "" {
				return nil
			}
			return errors.New("too many open files")
		}
		run := func() (stop func()) {
			w.open(nil)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { w.Run(ctx); close(done) }()
			time.Sleep(time.Second)
			return func() { cancel(); <-done }
		}
		for _, clean := range []bool{true, false} {
			stop := run()
			w.fails(ann, OpenRequest{ID: left[1].ID()}, fault.SandboxCreation)
			stop()
			if clean {
				w.Close(context.Background())
				continue
			}
			for _, s := range w.all() { // all that the kernel does for one that is killed
				if s.cur.booted != nil {
					s.cur.booted.Detach()
				}
			}
		}
		free.Store(left[1].Booted.ID)
		stop := run()
		free.Store("")
		time.Sleep(2 * adoptRetry)
		for _, l := range left {
			if s := w.ownedSession(ann, l.ID()); s == nil || s.current().untaken() || s.record().Sandbox != l.Booted.ID {
				t.Error("a sandbox is not taken over")
			}
			if now := w.use(ann, OpenRequest{ID: l.ID()}); now.Booted.ID != l.Booted.ID || now.Notice != "" {
				t.Errorf("another sandbox: %q", now.Notice)
			}
		}
		stop()
	})
}

// bubble is in within a synctest bubble.
func bubble(t *testing.T, change func(*Rules), test func(*testing.T, *testSessions)) {
	t.Helper()
	if !sandboxtest.Alone(t) {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		w := newTestSessions(t, change)
		defer synctest.Wait()
		defer w.close()
		test(t, w)
	})
}

// TestAFewAtOnce: Run takes over no more than a few at the same time, the ones
// used last before the others.
func TestAFewAtOnce(t *testing.T) {
	const many = 40
	in(t, func(r *Rules) { r.MaxSessions = 1 }, func(t *testing.T, w *testSessions) {
		var ids []string
		for i := range many {
			ids = append(ids, w.use(auth.User(fmt.Sprint("user", i), false), OpenRequest{ID: "new"}).Booted.ID)
			time.Sleep(time.Millisecond)
		}
		w.Close(context.Background())
		var mu sync.Mutex
		now, most := 0, 0
		var order []string
		w.fake.OnRecover = func(_ context.Context, id string) error {
			mu.Lock()
			now++
			most = max(most, now)
			order = append(order, id)
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		}
		w.open(nil)
		w.adoptAll(context.Background())
		if most > adoptedAtOnce() || len(order) != many {
			t.Errorf("%d at once, %d in all", most, len(order))
		}
		if last := ids[many-adoptedAtOnce():]; !slices.Contains(last, order[0]) {
			t.Error("one that was not used for long is first")
		}
	})
}

// TestUnowned: what belongs to nobody is removed by a server that stops at once,
// and by one that cannot take over a session's.
func TestUnowned(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *testSessions) {
		left := leave(w, 1)
		stray := func() {
			t.Helper()
			if _, err := w.fake.Create(context.Background(),
				sandbox.Spec{ID: secret.ID(), Template: hostAndOther[0],
					Secret: make([]byte, wire.SecretLen)}); err != nil {
				t.Fatal(err)
			}
		}
		alive := func(want int) {
			t.Helper()
			if _, n := w.fake.Count(); n != want {
				t.Errorf("%d live, want %d", n, want)
			}
		}
		stray()
		w.open(nil)
		alive(2)
		stopped, stop := context.WithCancel(t.Context())
		stop()
		w.Run(stopped)
		alive(1)
		stray()
		w.fake.OnRecover = func(_ context.Context, id string) error {
			if id == left[0].Booted.ID {
				return errors.New("too many open files")
			}
			return nil
		}
		w.open(nil)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.Run(ctx); close(done) }()
		time.Sleep(time.Second)
		alive(1)
		stop()
		<-done
		w.fake.OnRecover = nil
	})
}

// TestStopFails: while the sandbox of a session cannot be stopped, whyever that is to be done, the session gets no
// other one, which would have the same workspace. It ends as soon as that can be done, by this server or the next.
func TestStopFails(t *testing.T) {
	for name, stop := range map[string]func(w *testSessions, l *Lease){
		"idle": func(w *testSessions, l *Lease) {
			w.sweep(context.Background(), time.Now().Add(w.IdleTimeout+w.SweepInterval))
		},
		"user": func(w *testSessions, l *Lease) { w.Stop(context.Background(), ann, "home") },
		"fault": func(w *testSessions, l *Lease) {
			l.Fault(context.Background(), agent.ErrProtocol, fault.CommandExecution)
		},
		"boot": func(w *testSessions, l *Lease) {
			w.fake.StopHangs.Store(false)
			w.Stop(context.Background(), ann, "home")
			w.fake.Silent = true
			w.fake.StopHangs.Store(true)
			w.fails(ann, OpenRequest{ID: "home"}, fault.SandboxCreation)
			w.fake.Silent = false
		},
		"next server": func(w *testSessions, l *Lease) {
			w.Stop(context.Background(), ann, "home")
			w.Close(context.Background())
			w.open(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, w *testSessions) {
				one := func(want int) {
					t.Helper()
					if _, alive := w.fake.Count(); alive != want || len(w.fake.List()) != want {
						t.Errorf("%d live, want %d", alive, want)
					}
				}
				home := w.use(ann, OpenRequest{ID: "home"})
				w.fake.StopHangs.Store(true)
				stop(w, home)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { w.Run(ctx); close(done) }()
				defer func() { cancel(); <-done }()
				w.fails(ann, OpenRequest{ID: "home"}, fault.SandboxCreation, "workspace")
				one(1)
				w.fake.StopHangs.Store(false)
				time.Sleep(3 * time.Minute)
				one(0)
				if w.Live() != 0 {
					t.Error("a session without a sandbox counts as live")
				}
				if l := w.use(ann, OpenRequest{ID: "home"}); l.Booted.ID == home.Booted.ID || l.Notice == "" {
					t.Errorf("after the end: the same sandbox, or no notice: %q", l.Notice)
				}
				one(1)
			})
		})
	}
}

// TestDeadRemains: a dead sandbox that cannot be removed does not keep its session from a new one. It is removed later.
func TestDeadRemains(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *testSessions) {
		left := leave(w, 1)[0]
		var asked atomic.Int64
		w.fake.OnRecover = func(context.Context, string) error {
			if asked.Add(1) <= 2 {
				return errors.Join(sandbox.ErrGone, sandbox.ErrRemains, sandbox.ErrUnavailable)
			}
			return nil
		}
		w.open(nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.Run(ctx); close(done) }()
		defer func() { cancel(); <-done }()
		if l := w.use(ann, OpenRequest{ID: left.ID()}); l.Booted.ID == left.Booted.ID || l.Notice == "" {
			t.Errorf("the dead sandbox is used again: %q", l.Notice)
		}
		time.Sleep(3 * adoptRetry)
		if w.fake.Box(left.Booted.ID) != nil || asked.Load() != 3 {
			t.Errorf("what is left of the dead one was not removed, %d attempts", asked.Load())
		}
	})
}

// TestStoppedInVain: the sandbox of a session that is stopped while nobody can take it
// over ends as soon as that can be done: by this server or, of a home, by the next.
func TestStoppedInVain(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *testSessions) {
		var full atomic.Bool
		w.fake.OnRecover = func(context.Context, string) error {
			if full.Load() {
				return errors.New("too many open files")
			}
			return nil
		}
		run := func() (stop func()) {
			full.Store(true)
			w.open(nil)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { w.Run(ctx); close(done) }()
			time.Sleep(time.Second)
			return func() { cancel(); <-done; w.Close(context.Background()) }
		}
		alive := func(want int) {
			t.Helper()
			if _, n := w.fake.Count(); n != want {
				t.Errorf("%d live, want %d", n, want)
			}
		}
		home, other := w.use(ann, OpenRequest{ID: "home"}), w.use(ann, OpenRequest{ID: "new"})
		w.Close(context.Background())
		stop := run()
		for _, id := range []string{home.ID(), other.ID()} {
			if !w.Stop(context.Background(), ann, id) {
				t.Error("it is not there")
			}
		}
		alive(2)
		if all, err := w.List(context.Background(), ann, ""); err != nil || len(all) != 1 ||
			all[0].Status != "stopped" {
			t.Errorf("%+v, %v", all, err)
		}
		full.Store(false)
		time.Sleep(2 * adoptRetry)
		alive(0)
		if l := w.use(ann, OpenRequest{ID: "home"}); l.Booted.ID == home.Booted.ID || l.Notice == "" {
			t.Errorf("the home's sandbox is there again: %q", l.Notice)
		}
		stop()

		stop = run() // again, with a server that ends meanwhile
		w.Stop(context.Background(), ann, "home")
		stop()
		alive(1)
		stop = run()
		full.Store(false)
		time.Sleep(2 * adoptRetry)
		alive(0)
		stop()
	})
}

// volumeRuntime keeps the files of workspaces.
type volumeRuntime struct {
	*sandboxtest.Fake
	volumes map[string]bool
}

func (r *volumeRuntime) Capabilities() sandbox.Capabilities {
	c := r.Fake.Capabilities()
	c.Storage = r
	return c
}

func (r *volumeRuntime) VolumeBytes(context.Context, string) (int64, time.Time, error) {
	return 0, time.Now(), nil
}

func (r *volumeRuntime) KeepsVolumes(context.Context) (bool, error) { return true, nil }

func (r *volumeRuntime) KeeperID(context.Context) (address, id string, err error) {
	return "there", "k", nil
}

func (r *volumeRuntime) MakeVolume(_ context.Context, name string, _, _ int) error {
	r.volumes[name] = true
	return nil
}

func (r *volumeRuntime) VolumeEmpty(context.Context, string, func(string, fs.FileMode) bool) (bool, error) {
	return false, nil
}

func (r *volumeRuntime) RemoveVolume(_ context.Context, name string) error {
	delete(r.volumes, name)
	return nil
}

func (r *volumeRuntime) HasVolume(_ context.Context, name string) (bool, error) {
	_, has := r.volumes[name]
	return has, nil
}

func (r *volumeRuntime) Volumes(context.Context) ([]string, error) {
	return slices.Collect(maps.Keys(r.volumes)), nil
}

// A session keeps its volume if its workspace has no folder and no note, and no volume is removed if a folder could not
// be made.
func TestVolumesOfSessions(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		kept := w.use(ann, OpenRequest{ID: "new"}).record().Workspace
		w.Close(context.Background())
		rt := &volumeRuntime{&sandboxtest.Fake{Called: "keeping"}, map[string]bool{kept: true, "of-nobody": true}}
		w.further = []sandbox.Runtime{rt}
		w.open(nil)
		look := func(want int) (err error) {
			t.Helper()
			err = w.Pool.RemoveVolumes(context.Background(), w.Workspaces)
			if len(rt.volumes) != want || !rt.volumes[kept] {
				t.Errorf("there are the volumes %v, want %d with that of the session %s", rt.volumes, want, kept)
			}
			return err
		}
		away := w.workspaces + "-away"
		if err := errors.Join(os.Rename(w.workspaces, away), w.Recover(t.Context()),
			os.Rename(away, w.workspaces)); err != nil {
			t.Fatal(err)
		}
		if err := look(2); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after a start that could not make the folders: %v", err)
		}
		w.open(nil)
		if err := os.RemoveAll(w.Pool.Workspaces.Path(kept)); err != nil {
			t.Fatal(err)
		}
		if err := look(2); err != nil { // the other one is not removed at once
			t.Error(err)
		}
		if ids, err := w.Workspaces(t.Context()); err != nil || !slices.Equal(ids, []string{kept}) {
			t.Errorf("workspaces of sessions: %v, %v", ids, err)
		}
	})
}

// A call says that the session's files are where its runtime does not see them, and no such session is removed for
// being without files.
func TestFilesElsewhere(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		l := w.use(ann, OpenRequest{ID: "new"})
		ws := l.record().Workspace
		volume := workspace.Volume{Runtime: "keeping", Address: "there", Keeper: "k", Made: true}
		if err := w.Pool.Workspaces.SetVolume(ws, volume); err != nil {
			t.Fatal(err)
		}
		w.sweep(context.Background(), time.Now().Add(w.IdleTimeout+w.SweepInterval))
		w.fails(ann, OpenRequest{ID: l.ID()}, fault.SandboxCreation, "another runtime has them", "new session",
			"Nothing of them is lost")
	})
}

// TestNoDescriptors: that an agent's link does not come while the server can open no more files says nothing about the
// agent.
func TestNoDescriptors(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *testSessions) {
		id := w.use(ann, OpenRequest{}).ID()
		b := w.box(id)
		b.SetMemory("x")
		if _, err := w.fake.Freeze(t.Context(), b, ann.ID, 0); err != nil { // its link ends, and no other one comes
			t.Fatal(err)
		}
		synctest.Wait()
		w.canOpen = func() error { return &os.PathError{Op: "open", Path: os.DevNull, Err: syscall.EMFILE} }
		w.fails(ann, OpenRequest{}, fault.SessionState, "nothing of the session is lost")
		w.canOpen = openOne
		if err := w.fake.Thaw(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if w.use(ann, OpenRequest{}); w.box(id) != b || b.Memory() != "x" {
			t.Error("its sandbox was given up")
		}
		w.removeUnownedImages(t.Context())
	})
}
