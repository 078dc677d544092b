package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/session/record"
	"sandlot/internal/template"
	"sandlot/internal/workspace"
)

// fakeStore is a Store in memory that can fail.
type fakeStore struct {
	mu     sync.Mutex
	all    map[string]Record
	broken error
	puts   int // calls of PutCounts
	days   map[string]egress.Day
	stored func(r Record, failed error) // is told of each PutSession; nil: nobody is
	// before is called before a record is stored, once.
	before atomic.Pointer[func()]
}

func (m *fakeStore) PutSession(_ context.Context, r Record) error {
	if before := m.before.Swap(nil); before != nil {
		(*before)()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stored != nil {
		m.stored(r, m.broken)
	}
	if m.broken != nil {
		return m.broken
	}
	r.Traffic, r.DiskBytes = m.all[r.ID].Traffic, m.all[r.ID].DiskBytes
	m.all[r.ID] = r
	return nil
}

func (m *fakeStore) PutCounts(_ context.Context, c Counts) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return m.broken
	}
	m.puts++
	for id, r := range m.all {
		if t, ok := c.Traffic[id]; ok {
			r.Traffic = t
		}
		if n, ok := c.DiskBytes[id]; ok {
			r.DiskBytes = n
		}
		m.all[id] = r
	}
	if m.days == nil {
		m.days = map[string]egress.Day{}
	}
	maps.Copy(m.days, c.Days)
	return nil
}

func (m *fakeStore) Days(_ context.Context, since int64) (map[string]egress.Day, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	days := maps.Clone(m.days)
	maps.DeleteFunc(days, func(_ string, d egress.Day) bool { return d.Number < since })
	return days, m.broken
}

func (m *fakeStore) RemoveDays(_ context.Context, before int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.days, func(_ string, d egress.Day) bool { return d.Number < before })
	return m.broken
}

func (m *fakeStore) Sessions(context.Context) ([]Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.all)), m.broken
}

func (m *fakeStore) RemoveSession(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, id)
	return m.broken
}

var hostAndOther = []*image.Template{{Name: "host", Provides: []string{"python"}}, {Name: "other"}}

// testSessions are Sessions with a fake runtime.
type testSessions struct {
	*Sessions
	t          *testing.T
	fake       *sandboxtest.Fake
	store      *fakeStore
	workspaces string
	out        *egress.Broker // used by the next open
	further    []sandbox.Runtime
	keeps      *Content              // what a snapshot has; nil: there is none
	steps      atomic.Pointer[steps] // of the sessions that are open
}

var (
	ann = auth.User("ann", false)
	bob = auth.User("bob", false)
	bot = auth.User("bot", true)
)

func newTestSessions(t *testing.T, change func(*Rules)) *testSessions {
	t.Helper()
	w := &testSessions{t: t, fake: &sandboxtest.Fake{}, store: &fakeStore{all: map[string]Record{}},
		workspaces: t.TempDir()}
	w.store.stored = func(r Record, failed error) { w.steps.Load().stored(r, failed) }
	w.open(change)
	return w
}

// open makes sessions over the same store, runtime and files, as a new server does.
func (w *testSessions) open(change func(*Rules)) {
	workspaces, err := workspace.Open(w.workspaces)
	if err != nil {
		w.t.Fatal(err)
	}
	rules := Rules{DefaultTemplate: "host", DefaultFlavor: "small",
		Templates:   template.New(slog.New(slog.DiscardHandler), hostAndOther, nil, false),
		Flavors:     sandboxtest.Flavors,
		MaxSessions: 3, IdleTimeout: time.Minute, Retention: time.Hour, SweepInterval: time.Second, EvictIdle: true,
		AgentTimeout: time.Second}
	if change != nil {
		change(&rules)
	}
	log := sandboxtest.Log(w.t)
	p := pool.New(pool.Config{Runtime: w.fake, Further: w.further, Workspaces: workspaces, BootTimeout: 2 * time.Second,
		Templates: rules.Templates.(*template.Set).Ready, Flavor: sandboxtest.Flavors[0], Log: log})
	if killed := w.steps.Swap(newSteps(w.t)); killed != nil {
		killed.end()
	}
	for _, rt := range append([]sandbox.Runtime{w.fake}, w.further...) {
		if f, ok := rt.(*sandboxtest.Fake); ok && f.Saw == nil {
			f.Saw = w.saw
		}
	}
	events := event.New()
	events.ObserveBy(w.steps.Load().published)
	w.Sessions = New(Config{Rules: rules, Pool: p, Store: w.store, Log: log, Egress: w.out, Unexpected: w.unexpected,
		Events: events,
		Keeper: keeper{w}})
	w.watch = w.steps.Load()
	if err := w.Recover(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// keeper has the snapshot of testSessions.
type keeper struct{ w *testSessions }

func (k keeper) Kept(context.Context) (workspaces, images []string, err error) {
	if c := k.w.keeps; c != nil {
		return []string{c.Workspace}, []string{c.Image}, nil
	}
	return nil, nil, nil
}

func (keeper) Bytes(string) int64 { return 0 }

// saw is told what is done with sandboxes and images, by whichever server.
func (w *testSessions) saw(s sandboxtest.Step, of string) { w.steps.Load().saw(s, of) }

// unexpected fails the test: something is missing in the table of package state.
func (w *testSessions) unexpected(err error) { w.t.Error(err) }

// close ends all; the bubble may hold no goroutine.
func (w *testSessions) close() {
	w.t.Helper()
	w.fake.StopHangs.Store(false)
	w.StopAll(context.Background())
	w.Close(context.Background())
	w.steps.Load().wantNone()
	if _, alive := w.fake.Count(); alive != 0 {
		w.t.Errorf("%d sandboxes live on", alive)
	}
}

func (w *testSessions) use(p auth.Principal, a OpenRequest) *Lease {
	w.t.Helper()
	l, err := w.Open(context.Background(), p, a)
	if err != nil {
		w.t.Fatalf("%+v: %v", a, err)
	}
	l.Release()
	return l
}

func (w *testSessions) fails(p auth.Principal, a OpenRequest, kind fault.Kind, words ...string) {
	w.t.Helper()
	l, err := w.Open(context.Background(), p, a)
	if err == nil {
		l.Release()
		w.t.Errorf("%+v went well", a)
		return
	}
	if !fault.Is(err, kind) {
		w.t.Errorf("%+v: %v", a, err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			w.t.Errorf("%q does not say %q", err, word)
		}
	}
}

// in runs a test with testSessions that are closed at the end, and looks for
// goroutines that are left.
func in(t *testing.T, change func(*Rules), test func(*testing.T, *testSessions)) {
	t.Helper()
	before := runtime.NumGoroutine()
	w := newTestSessions(t, change)
	test(t, w)
	w.close()
	for range 200 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	buf := make([]byte, 1<<16)
	t.Errorf("%d goroutines, %d at the beginning\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
}

func TestDefaults(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		home := w.use(ann, OpenRequest{})
		if !home.Created || w.use(ann, OpenRequest{}).ID() != home.ID() || w.use(ann, OpenRequest{ID: "home"}).
			ID() != home.ID() ||
			w.use(ann, OpenRequest{ID: home.ID()}).Created {
			t.Error("a person's default is not their one home")
		}
		if w.use(bob, OpenRequest{}).ID() == home.ID() {
			t.Error("two people share a home")
		}
		if a, b := w.use(bot, OpenRequest{}), w.use(bot, OpenRequest{}); a.ID() == b.ID() || !a.Created || !b.Created {
			t.Error("a service's calls without an id meet")
		}
		if a := w.use(ann, OpenRequest{ID: "new"}); a.ID() == home.ID() || !a.Created || a.record().Home {
			t.Error(`"new" is not new`)
		}
		if a := w.use(auth.Local, OpenRequest{NewByDefault: true}); !a.Created || a.record().Home {
			t.Error("a fresh one is not fresh")
		}
		w.fails(bob, OpenRequest{ID: home.ID()}, fault.SessionNotFound)
		w.fails(bob, OpenRequest{ID: "nothing"}, fault.SessionNotFound, "nothing")
	})
}

func TestRequests(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		s := w.use(ann, OpenRequest{ID: "new", Template: "python", Flavor: "medium"})
		if s.record().Template != "host" || s.Booted.Flavor.Name != "medium" {
			t.Errorf("%+v", s.record())
		}
		w.use(ann, OpenRequest{ID: s.ID(), Template: "host", Flavor: "small"})
		w.fails(ann, OpenRequest{ID: s.ID(), Flavor: "large"}, fault.InvalidParameters, "medium", "large")
		w.fails(ann, OpenRequest{ID: s.ID(), Template: "other"}, fault.InvalidParameters, "host", "other")
		w.fails(ann, OpenRequest{ID: "new", Template: "none"}, fault.InvalidParameters, "none", "python")
		w.fails(ann, OpenRequest{ID: "new", Flavor: "none"}, fault.InvalidParameters, "none", "small")
		if n, _ := w.fake.Count(); n != 1 {
			t.Errorf("%d sandboxes were made", n)
		}
	})
}

func TestIdle(t *testing.T) {
	if !sandboxtest.Alone(t) {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		w := newTestSessions(t, func(r *Rules) { r.SweepInterval, r.Retention = 5*time.Second, 10*time.Minute })
		defer synctest.Wait()
		defer w.close()
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { w.Run(ctx); close(done) }()
		files, empty, busy, held := w.use(ann, OpenRequest{ID: "new"}), w.use(ann, OpenRequest{ID: "new"}),
			w.use(ann, OpenRequest{ID: "new"}),
			w.use(bob, OpenRequest{ID: "new"})
		if err := os.WriteFile(filepath.Join(w.workspaces, files.record().Workspace, "f"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.fake.Box(busy.Booted.ID).SetBusy(true)
		lease, err := w.Open(context.Background(), bob, OpenRequest{ID: held.ID()})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		w.use(ann, OpenRequest{ID: files.ID()}) // the clock starts anew
		time.Sleep(50 * time.Second)
		if _, alive := w.fake.Count(); alive != 3 {
			t.Errorf("%d live after the empty one's time", alive)
		}
		time.Sleep(20 * time.Second)
		if _, alive := w.fake.Count(); alive != 2 {
			t.Errorf("%d live, want the busy one and the one with a call", alive)
		}
		w.fails(ann, OpenRequest{ID: empty.ID()}, fault.SessionNotFound)
		l := w.use(ann, OpenRequest{ID: files.ID()})
		if l.Created || !strings.Contains(l.Notice, "idle") || l.record().Workspace != files.record().Workspace {
			t.Errorf("an expired session: %+v, %q", l.record(), l.Notice)
		}
		if l := w.use(ann, OpenRequest{ID: files.ID()}); l.Notice != "" {
			t.Errorf("it is said twice: %q", l.Notice)
		}
		time.Sleep(15 * time.Minute) // its workspace's time is over too
		w.fails(ann, OpenRequest{ID: files.ID()}, fault.SessionNotFound)
		if _, err := os.Stat(filepath.Join(w.workspaces, files.record().Workspace)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its files: %v", err)
		}
		lease.Release()
		stop()
		<-done
	})
}

func TestHomeIsKept(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		home := w.use(ann, OpenRequest{})
		w.sweep(context.Background(), time.Now().Add(1000*time.Hour))
		if _, alive := w.fake.Count(); alive != 0 {
			t.Error("it did not stop")
		}
		w.sweep(context.Background(), time.Now().Add(2000*time.Hour))
		if l := w.use(ann, OpenRequest{}); l.ID() != home.ID() || l.Created {
			t.Errorf("another home: %v", l.ID())
		}
		if !w.Stop(context.Background(), ann, "home") || w.use(ann, OpenRequest{}).ID() != home.ID() {
			t.Error("stop_session took the home away")
		}
	})
}

func TestLimits(t *testing.T) {
	in(t, func(r *Rules) { r.MaxMemoryMB = 5 * 1024 }, func(t *testing.T, w *testSessions) {
		w.use(ann, OpenRequest{}) // the home has its own place
		first, second, third := w.use(ann, OpenRequest{ID: "new"}), w.use(ann, OpenRequest{ID: "new"}),
			w.use(ann, OpenRequest{ID: "new"})
		for _, s := range []*Lease{first, second, third} {
			w.fake.Box(s.Booted.ID).SetBusy(true)
		}
		w.fails(ann, OpenRequest{ID: "new"}, fault.ResourceLimit, "3 of your 3")
		w.use(ann, OpenRequest{ID: first.ID()}) // what exists is not refused
		w.fake.Box(second.Booted.ID).SetBusy(false)
		w.use(ann, OpenRequest{ID: "new"}) // the idle one makes room
		w.fails(ann, OpenRequest{ID: second.ID()}, fault.SessionNotFound)
		// others are not concerned,
		w.use(bob, OpenRequest{ID: "new"})
		// but by all memory together
		w.fails(bob, OpenRequest{ID: "new", Flavor: "large"}, fault.ResourceLimit, "memory")
		w.Stop(context.Background(), ann, first.ID())
		w.use(ann, OpenRequest{ID: "new"})
	})
	in(t, func(r *Rules) { r.EvictIdle = false; r.MaxSessions = 1 }, func(t *testing.T, w *testSessions) {
		w.use(ann, OpenRequest{ID: "new"})
		w.fails(ann, OpenRequest{ID: "new"}, fault.ResourceLimit)
	})
}

func TestManyAtOnce(t *testing.T) {
	in(t, func(r *Rules) { r.MaxSessions = 5; r.EvictIdle = false }, func(t *testing.T, w *testSessions) {
		w.fake.BootDelay = time.Second
		var all sync.WaitGroup
		var mu sync.Mutex
		homes, made, refused := map[string]bool{}, 0, 0
		for range 20 {
			all.Go(func() {
				l, err := w.Open(context.Background(), ann, OpenRequest{})
				if err != nil {
					t.Error(err)
					return
				}
				l.Release()
				mu.Lock()
				homes[l.ID()] = true
				mu.Unlock()
			})
			all.Go(func() {
				l, err := w.Open(context.Background(), bob, OpenRequest{ID: "new"})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					refused++
					return
				}
				made++
				l.Release()
			})
		}
		all.Wait()
		if n, _ := w.fake.Count(); len(homes) != 1 || made != 5 || refused != 15 || n != 6 {
			t.Errorf("%d homes, %d made, %d refused, %d sandboxes", len(homes), made, refused, n)
		}
	})
}

func TestDeath(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		s := w.use(ann, OpenRequest{ID: "new"})
		w.fake.Box(s.Booted.ID).CutLink() // the link alone: nothing is lost
		if l := w.use(ann, OpenRequest{ID: s.ID()}); l.Notice != "" || l.Booted.ID != s.Booted.ID {
			t.Errorf("%q", l.Notice)
		}
		for reason, told := range map[string]string{"memory": "memory limit",
			"volume": "a shared folder that is full"} {
			w.fake.Box(s.Booted.ID).Kill(reason)
			for s.Booted.Agent.Linked() { // else the call that meets it fails, and says why
				time.Sleep(time.Millisecond)
			}
			l := w.use(ann, OpenRequest{ID: s.ID()})
			if l.Booted.ID == s.Booted.ID || !strings.Contains(l.Notice, told) ||
				l.record().Workspace != s.record().Workspace {
				t.Errorf("%q", l.Notice)
			}
			s = l
		}
	})
}

// A fault of code says what happened to it, and where.
func TestErrorTypes(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		s := w.use(ann, OpenRequest{ID: "new"})
		is := func(err error, want any) {
			t.Helper()
			c := fault.From(s.Fault(t.Context(), err, fault.CodeExecution)).Data().Context
			if c["error_type"] != want || c["template"] != s.Booted.Template.Name || c["session_id"] != s.ID() {
				t.Errorf("%v, want %v", c, want)
			}
		}
		is(errors.New("broken"), "link_lost")
		if c := fault.From(s.Fault(t.Context(), errors.New("x"), fault.CommandExecution)).
			Data().Context; c["error_type"] != nil || c["session_id"] != s.ID() {
			t.Errorf("%v", c)
		}
		w.fake.Box(s.Booted.ID).Kill("memory")
		is(errors.New("broken"), "sandbox_ended")
		s = w.use(ann, OpenRequest{ID: s.ID()})
		is(agent.ErrProtocol, "sandbox_unresponsive")
	})
}

// TestFaultOfSlowRuntime: a sandbox that does not answer is ended also if its runtime is slow to say how it is; and
// what a call says to be gone is gone.
func TestFaultOfSlowRuntime(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *testSessions) {
		w.fake.StatusHangs.Store(true)
		s := w.use(ann, OpenRequest{ID: "new"})
		data := fault.From(s.Fault(t.Context(), agent.ErrProtocol, fault.CodeExecution)).Data().Context
		if data["error_type"] != "sandbox_unresponsive" || data["lost"] == nil {
			t.Errorf("%v", data)
		}
		if _, alive := w.fake.Count(); alive != 0 {
			t.Errorf("after the fault %d live", alive)
		}
		l := w.use(ann, OpenRequest{ID: s.ID()})
		if l.Booted.ID == s.Booted.ID || !strings.Contains(l.Notice, "makes no sense") {
			t.Errorf("the next call has the same sandbox, or no notice: %q", l.Notice)
		}
		if err := l.acquire(t.Context()); err != nil { // as a call that boots or stops
			t.Fatal(err)
		}
		err := l.Fault(t.Context(), agent.ErrProtocol, fault.CodeExecution)
		if data := fault.From(err).Data().Context; data["error_type"] != "sandbox_unresponsive" ||
			data["lost"] != nil || !strings.Contains(err.Error(), "try again") {
			t.Errorf("%v, %v", err, data)
		}
		l.release()
		if next := w.use(ann, OpenRequest{ID: s.ID()}); next.Booted.ID != l.Booted.ID || next.Notice != "" {
			t.Errorf("what nobody has ended is another: %q", next.Notice)
		}
	})
}

// TestDeadlineIsNoVerdict: a call whose time is over, or whose caller has gone, costs the session nothing, whoever set
// the limit. A sandbox whose agent does not answer when it is asked whether it lives is ended.
func TestDeadlineIsNoVerdict(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *testSessions) {
		late, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		<-late.Done()
		gone, leave := context.WithCancel(t.Context())
		leave()
		silent := fmt.Errorf("waiting for a connection: %w", context.DeadlineExceeded)
		home := w.use(ann, OpenRequest{})
		for what, c := range map[string]struct {
			ctx context.Context
			err error
		}{
			"the caller's limit": {late, silent}, "the caller's limit, and another error": {late, errors.New("broken")},
			"a caller that has gone": {gone, context.Canceled}, "a limit of the call": {t.Context(), silent},
			"a limit that the agent was told": {t.Context(), &agent.Refusal{Reason: agent.TimedOut}},
		} {
			for _, kind := range []fault.Kind{fault.CodeExecution, fault.CommandExecution, fault.FileAccess} {
				f := fault.From(home.Fault(c.ctx, c.err, kind))
				if f.Data().Context["lost"] != nil || strings.Contains(f.Error(), "had to end") {
					t.Errorf("%s: %v, %v", what, f, f.Data().Context)
				}
			}
			if l := w.use(ann, OpenRequest{}); l.Booted != home.Booted || l.Notice != "" {
				t.Errorf("%s has cost the session its sandbox: %q", what, l.Notice)
			}
		}
		if w.fake.Box(home.Booted.ID) == nil {
			t.Fatal("the sandbox is gone")
		}
		unanswered := func() (lost bool) {
			l, err := w.Open(t.Context(), ann, OpenRequest{})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Release()
			return fault.From(l.Fault(t.Context(), silent, fault.CommandExecution)).Data().Context["lost"] != nil
		}
		for n := range 2 * maxUnanswered {
			if unanswered() {
				t.Fatalf("the sandbox is given up after %d calls, of which others were answered", n+1)
			}
			if n%2 == 1 {
				w.use(ann, OpenRequest{})
			}
		}
		for n := 1; n <= maxUnanswered; n++ {
			if lost := unanswered(); lost != (n == maxUnanswered) {
				t.Errorf("after %d calls in a row without an answer the sandbox is given up: %t", n, lost)
			}
		}
		home = w.use(ann, OpenRequest{})
		w.fake.Box(home.Booted.ID).Silence()
		f := fault.From(home.Fault(t.Context(), silent, fault.CommandExecution))
		if f.Data().Context["lost"] == nil || !strings.Contains(f.Error(), "its agent stopped answering") {
			t.Errorf("an agent that does not answer: %v", f)
		}
		if l := w.use(ann, OpenRequest{}); l.Booted == home.Booted || !strings.Contains(l.Notice, "stopped answering") {
			t.Errorf("after that: %q", l.Notice)
		}
		dead := w.use(ann, OpenRequest{ID: "new"})
		w.fake.Box(dead.Booted.ID).Kill("memory")
		w.fake.Asked.Store(0)
		f = fault.From(dead.Fault(late, silent, fault.CommandExecution))
		if n := w.fake.Asked.Load(); n != 1 {
			t.Errorf("the runtime was asked %d times what has come of the sandbox", n)
		}
		if f.Data().Context["lost"] == nil || strings.Contains(f.Error(), "lives on") {
			t.Errorf("a sandbox that died in a call whose time is over: %v", f)
		}
	})
}

func TestRuntimeFails(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		w.fake.CreateErr = errors.New("no")
		w.fails(ann, OpenRequest{ID: "new"}, fault.SandboxCreation)
		w.fails(bot, OpenRequest{}, fault.SandboxCreation)
		w.fake.CreateErr = nil
		w.fake.BootDelay = time.Hour
		w.fails(ann, OpenRequest{ID: "new"}, fault.SandboxCreation, "in time")
		w.fake.BootDelay = 0
		w.fake.Silent = true
		w.fails(ann, OpenRequest{ID: "new"}, fault.SandboxCreation)
		w.fake.Silent, w.fake.WrongSecret = false, true
		w.fails(ann, OpenRequest{ID: "new"}, fault.SandboxCreation)
		w.fake.WrongSecret = false
		if _, alive := w.fake.Count(); alive != 0 || len(w.store.all) != 0 {
			t.Errorf("%d sandboxes and %d records are left", alive, len(w.store.all))
		}
		if left, _ := w.Pool.Workspaces.All(); len(left) != 0 {
			t.Errorf("%d workspaces are left", len(left))
		}
		w.use(ann, OpenRequest{})
	})
}

func TestStoreFails(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		w.store.broken = errors.New("the disk is full")
		if _, err := w.Open(context.Background(), ann, OpenRequest{}); err == nil {
			t.Error("a session that is not stored")
		}
		w.store.broken = nil
		w.use(ann, OpenRequest{})
	})
}

// TestHomeIsStoredOnce: a call that finds a home while its record is being stored, and
// boots its sandbox, is not undone by that record.
func TestHomeIsStoredOnce(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		booted := make(chan struct{})
		meanwhile := func() {
			go func() {
				defer close(booted)
				w.use(ann, OpenRequest{ID: "home"})
			}()
			select {
			case <-booted:
			case <-time.After(200 * time.Millisecond): // the other call waits, as it should
			}
		}
		w.store.before.Store(&meanwhile)
		l := w.use(ann, OpenRequest{ID: "home"})
		<-booted
		if stored := w.store.all[l.ID()]; stored.Sandbox == "" || stored.Sandbox != l.record().Sandbox {
			t.Errorf("the sandbox %q is stored as %q", l.record().Sandbox, stored.Sandbox)
		}
		w.Close(context.Background())
		w.open(nil)
		if again := w.use(ann, OpenRequest{ID: "home"}); again.record().Sandbox != l.record().Sandbox ||
			again.Notice != "" {
			t.Errorf("the next server has another sandbox; notice %q", again.Notice)
		}
	})
}

// TestNextServerStarts: what cannot be removed does not keep the next server from
// starting, and is removed when it can be.
func TestNextServerStarts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	in(t, nil, func(t *testing.T, w *testSessions) {
		stuck, nobodys := filepath.Join(w.workspaces, strings.Repeat("a", 26)),
			filepath.Join(w.workspaces, strings.Repeat("b", 26))
		if err := errors.Join(os.Mkdir(stuck, 0o700), os.Mkdir(nobodys, 0o700),
			unix.Mount("none", stuck, "tmpfs", 0, "size=64k")); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(stuck, unix.MNT_DETACH)
		w.open(nil)
		w.use(ann, OpenRequest{})
		if all, err := w.Pool.Workspaces.All(); err != nil || !slices.Contains(all, filepath.Base(stuck)) ||
			slices.Contains(all, filepath.Base(nobodys)) {
			t.Errorf("%v, %v, want what is stuck, and not the other", all, err)
		}
		w.Close(context.Background())
		if err := unix.Unmount(stuck, 0); err != nil {
			t.Fatal(err)
		}
		w.open(nil)
		if all, err := w.Pool.Workspaces.All(); err != nil || slices.Contains(all, filepath.Base(stuck)) {
			t.Errorf("%v, %v, want it removed", all, err)
		}
	})
}

// TestNextServer: what one server leaves, the next one finds, and nothing else.
func TestNextServer(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		home, other, dead := w.use(ann, OpenRequest{}), w.use(bob, OpenRequest{ID: "new"}),
			w.use(bob, OpenRequest{ID: "new"})
		nobodys, err := w.Pool.Workspaces.New()
		if err != nil {
			t.Fatal(err)
		}
		orphan, err := w.Pool.Boot(context.Background(), pool.Request{Workspace: nobodys, Template: hostAndOther[0],
			Flavor: sandboxtest.Flavors[0]})
		if err != nil {
			t.Fatal(err)
		}
		orphan.Agent.Close()
		kept, err := w.Pool.Workspaces.New()
		if err = errors.Join(err, w.Pool.Workspaces.Keep(kept)); err != nil {
			t.Fatal(err)
		}
		w.Close(context.Background())
		w.fake.Box(dead.Booted.ID).Kill("killed")

		w.open(nil)
		if l := w.use(ann, OpenRequest{}); l.ID() != home.ID() || l.Booted.ID != home.Booted.ID || l.Notice != "" {
			t.Errorf("the home: %v %q", l.record(), l.Notice)
		}
		if l := w.use(bob, OpenRequest{ID: other.ID()}); l.Booted.ID != other.Booted.ID {
			t.Error("another sandbox")
		}
		if l := w.use(bob, OpenRequest{ID: dead.ID()}); !strings.Contains(l.Notice, "while the server was away") {
			t.Errorf("%q", l.Notice)
		}
		w.adoptAll(context.Background())
		if w.fake.Box(orphan.ID) != nil {
			t.Error("a sandbox without owner lives on")
		}
		if all, _ := w.Pool.Workspaces.All(); slices.Contains(all, nobodys) {
			t.Error("a workspace without owner is kept")
		} else if !slices.Contains(all, kept) {
			t.Error("a workspace that is to be kept is removed")
		}
		// What this server booted itself is stopped at its end, what it found is not.
		w.StopOwned(context.Background())
		if w.fake.Box(home.Booted.ID) == nil || w.fake.Box(other.Booted.ID) == nil {
			t.Error("Rest stopped what an earlier server had booted")
		}
		if _, alive := w.fake.Count(); alive != 2 {
			t.Errorf("%d live", alive)
		}
	})
}

func TestStop(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		s := w.use(ann, OpenRequest{ID: "new"})
		if w.Stop(context.Background(), bob, s.ID()) || w.Stop(context.Background(), ann, "nothing") {
			t.Error("somebody else's was stopped")
		}
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { w.Stop(context.Background(), ann, s.ID()) })
			all.Go(func() {
				if l, err := w.Open(context.Background(), ann, OpenRequest{ID: s.ID()}); err == nil {
					l.Release()
				}
			})
		}
		all.Wait()
		w.fails(ann, OpenRequest{ID: s.ID()}, fault.SessionNotFound)
		if left, _ := w.Pool.Workspaces.All(); len(left) != 0 {
			t.Errorf("%d workspaces are left", len(left))
		}
	})
}

func TestMemoryTogether(t *testing.T) {
	in(t, func(r *Rules) { r.MaxMemoryMB, r.MaxSessions, r.EvictIdle = 3*1024, 10, false },
		func(t *testing.T, w *testSessions) {
			w.fake.BootDelay = 300 * time.Millisecond
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					ask := OpenRequest{ID: "new"}
					if i == 0 {
						ask = OpenRequest{} // a home needs memory too
					}
					if l, err := w.Open(context.Background(), []auth.Principal{ann, bob}[i%2], ask); err == nil {
						l.Release()
					}
				})
			}
			all.Wait()
			if n, _ := w.fake.Count(); n != 3 {
				t.Errorf("%d sandboxes of 1024 MB where 3072 are allowed", n)
			}
			if n := w.usage.Reserved(); n != 0 {
				t.Errorf("%d principals have reservations still", n)
			}
		})
}

// TestWoken: sessions that boot again take places too.
func TestWoken(t *testing.T) {
	in(t, func(r *Rules) { r.MaxSessions, r.EvictIdle = 2, false }, func(t *testing.T, w *testSessions) {
		var ids []string
		for range 4 {
			l := w.use(ann, OpenRequest{ID: "new"})
			if err := os.WriteFile(filepath.Join(w.workspaces, l.record().Workspace, "f"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, l.ID())
			w.stopUnused(context.Background(), l.Session, "the test")
		}
		w.fake.BootDelay = 200 * time.Millisecond
		var all sync.WaitGroup
		for _, id := range ids {
			for range 3 {
				all.Go(func() {
					if l, err := w.Open(context.Background(), ann, OpenRequest{ID: id}); err == nil {
						l.Release()
					}
				})
			}
		}
		all.Wait()
		if n := w.Live(); n != 2 {
			t.Errorf("%d live, where 2 are allowed", n)
		}
	})
}

// TestStoppedAreBounded: what is kept of stopped sessions has an end.
func TestStoppedAreBounded(t *testing.T) {
	in(t, func(r *Rules) { r.MaxSessions = 1 }, func(t *testing.T, w *testSessions) {
		var ids []string
		for range maxStopped + 3 {
			l := w.use(ann, OpenRequest{ID: "new"}) // it makes room
			if err := os.WriteFile(filepath.Join(w.workspaces, l.record().Workspace, "f"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, l.ID())
		}
		w.fails(ann, OpenRequest{ID: ids[0]}, fault.SessionNotFound)
		w.fails(ann, OpenRequest{ID: ids[1]}, fault.SessionNotFound)
		w.use(ann, OpenRequest{ID: ids[2]})
		if left, _ := w.Pool.Workspaces.All(); len(left) > maxStopped+1 {
			t.Errorf("%d workspaces are kept", len(left))
		}
	})
}

// TestForgottenHalfway: a server that dies in the middle of forgetting a session
// leaves nothing that comes back.
func TestForgottenHalfway(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		l := w.use(ann, OpenRequest{ID: "new"})
		r := l.record()
		w.Close(context.Background())
		r.State = record.Removed
		w.store.all[r.ID] = r
		w.open(nil)
		w.fails(ann, OpenRequest{ID: r.ID}, fault.SessionNotFound)
		w.adoptAll(context.Background())
		if left, _ := w.Pool.Workspaces.All(); len(left) != 0 || len(w.store.all) != 0 {
			t.Errorf("%d workspaces and %d records are left", len(left), len(w.store.all))
		}
	})
}
