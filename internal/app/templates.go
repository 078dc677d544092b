package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"sandlot/internal/app/registries"
	"sandlot/internal/app/stack"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/inventory"
	"sandlot/internal/oci"
	"sandlot/internal/pkgregistry"
	"sandlot/internal/platform"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
	"sandlot/internal/template"
)

const (
	// hostTimeout is how long a Docker daemon may take to say whether it sees the server's files.
	hostTimeout = 3 * time.Second
	// startTimeout is how long the start of a server waits for that. Most daemons answer within some milliseconds.
	startTimeout = 250 * time.Millisecond
)

// HasHost reports whether sandboxes of the default runtime, the first one, can be made of this machine's own programs.
// A daemon that does not answer may be one that can.
func HasHost(ctx context.Context, runtimes []sandbox.Runtime) bool {
	has, err := askHost(ctx, hostTimeout, runtimes)
	return has || err != nil
}

// askHost is HasHost. The error is of a daemon that does not answer in time.
func askHost(ctx context.Context, timeout time.Duration, runtimes []sandbox.Runtime) (bool, error) {
	if !platform.IsLinux {
		return false, nil
	}
	keeper := runtimes[0].Capabilities().Storage
	if runtimes[0].Capabilities().ImagesOnly {
		return false, nil
	}
	if keeper == nil {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	keeps, err := keeper.KeepsVolumes(ctx)
	return err == nil && !keeps, err
}

// templating is what sandboxes are made of.
type templating struct {
	registries    *registries.Registries
	templates     *template.Set
	firstTemplate string // of new sessions
	stack         *stack.Stack
	hostVersion   string        // of the template host: see hostNow
	hostChanged   chan struct{} // receives when the machine's packages have changed
}

// openTemplates makes the templates. Whether there is the template host is asked again when it is needed, and by
// settleHost, if the daemon does not say it at once.
func (m maker) openTemplates(ctx context.Context, runtimes runtimeList, found *registries.Registries) (t templating,
	err error) {
	r := m.c.Runtime
	t = templating{registries: found, hostChanged: make(chan struct{}, 1)}
	t.stack = stack.New(m.c.Server.StateDir, stack.Lists{Python: r.Python, Node: r.Node, Go: r.Go,
		Apt: m.aptSources(found)}, m.log)
	before := image.HostVersion()
	has, askErr := askHost(ctx, startTimeout, runtimes)
	has = has || askErr != nil
	if t.templates, err = Templates(m.c, m.log, has, t.prepareTemplate); err != nil {
		return t, err
	}
	t.hostVersion = before + t.stack.Version()
	if askErr != nil {
		instead := ""
		if m.c.Origin["default_template"] == "default" {
			instead = withoutHost
		}
		t.templates.AskHost(instead, func(ctx context.Context) (bool, error) {
			return askHost(ctx, hostTimeout, runtimes)
		})
	}
	t.firstTemplate = defaultTemplate(m.c, has)
	return t, nil
}

// aptSources returns the archive from which the sandboxes of the template host install packages; nil: none. What the
// packages are installed over is the machine's, so that this must be of the same distribution.
func (m maker) aptSources(found *registries.Registries) []pkgregistry.AptSource {
	if !m.c.Runtime.Apt || !image.DebianHost() {
		return nil
	}
	return found.Apt()
}

// settleHost asks whether there is the template host until it is known.
func (a *App) settleHost(ctx context.Context) {
	const longest = 30 * time.Second
	for pause := time.Second; a.templates.SettleHost(ctx) != nil; pause = min(2*pause, longest) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// hostNow identifies what the template host is made of now.
func (a *App) hostNow() string { return image.HostVersion() + a.stack.Version() }

// prepareTemplate adds to a template what its programs need, and to host the ready packages.
func (t templating) prepareTemplate(of *image.Template) {
	t.registries.Prepare(of)
	if of.Name == "host" {
		t.stack.Open(of)
		t.stack.Add(of)
	}
}

// makeStack makes the ready packages once it is known that there is the template host. Without registries nothing is
// installed by itself.
func (a *App) makeStack(ctx context.Context) {
	a.settleHost(ctx)
	if r := a.Config.Network.Registries; r != nil && len(r) == 0 || !a.templates.Exists("host") {
		return
	}
	for {
		if host, err := a.templates.Find(ctx, "host"); err == nil {
			a.stack.Make(ctx, host)
		}
		select {
		case <-time.After(stackInterval):
		case <-a.hostChanged:
		case <-ctx.Done():
			return
		}
	}
}

// stackInterval is the time between two looks whether ready packages are too old, or are still to be made.
const stackInterval = time.Hour

// readyPackages says which packages the sandboxes of new sessions have.
func (t templating) readyPackages() string {
	if t.firstTemplate != "host" {
		return ""
	}
	return t.stack.Describe()
}

// hostInterval is the time between two looks whether files of the machine that the template host has were replaced.
const hostInterval = 2 * time.Second

// watchHost makes the template host again when the machine has replaced files of which it has copies, such as ldconfig
// after the installation of a package. version is that of the template.
func (a *App) watchHost(ctx context.Context, version string) {
	for before := version; ; {
		select {
		case <-time.After(hostInterval):
		case <-ctx.Done():
			return
		}
		now := a.hostNow()
		if now != before || now == version { // it is complete when nothing changes any more
			before = now
			continue
		}
		version = now
		host, err := image.Host()
		if err != nil {
			a.log.Warn("the template host stays as it was: it cannot be made of what the machine has now", "error", err)
			continue
		}
		a.prepareTemplate(host)
		a.templates.ReplaceHost(host)
		select { // the database of packages is another one
		case a.hostChanged <- struct{}{}:
		default:
		}
	}
}

// withoutHost is the default template of servers that have no template host.
const withoutHost = "python"

// defaultTemplate returns what a new session is made of.
func defaultTemplate(c *config.Config, hasHost bool) string {
	if !hasHost && c.Origin["default_template"] == "default" {
		return withoutHost
	}
	return c.Sessions.DefaultTemplate
}

// Templates returns all templates: the template host, with the machine's own programs, if sandboxes can be made of it,
// those of the settings, and those that can be built on request. Prepare adds to each what its programs need; nil:
// nothing. A machine without programs, such as the image of a release, has no host.
func Templates(c *config.Config, log *slog.Logger, hasHost bool, prepare func(*image.Template)) (*template.Set,
	error) {
	ready, others := []*image.Template{}, []config.Template{}
	if hasHost {
		host, err := image.Host()
		switch {
		case err == nil:
			ready = append(ready, host)
		case !errors.Is(err, image.ErrNoInterpreter) || c.Sessions.DefaultTemplate == "host":
			return nil, fault.Wrap(fault.Configuration, err, "the template host cannot be made of this machine: %v",
				err)
		}
	}
	for _, t := range c.Templates {
		if t.Image != "" {
			others = append(others, t)
			continue
		}
		ready = append(ready, template.FromSettings(t))
	}
	if prepare != nil {
		for _, t := range ready {
			prepare(t)
		}
	}
	all := template.New(log, ready, others, true)
	first := defaultTemplate(c, hasHost)
	if !hasHost {
		all.OfferReadyMade(first)
	}
	if first == "host" && !hasHost {
		return nil, fault.New(fault.Configuration, "default_template=%q: sandboxes of the runtime %s cannot be made "+
			"of this machine's own programs; remove the setting, which makes %q the default, or name another template",
			first, c.Runtime.Name, withoutHost)
	}
	all.Want(first)
	if err := all.Check(first); err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "default_template=%q: %v", first, err)
	}
	return all, nil
}

// ImagesFolder is the folder of the image store in a state folder, and RecordsFolder that of what is known of templates
// that were built.
func ImagesFolder(stateDir string) string  { return filepath.Join(stateDir, "images") }
func RecordsFolder(stateDir string) string { return filepath.Join(stateDir, "templates") }

// NamedImages returns the images that the templates of settings name, by the templates' names.
func NamedImages(templates []config.Template) map[string]string {
	named := map[string]string{}
	for _, t := range templates {
		if t.Image != "" {
			named[t.Name] = t.Image
		}
	}
	return named
}

// openInventory opens the image store, and removes what pulls left that nobody has gone on with.
func (m maker) openInventory() (*inventory.Inventory, *inventory.Pulls) {
	dir := m.c.Server.StateDir
	store := oci.Open(ImagesFolder(dir), m.log)
	if err := store.Clean(); err != nil {
		m.log.Warn("what interrupted pulls left could not be removed", "error", err)
	}
	pulls := inventory.NewPulls(store)
	m.closing.add(func() error { pulls.Close(); return nil })
	return &inventory.Inventory{Store: store, Since: time.Now(), Uses: func() inventory.Uses {
		return inventory.Uses{Named: NamedImages(m.c.Templates), Built: template.AllUsed(RecordsFolder(dir))}
	}}, pulls
}

// imagerOf returns a function that returns what makes the images of a runtime: the runtime itself, or the store of
// this machine.
func imagerOf(p *pool.Pool, store *oci.Store) func(runtime string) (sandbox.Images, error) {
	return func(runtime string) (sandbox.Images, error) {
		rt := p.RuntimeNamed(runtime)
		if rt == nil {
			return nil, fmt.Errorf("the runtime %s is not among the setting runtimes", runtime)
		}
		switch c := rt.Capabilities(); {
		case c.Images != nil:
			return c.Images, nil
		case c.Files != nil:
			return template.Store{Images: store, Files: c.Files}, nil
		}
		return nil, fmt.Errorf("the runtime %s makes no sandboxes of images", rt.Name())
	}
}
