// Package template owns which templates there are, and how they get ready. The template host, and templates
// of unpacked folders, are ready at once. A template of an image is ready when the image is there, its
// packages and files are in it, and its languages are known. Packages are installed in a sandbox; what it has
// written becomes a new image.
package template

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/tool"
)

// State is how far a template is.
type State string

const (
	Ready    State = "ready"     // sandboxes are made of it
	Waiting  State = "waiting"   // it is made as soon as the ones before it are
	Building State = "building"  // it is made at the moment
	Failed   State = "failed"    // it could not be made
	Unbuilt  State = "not built" // it is ready-made, and nobody has asked to build it
)

// Info describes a template.
type Info struct {
	Name   string `json:"name"`
	State  State  `json:"state"`
	Usable bool   `json:"usable"`         // sandboxes can be made of it, perhaps of an earlier build
	Step   string `json:"step,omitempty"` // what is done at the moment
	// Done and Total are bytes of its image, while that is transferred.
	Done      int64      `json:"done_bytes,omitempty" jsonschema:"How much of its image has been transferred."`
	Total     int64      `json:"total_bytes,omitempty" jsonschema:"How much of its image is to be transferred, while that is known."`
	Problem   string     `json:"problem,omitempty"` // why it could not be made
	Source    string     `json:"source"`            // "host", or the folder or the image that it is made of
	Image     string     `json:"image_id,omitempty"`
	Languages []string   `json:"languages,omitempty"`
	Provides  []string   `json:"provides,omitempty"`
	Runtime   string     `json:"runtime,omitempty"`
	ReadyMade bool       `json:"ready_made,omitempty"`
	Built     *time.Time `json:"built,omitempty"`
}

// Set has all templates. It implements session.Templates.
type Set struct {
	log     *slog.Logger
	changed func()        // is called after the ready templates have changed; nil: nobody is to know
	wake    chan struct{} // makes a Builder look for templates that wait

	mu            sync.Mutex
	news          chan struct{} // closed at the next change of any entry
	entries       []*entry
	host          *hostQuestion // nil: it is known whether there is a template host
	insteadOfHost string        // what sessions get that ask for the template host; empty: nothing stands for it
}

// entry is one template.
type entry struct {
	definition config.Template
	readyMade  bool
	offered    bool            // of a ready-made one: sessions can ask for it, and then it is made
	plain      bool            // it is made without its packages, which nobody has asked for
	template   *image.Template // nil: it is not ready. One that is built again stays ready meanwhile
	state      State
	step       string
	done       int64 // bytes of its image that have been transferred, of total; 0: there is nothing to transfer
	total      int64
	problem    string
	built      time.Time
	retryAt    time.Time     // of one that failed: when it is tried again
	failures   int           // in a row
	again      bool          // it was asked for while it was built
	away       bool          // it failed as its runtime did not answer
	advice     string        // of one that is away: what to tell users
	unchecked  bool          // an earlier server has built it, and nobody has looked at its image since
	news       chan struct{} // closed at the next change
}

// New returns the templates: those that are ready at once, host first if there is one, and the others. With readyMade
// there are also those that can be built on request, but not under a name that the settings use.
func New(log *slog.Logger, ready []*image.Template, others []config.Template, readyMade bool) *Set {
	s := &Set{log: log, wake: make(chan struct{}, 1), news: make(chan struct{})}
	for _, t := range ready {
		s.entries = append(s.entries, &entry{definition: config.Template{Name: t.Name, Rootfs: t.Rootfs,
			Provides: t.Provides, Runtime: t.Runtime}, template: t, state: Ready, news: make(chan struct{})})
	}
	for _, d := range others {
		s.entries = append(s.entries, &entry{definition: d, state: Waiting, news: make(chan struct{})})
	}
	for _, d := range readyMadeTemplates {
		if readyMade && s.entry(d.Name) == nil {
			s.entries = append(s.entries, &entry{definition: d, readyMade: true, state: Unbuilt,
				news: make(chan struct{})})
		}
	}
	return s
}

// readyMadeTemplates can be built with `sandlot template build`. Until then the template host provides the names of all
// but browser.
var readyMadeTemplates = []config.Template{
	{Name: "python", Image: "python:3.13-slim", Provides: []string{"base"},
		Packages: config.Packages{Pip: []string{"numpy", "pandas", "matplotlib"}}},
	{Name: "node", Image: "node:24-slim", Provides: []string{"base"}},
	{Name: "base", Image: "debian:bookworm-slim"},
	browserTemplate,
}

// ReadyMade returns the ready-made templates.
func ReadyMade() []config.Template { return slices.Clone(readyMadeTemplates) }

// Want makes a ready-made template that the settings name, with its packages.
func (s *Set) Want(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.choose(name); err == nil {
		return
	}
	if e := s.entry(name); e != nil && e.readyMade {
		e.offered = true
		if e.state == Unbuilt {
			e.state = Waiting
		}
	}
}

// OfferReadyMade lets sessions ask for the ready-made templates by their names, for a server whose sandboxes have no
// template host: each is made, of its image alone, when it is first asked for. The one of that name is made at once.
func (s *Set) OfferReadyMade(first string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offerReadyMade(first)
}

// offerReadyMade is OfferReadyMade. The caller holds s.mu.
func (s *Set) offerReadyMade(first string) {
	for _, e := range s.entries {
		if !e.readyMade || len(e.definition.Files) > 0 { // without its files and packages it is nothing
			continue
		}
		e.offered = true
		if e.state == Unbuilt { // else somebody has asked for it, with its packages
			e.plain = true
			if e.definition.Name == first {
				e.state = Waiting
			}
		}
	}
}

// toMake returns what is to be made of an entry.
func (s *Set) toMake(e *entry) config.Template {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := e.definition
	if e.plain {
		d.Packages = config.Packages{}
	}
	return d
}

// OnChange sets what is called after the ready templates have changed. It is called before the first change.
func (s *Set) OnChange(changed func()) { s.changed = changed }

// entry returns the entry of that name, or nil. The caller holds s.mu, or no other goroutine has s yet.
func (s *Set) entry(name string) *entry {
	for _, e := range s.entries {
		if e.definition.Name == name {
			return e
		}
	}
	return nil
}

// isOffered says whether new sessions may ask for the template by its name.
func (e *entry) isOffered() bool { return !e.readyMade || e.offered || e.template != nil }

func (e *entry) serves(name string) bool {
	return name == e.definition.Name || slices.Contains(e.definition.Provides, name)
}

// Ready returns the templates from which sandboxes can be made.
func (s *Set) Ready() (ready []*image.Template) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.template != nil && (s.host == nil || e.definition.Name != hostName) {
			ready = append(ready, e.template)
		}
	}
	return ready
}

// Offered returns all templates that a session can ask for. Of those that are not ready yet it has only what
// the settings say.
func (s *Set) Offered() (offered []*image.Template) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		switch {
		case e.template != nil:
			offered = append(offered, e.template)
		case e.isOffered():
			offered = append(offered, FromSettings(e.definition))
		}
	}
	return offered
}

// FromSettings returns a template with what settings say of it. One of a folder is complete.
func FromSettings(d config.Template) *image.Template {
	t := &image.Template{Name: d.Name, Rootfs: d.Rootfs, Env: d.Env, Warm: d.Warm, Provides: d.Provides,
		Flavor: d.Flavor, Pool: d.Pool, Runtime: d.Runtime, Start: d.Start}
	for _, l := range d.Languages {
		t.Languages = append(t.Languages, image.Language(l))
	}
	return t
}

// names returns what sessions can ask for. The caller holds s.mu.
func (s *Set) names() []string {
	var names []string
	for _, e := range s.entries {
		if e.isOffered() {
			names = append(append(names, e.definition.Name), e.definition.Provides...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// choose returns the entry for a new session that asks for a name: the one of that name, else the first ready
// one that provides it, else the first of the others.
func (s *Set) choose(name string) (*entry, error) {
	if name == hostName && s.insteadOfHost != "" {
		name = s.insteadOfHost
	}
	if e := s.entry(name); e != nil && e.isOffered() {
		return e, nil
	}
	var later *entry
	for _, e := range s.entries {
		if !e.isOffered() || !e.serves(name) {
			continue
		}
		if e.template != nil {
			return e, nil
		}
		if later == nil {
			later = e
		}
	}
	if later != nil {
		return later, nil
	}
	known, hint := s.names(), ""
	if e := s.entry(name); e != nil {
		hint = "; the operator can build it: sandlot template build " + name
	}
	return nil, fault.New(fault.InvalidParameters, "template %q is not known; known are: %s%s",
		fault.Printable(name, 80), strings.Join(known, ", "), hint).
		With("argument", "template").With("given", fault.Printable(name, 80)).With("allowed", known)
}

// Check implements session.Templates.
func (s *Set) Check(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.choose(name)
	return err
}

// Find implements session.Templates.
func (s *Set) Find(ctx context.Context, name string) (*image.Template, error) {
	if err := s.settleFor(ctx, name); err != nil {
		return nil, err
	}
	return s.await(ctx, func() (*entry, error) { return s.choose(name) })
}

// ofRecord returns the entry for a session that was made with the template of that name, or nil: the template
// of that name, or else another one of the settings that provides it.
func (s *Set) ofRecord(name string) *entry {
	if e := s.entry(name); e != nil && (e.state != Unbuilt || e.offered) {
		return e
	}
	for _, e := range s.entries {
		if e.serves(name) && !e.readyMade && e.definition.Name != hostName {
			return e
		}
	}
	return nil
}

// Exists implements session.Templates.
func (s *Set) Exists(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofRecord(name) != nil
}

// Of implements session.Templates.
func (s *Set) Of(ctx context.Context, name string) (t *image.Template, exists bool, err error) {
	t, err = s.await(ctx, func() (*entry, error) { return s.ofRecord(name), nil })
	return t, t != nil || err != nil, err
}

// maxWait is how long a call waits for a template that is not ready yet.
const maxWait = 45 * time.Second

// await waits until the entry that choose returns is ready, or has failed. It returns nil if choose returns
// nil.
func (s *Set) await(ctx context.Context, choose func() (*entry, error)) (*image.Template, error) {
	patience := time.NewTimer(maxWait)
	defer patience.Stop()
	tell, asked := tool.ProgressOf(ctx), false
	for {
		s.mu.Lock()
		e, err := choose()
		switch {
		case err != nil || e == nil:
			s.mu.Unlock()
			return nil, err
		case e.template != nil:
			defer s.mu.Unlock()
			return e.template, nil
		case !asked && (e.state == Unbuilt || e.state == Failed && e.away):
			// The runtime may work by now.
			asked = true
			e.request()
			s.wakeBuilder()
		case e.state == Failed:
			defer s.mu.Unlock()
			return nil, e.failure()
		}
		news, unready, step, plain := e.news, e.unready(), e.step, e.plain
		s.mu.Unlock()
		if tell != nil && step != "" && plain { // what others say is the operator's
			tell("template " + e.definition.Name + ": " + step)
		}
		select {
		case <-news:
		case <-patience.C:
			return nil, unready
		case <-ctx.Done():
			return nil, unready
		}
	}
}

// failure returns the error of a template that could not be made. What it says beside that is the operator's: output of
// package managers, and names of hosts.
func (e *entry) failure() error {
	name := e.definition.Name
	if e.away {
		return fault.Wrap(fault.SandboxCreation, errors.New(e.problem), "%s", e.advice).With("template", name)
	}
	return fault.Wrap(fault.SandboxCreation, errors.New(e.problem), "the template %s could not be made "+
		"ready. Ask the operator of this server, who sees why with `sandlot template list`, and tries again "+
		"with `sandlot template build %[1]s`", name).With("template", name)
}

func (e *entry) unready() error {
	doing := "it waits for other templates"
	if e.state == Building {
		doing = "it is being built"
		if e.plain && e.step != "" {
			doing += " (" + e.step + ")"
		}
	}
	return fault.New(fault.SandboxCreation, "the template %s is not ready yet: %s. Try again in a moment; the "+
		"operator of this server sees how far it is with `sandlot template list`", e.definition.Name, doing).
		With("template", e.definition.Name)
}

// News returns a channel that is closed when something of a template changes.
func (s *Set) News() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.news
}

// List describes all templates.
func (s *Set) List() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []Info{}
	for _, e := range s.entries {
		list = append(list, e.info())
	}
	return list
}

func (e *entry) info() Info {
	d := e.definition
	i := Info{Name: d.Name, State: e.state, Usable: e.template != nil, Step: e.step,
		Done: e.done, Total: e.total, Problem: e.problem,
		Provides: d.Provides, Runtime: d.Runtime, ReadyMade: e.readyMade, Source: "host"}
	switch {
	case d.Image != "":
		i.Source = "image " + d.Image
	case d.Rootfs != "":
		i.Source = "folder " + d.Rootfs
	}
	if e.template != nil {
		i.Languages, i.Image = e.template.LanguageNames(), e.template.ImageID
	}
	if built := e.built; !built.IsZero() {
		i.Built = &built
	}
	return i
}

// update changes an entry, and tells those who wait for it.
func (s *Set) update(e *entry, change func(*entry)) {
	s.mu.Lock()
	before := e.template
	change(e)
	close(e.news)
	e.news = make(chan struct{})
	close(s.news)
	s.news = make(chan struct{})
	replaced, waits := e.template != before, e.state == Waiting
	s.mu.Unlock()
	if waits {
		s.wakeBuilder()
	}
	if replaced && s.changed != nil {
		s.changed()
	}
}

// wakeBuilder makes a Builder look for templates that wait.
func (s *Set) wakeBuilder() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// request makes an entry wait to be made.
func (e *entry) request() {
	e.setStep("")
	e.state, e.problem, e.retryAt = Waiting, "", time.Time{}
}

// setStep says what is done now, of which no size is known.
func (e *entry) setStep(step string) { e.step, e.done, e.total = step, 0, 0 }

// runAgain makes an entry whose build has ended wait for the next one, if it was asked for meanwhile.
func (e *entry) runAgain() {
	if e.again {
		e.again = false
		e.request()
	}
}

// Request asks for the template of that name to be built, even if it is ready or just built, and describes it.
func (s *Set) Request(name string) (Info, error) {
	s.mu.Lock()
	e, names := s.entry(name), []string{}
	for _, e := range s.entries {
		if e.definition.Image != "" {
			names = append(names, e.definition.Name)
		}
	}
	s.mu.Unlock()
	switch {
	case e == nil:
		return Info{}, fault.New(fault.NotFound, "there is no template %q%s; templates that can be built: %s",
			fault.Printable(name, 80), fault.DidYouMean(name, names), strings.Join(names, ", "))
	case e.definition.Image == "":
		return Info{}, fault.New(fault.InvalidParameters,
			"the template %s is not made of an image: there is nothing to build", name).With("argument", "name")
	}
	var requested Info
	s.update(e, func(e *entry) {
		e.plain = false          // this one has its packages
		if e.state == Building { // its image was looked up before
			e.again = true
		} else {
			e.request()
		}
		requested = e.info()
	})
	return requested, nil
}
