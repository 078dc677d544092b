package template

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/tool"
)

// inBubble runs a test with time of its own.
func inBubble(t *testing.T, test func(t *testing.T, dir string)) {
	if !sandboxtest.Alone(t) {
		return
	}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) { test(t, dir) })
}

// A build that fails after its image was saved goes on with that image, and leaves no other one.
func TestFailedBuildGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		i := &images{ids: map[string]string{"py": "sha256:1"}}
		probed := numpy("one")
		probed.Languages = nil // sandboxes of the fake run nothing: none is found
		w := newWorld(t, dir, i, probed)
		time.Sleep(20 * firstRetry)
		if got := w.info(t, "one"); got.State != Failed || len(i.savedNames()) != 1 {
			t.Errorf("%+v, saved %q", got, i.savedNames())
		}
		if images, templates := i.count(); images != 2 || templates != 1 || i.builtOf("one") != 0 {
			t.Errorf("%d images, and of %d templates, sandboxes were saved: a build's has the name of the served one",
				images, templates)
		}
		for n := range 3 { // other bases
			i.set(func() { i.ids["py"] = "sha256:more" + strings.Repeat("x", n) })
			if _, err := w.Set.Request("one"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if images, _ := i.count(); images != 2 || len(i.savedNames()) != 4 {
			t.Errorf("%d images after %q", images, i.savedNames())
		}
		w.stop()
		w = newWorld(t, dir, i, numpy("one")) // with languages it is ready at once
		defer w.stop()
		time.Sleep(time.Second)
		if got := w.info(t, "one"); got.State != Ready || len(i.savedNames()) != 4 {
			t.Errorf("%+v, saved %q", got, i.savedNames())
		}
	})
}

// An image that does not come does not keep the other templates.
func TestSilentImage(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		i := &images{ids: map[string]string{"py": "sha256:1"}, silent: true}
		w := newWorld(t, dir, i, config.Template{Name: "one", Image: "py", Languages: sh},
			config.Template{Name: "two", Image: "py", Languages: sh})
		defer w.stop()
		time.Sleep(time.Minute)
		i.set(func() { i.silent = false })
		time.Sleep(maxSilence - firstRetry/2)
		if one, two := w.info(t, "one"), w.info(t, "two"); one.State != Failed || two.State != Ready ||
			!strings.Contains(one.Problem, "nothing more came") {
			t.Errorf("%+v\n%+v", one, two)
		}
	})
}

// What was built serves while its runtime does not answer at the start, and is looked at as soon as it does.
func TestRuntimeAway(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		i := &images{ids: map[string]string{"py": "sha256:1"}}
		w := newWorld(t, dir, i, numpy("one"))
		time.Sleep(time.Second)
		first := i.savedID(0)
		w.stop()
		for _, away := range []error{sandbox.ErrUnavailable, context.DeadlineExceeded} {
			i.set(func() { i.away = away })
			w = newWorld(t, dir, i, numpy("one"))
			if got := w.info(t, "one"); got.State != Ready || got.Image != first {
				t.Errorf("%v: %+v", away, got)
			}
			time.Sleep(time.Hour)
			i.set(func() { i.away = nil })
			time.Sleep(time.Minute)
			if got := w.info(t, "one"); got.State != Ready || got.Image != first {
				t.Errorf("%v: %+v", away, got)
			}
			w.stop()
		}
		i.set(func() { i.away = sandbox.ErrUnavailable })
		i.remove(first) // while nothing runs
		w = newWorld(t, dir, i, numpy("one"))
		time.Sleep(time.Minute)
		i.set(func() { i.away = nil })
		time.Sleep(2 * soonCheck)
		if got := w.info(t, "one"); got.State != Ready || got.Image == first || len(i.savedNames()) != 2 {
			t.Errorf("%+v, saved %q", got, i.savedNames())
		}
		w.stop()

		i.runtime = "another" // that the settings now have as the default
		i.set(func() { i.away = sandbox.ErrUnavailable })
		w = newWorld(t, dir, i, numpy("one"))
		defer w.stop()
		if got := w.info(t, "one"); got.Usable {
			t.Errorf("an image of another runtime is used: %+v", got)
		}
		time.Sleep(time.Hour)
		i.set(func() { i.away = nil })
		time.Sleep(2 * firstRetry)
		if got := w.info(t, "one"); got.State != Ready {
			t.Errorf("long after the runtime answers: %+v", got)
		}
	})
}

// A template whose image was removed is built again, without a restart.
func TestImageGone(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		i := &images{ids: map[string]string{"py": "sha256:1"}}
		w := newWorld(t, dir, i, numpy("one"))
		defer w.stop()
		time.Sleep(time.Second)
		first := i.savedID(0)
		i.remove(first)
		time.Sleep(2 * checkInterval)
		if got := w.info(t, "one"); got.State != Ready || got.Image == first {
			t.Errorf("%+v", got)
		}
	})
}

// A request while a template is built makes it anew afterwards: its image was looked up before.
func TestRequestWhileBuilding(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		i := &images{ids: map[string]string{"py": "sha256:1"}, bootDelay: 10 * time.Second}
		w := newWorld(t, dir, i, numpy("one"))
		defer w.stop()
		time.Sleep(time.Second)
		i.set(func() { i.ids["py"] = "sha256:2" })
		if got, err := w.Set.Request("one"); err != nil || got.State != Building {
			t.Fatalf("%+v, %v", got, err)
		}
		for range 60 { // it is not ready before it is made of the new image
			time.Sleep(time.Second)
			if got := w.info(t, "one"); got.State == Ready && len(i.savedNames()) != 2 {
				t.Fatalf("%+v, saved %q", got, i.savedNames())
			}
		}
		if got := w.info(t, "one"); got.State != Ready {
			t.Errorf("%+v", got)
		}
		i.set(func() { i.ids["py"] = "sha256:3" })
		for range 2 { // the second one comes while it is built, of the image that its name still means
			if _, err := w.Set.Request("one"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		looks := i.lookCount()
		time.Sleep(time.Minute)
		if got := w.info(t, "one"); got.State != Ready || len(i.savedNames()) != 3 || i.lookCount() != looks {
			t.Errorf("%+v, saved %q, looked %d times", got, i.savedNames(), i.lookCount()-looks)
		}
	})
}

// A server that starts gets no image from a registry for a template that is built.
func TestStartGetsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		i := &images{ids: map[string]string{"py": "sha256:1"}}
		w := newWorld(t, dir, i, numpy("one"))
		time.Sleep(time.Second)
		w.stop()
		i.remove("sha256:1")
		looks := i.lookCount()
		w = newWorld(t, dir, i, numpy("one"))
		defer w.stop()
		time.Sleep(time.Hour)
		if got := w.info(t, "one"); got.State != Ready || i.lookCount() != looks {
			t.Errorf("%+v, and the image was asked for %d times", got, i.lookCount()-looks)
		}
	})
}

// What was built of a template goes a day after the template did, and nothing else does.
func TestRemovedTemplates(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		other := "sandlot/gone:" + strings.Repeat("a", 32)
		i := &images{ids: map[string]string{"py": "sha256:1", "sandlot/mine:1": "sha256:mine"}}
		w := newWorld(t, dir, i, numpy("one"), numpy("two"))
		time.Sleep(time.Second)
		one, two := i.savedID(0), i.savedID(1)
		w.stop()
		has := func(id string) bool {
			_, err := i.Find(t.Context(), id)
			return !errors.Is(err, sandbox.ErrNoImage)
		}
		w = newWorld(t, dir, i, numpy("two")) // by mistake
		time.Sleep(23 * time.Hour)
		w.stop()
		time.Sleep(removedAfter)
		w = newWorld(t, dir, i, numpy("one"), numpy("two"))
		time.Sleep(2 * removedAfter)
		w.stop()
		if !has(one) || !has(two) || len(i.savedNames()) != 2 {
			t.Error("a template that is back has lost its build")
		}
		if used := AllUsed(w.Dir); used[one] != "one" || used[two] != "two" {
			t.Errorf("used are %v", used)
		}
		i.set(func() { i.ids[other] = "sha256:other" }) // without a record
		w = newWorld(t, dir, i, numpy("two"))
		time.Sleep(removedAfter - time.Minute)
		if !has(one) {
			t.Error("it was removed too early")
		}
		i.set(func() { i.away = sandbox.ErrUnavailable })
		time.Sleep(removedAfter)
		i.set(func() { i.away = nil })
		time.Sleep(2 * sweepInterval)
		defer w.stop()
		if has(one) || has("sha256:other") || !has(two) || !has("sha256:mine") || !has("sha256:1") {
			t.Errorf("left are: one %t, two %t, another's %t", has(one), has(two), has("sha256:other"))
		}
		if got := w.info(t, "two"); got.State != Ready || len(recordNames(w.Dir)) != 1 {
			t.Errorf("%+v; records of %q", got, recordNames(w.Dir))
		}
	})
}

// Where there is no template host, sessions can ask for the ready-made templates. The default one is made at once,
// others when they are first asked for, of their images alone; packages are added on request, and stay. While the
// runtime does not answer, each call tries again, and says what to do.
func TestOfferedReadyMade(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		i := &images{pulling: time.Second,
			ids: map[string]string{"python:3.13-slim": "sha256:1", "node:24-slim": "sha256:2"}}
		offered := func() *world {
			s := New(slog.New(slog.DiscardHandler), nil, nil, true)
			for _, e := range s.entries {
				e.definition.Languages = sh // sandboxes of the fake run nothing
			}
			s.OfferReadyMade("python")
			return newWorldOf(t, dir, i, s)
		}
		i.set(func() { i.away = &advised{} })
		w := offered()
		time.Sleep(time.Second)
		for range 2 {
			_, err := w.Set.Find(t.Context(), "python")
			if !fault.Is(err, fault.SandboxCreation) || !strings.Contains(err.Error(), "start it, please") {
				t.Errorf("while the runtime is away: %v", err)
			}
		}
		i.set(func() { i.away = nil })
		var steps []string
		ctx := tool.WithProgress(t.Context(), func(text string) { steps = append(steps, text) })
		got, err := w.Set.Find(ctx, "python")
		if err != nil || got.ImageID != "sha256:1" || len(i.savedNames()) != 0 {
			t.Fatalf("%+v, %v, saved %q", got, err, i.savedNames())
		}
		if text := strings.Join(steps, "\n"); !strings.Contains(text, "template python: pulling") {
			t.Errorf("the client is told %q", text)
		}
		if got := w.info(t, "node"); got.State != Unbuilt || !w.Set.Exists("node") || w.Set.Exists("host") {
			t.Errorf("%+v", got)
		}
		if got, err := w.Set.Find(t.Context(), "node"); err != nil || got.ImageID != "sha256:2" {
			t.Errorf("%+v, %v", got, err)
		}
		w.stop()
		w = offered()
		if got := w.info(t, "python"); got.State != Ready || got.Image != "sha256:1" {
			t.Errorf("after a restart: %+v", got)
		}
		if _, err := w.Set.Request("python"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		with := w.info(t, "python")
		if with.State != Ready || with.Image == "sha256:1" || len(i.savedNames()) != 1 {
			t.Errorf("with its packages: %+v, saved %q", with, i.savedNames())
		}
		w.stop()
		w = offered()
		time.Sleep(time.Minute)
		if got := w.info(t, "python"); got.State != Ready || got.Image != with.Image || len(i.savedNames()) != 1 {
			t.Errorf("after another restart: %+v, saved %q", got, i.savedNames())
		}
		w.stop()
	})
}

// advised is the error of a runtime that does not work, with what to do.
type advised struct{}

func (*advised) Error() string  { return "the daemon at secret:1 is away" }
func (*advised) Advice() string { return "start it, please" }
func (*advised) Unwrap() error  { return sandbox.ErrUnavailable }

// TestOneGivesUp: whoever does not wait any more for a template that others have asked for too ends nobody else's wait,
// and no build.
func TestOneGivesUp(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		i := &images{pulling: 10 * time.Second, ids: map[string]string{"node:24-slim": "sha256:2"}}
		s := New(slog.New(slog.DiscardHandler), nil, nil, true)
		for _, e := range s.entries {
			e.definition.Languages = sh // sandboxes of the fake run nothing
		}
		s.OfferReadyMade("")
		w := newWorldOf(t, dir, i, s)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := s.Find(ctx, "node"); !fault.Is(err, fault.SandboxCreation) {
				t.Errorf("who has given up: %v", err)
			}
		})
		time.Sleep(time.Second)
		calls.Go(func() {
			if got, err := s.Find(t.Context(), "node"); err != nil || got.ImageID != "sha256:2" {
				t.Errorf("who waits: %+v, %v", got, err)
			}
		})
		calls.Wait()
		if n := i.lookCount(); n != 1 {
			t.Errorf("it was made %d times", n)
		}
		w.stop()
	})
}
