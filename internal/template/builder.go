package template

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
)

// Config configures a Builder.
type Config struct {
	Set  *Set
	Pool *pool.Pool
	// Imager returns what makes the images of a runtime; an empty name is the default runtime.
	Imager func(runtime string) (sandbox.Imager, error)
	// Dir is the folder for the results of builds, so that the next server need not repeat them.
	Dir string
	// Prepare adds to a template what programs need to use the network: certificates and registries.
	Prepare func(*image.Template)
	// Outlet returns the access to the network of a sandbox in which the template of that name is built; nil:
	// the sandbox has none.
	Outlet func(template, sandbox string) *egress.Outlet
	Flavor image.Flavor // of the sandboxes in which templates are built
	Log    *slog.Logger
}

// Builder makes the templates of a Set ready.
type Builder struct{ Config }

// NewBuilder returns a builder. Load and Run do the work.
func NewBuilder(c Config) *Builder { return &Builder{c} }

// Load makes those templates ready that an earlier server has built, unless their images are gone. One whose
// definition has changed since serves with the earlier build until Run has made it again. Load boots no sandbox and
// gets no image.
func (b *Builder) Load(ctx context.Context) {
	for _, e := range b.Set.buildable() {
		r, err := b.readRecord(e.definition.Name)
		if err != nil {
			continue
		}
		changed := r.Definition != definitionHash(e.definition)
		if changed && (r.Runtime != e.definition.Runtime || len(r.Languages)+len(e.definition.Languages) == 0) {
			continue
		}
		if img, err := b.lookUp(ctx, e.definition, r.Image.ID); err != nil || img.ID != r.Image.ID {
			continue
		} else {
			r.Image = img // a runtime may have moved its files
		}
		b.publish(e, r)
		if changed {
			b.Set.update(e, func(e *entry) { e.state = Waiting })
		}
	}
}

func (b *Builder) lookUp(ctx context.Context, d config.Template, id string) (sandbox.Image, error) {
	imager, err := b.Imager(d.Runtime)
	if err != nil {
		return sandbox.Image{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	return imager.Image(ctx, id, func(string) {})
}

const (
	// lookUpTimeout is how long it may take to look an image up.
	lookUpTimeout = 5 * time.Second
	// pollInterval is the interval in which Run looks for templates to make.
	pollInterval = 200 * time.Millisecond
	// firstRetry is the pause after the first failure, which doubles up to lastRetry.
	firstRetry, lastRetry = time.Minute, time.Hour
)

// Run makes the waiting templates ready, one after the other, until ctx ends. One that fails is tried again with
// growing pauses, and does not keep the others.
func (b *Builder) Run(ctx context.Context) {
	b.check(ctx)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if e := b.Set.next(); e != nil {
			b.make(ctx, e)
			continue
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// check makes a template that an earlier server has built wait to be made again if its image's name has come to
// mean another image.
func (b *Builder) check(ctx context.Context) {
	for _, e := range b.Set.buildable() {
		r, err := b.readRecord(e.definition.Name)
		if err != nil || !b.Set.isReady(e) {
			continue
		}
		base, err := b.lookUp(ctx, e.definition, e.definition.Image)
		if err == nil && base.ID != r.Base && ctx.Err() == nil {
			b.Log.Info("the image of a template is another one now: it is built again", "template", e.definition.Name,
				"image", e.definition.Image)
			b.Set.update(e, func(e *entry) { e.state = Waiting })
		}
	}
}

// make makes one template ready.
func (b *Builder) make(ctx context.Context, e *entry) {
	name, began := e.definition.Name, time.Now()
	report := func(step string) {
		step = fault.Printable(strings.Join(strings.Fields(step), " "), maxStep)
		b.Set.update(e, func(e *entry) { e.step = step })
	}
	b.Set.update(e, func(e *entry) { e.state, e.step, e.problem = Building, "looking for its image", "" })
	r, err := b.build(ctx, e.definition, report)
	if err == nil {
		err = b.writeRecord(name, r)
	}
	if ctx.Err() != nil {
		b.Set.update(e, func(e *entry) { e.state, e.step = Waiting, "" })
		return
	}
	if err != nil {
		b.Log.Error("a template could not be made ready; the others go on", "template", name, "error", err)
		b.Set.update(e, func(e *entry) { e.fail(err) })
		return
	}
	b.publish(e, r)
	b.Log.Info("a template is ready", "template", name, "image", r.Image.ID, "languages", r.names(), "took",
		time.Since(began).Round(time.Millisecond))
	if e.readyMade {
		b.Log.Info("new sessions that ask for the template "+name+" get it from now on; homes of the template host go "+
			"on serving", "template", name)
	}
}

// maxStep and maxProblem bound what an Info says, in bytes.
const (
	maxStep    = 200
	maxProblem = 4000
)

func (e *entry) fail(err error) {
	e.state, e.step, e.problem = Failed, "", fault.Printable(err.Error(), maxProblem)
	e.failures++
	e.retryAt = time.Now().Add(min(firstRetry<<min(e.failures-1, 6), lastRetry))
}

// build makes the image of a template, and finds out what is in it.
func (b *Builder) build(ctx context.Context, d config.Template, report func(string)) (record, error) {
	imager, err := b.Imager(d.Runtime)
	if err != nil {
		return record{}, err
	}
	base, err := imager.Image(ctx, d.Image, report)
	if err != nil {
		return record{}, fmt.Errorf("its image %s: %w", d.Image, err)
	}
	r := record{Definition: definitionHash(d), Runtime: d.Runtime, Base: base.ID, Image: base, Built: time.Now().UTC()}
	if d.Built() {
		r.Content = contentKey(d, base.ID)
		if r.Image, err = b.addTo(ctx, imager, d, base, report); err != nil {
			return record{}, err
		}
		// The name of the new image stands for the old one's settings, too.
		r.Image.User, r.Image.Workdir, r.Image.Env = base.User, base.Workdir, base.Env
	}
	if len(d.Languages) > 0 && isRoot(r.Image.User) {
		return r, nil // there is nothing to find out
	}
	report("looking for its languages")
	err = b.inSandbox(ctx, d, r.Image, nil, func(s *shell) error { return r.probe(ctx, s, d) })
	return r, err
}

// addTo adds a template's packages and files to an image, or returns the image that an earlier build has made of
// the same.
func (b *Builder) addTo(ctx context.Context, imager sandbox.Imager, d config.Template, base sandbox.Image,
	report func(string)) (made sandbox.Image, err error) {
	content := contentKey(d, base.ID)
	if last, err := b.readRecord(d.Name); err == nil && last.Content == content {
		if img, err := b.lookUp(ctx, d, last.Image.ID); err == nil {
			return img, nil
		}
	}
	report("starting a sandbox of " + d.Image)
	err = b.inSandbox(ctx, d, base, report, func(s *shell) error {
		if err := s.install(ctx, d); err != nil {
			return err
		}
		report("saving what was written")
		made, err = imager.Save(ctx, s.booted.Box, "sandlot/"+d.Name+":"+content)
		return err
	})
	return made, err
}

// inSandbox calls do with a sandbox of an image, which it removes afterwards. Programs in it run as root.
func (b *Builder) inSandbox(ctx context.Context, d config.Template, img sandbox.Image, report func(string),
	do func(*shell) error) (err error) {
	t := &image.Template{Name: d.Name, Runtime: d.Runtime, Image: d.Image, ImageID: img.ID, RootfsImage: img.Rootfs,
		// Without this folder the agent leaves the package managers' settings as they are.
		Env: mergeEnv(img.Env, d.Env, map[string]string{"PYTHONUSERBASE": ""})}
	b.Prepare(t)
	booted, release, err := b.Pool.BootTemporary(ctx, t, b.Flavor)
	if err != nil {
		return fmt.Errorf("a sandbox of the image %s did not start: %w", d.Image, err)
	}
	defer func() { err = errors.Join(err, release()) }()
	if outlet := b.Outlet(d.Name, booted.ID); outlet != nil {
		booted.Connect(outlet)
	}
	return do(&shell{booted: booted, report: report})
}

// mergeEnv returns the variables of an image and of settings. Later ones override earlier ones.
func mergeEnv(imageEnv []string, settings ...map[string]string) map[string]string {
	env := map[string]string{}
	for _, kv := range imageEnv {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			env[name] = value
		}
	}
	for _, more := range settings {
		for name, value := range more {
			env[name] = value
		}
	}
	return env
}

// publish makes a template ready, as a record says.
func (b *Builder) publish(e *entry, r record) {
	d := e.definition
	t := &image.Template{Name: d.Name, Image: d.Image, ImageID: r.Image.ID, RootfsImage: r.Image.Rootfs,
		Languages: languagesOf(d), Warm: d.Warm, Provides: d.Provides, Runtime: d.Runtime, Flavor: d.Flavor,
		Pool: d.Pool, Start: d.Start, User: r.User, Workdir: r.Image.Workdir,
		Env: mergeEnv(r.Image.Env, homeOf(r.User), d.Env)}
	if len(t.Languages) == 0 {
		t.Languages = r.Languages
	}
	if _, ok := t.Language("python"); ok && d.Warm == nil {
		t.Warm = []string{"python"}
	}
	b.Prepare(t)
	b.Set.update(e, func(e *entry) {
		if e.template != nil && reflect.DeepEqual(e.template, t) {
			t = e.template // its warm sandboxes stay
		}
		e.template, e.state, e.step, e.problem, e.built, e.failures = t, Ready, "", "", r.Built, 0
	})
}

// homeOf returns the variables of a user other than root.
func homeOf(u image.User) map[string]string {
	env := map[string]string{}
	if u.IsRoot() {
		return env
	}
	env["HOME"] = "/workspace" // a user without a home can write there
	if u.Home != "" && u.Home != "/" {
		env["HOME"] = u.Home
	}
	if u.Name != "" {
		env["USER"] = u.Name
	}
	return env
}

// buildable returns the entries that are made of images.
func (s *Set) buildable() (list []*entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.definition.Image != "" {
			list = append(list, e)
		}
	}
	return list
}

func (s *Set) isReady(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.state == Ready
}

// next returns an entry that waits to be made, or that failed long enough ago; or nil. Those that have never
// failed come first.
func (s *Set) next() (chosen *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		due := e.state == Waiting || e.state == Failed && !e.readyMade && time.Now().After(e.retryAt)
		if due && e.definition.Image != "" && (chosen == nil || e.failures < chosen.failures) {
			chosen = e
		}
	}
	return chosen
}
