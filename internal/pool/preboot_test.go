package pool

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/workspace"
)

// shooter is a fake runtime with snapshots.
type shooter struct {
	*sandboxtest.Fake
	cannot bool
	fails  error // what Snapshot returns
	dead   bool  // copies never get ready
	start  time.Duration
	// volumes is what the pool is given.
	volumes func() []sandbox.Mount

	mu     sync.Mutex
	there  map[string]bool // by template
	copied map[string]bool // sandboxes
	calls  []string
	copies int
}

func (s *shooter) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, what)
}

func (s *shooter) said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.calls...)
}

func (s *shooter) CanSnapshot() error {
	if s.cannot {
		return errors.New("they are off")
	}
	return nil
}

func (s *shooter) Snapshotted(spec sandbox.Spec) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.there[spec.Template.Name]
}

func (s *shooter) Copied(b sandbox.Sandbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copied[b.Spec().ID]
}

func (s *shooter) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	isCopy := s.Snapshotted(spec)
	s.mu.Lock()
	if s.copied == nil {
		s.copied = map[string]bool{}
	}
	s.copied[spec.ID] = isCopy
	s.mu.Unlock()
	if isCopy {
		s.mu.Lock()
		s.copies++
		s.mu.Unlock()
		s.Fake.Mute = s.dead
		defer func() { s.Fake.Mute = false }()
	}
	return s.Fake.Create(ctx, spec)
}

func (s *shooter) Snapshot(_ context.Context, b sandbox.Sandbox) error {
	s.note("snapshot of " + b.Spec().Template.Name)
	if s.fails == nil {
		s.mu.Lock()
		s.there[b.Spec().Template.Name] = true
		s.mu.Unlock()
	}
	s.Box(b.Spec().ID).Die("snapshot")
	return s.fails
}

func (s *shooter) Forget(spec sandbox.Spec) {
	s.note("forget " + spec.Template.Name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.there[spec.Template.Name] = false
}

var _ sandbox.Snapshotter = (*shooter)(nil)

// within runs the pool for a minute in a bubble.
func within(t *testing.T, rt *shooter, warm int, f func(t *testing.T, p *Pool)) {
	t.Helper()
	if !sandboxtest.Alone(t) {
		return
	}
	if rt.start == 0 {
		rt.start = time.Minute
	}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		rt.Fake, rt.there = &sandboxtest.Fake{Boot: 100 * time.Millisecond}, map[string]bool{}
		workspaces, err := workspace.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		p := New(Config{Runtime: rt, Workspaces: workspaces, Start: rt.start, Warm: warm,
			Templates: []*image.Template{{Name: "one"}, {Name: "two"}},
			Flavor:    image.Flavors[0], Log: sandboxtest.Log(t), Volumes: rt.volumes})
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { p.Run(ctx) })
		time.Sleep(time.Minute)
		f(t, p)
		cancel()
		run.Wait()
		synctest.Wait()
		if _, alive := rt.Made(); alive != 0 {
			t.Errorf("%d sandboxes live on", alive)
		}
		if left, _ := p.Workspaces.All(); len(left) != 0 {
			t.Errorf("%d workspaces are left", len(left))
		}
	})
}

// A copy's time is half of a boot's, so that there is time to boot after it.
func TestDeadCopiesInAHurry(t *testing.T) {
	rt := &shooter{dead: true, start: 10 * time.Second}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		if took := boots(t, p); took > p.Start {
			t.Errorf("it took %v", took)
		}
		if took := boots(t, p); took > time.Second {
			t.Errorf("the next took %v", took)
		}
	})
}

// One that is wanted early is a copy that does not answer. It is stopped, and the
// next boots.
func TestDeadCopyWantedEarly(t *testing.T) {
	rt := &shooter{dead: true}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		ws, err := p.Workspaces.New()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		b, err := p.Boot(t.Context(), Order{Workspace: ws, Template: p.Templates[0], Flavor: p.Flavor, Early: true})
		if err != nil || time.Since(began) > time.Second {
			t.Fatalf("it took %v: %v", time.Since(began), err)
		}
		if got := rt.said(); len(got) != 2 {
			t.Errorf("it did %q", got)
		}
		time.Sleep(copied + time.Second)
		if got := rt.said(); len(got) != 3 || got[2] != "forget one" {
			t.Errorf("it did %q", got)
		}
		if st, err := b.Box.Status(t.Context()); err == nil && st.Life != sandbox.Dead {
			t.Errorf("it lives on: %+v", st)
		}
		if err := errors.Join(b.Destroy(), p.Workspaces.Remove(ws)); err != nil {
			t.Error(err)
		}
		if took := boots(t, p); took > time.Second {
			t.Errorf("the next took %v", took)
		}
	})
}

// One that is wanted early, and answers, is left alone.
func TestCopyWantedEarly(t *testing.T) { leftAlone(t, false) }

// So is one that was let go meanwhile.
func TestCopyLetGo(t *testing.T) { leftAlone(t, true) }

func leftAlone(t *testing.T, letGo bool) {
	t.Helper()
	rt := &shooter{dead: letGo}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		ws, err := p.Workspaces.New()
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.Boot(t.Context(), Order{Workspace: ws, Template: p.Templates[0], Flavor: p.Flavor, Early: true})
		if err != nil {
			t.Fatal(err)
		}
		if letGo {
			b.Detach()
		}
		time.Sleep(2 * copied)
		if st, err := b.Box.Status(t.Context()); err != nil || st.Life == sandbox.Dead {
			t.Errorf("it was stopped: %+v %v", st, err)
		}
		if got := rt.said(); len(got) != 2 {
			t.Errorf("it did %q", got)
		}
		if n, _ := p.Started(); n != 1 {
			t.Errorf("it says that %d were started from a snapshot", n)
		}
		if err := errors.Join(b.Destroy(), p.Workspaces.Remove(ws)); err != nil {
			t.Error(err)
		}
	})
}

// boots boots one more, which has to be ready.
func boots(t *testing.T, p *Pool) time.Duration {
	t.Helper()
	ws, err := p.Workspaces.New()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	b, err := p.Boot(t.Context(), Order{Workspace: ws, Template: p.Templates[0], Flavor: p.Flavor})
	took := time.Since(began)
	if err != nil {
		t.Error(err)
	} else if err := b.Destroy(); err != nil {
		t.Error(err)
	}
	if err := p.Workspaces.Remove(ws); err != nil {
		t.Error(err)
	}
	return took
}

func TestSnapshots(t *testing.T) {
	rt := &shooter{}
	within(t, rt, 1, func(t *testing.T, p *Pool) {
		if got := rt.said(); len(got) != 2 || got[0] != "snapshot of one" || got[1] != "snapshot of two" {
			t.Errorf("it did %q", got)
		}
		boots(t, p)
		if n, _ := p.Started(); rt.copies != 1 || n != 1 {
			t.Errorf("%d were started from a snapshot, it says %d", rt.copies, n)
		}
	})
}

// What a snapshot cannot be made of boots, again and again.
func TestNoSnapshotCanBeMade(t *testing.T) {
	rt := &shooter{fails: errors.New("no")}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		if got := rt.said(); len(got) != 2 {
			t.Errorf("it did %q", got)
		}
		boots(t, p)
		if rt.copies != 0 {
			t.Errorf("%d were started from a snapshot", rt.copies)
		}
	})
}

// Where there are none, nothing is booted for one.
func TestRuntimeWithoutSnapshots(t *testing.T) {
	rt := &shooter{cannot: true}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		if created, _ := rt.Made(); created != 0 {
			t.Errorf("%d sandboxes were made for nothing", created)
		}
		boots(t, p)
	})
}

// A copy whose agent never answers is replaced by one that boots, and the
// snapshot is forgotten.
func TestDeadCopies(t *testing.T) {
	rt := &shooter{dead: true}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		if took := boots(t, p); took < copied || took > copied+time.Second {
			t.Errorf("it took %v", took)
		}
		if took := boots(t, p); took > time.Second {
			t.Errorf("the next took %v", took)
		}
		got := rt.said()
		if n, _ := p.Started(); len(got) != 3 || got[2] != "forget one" || rt.copies != 1 || n != 0 {
			t.Errorf("it did %q, and made %d copies", got, rt.copies)
		}
	})
}

// A warm sandbox that booted while a shared folder was full is not given out when
// the folder can be written again.
func TestOutdated(t *testing.T) {
	var full atomic.Bool
	full.Store(true)
	rt := &shooter{cannot: true, volumes: func() []sandbox.Mount {
		return []sandbox.Mount{{Source: "/a", Target: "/share", Shared: true, ReadOnly: full.Load()}}
	}}
	within(t, rt, 1, func(t *testing.T, p *Pool) {
		take := func() *Booted { return p.Take(p.Templates[0], p.Flavor) }
		b := take()
		if b == nil || !b.Box.Spec().Mounts[1].ReadOnly {
			t.Fatalf("%+v, want one that cannot write", b)
		}
		p.discard(b)
		time.Sleep(time.Minute)
		full.Store(false)
		if b := take(); b != nil {
			t.Errorf("it has %+v", b.Box.Spec().Mounts)
		}
		time.Sleep(time.Minute)
		b = take()
		if b == nil || b.Box.Spec().Mounts[1].ReadOnly {
			t.Fatalf("%+v, want one that can write", b)
		}
		p.discard(b)
	})
}
