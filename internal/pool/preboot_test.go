package pool

import (
	"bytes"
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"strings"
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

// prebooter is a fake runtime with preboot images.
type prebooter struct {
	*sandboxtest.Fake
	cannot bool
	fails  error // what MakeImage returns
	dead   bool  // prebooted sandboxes never get ready
	start  time.Duration
	// volumes is what the pool is given.
	volumes func() []sandbox.Mount
	// change changes the pool's settings; nil: they stay.
	change    func(*Config)
	templates atomic.Pointer[[]*image.Template] // nil: oneAndTwo

	mu        sync.Mutex
	there     map[string]bool // by template
	prebooted map[string]bool // by sandbox
	calls     []string
	started   int
}

func (s *prebooter) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, what)
}

func (s *prebooter) said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.calls...)
}

func (s *prebooter) CanPreboot() error {
	if s.cannot {
		return errors.New("they are off")
	}
	return nil
}

func (s *prebooter) HasImage(spec sandbox.Spec) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.there[spec.Template.Name]
}

func (s *prebooter) Prebooted(b sandbox.Sandbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prebooted[b.Spec().ID]
}

func (s *prebooter) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	prebooted := s.HasImage(spec)
	s.mu.Lock()
	if s.prebooted == nil {
		s.prebooted = map[string]bool{}
	}
	s.prebooted[spec.ID] = prebooted
	s.mu.Unlock()
	if prebooted {
		s.mu.Lock()
		s.started++
		s.mu.Unlock()
		if s.dead { // nothing else boots meanwhile
			s.Fake.Silent = true
			defer func() { s.Fake.Silent = false }()
		}
	}
	return s.Fake.Create(ctx, spec)
}

func (s *prebooter) MakeImage(_ context.Context, b sandbox.Sandbox) error {
	s.note("image of " + b.Spec().Template.Name)
	if s.fails == nil {
		s.mu.Lock()
		s.there[b.Spec().Template.Name] = true
		s.mu.Unlock()
	}
	s.Box(b.Spec().ID).Kill("checkpoint")
	return s.fails
}

func (s *prebooter) DropImage(spec sandbox.Spec) {
	s.note("drop " + spec.Template.Name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.there[spec.Template.Name] = false
}

func (s *prebooter) Capabilities() sandbox.Capabilities {
	c := s.Fake.Capabilities()
	c.Preboot = s
	return c
}

var oneAndTwo = []*image.Template{{Name: "one"}, {Name: "two"}}

// within runs the pool for a minute in a bubble.
func within(t *testing.T, rt *prebooter, warm int, f func(t *testing.T, p *Pool)) {
	t.Helper()
	if !sandboxtest.Alone(t) {
		return
	}
	if rt.start == 0 {
		rt.start = time.Minute
	}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		rt.Fake, rt.there = &sandboxtest.Fake{BootDelay: 100 * time.Millisecond}, map[string]bool{}
		workspaces, err := workspace.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		c := Config{Runtime: rt, Workspaces: workspaces, BootTimeout: rt.start, WarmPerTemplate: warm,
			Templates: func() []*image.Template { return *rt.templates.Load() },
			Flavor:    sandboxtest.Flavors[0], Log: sandboxtest.Log(t), Volumes: rt.volumes}
		rt.templates.CompareAndSwap(nil, &oneAndTwo)
		if rt.change != nil {
			rt.change(&c)
		}
		p := New(c)
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { p.Run(ctx) })
		time.Sleep(time.Minute)
		f(t, p)
		cancel()
		run.Wait()
		synctest.Wait()
		if _, alive := rt.Count(); alive != 0 {
			t.Errorf("%d sandboxes live on", alive)
		}
		if left, _ := p.Workspaces.All(); len(left) != 0 {
			t.Errorf("%d workspaces are left", len(left))
		}
	})
}

// Restoring may take half the time of a boot, so that there is time to boot after it.
func TestDeadPrebootedInAHurry(t *testing.T) {
	rt := &prebooter{dead: true, start: 10 * time.Second}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		if took := boots(t, p); took > p.BootTimeout {
			t.Errorf("it took %v", took)
		}
		if took := boots(t, p); took > time.Second {
			t.Errorf("the next took %v", took)
		}
	})
}

// A sandbox whose probe was skipped does not answer. It is stopped, and the next one
// boots.
func TestDeadWithoutProbe(t *testing.T) {
	rt := &prebooter{dead: true}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		ws, err := p.Workspaces.New()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		b, err := p.Boot(t.Context(), Request{Workspace: ws, Template: oneAndTwo[0], Flavor: p.Flavor,
			SkipProbe: true})
		if err != nil || time.Since(began) > time.Second {
			t.Fatalf("it took %v: %v", time.Since(began), err)
		}
		if got := rt.said(); len(got) != 2 {
			t.Errorf("it did %q", got)
		}
		time.Sleep(restoreTimeout + time.Second)
		if got := rt.said(); len(got) != 3 || got[2] != "drop one" {
			t.Errorf("it did %q", got)
		}
		if st, err := b.Box.Status(t.Context()); err == nil && st.State != sandbox.Dead {
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

// A sandbox whose probe was skipped and that answers is left alone.
func TestWithoutProbe(t *testing.T) { leftAlone(t, false) }

// So is one that was detached meanwhile.
func TestDetachedWithoutProbe(t *testing.T) { leftAlone(t, true) }

func leftAlone(t *testing.T, detached bool) {
	t.Helper()
	rt := &prebooter{dead: detached}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		ws, err := p.Workspaces.New()
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.Boot(t.Context(), Request{Workspace: ws, Template: oneAndTwo[0], Flavor: p.Flavor,
			SkipProbe: true})
		if err != nil {
			t.Fatal(err)
		}
		if detached {
			b.Detach()
		}
		time.Sleep(2 * restoreTimeout)
		if st, err := b.Box.Status(t.Context()); err != nil || st.State == sandbox.Dead {
			t.Errorf("it was stopped: %+v %v", st, err)
		}
		if got := rt.said(); len(got) != 2 {
			t.Errorf("it did %q", got)
		}
		if n, _ := p.Started(); n != 1 {
			t.Errorf("it says that %d were started from an image", n)
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
	b, err := p.Boot(t.Context(), Request{Workspace: ws, Template: oneAndTwo[0], Flavor: p.Flavor})
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

// One image is made for each template, and new sandboxes start from it.
func TestPreboot(t *testing.T) {
	rt := &prebooter{}
	within(t, rt, 1, func(t *testing.T, p *Pool) {
		if got := rt.said(); len(got) != 2 || got[0] != "image of one" || got[1] != "image of two" {
			t.Errorf("it did %q", got)
		}
		boots(t, p)
		if n, _ := p.Started(); rt.started != 1 || n != 1 {
			t.Errorf("%d were started from an image, it says %d", rt.started, n)
		}
	})
}

// A template of which no image can be made boots, again and again.
func TestNoImageCanBeMade(t *testing.T) {
	rt := &prebooter{fails: errors.New("no")}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		if got := rt.said(); len(got) != 2 {
			t.Errorf("it did %q", got)
		}
		boots(t, p)
		if rt.started != 0 {
			t.Errorf("%d were started from an image", rt.started)
		}
	})
}

// Where there are no images, nothing is booted for one.
func TestRuntimeWithoutImages(t *testing.T) {
	rt := &prebooter{cannot: true}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		if created, _ := rt.Count(); created != 0 {
			t.Errorf("%d sandboxes were made for nothing", created)
		}
		boots(t, p)
	})
}

// A prebooted sandbox whose agent never answers is replaced by one that boots, and the
// image is dropped.
func TestDeadPrebooted(t *testing.T) {
	rt := &prebooter{dead: true}
	within(t, rt, 0, func(t *testing.T, p *Pool) {
		if took := boots(t, p); took < restoreTimeout || took > restoreTimeout+time.Second {
			t.Errorf("it took %v", took)
		}
		if took := boots(t, p); took > time.Second {
			t.Errorf("the next took %v", took)
		}
		got := rt.said()
		if n, _ := p.Started(); len(got) != 3 || got[2] != "drop one" || rt.started != 1 || n != 0 {
			t.Errorf("it did %q, and started %d from an image", got, rt.started)
		}
	})
}

// sealer is a prebooter that makes shared folders read-only in sandboxes that run.
type sealer struct {
	*prebooter
	sandbox.Files // nothing calls it
}

func (s sealer) Capabilities() sandbox.Capabilities {
	c := s.prebooter.Capabilities()
	c.Files = s
	return c
}

// reviser is a prebooter whose sandboxes have files of the machine open.
type reviser struct {
	*prebooter
	old   func(b sandbox.Sandbox) bool
	looks *atomic.Int64 // calls of Outdated while somebody waits for a sandbox
}

func (r reviser) Capabilities() sandbox.Capabilities {
	c := r.prebooter.Capabilities()
	c.Freezer = r
	return c
}

func (r reviser) Outdated(b sandbox.Sandbox) error {
	if bytes.Contains(debug.Stack(), []byte("(*Pool).Take(")) {
		r.looks.Add(1)
	}
	return r.Replaced(b)
}

func (r reviser) Replaced(b sandbox.Sandbox) error {
	if r.old(b) {
		return errors.New("libc.so.6 was replaced")
	}
	return nil
}

// TestReplacedFiles: warm sandboxes go within seconds when files of the machine that they have open are replaced, and are
// not handed out before, for which only known files are looked at. Preboot images are made again at once; those of a template that has gone are dropped.
func TestReplacedFiles(t *testing.T) {
	var mu sync.Mutex
	var looks atomic.Int64
	old := map[string]bool{}
	rt := &prebooter{}
	rt.change = func(c *Config) {
		c.Runtime = reviser{prebooter: rt, looks: &looks, old: func(b sandbox.Sandbox) bool {
			mu.Lock()
			defer mu.Unlock()
			return old[b.Spec().ID]
		}}
	}
	within(t, rt, 1, func(t *testing.T, p *Pool) {
		replace := func() {
			mu.Lock()
			defer mu.Unlock()
			for _, b := range rt.List() {
				old[b.Spec().ID] = true
			}
			rt.mu.Lock()
			defer rt.mu.Unlock()
			clear(rt.there) // the runtime drops an image whose files were replaced
		}
		made := func() (n int) {
			for _, what := range rt.said() {
				if strings.HasPrefix(what, "image of") {
					n++
				}
			}
			return n
		}
		before := made()
		replace()
		if b := p.Take(oneAndTwo[0], p.Flavor); b != nil {
			t.Error("one of before was handed out")
		}
		if n := looks.Load(); n != 0 {
			t.Errorf("all open files were looked at %d times while somebody waited", n)
		}
		replace()
		time.Sleep(time.Minute)
		if n := made() - before; n != len(oneAndTwo) {
			t.Errorf("%d images were made again", n)
		}
		for _, b := range rt.List() {
			if mu.Lock(); old[b.Spec().ID] {
				t.Errorf("%s of before lives on", b.Spec().ID)
			}
			mu.Unlock()
		}
		b := p.Take(oneAndTwo[0], p.Flavor)
		if b == nil {
			t.Fatal("there is none")
		}
		p.discard(b)
		again := []*image.Template{{Name: "one"}, oneAndTwo[1]}
		rt.templates.Store(&again)
		p.Refresh()
		time.Sleep(time.Minute)
		if got := rt.said(); !slices.Contains(got, "drop one") || slices.Contains(got, "drop two") {
			t.Errorf("it did %q", got)
		}
	})
}

// A warm sandbox that booted while a shared folder was full is not given out when the folder can be written again; nor
// one that can write a folder that is full, unless its runtime sees to it that it cannot.
func TestOutdated(t *testing.T) {
	for name, seals := range map[string]bool{"docker": false, "gvisor": true} {
		t.Run(name, func(t *testing.T) { outdated(t, seals) })
	}
}

func outdated(t *testing.T, seals bool) {
	var full atomic.Bool
	full.Store(true)
	rt := &prebooter{cannot: true, volumes: func() []sandbox.Mount {
		return []sandbox.Mount{{Source: "/a", Target: "/share", Shared: true, ReadOnly: full.Load()}}
	}}
	rt.change = func(c *Config) {
		if seals {
			c.Runtime = sealer{prebooter: rt}
		}
	}
	within(t, rt, 1, func(t *testing.T, p *Pool) {
		take := func() *Booted { return p.Take(oneAndTwo[0], p.Flavor) }
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
		time.Sleep(time.Minute)
		full.Store(true)
		if b = take(); (b != nil) != seals {
			t.Errorf("when the folder is full: %+v", b)
		}
		if b != nil {
			p.discard(b)
		}
	})
}
