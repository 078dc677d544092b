package pool

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// Take returns a warm sandbox of that template, or nil. It returns nil if the warm sandboxes
// have other CPUs or memory than the flavor: what a sandbox sees of its machine is fixed when
// it boots.
func (p *Pool) Take(t *image.Template, f image.Flavor) *Booted {
	if warm := p.flavorOf(t); f.CPUs != warm.CPUs || f.MemoryMB != warm.MemoryMB {
		return nil
	}
	for b := p.takeReady(t.Name); b != nil; b = p.takeReady(t.Name) {
		if b.Template == t && b.Agent.Linked() && !p.outdated(b) {
			b.Flavor = f
			return b
		}
		p.background.Go(func() { p.discard(b) })
	}
	return nil
}

// outdated says whether a sandbox has files of the machine open that were replaced since it booted; sees a shared folder
// read-only that is writable now, because the folder was full when the sandbox booted; or can write one that is full now,
// which its runtime does not change.
func (p *Pool) outdated(b *Booted) bool {
	can := p.Capabilities(b.Template.Runtime)
	if can.Freezer != nil && p.isOld(b, can.Freezer.Replaced(b.Box)) { // somebody waits for it
		return true
	}
	mounts := b.Box.Spec().Mounts
	return slices.ContainsFunc(p.volumes(), func(v sandbox.Mount) bool {
		return slices.ContainsFunc(mounts, func(m sandbox.Mount) bool {
			return m.Target == v.Target && m.ReadOnly != v.ReadOnly && (m.ReadOnly || can.Files == nil)
		})
	})
}

// replaced says whether a sandbox has files of the machine open that were replaced since it booted.
func (p *Pool) replaced(b *Booted) bool {
	freezer := p.Capabilities(b.Template.Runtime).Freezer
	return freezer != nil && p.isOld(b, freezer.Outdated(b.Box))
}

// isOld reports whether there is a reason why a sandbox is outdated, and logs it.
func (p *Pool) isOld(b *Booted, why error) bool {
	if why != nil {
		p.Log.Info("a warm sandbox is outdated", "sandbox", b.ID, "reason", why)
	}
	return why != nil
}

// reviseInterval is the time between two looks for warm sandboxes that have replaced files of the machine open.
const reviseInterval = 5 * time.Second

// revise removes warm sandboxes when files of the machine that they have open were replaced, until ctx ends, and makes
// preboot images be made again.
func (p *Pool) revise(ctx context.Context) {
	for {
		select {
		case <-time.After(reviseInterval):
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		var all []*Booted
		for _, list := range p.ready {
			all = append(all, list...)
		}
		p.mu.Unlock()
		all = slices.DeleteFunc(all, func(b *Booted) bool { return !p.replaced(b) })
		taken := p.takeAll(func(b *Booted) bool { return slices.Contains(all, b) })
		for _, b := range taken {
			p.background.Go(func() { p.discard(b) })
		}
		if len(taken) > 0 {
			p.refill()
		}
	}
}

// refill makes Run boot sandboxes that are missing, and makeImages make images.
func (p *Pool) refill() {
	for _, c := range []chan struct{}{p.wake, p.remake} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// takeReady removes a warm sandbox of that template from the pool and returns it, or nil.
func (p *Pool) takeReady(template string) *Booted {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.ready[template]
	if len(l) == 0 {
		return nil
	}
	p.lastTaken = time.Now()
	p.ready[template] = l[1:]
	delete(p.owned, l[0].ID)
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return l[0]
}

func (p *Pool) discard(b *Booted) {
	if err := b.Destroy(); err != nil {
		p.Log.Warn("could not remove a warm sandbox", "sandbox", b.ID, "error", err)
	}
	if err := p.RemoveWorkspace(b.Workspace); err != nil {
		p.Log.Warn("could not remove a warm sandbox's workspace", "sandbox", b.ID, "error", err)
	}
}

// Sizes returns how many sandboxes are ready, by template.
func (p *Pool) Sizes() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := map[string]int{}
	for _, t := range p.Templates() {
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

// reserveID returns a new id for a sandbox that will boot for the pool, and adds it to owned.
func (p *Pool) reserveID() (id string) {
	id = secret.ID()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owned[id] = true
	return id
}

func (p *Pool) releaseID(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.owned, id)
}

// Run fills the pool, one sandbox at a time, until ctx ends; then it destroys the
// sandboxes that are still ready. A template that does not boot is tried again with
// growing pauses, and does not delay the others.
func (p *Pool) Run(ctx context.Context) {
	defer p.destroyReady()
	var images sync.WaitGroup
	defer images.Wait()
	images.Go(func() { p.makeImages(ctx) })
	images.Go(func() { p.revise(ctx) })
	retries := map[string]retry{}
	for {
		t, wait := p.nextToFill(retries)
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
		err := p.addSandbox(ctx, t)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			delete(retries, t.Name)
		} else {
			pause := min(max(2*retries[t.Name].pause, time.Second), time.Minute)
			p.Log.Error("could not boot a warm sandbox", "template", t.Name, "error", err, "again_in", pause)
			retries[t.Name] = retry{pause, time.Now().Add(pause)}
		}
	}
}

// refillDelay is how long the pool leaves the processors to a sandbox that was just taken
// before it boots the next one. It does not wait if no other is ready.
const refillDelay = 100 * time.Millisecond

// retry is when a template that did not boot is tried again.
type retry struct {
	pause time.Duration
	until time.Time
}

// nextToFill returns a template that lacks warm sandboxes and can boot one now, or nil and how
// long to wait. Of several it is the one that has the fewest, so that all have some before the
// bound of memory is reached.
func (p *Pool) nextToFill(retries map[string]retry) (*image.Template, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.WarmMemoryMB
	for _, list := range p.ready {
		for _, b := range list {
			left -= b.Flavor.MemoryMB
		}
	}
	var next *image.Template
	fewest, wait := 0, time.Hour
	for _, t := range p.Templates() {
		n := len(p.ready[t.Name])
		if n >= p.warmCount(t) || p.WarmMemoryMB > 0 && p.flavorOf(t).MemoryMB > left {
			continue
		}
		pause := time.Until(retries[t.Name].until)
		if n > 0 {
			pause = max(pause, time.Until(p.lastTaken.Add(refillDelay)))
		}
		if pause > 0 {
			wait = min(wait, pause)
		} else if next == nil || n < fewest {
			next, fewest = t, n
		}
	}
	return next, wait
}

// addSandbox adds one sandbox to the pool.
func (p *Pool) addSandbox(ctx context.Context, t *image.Template) error {
	ws, err := p.Workspaces.New()
	if err != nil {
		return err
	}
	id := p.reserveID()
	b, err := p.Boot(ctx, Request{ID: id, Workspace: ws, Template: t, Flavor: p.flavorOf(t)})
	if err != nil {
		p.releaseID(id)
		return errors.Join(err, p.RemoveWorkspace(ws))
	}
	for _, l := range t.Warm {
		b.Agent.Prepare(l) // a session may take the sandbox before that has finished
	}
	p.replaced(b) // so that Take, for which somebody waits, need not find the files; it looks at them
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.Templates(), t) { // Refresh came while it booted
		delete(p.owned, id)
		p.background.Go(func() { p.discard(b) })
		return nil
	}
	p.ready[t.Name] = append(p.ready[t.Name], b)
	return nil
}

func (p *Pool) destroyReady() {
	for _, b := range p.takeAll(func(*Booted) bool { return true }) {
		p.discard(b)
	}
}

// takeAll removes the warm sandboxes for which stale is true from the pool, and returns them.
func (p *Pool) takeAll(stale func(*Booted) bool) (taken []*Booted) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, list := range p.ready {
		var kept []*Booted
		for _, b := range list {
			if stale(b) {
				taken = append(taken, b)
				delete(p.owned, b.ID)
			} else {
				kept = append(kept, b)
			}
		}
		p.ready[name] = kept
	}
	return taken
}
