package template

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/workspace"
)

var host = &image.Template{Name: "host", Provides: []string{"base", "python"}}

// images is a fake sandbox.Images.
type images struct {
	mu     sync.Mutex        // held by the fake's calls, and by tests while a builder runs
	ids    map[string]string // of images by their references
	broken error
	saved  []string
	looks  int            // of Image for a reference that is no ID
	away   error          // of all calls
	silent bool           // Image gets nothing, and does not end by itself
	built  map[string]int // how many sandboxes of templates with that name were saved

	bootDelay time.Duration // of sandboxes
	runtime   string        // its name
	pulling   time.Duration // how long it takes to get an image
}

func (i *images) Image(ctx context.Context, ref string, progress func(sandbox.Progress)) (sandbox.Image, error) {
	if strings.HasPrefix(ref, "sha256:") {
		return i.Find(ctx, ref)
	}
	if i.pulling > 0 {
		progress(sandbox.Progress{Step: "pulling"})
		time.Sleep(i.pulling)
	}
	i.mu.Lock()
	if i.silent {
		i.mu.Unlock()
		for ctx.Err() == nil {
			progress(sandbox.Progress{Step: "the same"}) // a byte at a time
			time.Sleep(time.Second)
		}
		return sandbox.Image{}, ctx.Err()
	}
	defer i.mu.Unlock()
	if i.away != nil {
		return sandbox.Image{}, i.away
	}
	i.looks++
	progress(sandbox.Progress{Step: "getting " + ref})
	if i.broken != nil {
		return sandbox.Image{}, i.broken
	}
	return sandbox.Image{ID: i.ids[ref], Env: []string{"PATH=/opt/bin:/bin", "A=image"}}, nil
}

func (i *images) Find(_ context.Context, ref string) (sandbox.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.away != nil {
		return sandbox.Image{}, i.away
	}
	for name, id := range i.ids {
		if ref == id || ref == name {
			return sandbox.Image{ID: id}, nil
		}
	}
	return sandbox.Image{}, sandbox.ErrNoImage
}

// Save gives what it saves another ID each time, as the times of files do.
func (i *images) Save(_ context.Context, b sandbox.Sandbox, name string) (sandbox.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.saved = append(i.saved, name)
	if i.built == nil {
		i.built = map[string]int{}
	}
	i.built[b.Spec().Template.Name]++
	id := fmt.Sprintf("sha256:saved-%s-%d", name[strings.LastIndex(name, ":")+1:], len(i.saved))
	if before := i.ids[name]; before != "" {
		i.ids["nameless "+before] = before
	}
	i.ids[name] = id
	return sandbox.Image{ID: id}, nil
}

func (i *images) RemoveSaved(_ context.Context, keep func(name, id string) bool) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.away != nil {
		return i.away
	}
	maps.DeleteFunc(i.ids, func(name, id string) bool { return IsBuild(name) && !keep(name, id) })
	return nil
}

// remove removes an image, as somebody else may.
func (i *images) remove(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	maps.DeleteFunc(i.ids, func(_, other string) bool { return id == other })
}

// set changes the fake while a builder runs.
func (i *images) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

// count returns how many images there are, and of how many different templates sandboxes were saved.
func (i *images) count() (images, templates int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.ids), len(i.built)
}

// savedNames returns the names of the images that were saved.
func (i *images) savedNames() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.saved)
}

// savedID returns the ID of the image that was saved under the same name as the one of that number.
func (i *images) savedID(number int) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.ids[i.saved[number]]
}

// builtOf returns how many sandboxes were saved of templates with that name.
func (i *images) builtOf(template string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.built[template]
}

// lookCount returns how often an image was looked for by its name.
func (i *images) lookCount() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.looks
}

// world is a builder over a fake runtime, whose sandboxes run nothing.
type world struct {
	*Builder
	images *images
	fake   *sandboxtest.Fake
	stop   func()
}

var sh = []config.Language{{Name: "sh", Command: []string{"/bin/sh"}}}

func newWorld(t *testing.T, dir string, i *images, templates ...config.Template) *world {
	t.Helper()
	return newWorldOf(t, dir, i, New(slog.New(slog.DiscardHandler), []*image.Template{host}, templates, true))
}

func newWorldOf(t *testing.T, dir string, i *images, set *Set) *world {
	t.Helper()
	workspaces, err := workspace.Open(filepath.Join(dir, "workspaces"))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	w := &world{images: i, fake: &sandboxtest.Fake{BootDelay: i.bootDelay}}
	p := pool.New(pool.Config{Runtime: w.fake, Workspaces: workspaces, BootTimeout: time.Minute, Templates: set.Ready,
		Flavor: sandboxtest.Flavors[0], Log: log})
	w.Builder = NewBuilder(Config{Set: set, Pool: p, Dir: filepath.Join(dir, "templates"),
		Flavor: sandboxtest.Flavors[0], Imager: func(string) (sandbox.Images, error) { return i, nil }, Log: log,
		Prepare: func(t *image.Template) { t.AddDefaultEnv() },
		Outlet:  func(string, string) *egress.Outlet { return nil }})
	w.fake.Called = i.runtime
	w.Load(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.Run(ctx); close(done) }()
	w.stop = func() {
		cancel()
		<-done
		if _, alive := w.fake.Count(); alive != 0 {
			t.Errorf("%d sandboxes live on", alive)
		}
		if left, _ := workspaces.All(); len(left) != 0 {
			t.Errorf("%d workspaces are left", len(left))
		}
	}
	return w
}

func (w *world) info(t *testing.T, name string) Info {
	t.Helper()
	list := w.Set.List()
	i := slices.IndexFunc(list, func(i Info) bool { return i.Name == name })
	if i < 0 {
		t.Fatalf("no template %s among %+v", name, list)
	}
	return list[i]
}

func numpy(name string) config.Template {
	return config.Template{Name: name, Image: "py", Packages: config.Packages{Pip: []string{"numpy"}}, Languages: sh,
		Env: map[string]string{"B": "settings"}}
}

// A template that cannot be built says why, and the others go on; it is tried again.
func TestBuild(t *testing.T) {
	if !sandboxtest.Alone(t) {
		return
	}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		i := &images{ids: map[string]string{"py": "sha256:1"}, broken: errors.New("no route to the registry")}
		w := newWorld(t, dir, i, numpy("one"), config.Template{Name: "two", Image: "other", Languages: sh})
		defer func() { w.stop() }()
		time.Sleep(time.Second)
		if got := w.info(t, "one"); got.State != Failed || !strings.Contains(got.Problem, "no route") {
			t.Errorf("%+v", got)
		}
		_, err := w.Set.Find(t.Context(), "one")
		if !fault.Is(err, fault.SandboxCreation) || strings.Contains(err.Error(), "no route") ||
			!strings.Contains(err.Error(), "sandlot template build one") ||
			!strings.Contains(fault.From(err).Cause.Error(), "no route") {
			t.Errorf("%v", err) // why is for the log
		}
		i.mu.Lock()
		i.broken = nil
		i.ids["other"] = "sha256:2"
		i.mu.Unlock()
		if _, err := w.Set.Request("two"); err != nil {
			t.Fatal(err)
		}
		if got, err := w.Set.Find(t.Context(), "two"); err != nil || got.ImageID != "sha256:2" { // it waits
			t.Errorf("%+v, %v", got, err)
		}
		time.Sleep(2 * firstRetry)
		got, err := w.Set.Find(t.Context(), "one")
		if err != nil || !strings.HasPrefix(got.ImageID, "sha256:saved-") || len(i.savedNames()) != 1 {
			t.Fatalf("%+v, %v, saved %q", got, err, i.savedNames())
		}
		if got.Env["A"] != "image" || got.Env["B"] != "settings" ||
			!strings.Contains(got.Env["PATH"], ":/opt/bin:/bin:") {
			t.Errorf("environment %v", got.Env)
		}
		w.stop()

		first := i.ids[i.saved[0]]
		w = newWorld(t, dir, i, numpy("one"), numpy("three")) // the next server
		if got, err := w.Set.Find(t.Context(), "one"); err != nil || got.ImageID != first {
			t.Errorf("%+v, %v", got, err)
		}
		time.Sleep(time.Second)
		if len(i.savedNames()) != 2 {
			t.Errorf("saved %q: one was built before, and three was not", i.savedNames())
		}
		w.stop()

		i.ids["py"] = "sha256:3" // the name means another image now
		w = newWorld(t, dir, i, numpy("one"))
		time.Sleep(time.Second)
		if got := w.info(t, "one"); got.State != Ready || len(i.savedNames()) != 3 {
			t.Errorf("%+v, saved %q", got, i.savedNames())
		}
	})
}

// A builder looks at once for a template that is asked for, and for one that failed as soon as it may be tried again.
func TestWake(t *testing.T) {
	if !sandboxtest.Alone(t) {
		return
	}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		i := &images{ids: map[string]string{"py": "sha256:1"}, broken: errors.New("no route to the registry")}
		w := newWorld(t, dir, i, config.Template{Name: "one", Image: "py", Languages: sh})
		defer w.stop()
		synctest.Wait()
		if got := w.info(t, "one"); got.State != Failed {
			t.Fatalf("%+v", got)
		}
		looks := i.lookCount()
		for _, pause := range []time.Duration{firstRetry, 2 * firstRetry, 4 * firstRetry} {
			time.Sleep(pause - 1)
			synctest.Wait()
			if now := i.lookCount(); now != looks {
				t.Errorf("it was tried again %s too early", pause)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if looks++; i.lookCount() != looks {
				t.Errorf("it was not tried again after %s", pause)
			}
		}
		i.mu.Lock()
		i.broken = nil
		i.mu.Unlock()
		if _, err := w.Set.Request("one"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := w.info(t, "one"); got.State != Ready {
			t.Errorf("%+v", got)
		}
	})
}

// A builder that is stopped in the middle of a build ends, and leaves nothing.
func TestStopWhileBuilding(t *testing.T) {
	if !sandboxtest.Alone(t) {
		return
	}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, dir, &images{ids: map[string]string{"py": "sha256:1"}, bootDelay: time.Hour}, numpy("one"))
		time.Sleep(time.Second)
		if got := w.info(t, "one"); got.State != Building {
			t.Errorf("%+v", got)
		}
		w.stop()
		if got := w.info(t, "one"); got.State != Waiting {
			t.Errorf("%+v", got)
		}
	})
}

// A build removes the images of the builds before the last one, and the next server that of the last one.
func TestOldBuilds(t *testing.T) {
	if !sandboxtest.Alone(t) {
		return
	}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		i := &images{ids: map[string]string{"py": "sha256:1", "sandlot/other:1": "sha256:other"}}
		w := newWorld(t, dir, i, numpy("one"))
		builds := func() int {
			time.Sleep(time.Second)
			i.mu.Lock()
			defer i.mu.Unlock()
			return len(i.ids) - 2
		}
		for n, want := range []int{1, 2, 2, 2} {
			if got := builds(); got != want || len(i.savedNames()) != n+1 {
				t.Fatalf("after %d builds of %q there are %d images", n+1, i.savedNames(), got)
			}
			if n < 3 {
				i.mu.Lock()
				i.ids["py"] = "sha256:" + strconv.Itoa(n+2)
				i.mu.Unlock()
				if _, err := w.Set.Request("one"); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.stop()
		w = newWorld(t, dir, i, numpy("one"))
		defer w.stop()
		if got := builds(); got != 1 || i.ids["sandlot/other:1"] == "" {
			t.Errorf("the next server leaves %d images", got)
		}
		if got, err := w.Set.Find(t.Context(), "one"); err != nil || got.ImageID != i.ids[i.saved[3]] {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// The ready-made templates are built on request only. Then new sessions get them, and host goes on to provide their
// names for its own.
func TestReadyMade(t *testing.T) {
	if !sandboxtest.Alone(t) {
		return
	}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		i := &images{ids: map[string]string{"debian:bookworm-slim": "sha256:1"}}
		w := newWorld(t, dir, i)
		defer func() { w.stop() }()
		time.Sleep(time.Hour)
		if got, err := w.Set.Find(t.Context(), "base"); err != nil || got != host || i.lookCount() != 0 {
			t.Errorf("%+v, %v, %d looks", got, err, i.lookCount())
		}
		if got := w.info(t, "base"); got.State != Unbuilt || !got.ReadyMade || w.Set.Exists("python") {
			t.Errorf("%+v", got)
		}
		if _, err := w.Set.Request("bsae"); !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), `"base"`) {
			t.Errorf("%v", err)
		}
		if _, err := w.Set.Request("host"); !fault.Is(err, fault.InvalidParameters) {
			t.Errorf("%v", err)
		}
		if got, err := w.Set.Request("base"); got.State != Waiting || err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // its languages are not found: sandboxes of the fake run nothing
		if got := w.info(t, "base"); got.State != Failed || !strings.Contains(got.Problem, "no interpreter") {
			t.Errorf("%+v", got)
		}
		if got, err := w.Set.Find(t.Context(), "base"); err != nil || got != host {
			t.Errorf("%+v, %v: a failed build takes nothing away", got, err)
		}
		w.Set.update(w.Set.entry("base"), func(e *entry) { e.definition.Languages = sh })
		if got, err := w.Set.Request("base"); got.State != Waiting || err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got, err := w.Set.Find(t.Context(), "base"); err != nil || got.Image != "debian:bookworm-slim" {
			t.Errorf("%+v, %v", got, err)
		}
		if got, err := w.Set.Find(t.Context(), "python"); err != nil || got != host || !host.Serves("base") {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// A call waits for a template that is about to get ready, but not for ever.
func TestFindWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(slog.New(slog.DiscardHandler), []*image.Template{host},
			[]config.Template{{Name: "slow", Image: "x", Provides: []string{"java"}}}, false)
		s.update(s.entry("slow"), func(e *entry) { e.state, e.step = Building, "getting layer 3" })
		began := time.Now()
		_, err := s.Find(t.Context(), "java")
		if !fault.Is(err, fault.SandboxCreation) || strings.Contains(err.Error(), "getting layer 3") ||
			!strings.Contains(err.Error(), "it is being built") ||
			time.Since(began) != maxWait {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, exists, err := s.Of(ctx, "slow"); !exists || err == nil {
			t.Errorf("%v, %v", exists, err)
		}
		if _, exists, err := s.Of(ctx, "gone"); exists || err != nil {
			t.Errorf("%v, %v", exists, err)
		}
		if !s.Exists("java") || s.Exists("python") { // host does not take over another template's sessions
			t.Errorf("exists: %v, %v", s.Exists("java"), s.Exists("python"))
		}
		_, err = s.Find(t.Context(), "jav")
		if !fault.Is(err, fault.InvalidParameters) || !strings.Contains(err.Error(), "java") {
			t.Errorf("%v", err)
		}
		time.AfterFunc(time.Second, func() {
			s.update(s.entry("slow"), func(e *entry) { e.template, e.state = &image.Template{Name: "slow"}, Ready })
		})
		if got, err := s.Find(t.Context(), "java"); err != nil || got.Name != "slow" {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestParseLanguages(t *testing.T) {
	got := parseLanguages("python /usr/bin/python3\nnode /opt/node/bin/node\nbash relative\nsh /bin/sh\nsh /evil\n" +
		"ruby /usr/bin/ruby\npython\nbash /bin/\x1bbash\nbash /bin/bash")
	names := []string{}
	for _, l := range got {
		names = append(names, l.Name+" "+strings.Join(l.Command, " "))
	}
	want := []string{"python /usr/bin/python3", "node /opt/node/bin/node", "typescript /opt/node/bin/node",
		"sh /bin/sh", "bash /bin/bash"}
	if !slices.Equal(names, want) {
		t.Errorf("languages %q, want %q", names, want)
	}
}

func TestTail(t *testing.T) {
	var last tail
	for range 100 {
		last.add([]byte("noise\r\n"))
	}
	if line := last.add([]byte("the \x1b[31mrea")); line != "" {
		t.Errorf("half a line: %q", line)
	}
	last.add([]byte("son\n" + strings.Repeat("x", 1<<20)))
	text := last.text()
	if !strings.Contains(text, "reason") || strings.Contains(text, "\x1b") || len(text) > 2*maxLine {
		t.Errorf("%d bytes: %.200q", len(text), text)
	}
}

// What becomes a layer of an image: not what is mounted or temporary, and whiteouts as images have them.
func TestFilterLayer(t *testing.T) {
	in := new(bytes.Buffer)
	w := tar.NewWriter(in)
	for _, h := range []*tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./opt/", Typeflag: tar.TypeDir, Mode: 0o755,
			PAXRecords: map[string]string{opaqueXattr: "y", "SCHILY.xattr.user.mine": "1"}},
		{Name: "./opt/new", Typeflag: tar.TypeReg, Mode: 0o644, Size: 3},
		{Name: "./opt/old", Typeflag: tar.TypeChar},
		{Name: "./opt/older", Typeflag: tar.TypeLink, Linkname: "./opt/old"},
		{Name: "./tmp/old", Typeflag: tar.TypeChar},
		{Name: "./opt/oldest", Typeflag: tar.TypeLink, Linkname: "./tmp/old"},
		{Name: "./etc/link", Typeflag: tar.TypeLink, Linkname: "./etc/pip.conf"},
		{Name: "./opt/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
		{Name: "./opt/link", Typeflag: tar.TypeLink, Linkname: "./opt/new"},
		{Name: "./opt/dangling", Typeflag: tar.TypeLink, Linkname: "./tmp/x"},
		{Name: "./tmp/x", Typeflag: tar.TypeReg},
		{Name: "./workspace/secret", Typeflag: tar.TypeReg},
		{Name: "./etc/resolv.conf", Typeflag: tar.TypeReg},
		{Name: "./etc/pip.conf", Typeflag: tar.TypeReg},
		{Name: "../../etc/hosts", Typeflag: tar.TypeReg},
		{Name: "/var/lib/sandlot/../sandlot/bin", Typeflag: tar.TypeReg},
		{Name: "./tmpfile", Typeflag: tar.TypeReg},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			io.WriteString(w, "new")
		}
	}
	w.Close()
	out := new(bytes.Buffer)
	if err := filterLayer(out, in, map[string][]byte{"etc/pip.conf": nil}); err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for r := tar.NewReader(out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.PAXRecords[opaqueXattr] != "" || h.Name == "./opt/" && h.PAXRecords["SCHILY.xattr.user.mine"] != "1" {
			t.Errorf("attributes %v", h.PAXRecords)
		}
		if text, _ := io.ReadAll(r); h.Name == "./opt/new" && string(text) != "new" {
			t.Errorf("content %q", text)
		}
		names = append(names, h.Name)
	}
	want := []string{"./", "./opt/", "opt/.wh..wh..opq", "./opt/new", "opt/.wh.old", "opt/.wh.older", "opt/.wh.oldest",
		"./opt/null", "./opt/link", "./tmpfile"}
	if !slices.Equal(names, want) {
		t.Errorf("entries %q, want %q", names, want)
	}
	if err := filterLayer(io.Discard, strings.NewReader("no archive, but a text of some length"), nil); err == nil {
		t.Error("a text is taken for a layer")
	}
}

// The same content gives the same key, in whatever order it is written, and other content another.
func TestContentKey(t *testing.T) {
	base := config.Template{Name: "a", Packages: config.Packages{Pip: []string{"x", "y"}, Apt: []string{"z"}},
		Files: config.Files{"/a": {Content: []byte("1"), Mode: 0o644}}}
	other := base
	other.Packages.Pip = []string{"y", "x"}
	if contentKey(base, "1") != contentKey(other, "1") || base.Packages.Pip[0] != "x" {
		t.Error("the order of packages counts, or was changed")
	}
	keys := map[string]bool{contentKey(base, "1"): true, contentKey(base, "2"): true}
	for _, change := range []func(*config.Template){
		func(d *config.Template) { d.Packages.Pip = []string{"x"} },
		func(d *config.Template) { d.Packages.Npm = []string{"z"} },
		func(d *config.Template) { d.Files = config.Files{"/a": {Content: []byte("2"), Mode: 0o644}} },
		func(d *config.Template) { d.Files = config.Files{"/a": {Content: []byte("1"), Mode: 0o755}} },
		func(d *config.Template) { d.Runtime = "docker" },
	} {
		d := base
		change(&d)
		keys[contentKey(d, "1")] = true
	}
	if len(keys) != 7 {
		t.Errorf("%d keys, want 7", len(keys))
	}
}

// Whether languages are looked for is part of what a record depends on.
func TestDefinitionHash(t *testing.T) {
	named, found := numpy("a"), numpy("a")
	found.Languages = nil
	if definitionHash(named) == definitionHash(found) {
		t.Error("a record without languages is used for a template that names none")
	}
}

// A template whose definition has changed serves with its earlier build until it is built again. Its images are used.
func TestChangedDefinition(t *testing.T) {
	if !sandboxtest.Alone(t) {
		return
	}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		i := &images{ids: map[string]string{"py": "sha256:1"}}
		w := newWorld(t, dir, i, numpy("one"))
		time.Sleep(time.Second)
		w.stop()
		first := i.ids[i.saved[0]]
		changed := numpy("one")
		changed.Packages.Pip = []string{"pandas"}
		used := Used(w.Dir, []config.Template{changed})
		if used["sha256:1"] != "one" || used[first] != "one" || len(used) != 2 || len(Used(w.Dir, nil)) != 0 {
			t.Errorf("used %v", used)
		}

		i.broken = errors.New("no route to the registry")
		w = newWorld(t, dir, i, changed)
		defer func() { w.stop() }()
		time.Sleep(time.Second)
		got := w.info(t, "one")
		if found, err := w.Set.Find(t.Context(), "one"); err != nil || found.ImageID != first || got.State != Failed {
			t.Errorf("%+v, %v, %+v", found, err, got)
		}
		i.mu.Lock()
		i.broken = nil
		i.mu.Unlock()
		time.Sleep(2 * firstRetry)
		if found, err := w.Set.Find(t.Context(), "one"); err != nil || found.ImageID == first ||
			len(i.savedNames()) != 2 {
			t.Errorf("%+v, %v", found, err)
		}
		w.stop()

		changed.Runtime = "docker" // another runtime does not have the image
		i.broken = errors.New("no route to the registry")
		w = newWorld(t, dir, i, changed)
		time.Sleep(time.Second)
		if got := w.info(t, "one"); got.Usable {
			t.Errorf("%+v", got)
		}
	})
}
