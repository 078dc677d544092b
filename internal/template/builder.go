package template

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
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
	Imager func(runtime string) (sandbox.Images, error)
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
type Builder struct {
	Config
	swept time.Time // when removed templates were last looked for
}

// NewBuilder returns a builder. Load and Run do the work.
func NewBuilder(c Config) *Builder { return &Builder{Config: c} }

// Load makes those templates ready that an earlier server has built, unless their images are gone. One whose
// definition has changed since serves with the earlier build until Run has made it again. Load boots no sandbox and
// gets no image.
func (b *Builder) Load(ctx context.Context) {
	for _, e := range b.Set.buildable() {
		r, err := b.readRecord(e.definition.Name)
		if err != nil || r.Runtime != "" && r.Runtime != b.runtimeOf(e.definition) {
			continue // another runtime does not have the image
		}
		if e.plain && r.Definition == definitionHash(e.definition) {
			e.plain = false // somebody has asked for its packages
		}
		changed := r.Definition != definitionHash(b.Set.toMake(e))
		if changed && len(r.Languages)+len(e.definition.Languages) == 0 {
			continue
		}
		img, err := b.image(ctx, e.definition, r.Image.ID)
		answered := !isUnavailable(err)
		switch {
		case !answered && r.Runtime != "": // such as a daemon that starts later; its sandboxes may live
		case err != nil || img.ID != r.Image.ID:
			continue
		default:
			r.Image = img // a runtime may have moved its files
		}
		b.publish(e, r)
		b.Set.update(e, func(e *entry) {
			e.unchecked = true
			if changed {
				e.state = Waiting
			}
		})
	}
}

// runtimeOf returns the name of the runtime that makes a template's sandboxes.
func (b *Builder) runtimeOf(d config.Template) string {
	if rt := b.Pool.RuntimeNamed(d.Runtime); rt != nil {
		return rt.Name()
	}
	return d.Runtime
}

// image returns the image of a template with an ID, to be used.
func (b *Builder) image(ctx context.Context, d config.Template, id string) (sandbox.Image, error) {
	return b.lookUp(ctx, d, func(ctx context.Context, i sandbox.Images) (sandbox.Image, error) {
		return i.Image(ctx, id, nil)
	})
}

// find returns an image that the runtime of a template has.
func (b *Builder) find(ctx context.Context, d config.Template, ref string) (sandbox.Image, error) {
	return b.lookUp(ctx, d, func(ctx context.Context, i sandbox.Images) (sandbox.Image, error) {
		return i.Find(ctx, ref)
	})
}

func (b *Builder) lookUp(ctx context.Context, d config.Template,
	look func(context.Context, sandbox.Images) (sandbox.Image, error)) (sandbox.Image, error) {
	imager, err := b.Imager(d.Runtime)
	if err != nil {
		return sandbox.Image{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	return look(ctx, imager)
}

// isUnavailable reports whether a runtime did not answer.
func isUnavailable(err error) bool {
	return errors.Is(err, sandbox.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}

const (
	// lookUpTimeout is how long it may take to look an image up.
	lookUpTimeout = 5 * time.Second
	// firstRetry is the pause after the first failure, which doubles up to lastRetry.
	firstRetry, lastRetry = time.Minute, time.Hour
	// checkInterval is how often the images of ready templates are looked for, and soonCheck while a runtime has not
	// answered yet.
	checkInterval, soonCheck = time.Minute, 10 * time.Second
	// logInterval is how often the log says how far a template is.
	logInterval = 5 * time.Second
	// maxSilence is how long nothing may be heard of an image that a runtime gets.
	maxSilence = 30 * time.Minute
)

// Run makes the waiting templates ready, one after the other, until ctx ends. One that fails is tried again with
// growing pauses, and does not keep the others.
func (b *Builder) Run(ctx context.Context) {
	for ctx.Err() == nil {
		recheck := b.check(ctx)
		if time.Since(b.swept) >= sweepInterval {
			b.swept = time.Now()
			b.sweep(ctx)
		}
		e, pause := b.Set.next()
		if e != nil {
			b.make(ctx, e)
			continue
		}
		select {
		case <-b.Set.wake:
		case <-time.After(min(pause, recheck)):
		case <-ctx.Done():
		}
	}
}

// check looks at the ready templates, and returns when to look again. One whose image is gone waits to be made again.
// Of those that an earlier server has built it also removes the builds before, and makes them wait if their image's
// name has come to mean another image.
func (b *Builder) check(ctx context.Context) (recheck time.Duration) {
	recheck = checkInterval
	for _, e := range b.Set.buildable() {
		id, state, unchecked := b.Set.built(e)
		if id == "" {
			continue
		}
		_, err := b.find(ctx, e.definition, id)
		switch {
		case ctx.Err() != nil:
			return recheck
		case errors.Is(err, sandbox.ErrNoImage):
			b.Log.Warn("the image of a template is gone: it is built again", "template", e.definition.Name, "image", id)
			b.Set.update(e, func(e *entry) { e.template, e.unchecked, e.state = nil, false, Waiting })
		case unchecked && isUnavailable(err):
			recheck = soonCheck
		case unchecked && err == nil && state == Ready:
			b.checkLoaded(ctx, e, id)
		}
	}
	return recheck
}

// checkLoaded looks at a template that an earlier server has built, and of which there is the image with that ID.
func (b *Builder) checkLoaded(ctx context.Context, e *entry, id string) {
	base, err := b.find(ctx, e.definition, e.definition.Image)
	if isUnavailable(err) {
		return
	}
	b.removeBuilds(ctx, e.definition, id)
	r, recordErr := b.readRecord(e.definition.Name)
	isOther := err == nil && recordErr == nil && base.ID != r.Base
	if isOther {
		b.Log.Info("the image of a template is another one now: it is built again", "template", e.definition.Name,
			"image", e.definition.Image)
	}
	b.Set.update(e, func(e *entry) {
		e.unchecked = false
		if isOther {
			e.request()
		}
	})
}

// make makes one template ready.
func (b *Builder) make(ctx context.Context, e *entry) {
	name, began := e.definition.Name, time.Now()
	said := time.Now()
	tell := func(p sandbox.Progress) {
		step := fault.Printable(strings.Join(strings.Fields(p.Step), " "), maxStep)
		b.Set.update(e, func(e *entry) { e.step, e.done, e.total = step, p.Done, p.Total })
		if time.Since(said) >= logInterval {
			said = time.Now()
			b.Log.Info("a template is being made ready", "template", name, "step", step)
		}
	}
	problem := ""
	b.Set.update(e, func(e *entry) {
		problem = e.problem
		e.setStep("looking for its image")
		e.state, e.problem, e.again = Building, "", false
	})
	r, err := b.build(ctx, b.Set.toMake(e), tell)
	last, _ := b.readRecord(name)
	if err == nil {
		err = b.writeRecord(name, r)
	}
	if ctx.Err() != nil {
		b.Set.update(e, func(e *entry) { e.state = Waiting; e.setStep("") })
		return
	}
	b.settleRequest(ctx, e, r.Base)
	if err != nil {
		b.Set.update(e, func(e *entry) { e.fail(err) })
		if problemOf(err) != problem { // else the log has it
			b.Log.Error("a template could not be made ready; the others go on", "template", name, "error", err)
		}
		if r.Image.ID != "" { // the next attempt goes on with it
			b.removeBuilds(ctx, e.definition, r.Image.ID, last.Image.ID)
		}
		return
	}
	b.publish(e, r)
	// A sandbox of the last build may just boot.
	b.removeBuilds(ctx, e.definition, r.Image.ID, last.Image.ID)
	b.Log.Info("a template is ready", "template", name, "image", r.Image.ID, "languages", r.names(), "took",
		time.Since(began).Round(time.Millisecond))
	if e.readyMade && !e.offered {
		b.Log.Info("new sessions that ask for the template "+name+" get it from now on; homes of the template host go "+
			"on serving", "template", name)
	}
}

// settleRequest forgets that a template was asked for while it was built of an image, if its image's name still means
// that one: the build would be the same.
func (b *Builder) settleRequest(ctx context.Context, e *entry, base string) {
	asked := false
	b.Set.update(e, func(e *entry) { asked, e.again = e.again, false })
	if !asked {
		return
	}
	if now, err := b.find(ctx, e.definition, e.definition.Image); err != nil || now.ID != base {
		b.Set.update(e, func(e *entry) { e.again = true })
	}
}

// removeBuilds removes the images of earlier builds of a template, except those to keep.
func (b *Builder) removeBuilds(ctx context.Context, d config.Template, keep ...string) {
	imager, err := b.Imager(d.Runtime)
	if err == nil {
		err = imager.RemoveSaved(ctx, func(name, id string) bool {
			return repositoryIn(name) != repositoryOf(d.Name) || slices.Contains(keep, id)
		})
	}
	if err != nil && ctx.Err() == nil {
		b.Log.Warn("images of earlier builds of a template could not be removed", "template", d.Name, "error", err)
	}
}

// maxStep and maxProblem bound what an Info says, in bytes.
const (
	maxStep    = 200
	maxProblem = 4000
)

func problemOf(err error) string { return fault.Printable(err.Error(), maxProblem) }

func (e *entry) fail(err error) {
	e.setStep("")
	e.state, e.problem, e.away = Failed, problemOf(err), errors.Is(err, sandbox.ErrUnavailable)
	if e.away { // it works as soon as the runtime does
		e.advice = sandbox.Advice(err)
	} else {
		e.failures++
	}
	e.retryAt = time.Now().Add(min(firstRetry<<min(max(e.failures-1, 0), 6), lastRetry))
	e.runAgain()
}

// build makes the image of a template, and finds out what is in it. With an error, the record has the base and the
// image as far as it got.
func (b *Builder) build(ctx context.Context, d config.Template, tell func(sandbox.Progress)) (record, error) {
	report := func(step string) { tell(sandbox.Progress{Step: step}) }
	imager, err := b.Imager(d.Runtime)
	if err != nil {
		return record{}, err
	}
	base, err := getImage(ctx, imager, d.Image, tell)
	if err != nil {
		return record{}, fmt.Errorf("its image %s: %w", d.Image, err)
	}
	r := record{Definition: definitionHash(d), Runtime: b.runtimeOf(d), Base: base.ID, Image: base,
		Built: time.Now().UTC()}
	if d.Built() {
		r.Content = contentKey(d, base.ID)
		if r.Image, err = b.addTo(ctx, imager, d, r, report); err != nil {
			return record{Base: base.ID}, err
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

// getImage gets an image. It gives up when nothing is heard of it for too long: other templates wait.
func getImage(ctx context.Context, imager sandbox.Images, ref string,
	tell func(sandbox.Progress)) (sandbox.Image, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(maxSilence, func() { cancel(errSilent) })
	defer silent.Stop()
	var last sandbox.Progress
	img, err := imager.Image(ctx, ref, func(p sandbox.Progress) {
		if p != last {
			last = p
			silent.Reset(maxSilence)
		}
		tell(p)
	})
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		err = errSilent
	}
	return img, err
}

var errSilent = fmt.Errorf("for %s nothing more came of it", maxSilence)

// addTo adds a template's packages and files to the image of a record, or returns the image that an earlier build has
// made of the same, also one that failed afterwards.
func (b *Builder) addTo(ctx context.Context, imager sandbox.Images, d config.Template, r record,
	report func(string)) (made sandbox.Image, err error) {
	if last, err := b.readRecord(d.Name); err == nil && last.Content == r.Content {
		if img, err := b.image(ctx, d, last.Image.ID); err == nil && img.ID == last.Image.ID {
			return img, nil
		}
	}
	name := repositoryOf(d.Name) + ":" + r.Content
	if img, err := b.find(ctx, d, name); err == nil {
		return b.image(ctx, d, img.ID)
	}
	report("starting a sandbox of " + d.Image)
	err = b.inSandbox(ctx, d, r.Image, report, func(s *shell) error {
		if err := s.install(ctx, d); err != nil {
			return err
		}
		report("saving what was written")
		made, err = imager.Save(ctx, s.booted.Box, name)
		return err
	})
	return made, err
}

// inSandbox calls do with a sandbox of an image, which it removes afterwards. Programs in it run as root.
func (b *Builder) inSandbox(ctx context.Context, d config.Template, img sandbox.Image, report func(string),
	do func(*shell) error) (err error) {
	// Its name is no other template's: what a runtime keeps for that is not this one's.
	t := &image.Template{Name: d.Name + "+build", Runtime: d.Runtime, Image: d.Image, ImageID: img.ID,
		RootfsImage: img.Rootfs,
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
	t := FromSettings(d)
	t.Image, t.ImageID, t.RootfsImage, t.Workdir = d.Image, r.Image.ID, r.Image.Rootfs, r.Image.Workdir
	t.User, t.Env = r.User, mergeEnv(r.Image.Env, homeOf(r.User), d.Env)
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
		e.setStep("")
		e.template, e.state, e.problem, e.built, e.failures = t, Ready, "", r.Built, 0
		e.unchecked = false
		e.runAgain()
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

// built returns the ID of the image for sandboxes of an entry, empty if there is none, how far the entry
// is, and whether nobody has looked at the image.
func (s *Set) built(e *entry) (id string, state State, unchecked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.template != nil {
		id = e.template.ImageID
	}
	return id, e.state, e.unchecked
}

// next returns an entry that waits to be made, or that failed long enough ago; or nil, and the time until one may
// be tried again. Those that have never failed come first.
func (s *Set) next() (chosen *entry, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pause = lastRetry
	for _, e := range s.entries {
		isRetried := e.state == Failed && (!e.readyMade || e.offered)
		if e.definition.Image == "" || e.state != Waiting && !isRetried {
			continue
		}
		if left := time.Until(e.retryAt); isRetried && left > 0 {
			pause = min(pause, left)
		} else if chosen == nil || e.failures < chosen.failures {
			chosen = e
		}
	}
	return chosen, pause
}
