// Package pool boots sandboxes, and keeps some of them booted for whoever comes
// next, with the interpreter already started. A member serves one session and
// is then destroyed.
package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/egress"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
	"sandlot/internal/workspace"
)

// WorkspaceDir is where a sandbox sees its workspace.
const WorkspaceDir = "/workspace"

// Booted is a sandbox that answers.
type Booted struct {
	ID        string
	Workspace string
	Template  *image.Template
	Flavor    image.Flavor
	Box       sandbox.Sandbox
	Agent     *agent.Client
	Outlet    *egress.Outlet // its way to the network; nil as long as it is nobody's

	git atomic.Pointer[agent.Identity] // who commits in it; nil: the agent's own choice
}

// Connect gives the sandbox its way to the network.
func (b *Booted) Connect(e *egress.Outlet) {
	b.Outlet = e
	b.Agent.Route(e)
}

// Detach ends what this process has of the sandbox, which lives on.
func (b *Booted) Detach() {
	b.Agent.Close()
	if b.Outlet != nil {
		b.Outlet.Close()
	}
}

// Config is what the pool needs to know.
type Config struct {
	Runtime    sandbox.Runtime
	Workspaces *workspace.Store
	// Volumes returns the shared folders as a new sandbox gets them; nil: none.
	Volumes func() []sandbox.Mount
	// Limits are those that a flavor does not give: processes and disk.
	Processes int64
	DiskBytes int64
	// Orphan is how long a sandbox lives without a server; 0 is for ever.
	Orphan time.Duration
	// Start bounds a boot.
	Start time.Duration
	// Warm is how many booted sandboxes to keep for each template.
	Warm      int
	Templates []*image.Template
	Flavor    image.Flavor // of pooled ones
	Log       *slog.Logger
}

// Pool keeps warm sandboxes. Run fills it.
type Pool struct {
	Config

	wake   chan struct{}
	turns  *agent.Turns
	beside sync.WaitGroup // what goes on beside a boot; Wait waits for it
	copies atomic.Int64   // sandboxes that were started from a snapshot
	boots  atomic.Int64

	mu    sync.Mutex
	ready map[string][]*Booted // by template's name
	owned map[string]bool      // sandboxes that are booting or wait here
	taken time.Time            // when one was last
}

// New returns an empty pool.
func New(c Config) *Pool {
	return &Pool{Config: c, wake: make(chan struct{}, 1), turns: agent.NewTurns(runtime.NumCPU() + runtime.NumCPU()/2),
		ready: map[string][]*Booted{}, owned: map[string]bool{}}
}

// Limits returns the limits of a sandbox of that flavor.
func (p *Pool) Limits(f image.Flavor) sandbox.Limits {
	return sandbox.Limits{CPUs: f.CPUs, MemoryBytes: int64(f.MemoryMB) << 20, Processes: p.Processes,
		DiskBytes: p.DiskBytes}
}

// Order says what to boot.
type Order struct {
	ID        string // the sandbox's; made when empty
	Workspace string // its id; it must exist
	Template  *image.Template
	Flavor    image.Flavor
	// Early: it is wanted as soon as it is linked. Whether it answers is looked at
	// beside; one that does not is stopped.
	Early bool
}

// Boot makes one sandbox and waits until its agent answers and its warm
// interpreters have started. When it fails nothing is left but the workspace.
func (p *Pool) Boot(ctx context.Context, o Order) (*Booted, error) {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, p.Start)
	defer cancel()
	if o.ID == "" {
		o.ID = secret.ID()
	}
	spec := p.spec(o)
	if shooter, ok := p.Runtime.(sandbox.Snapshotter); ok && shooter.Snapshotted(spec) {
		b, err := p.boot(ctx, o, spec, min(p.Start/2, copied))
		if err == nil || caller.Err() != nil {
			return b, err
		}
		p.Log.Warn("a sandbox that was started from a snapshot did not get ready, and boots", "sandbox", o.ID, "error",
			err)
		shooter.Forget(spec)
	}
	return p.boot(ctx, o, spec, p.Start)
}

// Wait waits for what went on beside boots: looking whether a sandbox answers that is
// used already, which ends with the sandbox's client, and removing those that were not
// fit to be used. Nothing boots any more when it is called.
func (p *Pool) Wait() { p.beside.Wait() }

// Started returns how many sandboxes were started from a snapshot, and how many
// booted.
func (p *Pool) Started() (snapshots, boots int64) { return p.copies.Load(), p.boots.Load() }

// copied is how long a copy of a booted sandbox may take until it is ready.
const copied = 30 * time.Second

// volumes are the shared folders as a sandbox gets them now.
func (p *Pool) volumes() []sandbox.Mount {
	if p.Volumes == nil {
		return nil
	}
	return p.Volumes()
}

func (p *Pool) spec(o Order) sandbox.Spec {
	mounts := []sandbox.Mount{{Source: p.Workspaces.Path(o.Workspace), Target: WorkspaceDir}}
	mounts = append(mounts, p.volumes()...)
	return sandbox.Spec{ID: o.ID, Template: o.Template, Limits: p.Limits(o.Flavor), Mounts: mounts, Orphan: p.Orphan,
		Secret: secret.Bytes(wire.SecretLen)}
}

func (p *Pool) boot(ctx context.Context, o Order, spec sandbox.Spec, most time.Duration) (*Booted, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	box, err := p.Runtime.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	b := p.Adopt(box, o)
	shooter, ok := p.Runtime.(sandbox.Snapshotter)
	isCopy := ok && shooter.Copied(box)
	ready := p.prepare
	if isCopy {
		ready = p.answers
		if o.Early {
			ready = func(ctx context.Context, b *Booted) error { return b.Agent.Wait(ctx) }
		}
	}
	if err := ready(ctx, b); err != nil {
		return nil, errors.Join(fmt.Errorf("the sandbox booted but its agent did not get ready: %w", err), b.Destroy())
	}
	if !isCopy {
		p.boots.Add(1)
		return b, nil
	}
	p.copies.Add(1)
	if o.Early {
		p.beside.Go(func() { p.watch(b, spec) })
	}
	return b, nil
}

// Adopt takes over a sandbox that lives already.
func (p *Pool) Adopt(box sandbox.Sandbox, o Order) *Booted {
	c := agent.New(box, p.Log)
	c.Share(p.turns)
	return &Booted{ID: box.Spec().ID, Workspace: o.Workspace, Template: o.Template, Flavor: o.Flavor, Box: box,
		Agent: c}
}

// prepare waits until a sandbox that boots is ready.
func (p *Pool) prepare(ctx context.Context, b *Booted) error {
	if err := b.Agent.Wait(ctx); err != nil {
		return err
	}
	if err := p.Configure(ctx, b); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, warmLimit)
	defer cancel()
	for _, l := range b.Template.Warm {
		if err := b.Agent.StartInterpreter(short, l); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("starting %s: %w", l, err)
			}
			// What a user has installed may break it. Commands work, and who runs code is told why.
			p.Log.Info("an interpreter did not start", "sandbox", b.ID, "language", l, "error", err)
		}
	}
	return nil
}

// warmLimit is how long a boot waits for interpreters. One that takes longer, mostly
// for what its user has installed, goes on beside.
const warmLimit = 15 * time.Second

// Configure tells the agent its languages, roots and limits.
func (p *Pool) Configure(ctx context.Context, b *Booted) error {
	s := agent.Settings{Template: b.Template, Limits: p.Limits(b.Flavor), Roots: []agent.FileRoot{{Path: WorkspaceDir}},
		Git: b.git.Load()}
	for _, m := range b.Box.Spec().Mounts {
		if m.Shared { // as it was mounted: a folder that is full for a while is not the agent's to judge
			s.Roots = append(s.Roots, agent.FileRoot{Path: m.Target, ReadOnly: m.ReadOnly})
		}
	}
	return b.Agent.Configure(ctx, s)
}

// Introduce tells a sandbox who commits in it where its user sets nothing else. It
// is told once, whether it listens or not.
func (p *Pool) Introduce(ctx context.Context, b *Booted, id *agent.Identity) error {
	if !b.git.CompareAndSwap(nil, id) {
		return nil
	}
	return p.Configure(ctx, b)
}

// Destroy stops the sandbox. Its workspace stays.
func (b *Booted) Destroy() error {
	b.Detach()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return b.Box.Stop(ctx)
}

// Take returns a warm sandbox of that template, if there is one and it is as large
// as the flavor: what a sandbox sees of its machine is settled when it boots.
func (p *Pool) Take(t *image.Template, f image.Flavor) *Booted {
	if f.CPUs != p.Flavor.CPUs || f.MemoryMB != p.Flavor.MemoryMB {
		return nil
	}
	for {
		b := p.pop(t.Name)
		if b == nil {
			return nil
		}
		if !b.Agent.Linked() || p.outdated(b) {
			p.beside.Go(func() { p.discard(b) })
			continue
		}
		b.Flavor = f
		return b
	}
}

// outdated says whether a sandbox has a shared folder for reading alone, as it was
// full when that sandbox booted, which can be written by now.
func (p *Pool) outdated(b *Booted) bool {
	has := b.Box.Spec().Mounts
	for _, v := range p.volumes() {
		if !v.ReadOnly && slices.ContainsFunc(has,
			func(m sandbox.Mount) bool { return m.Target == v.Target && m.ReadOnly }) {
			return true
		}
	}
	return false
}

func (p *Pool) put(template string, b *Booted) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready[template] = append(p.ready[template], b)
	p.owned[b.ID] = true
}

func (p *Pool) pop(template string) *Booted {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.ready[template]
	if len(l) == 0 {
		return nil
	}
	b := l[0]
	p.taken = time.Now()
	p.ready[template] = l[1:]
	delete(p.owned, b.ID)
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return b
}

func (p *Pool) discard(b *Booted) {
	if err := b.Destroy(); err != nil {
		p.Log.Warn("could not remove a warm sandbox", "sandbox", b.ID, "error", err)
	}
	if err := p.Workspaces.Remove(b.Workspace); err != nil {
		p.Log.Warn("could not remove a warm sandbox's workspace", "sandbox", b.ID, "error", err)
	}
}

// Sizes returns how many wait, by template.
func (p *Pool) Sizes() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := map[string]int{}
	for _, t := range p.Templates {
		n[t.Name] = len(p.ready[t.Name])
	}
	return n
}

// Owns says whether the sandbox belongs to the pool now.
func (p *Pool) Owns(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owned[id]
}

// Run fills the pool, one sandbox at a time, until ctx ends; then it destroys
// what still waits. A template that does not boot is tried again with growing
// pauses, and does not hold the others up.
func (p *Pool) Run(ctx context.Context) {
	defer p.drain()
	var shots sync.WaitGroup
	defer shots.Wait()
	shots.Go(func() { p.snapshot(ctx) })
	troubles := map[string]trouble{}
	for {
		t, wait := p.lacking(troubles)
		if t == nil {
			select {
			case <-p.wake:
				continue
			case <-time.After(wait):
				continue
			case <-ctx.Done():
				return
			}
		}
		err := p.fill(ctx, t)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			delete(troubles, t.Name)
		} else {
			pause := min(max(2*troubles[t.Name].pause, time.Second), time.Minute)
			p.Log.Error("could not boot a warm sandbox", "template", t.Name, "error", err, "again_in", pause)
			troubles[t.Name] = trouble{pause, time.Now().Add(pause)}
		}
	}
}

// refillDelay is how long the pool lets the one that was just taken have the
// machine, before it boots the next, as long as another waits.
const refillDelay = 100 * time.Millisecond

// trouble is when a template that did not boot is tried again.
type trouble struct {
	pause time.Duration
	until time.Time
}

// lacking returns a template of which there are too few, or how long there is
// nothing to do.
func (p *Pool) lacking(troubles map[string]trouble) (*image.Template, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := time.Hour
	for _, t := range p.Templates {
		n := len(p.ready[t.Name])
		if n >= p.Warm {
			continue
		}
		left := time.Until(troubles[t.Name].until)
		if n > 0 {
			left = max(left, time.Until(p.taken.Add(refillDelay)))
		}
		if left <= 0 {
			return t, 0
		}
		wait = min(wait, left)
	}
	return nil, wait
}

func (p *Pool) fill(ctx context.Context, t *image.Template) error {
	ws, err := p.Workspaces.New()
	if err != nil {
		return err
	}
	o := Order{ID: secret.ID(), Workspace: ws, Template: t, Flavor: p.Flavor}
	p.own(o.ID, true)
	b, err := p.Boot(ctx, o)
	if err != nil {
		p.own(o.ID, false)
		return errors.Join(err, p.Workspaces.Remove(ws))
	}
	for _, l := range t.Warm {
		b.Agent.Prepare(l) // whoever takes it before that is served all the same
	}
	p.put(t.Name, b)
	return nil
}

func (p *Pool) own(id string, yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if yes {
		p.owned[id] = true
	} else {
		delete(p.owned, id)
	}
}

func (p *Pool) drain() {
	for _, t := range p.Templates {
		for b := p.pop(t.Name); b != nil; b = p.pop(t.Name) {
			p.discard(b)
		}
	}
}
