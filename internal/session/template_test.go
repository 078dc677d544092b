package session

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/template"
)

func templatesOf(list ...*image.Template) func(*Rules) {
	return func(r *Rules) { r.Templates = template.New(slog.New(slog.DiscardHandler), list, nil, false) }
}

// A session whose template was removed says so and keeps its files. It goes on with them in another template that a
// call names, or in its own when that is there again.
func TestRemovedTemplate(t *testing.T) {
	mine := &image.Template{Name: "mine"}
	in(t, templatesOf(hostAndOther[0], mine), func(t *testing.T, w *testSessions) {
		l := w.use(ann, OpenRequest{ID: "new", Template: "mine"})
		back := w.use(ann, OpenRequest{ID: "new", Template: "mine"})
		file := filepath.Join(w.Pool.Workspaces.Path(l.record().Workspace), "kept.txt")
		if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.Close(context.Background())

		w.open(nil) // without it
		w.left.remove(context.Background())
		if _, alive := w.fake.Count(); alive != 0 {
			t.Errorf("%d sandboxes of a removed template live on", alive)
		}
		for range 2 {
			w.fails(ann, OpenRequest{ID: l.ID()}, fault.InvalidParameters, "mine", "/workspace are kept", l.ID(),
				`"host"`)
		}
		w.fails(ann, OpenRequest{ID: l.ID(), Template: "mine"}, fault.InvalidParameters, "not known")
		if infos, err := w.List(context.Background(), ann, l.ID()); err != nil || infos[0].Template != "mine" {
			t.Errorf("%+v, %v", infos, err)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != "mine" {
			t.Errorf("its file: %q, %v", text, err)
		}
		moved := w.use(ann, OpenRequest{ID: l.ID(), Template: "python"})
		if moved.Booted.Template.Name != "host" || moved.record().Workspace != l.record().Workspace ||
			!strings.Contains(moved.Notice, "its template was removed") {
			t.Errorf("%+v, notice %q", moved.record(), moved.Notice)
		}
		if w.use(ann, OpenRequest{ID: l.ID()}).Booted.ID != moved.Booted.ID {
			t.Error("another sandbox")
		}
		w.Close(context.Background())

		w.open(templatesOf(hostAndOther[0], mine)) // it is there again
		if got := w.use(ann, OpenRequest{ID: back.ID()}); got.Booted.Template.Name != "mine" {
			t.Errorf("%+v", got.record())
		}
		if got := w.use(ann, OpenRequest{ID: l.ID()}); got.Booted.Template.Name != "host" {
			t.Errorf("%+v", got.record())
		}
	})
}

// A template's flavor is that of its sessions, unless a call names another.
func TestFlavorOfATemplate(t *testing.T) {
	templates := templatesOf(hostAndOther[0], &image.Template{Name: "big", Flavor: "large"})
	in(t, templates, func(t *testing.T, w *testSessions) {
		for _, want := range []struct{ template, asked, flavor string }{{"host", "", "small"}, {"big", "", "large"},
			{"big", "medium", "medium"}} {
			l := w.use(ann, OpenRequest{ID: "new", Template: want.template, Flavor: want.asked})
			if l.Booted.Flavor.Name != want.flavor || l.record().Flavor != want.flavor {
				t.Errorf("%+v has the flavor %s", want, l.record().Flavor)
			}
		}
	})
}

// Two runtimes make sandboxes at once. The record of a session says whose its sandbox is, and the next server asks
// that one for it.
func TestTwoRuntimes(t *testing.T) {
	second := &sandboxtest.Fake{Called: "second"}
	rules := templatesOf(hostAndOther[0], &image.Template{Name: "far", Runtime: "second"},
		&image.Template{Name: "lost", Runtime: "third"})
	in(t, nil, func(t *testing.T, w *testSessions) {
		w.further = []sandbox.Runtime{second}
		w.open(rules)
		near, far := w.use(ann, OpenRequest{ID: "new"}), w.use(ann, OpenRequest{ID: "new", Template: "far"})
		orphaned := w.use(bob, OpenRequest{ID: "new", Template: "far"})
		if near.record().Runtime != "fake" || far.record().Runtime != "second" || second.Box(far.Booted.ID) == nil ||
			w.fake.Box(near.Booted.ID) == nil {
			t.Errorf("%+v, %+v", near.record(), far.record())
		}
		w.fails(ann, OpenRequest{ID: "new", Template: "lost"}, fault.SandboxCreation, "third", "runtimes")
		w.Close(context.Background())

		if err := w.store.RemoveSession(t.Context(), orphaned.ID()); err != nil {
			t.Fatal(err)
		}
		w.open(rules) // the next server
		for _, l := range []*Lease{near, far} {
			if got := w.use(ann, OpenRequest{ID: l.ID()}); got.Booted.ID != l.Booted.ID || got.Notice != "" {
				t.Errorf("%s has another sandbox: %q", got.Booted.Template.Name, got.Notice)
			}
		}
		w.left.remove(context.Background())
		if _, alive := second.Count(); alive != 1 {
			t.Errorf("%d sandboxes of the second runtime live", alive)
		}
		w.Close(context.Background())

		second.LeftoversErr = errors.New("no answer") // which does not mean that its sandboxes are dead
		w.open(rules)
		second.LeftoversErr = nil
		if got := w.use(ann, OpenRequest{ID: far.ID()}); got.Booted.ID != far.Booted.ID || got.Notice != "" {
			t.Errorf("it has another sandbox: %q", got.Notice)
		}
		w.StopAll(context.Background())
		if _, alive := second.Count(); alive != 0 {
			t.Errorf("%d sandboxes of the second runtime live on", alive)
		}
	})
}

// A session of a removed template gets another one only from a principal who may have that: by its name, and by the
// name that it was asked for. So does a new session.
func TestReplacedTemplateIsAskedAbout(t *testing.T) {
	mine := &image.Template{Name: "mine"}
	in(t, templatesOf(hostAndOther[0], mine), func(t *testing.T, w *testSessions) {
		l := w.use(ann, OpenRequest{ID: "new", Template: "mine"})
		w.Close(context.Background())
		w.open(nil)
		w.left.remove(context.Background())
		var asked []string
		w.MayCreate = func(_ context.Context, _ auth.Principal, template, by string) error {
			asked = append(asked, template+" by "+by)
			return fault.New(fault.Forbidden, "no")
		}
		for _, id := range []string{l.ID(), "new", "home"} {
			w.fails(ann, OpenRequest{ID: id, Template: "python"}, fault.Forbidden)
		}
		w.DefaultTemplate = "python" // by the settings, who names none asks for that
		w.fails(ann, OpenRequest{ID: "new"}, fault.Forbidden)
		if got := strings.Join(asked, ", "); got != strings.Repeat("host by python, ", 3)+"host by python" {
			t.Errorf("it was asked for %s", got)
		}
		if got := w.byID(l.ID()).record().Template; got != "mine" {
			t.Errorf("the session has the template %s", got)
		}
	})
}
