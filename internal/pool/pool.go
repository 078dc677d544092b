// Package pool boots sandboxes, and has some booted in advance, with their interpreters
// started: the warm sandboxes. A warm sandbox serves one session and is then destroyed.
//
// Each warm sandbox boots with an empty workspace of its own, which the session takes over: variables, limits
// and languages can be set later, but a mount cannot be changed after the boot. Moving files between folders
// would cost time, and a mount of the folder of all workspaces would expose one user's files to others. So a
// session with files boots a sandbox of its own, and so does one of another flavor, as memory and CPUs are
// fixed at boot. A home boots as soon as its user's client connects. The price is the memory of the warm
// sandboxes, about 25 MB each.
package pool

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
	"sandlot/internal/workspace"
)

// WorkspaceDir is where a sandbox sees its workspace.
const WorkspaceDir = "/workspace"

// Booted is a booted sandbox whose agent has answered, with the client of that agent.
type Booted struct {
	ID        string
	Workspace string
	Template  *image.Template
	Flavor    image.Flavor // with the size that the sandbox has
	Box       sandbox.Sandbox
	Agent     *agent.Client
	Used      bool           // programs have run in it: it was not booted by this server, or it slept
	Outlet    *egress.Outlet // its access to the network; nil before Connect

	identity atomic.Pointer[agent.Identity] // author of its git commits; nil: the agent's default

	boundMu      sync.Mutex // held while bound secrets are applied
	boundVersion atomic.Uint64

	variablesMu sync.Mutex
	variables   [sha256.Size]byte // a hash of the session's variables that it has; zero: it has none
}

// Connect gives the sandbox its access to the network.
func (b *Booted) Connect(e *egress.Outlet) {
	b.Outlet = e
	b.Agent.SetNetwork(e)
}

// Detach ends this process's connections to the sandbox, which lives on.
func (b *Booted) Detach() {
	b.Agent.Close()
	if b.Outlet != nil {
		b.Outlet.Close()
	}
}

// Destroy stops the sandbox. Its workspace stays.
func (b *Booted) Destroy() error {
	ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
	defer cancel()
	return b.destroy(ctx)
}

// destroyTimeout is how long it may take to stop a sandbox.
const destroyTimeout = 30 * time.Second

func (b *Booted) destroy(ctx context.Context) error {
	b.Detach()
	return b.Box.Stop(ctx)
}

// Config configures a Pool.
type Config struct {
	Runtime sandbox.Runtime // of templates that name none
	// Further are the other runtimes. Their names differ from that of Runtime.
	Further    []sandbox.Runtime
	Workspaces *workspace.Store
	// Volumes returns the shared folders as a new sandbox gets them. It may be nil.
	Volumes func() []sandbox.Mount
	// Processes and DiskBytes are the limits that are the same for all flavors.
	Processes int64
	DiskBytes int64
	// OrphanTimeout is how long a sandbox lives without a server; 0: for ever.
	OrphanTimeout time.Duration
	// BootTimeout is how long a boot may take.
	BootTimeout time.Duration
	// WarmPerTemplate is how many warm sandboxes there are to be for each template that does not
	// say it itself.
	WarmPerTemplate int
	// WarmMemoryMB bounds the memory of all warm sandboxes together, by their flavors; 0: no limit.
	WarmMemoryMB int
	// Templates returns the templates that are ready. After a change, call Refresh.
	Templates func() []*image.Template
	// Flavors are those that a template can name for its sandboxes.
	Flavors []image.Flavor
	Flavor  image.Flavor // of warm sandboxes whose templates name none
	Log     *slog.Logger
}

// Pool boots sandboxes and has the warm ones. Run fills it.
type Pool struct {
	Config

	wake       chan struct{}  // makes Run look again which template lacks sandboxes
	remake     chan struct{}  // makes makeImages look for missing images
	removed    chan struct{}  // makes RunVolumes look again which volumes are of no use
	wakes      chan struct{}  // has a value for each sandbox that is made of a frozen image now
	cellSlots  agent.Slots    // limits how many cells run at once, in all sandboxes
	background sync.WaitGroup // what Wait waits for
	prebooted  atomic.Int64   // number of sandboxes that were started from an image
	booted     atomic.Int64   // number of sandboxes that booted
	asRoot     sync.Map       // what runnable has made of templates, by *image.Template
	// unknown are the volumes that belonged to no workspace when RemoveVolumes looked last, and since when.
	unknown map[string]time.Time

	mu        sync.Mutex
	ready     map[string][]*Booted // warm sandboxes, by template's name
	owned     map[string]bool      // ids of the sandboxes that boot for the pool or are ready
	lastTaken time.Time            // when a warm sandbox was taken last
	// imaged has the spec of the sandbox of each template of which a preboot image was made.
	imaged map[*image.Template]sandbox.Spec
}

// New returns an empty pool.
func New(c Config) *Pool {
	return &Pool{Config: c, wake: make(chan struct{}, 1), remake: make(chan struct{}, 1), removed: make(chan struct{}, 1),
		cellSlots: make(agent.Slots, runtime.NumCPU()+runtime.NumCPU()/2), wakes: make(chan struct{}, runtime.NumCPU()),
		ready: map[string][]*Booted{}, owned: map[string]bool{}, imaged: map[*image.Template]sandbox.Spec{}}
}

// Limits returns the limits of a sandbox of that flavor.
func (p *Pool) Limits(f image.Flavor) sandbox.Limits {
	return sandbox.Limits{CPUs: f.CPUs, MemoryBytes: int64(f.MemoryMB) << 20, Processes: p.Processes,
		DiskBytes: p.DiskBytes}
}

// Request says what to boot.
type Request struct {
	ID        string // of the sandbox; empty: a new one
	Workspace string // its id; it must exist
	Template  *image.Template
	Flavor    image.Flavor
	// Build: the sandbox is one in which a template is built; see sandbox.Spec.
	Build bool
	// SkipProbe makes Boot return a sandbox that was started from an image as soon as its
	// agent is linked. The pool then probes the agent in the background, and stops the
	// sandbox if it does not answer.
	SkipProbe bool

	inVolume bool // the runtime keeps the workspace's files
}

// Boot makes one sandbox and waits until its agent answers and the interpreters that its
// template warms have started. When it fails, only the workspace is left, unless the error is
// sandbox.ErrRemains.
func (p *Pool) Boot(ctx context.Context, r Request) (*Booted, error) {
	callerCtx := ctx
	ctx, cancel := context.WithTimeout(ctx, p.BootTimeout)
	defer cancel()
	r.ID = cmp.Or(r.ID, secret.ID())
	rt, err := p.RuntimeOf(r.Template)
	if err != nil {
		return nil, err
	}
	if err := p.giveWorkspace(ctx, r); err != nil {
		return nil, err
	}
	if r.inVolume, err = p.makeVolume(ctx, rt, r); err != nil {
		return nil, err
	}
	spec, prebooter := p.spec(r), prebooterOf(rt, r.Template)
	if prebooter != nil && prebooter.HasImage(spec) {
		b, err := p.boot(ctx, r, spec, p.restoreLimit())
		if err == nil || callerCtx.Err() != nil || errors.Is(err, sandbox.ErrRemains) {
			return b, err
		}
		p.Log.Warn("a sandbox that was started from a preboot image did not get ready, and boots", "sandbox", r.ID,
			"error", err)
		prebooter.DropImage(spec)
	}
	return p.boot(ctx, r, spec, p.BootTimeout)
}

// Wait waits for the background work of Boot and Take: probes, each of which ends when its
// sandbox's client closes, and the removal of unusable sandboxes. The caller must not call
// Boot or Take any more.
func (p *Pool) Wait() { p.background.Wait() }

// Started returns how many sandboxes were started from a preboot image, and how many
// booted.
func (p *Pool) Started() (prebooted, booted int64) { return p.prebooted.Load(), p.booted.Load() }

// volumes are the shared folders as a sandbox gets them now.
func (p *Pool) volumes() []sandbox.Mount {
	if p.Volumes == nil {
		return nil
	}
	return p.Volumes()
}

func (p *Pool) spec(r Request) sandbox.Spec {
	mounts := []sandbox.Mount{{Source: p.Workspaces.Path(r.Workspace), Target: WorkspaceDir}}
	if r.inVolume {
		mounts[0] = sandbox.Mount{Volume: r.Workspace, Target: WorkspaceDir}
	}
	if !r.Build { // programs of packages, such as their install scripts, have no business in folders of the machine
		mounts = append(mounts, p.volumes()...)
	}
	return sandbox.Spec{ID: r.ID, Template: p.runnable(r.Template), Limits: p.Limits(r.Flavor), Mounts: mounts,
		OrphanTimeout: p.OrphanTimeout, Build: r.Build,
		Secret: secret.Bytes(wire.SecretLen)}
}

func (p *Pool) boot(ctx context.Context, r Request, spec sandbox.Spec, limit time.Duration) (*Booted, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	rt, err := p.RuntimeOf(r.Template)
	if err != nil {
		return nil, err
	}
	box, err := rt.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	prebooter := prebooterOf(rt, r.Template)
	b := p.Adopt(box, r)
	b.Used = false
	started := &p.booted
	switch prebooted := prebooter != nil && prebooter.Prebooted(box); {
	case !prebooted:
		err = p.makeReady(ctx, b)
	case r.SkipProbe:
		started, err = &p.prebooted, b.Agent.Wait(ctx)
		if err == nil {
			p.background.Go(func() { p.probeInBackground(b, prebooter, spec) })
		}
	default:
		started, err = &p.prebooted, b.probe(ctx)
	}
	if err != nil {
		err = fmt.Errorf("the sandbox booted but its agent did not get ready: %w", err)
		if stopErr := b.Destroy(); stopErr != nil {
			err = errors.Join(err, sandbox.ErrRemains, stopErr)
		}
		return nil, err
	}
	started.Add(1)
	return b, nil
}

// restoreTimeout is how long a sandbox that is started from a preboot image may take
// until it is ready.
const restoreTimeout = 30 * time.Second

// restoreLimit is the timeout to restore a sandbox. It leaves half of the time to boot one
// if that fails.
func (p *Pool) restoreLimit() time.Duration { return min(p.BootTimeout/2, restoreTimeout) }

// probe waits until the agent of a restored sandbox answers. The agent need not be
// configured: the image was made after that, and after the interpreters had started.
func (b *Booted) probe(ctx context.Context) error {
	if err := b.Agent.Wait(ctx); err != nil {
		return err
	}
	_, err := b.Agent.Hello(ctx)
	return err
}

// probeInBackground probes a restored sandbox that a session uses already. If the agent does not
// answer, it stops the sandbox, which the session tells its user, and drops the image, so
// that the next sandbox boots. The probe ends when the sandbox's client closes.
func (p *Pool) probeInBackground(b *Booted, prebooter sandbox.Preboot, spec sandbox.Spec) {
	ctx, cancel := context.WithTimeout(context.Background(), p.restoreLimit())
	defer cancel()
	if b.probe(ctx) == nil || ctx.Err() == nil {
		return // the user's own calls notice other errors
	}
	p.Log.Warn("a sandbox that was started from a preboot image does not answer, and is stopped", "sandbox", b.ID)
	prebooter.DropImage(spec)
	stopCtx, done := context.WithTimeout(context.Background(), 30*time.Second)
	defer done()
	if err := b.Box.Stop(stopCtx); err != nil {
		p.Log.Warn("could not stop a sandbox", "sandbox", b.ID, "error", err)
	}
}

// Adopt makes an agent client for a sandbox that lives already.
func (p *Pool) Adopt(box sandbox.Sandbox, r Request) *Booted {
	c, spec := agent.New(box, p.Log, p.cellSlots), box.Spec()
	return &Booted{ID: spec.ID, Workspace: r.Workspace, Template: r.Template, Flavor: sized(r.Flavor, spec.Limits),
		Box: box, Agent: c, Used: true}
}

// sized returns a flavor with the size that a sandbox has: the settings may have another one by now.
func sized(f image.Flavor, l sandbox.Limits) image.Flavor {
	if l.MemoryBytes > 0 {
		f.MemoryMB = int(l.MemoryBytes >> 20)
	}
	if l.CPUs > 0 {
		f.CPUs = l.CPUs
	}
	return f
}

// interpreterTimeout is how long a boot waits for interpreters. One that takes longer, mostly because
// of packages that the user has installed, goes on starting while the sandbox is used.
const interpreterTimeout = 15 * time.Second

// makeReady waits for the agent of a sandbox that boots, configures it, and starts the
// interpreters.
func (p *Pool) makeReady(ctx context.Context, b *Booted) error {
	if err := awaitDial(ctx, b.Agent.Wait); err != nil {
		return err
	}
	if err := p.Configure(ctx, b); err != nil {
		if w := b.Template.Workdir; w != "" && agent.ReasonOf(err) == agent.Conflict {
			return fmt.Errorf("%w: %w", &WorkdirError{w}, err)
		}
		return err
	}
	startCtx, cancel := context.WithTimeout(ctx, interpreterTimeout)
	defer cancel()
	for _, l := range b.Template.Warm {
		if err := b.Agent.StartInterpreter(startCtx, l); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("starting %s: %w", l, err)
			}
			// Packages that a user has installed may break it. Commands work, and a call
			// that runs code gets the error.
			p.Log.Info("an interpreter did not start", "sandbox", b.ID, "language", l, "error", err)
		}
	}
	return runStart(ctx, b)
}

// dialTimeout is how long the agent of a sandbox that was started may take until it connects. Whatever its image has in
// the way, others that wait for it need not wait as long as a boot may take.
const dialTimeout = 30 * time.Second

// awaitDial waits until an agent has connected.
func awaitDial(ctx context.Context, wait func(context.Context) error) error {
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	err := wait(dialCtx)
	if err != nil && ctx.Err() == nil && dialCtx.Err() != nil {
		return fmt.Errorf("its first process, the agent, did not connect to the server in %v: %w", dialTimeout, err)
	}
	return err
}

// WorkdirError says that programs of a template's image cannot start where it says.
type WorkdirError struct{ Dir string }

func (e *WorkdirError) Error() string {
	return fmt.Sprintf("the image says that programs start in %q (WORKDIR), and that is not a folder: give the image "+
		"another WORKDIR", fault.Printable(e.Dir, 200))
}

// Configure tells the agent its languages, roots and limits.
func (p *Pool) Configure(ctx context.Context, b *Booted) error {
	return p.configure(ctx, b, agent.Settings{})
}

// configure does that with further settings.
func (p *Pool) configure(ctx context.Context, b *Booted, s agent.Settings) error {
	spec := b.Box.Spec() // its limits are those that its runtime holds it to
	s.Template, s.Limits, s.Git = p.runnable(b.Template), spec.Limits, b.identity.Load()
	s.Roots = []agent.FileRoot{{Path: WorkspaceDir}}
	for _, m := range spec.Mounts {
		if m.Shared { // ReadOnly is as it was mounted: the agent need not know when a volume becomes full
			s.Roots = append(s.Roots, agent.FileRoot{Path: m.Target, ReadOnly: m.ReadOnly})
		}
	}
	return b.Agent.Configure(ctx, s)
}

// SetBound gives a sandbox what settings returns for its principal's bound secrets, unless it has that version of it
// already.
func (p *Pool) SetBound(ctx context.Context, b *Booted, version uint64, settings func() (*agent.Bound, error)) error {
	if b.boundVersion.Load() == version {
		return nil
	}
	b.boundMu.Lock()
	defer b.boundMu.Unlock()
	if b.boundVersion.Load() == version {
		return nil
	}
	bound, err := settings()
	if err == nil {
		err = p.configure(ctx, b, agent.Settings{Bound: bound})
	}
	if err == nil {
		b.boundVersion.Store(version)
	}
	return err
}

// SetVariables gives a sandbox the variables of its session, unless it has them already. They are not nil.
func (p *Pool) SetVariables(ctx context.Context, b *Booted, variables map[string]string) error {
	text, err := json.Marshal(variables) // sorted by name
	if err != nil {
		return err
	}
	hash := sha256.Sum256(text)
	b.variablesMu.Lock()
	defer b.variablesMu.Unlock()
	if b.variables == hash {
		return nil
	}
	if err := p.configure(ctx, b, agent.Settings{Variables: variables}); err != nil {
		return err
	}
	b.variables = hash
	return nil
}

// SetIdentity sets the default author of git commits in a sandbox. It does so once for each
// sandbox, whether that succeeds or not.
func (p *Pool) SetIdentity(ctx context.Context, b *Booted, id *agent.Identity) error {
	if !b.identity.CompareAndSwap(nil, id) {
		return nil
	}
	return p.Configure(ctx, b)
}
