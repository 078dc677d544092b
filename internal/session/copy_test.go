package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// keep makes a content that is what a session has now.
func (w *testSessions) keep(id string) (kept Content, err error) {
	err = w.WhileStill(context.Background(), ann, id, func(ctx context.Context, _ string, c Content,
		_ int64) (err error) {
		kept = c
		kept.Workspace, _, err = w.CopyWorkspace(ctx, c.Workspace)
		return err
	})
	return kept, err
}

// note writes a file in a session's workspace.
func (w *testSessions) note(id, text string) {
	w.t.Helper()
	path := w.Pool.Workspaces.Path(w.byID(id).record().Workspace)
	if err := os.WriteFile(filepath.Join(path, "note"), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// wantContent checks what a session has in its memory and in its file, and that nobody was told of a loss.
func (w *testSessions) wantContent(what, id, memory, note string) {
	w.t.Helper()
	l := w.use(ann, OpenRequest{ID: id})
	text, err := os.ReadFile(filepath.Join(w.Pool.Workspaces.Path(l.record().Workspace), "note"))
	if w.box(id).Memory() != memory || string(text) != note || l.Notice != "" {
		w.t.Errorf("%s: it has %q in its memory and %q in its file, not %q and %q; told %q: %v", what,
			w.box(id).Memory(), text, memory, note, l.Notice, err)
	}
}

// TestCopies: a session goes back to what was kept of it, as often as one likes, and other sessions get the same.
func TestCopies(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.use(ann, OpenRequest{ID: "new"}).ID()
		w.box(id).SetMemory("old")
		w.note(id, "old")
		kept, err := w.keep(id)
		if err != nil {
			t.Fatal(err)
		}
		w.wantContent("it goes on", id, "old", "old")
		for range 2 {
			w.box(id).SetMemory("new")
			w.note(id, "new")
			c, err := w.Copy(t.Context(), kept)
			if err == nil {
				_, err = w.Replace(t.Context(), ann, id, c, Parent{Session: id})
			}
			if err != nil {
				t.Fatal(err)
			}
			w.wantContent("it goes back", id, "old", "old")
		}
		c, err := w.Copy(t.Context(), kept)
		if err != nil {
			t.Fatal(err)
		}
		other, err := w.MakeAsleep(t.Context(), ann, c, Parent{Session: id})
		if err != nil {
			t.Fatal(err)
		}
		w.wantContent("a copy", other, "old", "old")
		w.box(other).SetMemory("its own")
		w.note(other, "its own")
		w.wantContent("the original", id, "old", "old")
		w.wantImages(1)
		w.RemoveContent(t.Context(), kept)
		w.wantImages(0)
		if all, err := w.Pool.Workspaces.All(); err != nil || len(all) != 2 {
			t.Errorf("there are the workspaces %q: %v", all, err)
		}
	})
}

// TestEndedByUser: a call whose sandbox another call has ended says what has become of the session.
func TestEndedByUser(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		broken := errors.New("the link is closed")
		check := func(what string, l *Lease, words string, kept bool) {
			t.Helper()
			f := fault.From(l.Fault(t.Context(), broken, fault.CodeExecution))
			if !strings.Contains(f.Error(), words) || strings.Contains(f.Error(), "had to end") ||
				(f.Data().Context["kept"] != nil) != kept {
				t.Errorf("%s: %v, %v", what, f, f.Data().Context)
			}
		}
		l := w.use(ann, OpenRequest{ID: "new"})
		id := l.ID()
		kept, err := w.keep(id)
		if err != nil {
			t.Fatal(err)
		}
		l = w.use(ann, OpenRequest{ID: id})
		c, err := w.Copy(t.Context(), kept)
		if err == nil {
			_, err = w.Replace(t.Context(), ann, id, c, Parent{Session: id})
		}
		if err != nil {
			t.Fatal(err)
		}
		check("a restore", l, "replaced the session by a snapshot", false)
		l = w.use(ann, OpenRequest{ID: id})
		w.Stop(t.Context(), ann, id)
		check("a stop", l, "the session is gone, with its files", false)
		home := w.use(ann, OpenRequest{})
		w.Stop(t.Context(), ann, home.ID())
		check("a stop of the home", home, "Files in /workspace are kept", true)
		home = w.use(ann, OpenRequest{})
		w.fake.Box(home.Booted.ID).Kill("")
		if f := fault.From(home.Fault(t.Context(), broken, fault.CodeExecution)); !strings.Contains(f.Error(), "had to end") {
			t.Errorf("one that died after a stop: %v", f)
		}
		w.RemoveContent(t.Context(), kept)
	})
}

// TestRestoreThatWouldFail: a session goes on as it is if no sandbox can be made of what it is to get. A session that has
// nothing but files gets the files.
func TestRestoreThatWouldFail(t *testing.T) {
	bubble(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.use(ann, OpenRequest{ID: "new"}).ID()
		w.note(id, "old")
		kept, err := w.keep(id)
		if err != nil {
			t.Fatal(err)
		}
		w.box(id).SetMemory("new")
		w.note(id, "new")
		restore := func() error {
			c, err := w.Copy(t.Context(), kept)
			if err != nil {
				t.Fatal(err)
			}
			if _, err = w.Replace(t.Context(), ann, id, c, Parent{Session: id}); err != nil {
				w.RemoveContent(t.Context(), c)
			}
			return err
		}
		failsAt := func(step sandboxtest.Step) {
			w.fake.OnStep = func(s sandboxtest.Step) error {
				if s == step {
					return fmt.Errorf("stat /var/lib/sandlot/roots/x: %w", os.ErrNotExist)
				}
				return nil
			}
		}
		for _, asleep := range []bool{false, true} {
			if asleep {
				w.fake.OnStep = nil
				w.sleepUnused(t.Context(), w.byID(id), "it was idle")
			}
			before, status := w.box(id), w.status(id)
			for name, fail := range map[string]func(){
				"when asked": func() { failsAt(sandboxtest.StepAsk) }, "at once": func() { failsAt(sandboxtest.StepWake) },
				"late": func() { failsAt(sandboxtest.StepWaking) }, "without an answer": func() { w.fake.Silent = true },
				"with another agent":            func() { w.fake.WrongSecret = true },
				"with settings that it refuses": func() { w.fake.SettingsErr = errors.New("no") },
			} {
				w.fake.OnStep = nil
				fail()
				if err := restore(); !fault.Is(err, fault.SessionState) || strings.Contains(err.Error(), "/var/lib") ||
					!strings.Contains(err.Error(), "nothing was changed") {
					t.Errorf("%s, asleep %v: %v", name, asleep, err)
				}
				w.fake.Silent, w.fake.WrongSecret, w.fake.SettingsErr = false, false, nil
				if w.box(id) != before || w.status(id) != status {
					t.Errorf("%s, asleep %v: it is %s, and was %s", name, asleep, w.status(id), status)
				}
			}
			w.fake.OnStep = nil
			w.MaxMemoryMB = 1
			if err := restore(); asleep && !fault.Is(err, fault.ResourceLimit) || !asleep && err != nil {
				t.Errorf("without room for a sandbox, asleep %v: %v", asleep, err)
			}
			w.MaxMemoryMB = 0
			if !asleep { // it has had its own room
				w.wantContent("it went back", id, "", "old")
				w.box(id).SetMemory("new")
				w.note(id, "new")
			}
		}
		if told := w.use(ann, OpenRequest{ID: id}).Notice; !strings.Contains(told, "asleep") {
			t.Errorf("told %q", told)
		}
		w.wantContent("it goes on", id, "new", "new")
		w.stopUnused(t.Context(), w.byID(id), "it was stopped")
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepAsk {
				return errors.New("not now")
			}
			return nil
		}
		if err := restore(); err != nil {
			t.Errorf("a session that has only files: %v", err)
		}
		w.RemoveContent(t.Context(), kept)
	})
}

// TestReplacedFilesAreTold: a session that cannot sleep as files of the machine were replaced stays awake, and its user
// is told once. Copying it says so, too.
func TestReplacedFilesAreTold(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.use(ann, OpenRequest{ID: "new"}).ID()
		w.note(id, "note")
		w.box(id).SetMemory("x")
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepFreeze {
				return fmt.Errorf("%w: %w: /usr/lib/libc.so.6", sandbox.ErrLater, sandbox.ErrReplaced)
			}
			return nil
		}
		for range 2 {
			w.sleepUnused(t.Context(), w.byID(id), "it was idle")
		}
		if got := w.status(id); got == "hibernated" || got == "stopped" {
			t.Errorf("it is %s", got)
		}
		told := w.use(ann, OpenRequest{ID: id}).Notice
		if !strings.Contains(told, "upgrade of the machine's packages") || strings.Contains(told, "libc") ||
			w.use(ann, OpenRequest{ID: id}).Notice != "" {
			t.Errorf("told: %q", told)
		}
		_, err := w.keep(id)
		if !fault.Is(err, fault.SessionState) || strings.Contains(err.Error(), "/usr") ||
			!strings.Contains(err.Error(), "upgrade of the machine's packages") {
			t.Errorf("copying: %v", err)
		}
		w.fake.OnStep = nil
		w.wantContent("it goes on", id, "x", "note")
	})
}

// TestReplacedFilesAreToldInTime: the user of a session that could not be put to sleep now is told before that is tried.
func TestReplacedFilesAreToldInTime(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		id := w.use(ann, OpenRequest{ID: "new"}).ID()
		told := func() string {
			w.sweep(t.Context(), time.Now())
			return w.use(ann, OpenRequest{ID: id}).Notice
		}
		w.fake.OutdatedErr = errors.New("/usr/lib/libc.so.6 is not the file that the sandbox has open")
		if got := told(); got != "" {
			t.Errorf("of files that can be kept: %q", got)
		}
		w.fake.OutdatedErr = fmt.Errorf("%w: two that were /usr/lib/libc.so.6", sandbox.ErrReplaced)
		if got := told(); !strings.Contains(got, "upgrade of the machine's packages") || strings.Contains(got, "libc") ||
			!strings.Contains(got, "if the server is stopped") {
			t.Errorf("told: %q", got)
		}
		if got := told(); got != "" {
			t.Errorf("told again: %q", got)
		}
	})
}

// TestCannotCopy: who is not asked for a session of another, or one that is in use, gets a reason, and nothing is left.
func TestCannotCopy(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		l, err := w.Open(t.Context(), ann, OpenRequest{ID: "new"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.keep(l.ID()); !fault.Is(err, fault.ResourceLimit) {
			t.Errorf("a session in use: %v", err)
		}
		l.Release()
		w.fake.HibernateErr = errors.New("not here")
		if _, err := w.keep(l.ID()); err == nil || !strings.Contains(err.Error(), "not here") {
			t.Errorf("a runtime that cannot: %v", err)
		}
		w.fake.HibernateErr = nil
		none := func(context.Context, string, Content, int64) error { return nil }
		if err := w.WhileStill(t.Context(), bob, l.ID(), none); !fault.Is(err, fault.SessionNotFound) {
			t.Errorf("a session of another user: %v", err)
		}
		if _, err := w.Replace(t.Context(), bob, l.ID(), Content{}, Parent{Session: l.ID()}); !fault.Is(err,
			fault.SessionNotFound) {
			t.Errorf("replacing a session of another user: %v", err)
		}
		w.wantImages(0)
	})
}

// TestCrashReplacing: a server that is killed at any step of a restore leaves the old content or the new one, and
// nothing of the other.
func TestCrashReplacing(t *testing.T) {
	for name, step := range map[string]sandboxtest.Step{
		"before it is stored":          "",
		"before the old sandbox's end": sandboxtest.StepStop,
		"before it wakes":              sandboxtest.StepWake,
		"while it wakes":               sandboxtest.StepWaking,
		"before its numbers are new":   sandboxtest.StepWoken,
		"before the image's removal":   sandboxtest.StepRemove,
	} {
		t.Run(name, func(t *testing.T) {
			in(t, sleeps, func(t *testing.T, w *testSessions) {
				id := w.use(ann, OpenRequest{ID: "new"}).ID()
				w.box(id).SetMemory("old")
				w.note(id, "old")
				kept, err := w.keep(id)
				if err != nil {
					t.Fatal(err)
				}
				w.box(id).SetMemory("new")
				w.note(id, "new")
				w.fake.OnStep = func(s sandboxtest.Step) error {
					if s == step {
						runtime.Goexit()
					}
					return nil
				}
				c, err := w.Copy(t.Context(), kept)
				if err != nil {
					t.Fatal(err)
				}
				if step == "" {
					w.store.exitBefore(0)
				}
				var work sync.WaitGroup
				work.Go(func() {
					if _, err := w.Replace(context.Background(), ann, id, c, Parent{Session: id}); err != nil {
						t.Error(err)
					}
					w.use(ann, OpenRequest{ID: id})
				})
				work.Wait()
				w.fake.OnStep = nil
				w.store.before.Store(nil)
				w.fake.KillServer()
				w.keeps = &kept
				w.open(sleeps)
				w.left.remove(t.Context())
				want := "new" // the session has the old content when its sandbox runs
				if step == sandboxtest.StepStop || step == sandboxtest.StepRemove {
					want = "old"
				}
				w.wantContent("the next server", id, want, want)
				w.wantImages(1)
				if all, err := w.Pool.Workspaces.All(); err != nil || len(all) != 2 {
					t.Errorf("there are the workspaces %q: %v", all, err)
				}
				w.RemoveContent(t.Context(), kept)
			})
		})
	}
}

// TestNetworkOfContent: a session that gets the content of another one has what the operator gave to it, and nothing
// that the operator gave to the other one, or took from either.
func TestNetworkOfContent(t *testing.T) {
	const unset, none, list, public = egress.Mode(""), egress.None, egress.Allowlist, egress.Public
	var rules []egress.Rule
	for _, text := range []string{"own.example", "given.example"} {
		rule, err := egress.ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, rule)
	}
	own, given := rules[:1], rules[1:]
	for _, tt := range []struct {
		own, content, origin, base, want egress.Mode
		refused                          bool
	}{
		{unset, public, unset, list, unset, false}, {unset, public, public, list, unset, false},
		{unset, list, unset, list, unset, false}, {unset, list, unset, none, unset, false},
		{unset, list, unset, public, list, false}, {unset, public, none, public, none, false},
		{unset, none, unset, public, none, false}, {unset, none, unset, none, none, false},
		{unset, unset, none, public, none, false}, {none, unset, unset, public, none, false},
		{none, public, unset, list, none, false}, {none, none, unset, list, none, false},
		{none, none, none, list, none, false}, {public, none, public, list, public, false},
		{public, none, unset, list, public, true}, {public, unset, none, list, public, true},
		{list, none, unset, list, list, true}, {list, public, unset, list, list, false},
	} {
		got, err := Content{Network: NetworkOverride{Mode: tt.content, Allow: given}}.NetworkIn(
			NetworkOverride{Mode: tt.own, Allow: own}, NetworkOverride{Mode: tt.origin, Allow: given}, tt.base)
		if got.Mode != tt.want || fault.Is(err, fault.Forbidden) != tt.refused || !slices.Equal(got.Allow, own) {
			t.Errorf("%+v: %+v, %v", tt, got, err)
		}
	}
}

// TestInTurns: at the server's end, each owner's first session is put to sleep before anybody's second one.
func TestInTurns(t *testing.T) {
	var all []liveSession
	for _, id := range []string{"ann 1", "ann 2", "ann 3", "bob 1", "eve 1", "bob 2"} {
		all = append(all, liveSession{session: &Session{cur: current{rec: Record{ID: id, Owner: id[:3]}}}})
	}
	var got []string
	for _, l := range inTurns(all, liveSession.owner) {
		got = append(got, l.session.record().ID)
	}
	if want := "ann 1, bob 1, eve 1, ann 2, bob 2, ann 3"; strings.Join(got, ", ") != want {
		t.Errorf("the order is %q, want %q", got, want)
	}
}
