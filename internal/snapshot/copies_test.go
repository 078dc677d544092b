package snapshot

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/pool"
	"sandlot/internal/quota"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/session"
	"sandlot/internal/template"
	"sandlot/internal/workspace"
)

// sessionStore stores sessions in memory.
type sessionStore struct {
	session.Store
	mu  sync.Mutex
	all map[string]session.Record
}

func (s *sessionStore) PutSession(_ context.Context, r session.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[r.ID] = r
	return nil
}

func (s *sessionStore) RemoveSession(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
	return nil
}

func (s *sessionStore) workspace(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id].Workspace
}

func (s *sessionStore) sandbox(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id].Sandbox
}

// world is snapshots of sessions of a fake runtime.
type world struct {
	*Snapshots
	t      *testing.T
	fake   *sandboxtest.Fake
	store  *sessionStore
	asking sync.Mutex
	asked  []string // of MayCopy
	denied error
	// creates is MayCreateSession.
	creates func(template string) error
}

// MayCreateSession implements session.Permits.
func (w *world) MayCreateSession(_ context.Context, _ auth.Principal, template, _ string) error {
	if w.creates == nil {
		return nil
	}
	return w.creates(template)
}

// MaySnapshot implements session.Permits.
func (w *world) MaySnapshot(context.Context, auth.Principal, string) error { return nil }

// MayCopy implements session.Permits.
func (w *world) MayCopy(_ context.Context, _ auth.Principal, source string, secrets []string) error {
	w.asking.Lock()
	defer w.asking.Unlock()
	w.asked = append(w.asked, strings.Join(append([]string{source}, secrets...), " "))
	return w.denied
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldIn(t, t.TempDir())
}

// newWorldIn is newWorld with the workspaces in a folder.
func newWorldIn(t *testing.T, dir string) *world {
	t.Helper()
	workspaces, err := workspace.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	log := sandboxtest.Log(t)
	templates := template.New(slog.New(slog.DiscardHandler), []*image.Template{{Name: "host",
		Provides: []string{"python"}}}, nil, false)
	fake := &sandboxtest.Fake{}
	p := pool.New(pool.Config{Runtime: fake, Workspaces: workspaces, BootTimeout: 2 * time.Second,
		Templates: templates.Ready, Flavor: sandboxtest.Flavors[0], Log: log})
	w := &world{t: t, fake: fake, store: &sessionStore{all: map[string]session.Record{}}}
	w.Snapshots = New(Config{Store: stored{}, DiskBytes: 1 << 30, Log: log, Permits: w})
	limits := quota.New()
	limits.Set(quota.Settings{Users: quota.Limits{DiskMB: 10}})
	w.Sessions = session.New(session.Config{Pool: p, Store: w.store, Log: log, Quotas: limits,
		Unexpected: func(err error) { t.Error(err) },
		Permits:    w, Keeper: w.Snapshots,
		Rules: session.Rules{DefaultTemplate: "host", DefaultFlavor: "small", Templates: templates,
			Flavors: sandboxtest.Flavors, MaxSessions: 10, IdleTimeout: time.Minute, AgentTimeout: time.Second,
			Hibernation: session.Hibernation{Enabled: true, ImageBytes: 1 << 30, DiskBytes: 1 << 30}}})
	t.Cleanup(func() { w.Sessions.StopAll(context.Background()) })
	return w
}

// session makes a session with a file of so many MB.
func (w *world) session(megabytes int) (id string) {
	w.t.Helper()
	l, err := w.Sessions.Open(w.t.Context(), ann, session.OpenRequest{ID: "new"})
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Release()
	path := filepath.Join(w.Sessions.Pool.Workspaces.Path(w.store.workspace(l.ID())), "file")
	if err := os.WriteFile(path, bytes.Repeat([]byte{1}, megabytes<<20), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return l.ID()
}

func (w *world) wantWorkspaces(what string, n int) {
	w.t.Helper()
	if all, err := w.Sessions.Pool.Workspaces.All(); err != nil || len(all) != n {
		w.t.Errorf("%s there are %d workspaces, want %d: %v", what, len(all), n, err)
	}
}

// TestCopiesCount: what nobody has measured yet counts before it is copied, and a copy counts from its beginning.
func TestCopiesCount(t *testing.T) {
	w := newWorld(t)
	id := w.session(3)
	if _, _, err := w.Fork(t.Context(), ann, id, 4); !fault.Is(err, fault.ResourceLimit) {
		t.Errorf("12 MB of copies where 10 MB are allowed: %v", err)
	}
	w.wantWorkspaces("after a fork that is too large", 1)
	if _, err := w.Create(t.Context(), ann, id, "first"); err != nil {
		t.Fatal(err)
	}
	if got := w.Bytes(ann.ID); got < 3<<20 {
		t.Errorf("a snapshot of 3 MB counts %d bytes", got)
	}
	_, copies, err := w.Fork(t.Context(), ann, id, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, copied := range copies {
		if got := w.Sessions.SizeOf(ann, copied); got < 3<<20 {
			t.Errorf("a copy of 3 MB counts %d bytes", got)
		}
	}
	if _, err := w.Restore(t.Context(), ann, "first", "new"); !fault.Is(err, fault.ResourceLimit) {
		t.Errorf("one more when 9 MB are used: %v", err)
	}
	if _, err := w.Restore(t.Context(), ann, "first", copies[0]); err != nil {
		t.Errorf("in place of as much: %v", err)
	}
	w.wantWorkspaces("at the end", 4)
}

// TestBeforeAtTheLimit: a call gets its snapshot though its principal has as many as are allowed.
func TestBeforeAtTheLimit(t *testing.T) {
	w := newWorld(t)
	id := w.session(0)
	for n := range Max {
		if _, err := w.Create(t.Context(), ann, id, "named-"+string(rune('a'+n))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Create(t.Context(), ann, id, "more"); !fault.Is(err, fault.ResourceLimit) {
		t.Errorf("one more of that kind: %v", err)
	}
	var last Record
	for range maxBefore + 1 {
		var err error
		if last, err = w.Before(t.Context(), ann, id); err != nil {
			t.Fatal(err)
		}
	}
	all := w.List(ann)
	if len(all) != Max+maxBefore || all[len(all)-1].Name != last.Name {
		t.Errorf("there are %d snapshots, the last is %s, not %s", len(all), all[len(all)-1].Name, last.Name)
	}
}

// TestDisabled: where nothing is frozen, nothing is restored either, and what was kept can be seen and removed.
func TestDisabled(t *testing.T) {
	w := newWorld(t)
	id := w.session(0)
	if _, err := w.Create(t.Context(), ann, id, "first"); err != nil {
		t.Fatal(err)
	}
	w.Sessions.Hibernation.Enabled = false
	_, restored := w.Restore(t.Context(), ann, "first", "")
	_, created := w.Create(t.Context(), ann, id, "second")
	_, _, forked := w.Fork(t.Context(), ann, id, 1)
	for _, err := range []error{restored, created, forked} {
		if !fault.Is(err, fault.Configuration) || !strings.Contains(err.Error(), "hibernate.enabled is false") {
			t.Errorf("%v", err)
		}
	}
	if err := w.Remove(t.Context(), ann, "first"); err != nil || len(w.List(ann)) != 0 {
		t.Errorf("%v", err)
	}
	w.wantWorkspaces("at the end", 1)
}

// TestSecretsOfCopies: who makes a copy of a session is asked about the secrets that its programs have got, and that a
// snapshot had which it went back to. Who gives a snapshot to another session is asked about the one of the snapshot.
func TestSecretsOfCopies(t *testing.T) {
	w := newWorld(t)
	id, other := w.session(0), w.session(0)
	note := func(id, name string) {
		t.Helper()
		l, err := w.Sessions.Open(t.Context(), ann, session.OpenRequest{ID: id})
		if err == nil {
			err = l.NoteSecrets(map[string]string{"KEY": "a ${secret:" + name + "}"})
			l.Release()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	note(id, "B")
	note(id, "A")
	if _, err := w.Create(t.Context(), ann, id, "first"); err != nil {
		t.Fatal(err)
	}
	note(other, "C")
	w.denied = fault.New(fault.Forbidden, "no")
	_, toNew := w.Restore(t.Context(), ann, "first", "new")
	_, back := w.Restore(t.Context(), ann, "first", "")
	_, _, forked := w.Fork(t.Context(), ann, id, 1)
	for _, err := range []error{toNew, back, forked} {
		if !fault.Is(err, fault.Forbidden) {
			t.Errorf("what is denied: %v", err)
		}
	}
	w.wantWorkspaces("after what was denied", 3)
	w.denied = nil
	if _, err := w.Restore(t.Context(), ann, "first", other); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Fork(t.Context(), ann, other, 1); err != nil {
		t.Fatal(err)
	}
	want := []string{id + " A B", " A B", " A B", id + " A B", " A B"}
	if !slices.Equal(w.asked, want) {
		t.Errorf("asked %q, want %q", w.asked, want)
	}
}

// TestGrantsEnd: what the operator has given to a session, no other one has, and no copy brings it back after it was
// taken away. What the operator has shut stays shut in copies.
func TestGrantsEnd(t *testing.T) {
	w := newWorld(t)
	w.Sessions.SetPolicies(session.Policies{Operator: egress.Policy{Mode: egress.Allowlist}})
	rule, err := egress.ParseRule("given.example:443")
	if err != nil {
		t.Fatal(err)
	}
	public := session.NetworkOverride{Mode: egress.Public}
	listed := session.NetworkOverride{Allow: []egress.Rule{rule}}
	none := session.NetworkOverride{Mode: egress.None}
	set := func(id string, o session.NetworkOverride) {
		t.Helper()
		if _, err := w.Sessions.ChangeNetwork(t.Context(), ann, id, func(n *session.NetworkOverride) { *n = o }); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what, id string, o session.NetworkOverride) {
		t.Helper()
		n, err := w.Sessions.Network(ann, id)
		if err != nil || n.Change.Mode != o.Mode || !slices.Equal(n.Change.Allow, o.Allow) {
			t.Errorf("%s: %+v, want %+v: %v", what, n.Change, o, err)
		}
	}
	restore := func(name, id string) string {
		t.Helper()
		r, err := w.Restore(t.Context(), ann, name, id)
		if err != nil {
			t.Fatal(err)
		}
		return r.Session
	}
	id, other := w.session(0), w.session(0)
	for name, given := range map[string]session.NetworkOverride{"public": public, "listed": listed} {
		set(id, given)
		if _, err := w.Create(t.Context(), ann, id, name); err != nil {
			t.Fatal(err)
		}
		_, copies, err := w.Fork(t.Context(), ann, id, 1)
		if err != nil {
			t.Fatal(err)
		}
		want(name+": a fork", copies[0], session.NetworkOverride{})
		want(name+": another session", restore(name, other), session.NetworkOverride{})
		want(name+": the session itself, which has it", restore(name, ""), given)
		set(id, session.NetworkOverride{})
		want(name+": itself after a reset", restore(name, ""), session.NetworkOverride{})
		want(name+": a new session after it", restore(name, "new"), session.NetworkOverride{})
		set(other, none)
		want(name+": a session that is shut", restore(name, other), none)
		set(other, session.NetworkOverride{})
		set(id, none)
		want(name+": another session, while its own is shut", restore(name, other), none)
		want(name+": a new session, while its own is shut", restore(name, "new"), none)
		set(other, session.NetworkOverride{})
		set(id, session.NetworkOverride{})
		w.Sessions.Stop(t.Context(), ann, copies[0])
	}
}

// TestScopeOfCopies: the programs of a copy run because somebody has asked for the copy, and so have no wider scope.
func TestScopeOfCopies(t *testing.T) {
	w := newWorld(t)
	id := w.session(0)
	if _, err := w.Create(t.Context(), ann, id, "wide"); err != nil {
		t.Fatal(err)
	}
	narrow := ann
	narrow.Scope = auth.NewScope("session.fork", "snapshot.restore")
	into, err := w.Restore(t.Context(), narrow, "wide", "")
	if err != nil {
		t.Fatal(err)
	}
	made, err := w.Restore(t.Context(), narrow, "wide", "new")
	if err != nil {
		t.Fatal(err)
	}
	_, copies, err := w.Fork(t.Context(), narrow, id, 1)
	if err != nil {
		t.Fatal(err)
	}
	for what, id := range map[string]string{"the session": into.Session, "a new one": made.Session, "a fork": copies[0]} {
		if scope := w.Sessions.ScopeOf(id); scope == "" || scope.Allows("mcp.call") {
			t.Errorf("%s has the scope %q", what, scope)
		}
	}
}

// TestTemplateOfCopies: who may not have a session of a template gets none by a snapshot.
func TestTemplateOfCopies(t *testing.T) {
	w := newWorld(t)
	id := w.session(0)
	if _, err := w.Create(t.Context(), ann, id, "kept"); err != nil {
		t.Fatal(err)
	}
	var asked []string
	w.creates = func(template string) error {
		asked = append(asked, template)
		return fault.New(fault.Forbidden, "no")
	}
	if _, err := w.Restore(t.Context(), ann, "kept", ""); err != nil || asked != nil {
		t.Errorf("into a session of the same template: %v, asked for %q", err, asked)
	}
	for _, r := range w.all { // as if the session had another one by now
		r.Template = "other"
	}
	for _, into := range []string{"", "new"} {
		if _, err := w.Restore(t.Context(), ann, "kept", into); !fault.Is(err, fault.Forbidden) {
			t.Errorf("another template into %q: %v", into, err)
		}
	}
	if want := []string{"other", "other"}; !slices.Equal(asked, want) {
		t.Errorf("it was asked for %q", asked)
	}
}

// TestUnusedHome: a home is always there: what needs it makes it, what ends it has nothing to do, and what only reads it
// says how it is made.
func TestUnusedHome(t *testing.T) {
	for what, use := range map[string]func(w *world) error{
		"a snapshot of it": func(w *world) error {
			_, err := w.Create(t.Context(), ann, "home", "first")
			return err
		},
		"a copy of it": func(w *world) error {
			_, _, err := w.Fork(t.Context(), ann, "home", 1)
			return err
		},
		"its end": func(w *world) error {
			if !w.Sessions.Stop(t.Context(), ann, "home") {
				return errors.New("it is not there")
			}
			return nil
		},
	} {
		if err := use(newWorld(t)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	w := newWorld(t)
	_, errList := w.Sessions.List(t.Context(), ann, "home")
	_, errNetwork := w.Sessions.Network(ann, "home")
	_, errFind := w.Sessions.Find(ann, "")
	for _, err := range []error{errList, errNetwork, errFind} {
		if !fault.Is(err, fault.SessionNotFound) || !strings.Contains(err.Error(), "its first use makes it") {
			t.Errorf("what only reads it says: %v", err)
		}
	}
	id := w.session(1)
	if _, err := w.Create(t.Context(), ann, id, "kept"); err != nil {
		t.Fatal(err)
	}
	w.asked = nil
	var work errgroup.Group
	made := make([]Restored, 2)
	for n := range made { // both at once make one home
		work.Go(func() (err error) {
			made[n], err = w.Restore(t.Context(), ann, "kept", "home")
			return err
		})
	}
	if err := work.Wait(); err != nil {
		t.Fatal(err)
	}
	home, err := w.Sessions.Find(ann, "home")
	if err != nil || made[0].Session != home || made[1].Session != home || home == id {
		t.Fatalf("%+v, the home is %q: %v", made, home, err)
	}
	if !made[0].Created && !made[1].Created {
		t.Error("nobody is told that the home is new")
	}
	if want := []string{id, id}; !slices.Equal(w.asked, want) {
		t.Errorf("it was asked whether %q may be copied", w.asked)
	}
	if st, err := os.Stat(filepath.Join(w.Sessions.Pool.Workspaces.Path(w.store.workspace(home)), "file")); err != nil ||
		st.Size() != 1<<20 {
		t.Errorf("the home does not have the files of the snapshot: %v", err)
	}
	if r, err := w.Restore(t.Context(), ann, "kept", "home"); err != nil || r.Created ||
		r.Session != home || r.Notice != "" {
		t.Errorf("once more: %+v, %v", r, err)
	}
	other := newWorld(t)
	if _, err := other.Create(t.Context(), ann, other.session(0), "kept"); err != nil {
		t.Fatal(err)
	}
	other.denied = fault.New(fault.Forbidden, "no")
	if _, err := other.Restore(t.Context(), ann, "kept", "home"); !fault.Is(err, fault.Forbidden) {
		t.Errorf("denied: %v", err)
	}
	if _, err := other.Sessions.Find(ann, "home"); err == nil {
		t.Error("what is denied has made a home")
	}
}
