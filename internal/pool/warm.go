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

// Take returns a warm sandbox of that template, or nil. The sandbox is as large as the
// flavor: the size that it sees of its machine was fixed when it booted.
func (p *Pool) Take(t *image.Template, f image.Flavor) *Booted {
	if f.CPUs != p.Flavor.CPUs || f.MemoryMB != p.Flavor.MemoryMB {
		return nil
	}
	for b := p.pop(t.Name); b != nil; b = p.pop(t.Name) {
		if b.Agent.Linked() && !p.outdated(b) {
			b.Flavor = f
			return b
		}
		p.background.Go(func() { p.discard(b) })
	}
	return nil
}

// outdated says whether a sandbox has a shared folder read-only that was full when the
// sandbox booted and can be written now.
func (p *Pool) outdated(b *Booted) bool {
	mounts := b.Box.Spec().Mounts
	return slices.ContainsFunc(p.volumes(), func(v sandbox.Mount) bool {
		return !v.ReadOnly && slices.ContainsFunc(mounts,
			func(m sandbox.Mount) bool { return m.Target == v.Target && m.ReadOnly })
	})
}

func (p *Pool) pop(template string) *Booted {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.ready[template]
	if len(l) == 0 {
		return nil
	}
	p.taken = time.Now()
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
	if err := p.Workspaces.Remove(b.Workspace); err != nil {
		p.Log.Warn("could not remove a warm sandbox's workspace", "sandbox", b.ID, "error", err)
	}
}

// Sizes returns how many sandboxes are ready, by template.
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

// own returns the id of a sandbox that is going to boot for the pool.
func (p *Pool) own() (id string) {
	id = secret.ID()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owned[id] = true
	return id
}

func (p *Pool) disown(id string) {
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
	retries := map[string]retry{}
	for {
		t, wait := p.lacking(retries)
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
			delete(retries, t.Name)
		} else {
			pause := min(max(2*retries[t.Name].pause, time.Second), time.Minute)
			p.Log.Error("could not boot a warm sandbox", "template", t.Name, "error", err, "again_in", pause)
			retries[t.Name] = retry{pause, time.Now().Add(pause)}
		}
	}
}

// refillDelay is how long the pool leaves the processors to the sandbox that was just
// taken, before it boots the next, as long as another is ready.
const refillDelay = 100 * time.Millisecond

// retry is when a template that did not boot is tried again.
type retry struct {
	pause time.Duration
	until time.Time
}

// lacking returns a template of which there are too few sandboxes, or how long there is
// nothing to do.
func (p *Pool) lacking(retries map[string]retry) (*image.Template, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := time.Hour
	for _, t := range p.Templates {
		n := len(p.ready[t.Name])
		if n >= p.Warm {
			continue
		}
		left := time.Until(retries[t.Name].until)
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

// fill adds one sandbox to the pool.
func (p *Pool) fill(ctx context.Context, t *image.Template) error {
	ws, err := p.Workspaces.New()
	if err != nil {
		return err
	}
	id := p.own()
	b, err := p.Boot(ctx, Request{ID: id, Workspace: ws, Template: t, Flavor: p.Flavor})
	if err != nil {
		p.disown(id)
		return errors.Join(err, p.Workspaces.Remove(ws))
	}
	for _, l := range t.Warm {
		b.Agent.Prepare(l) // a session that takes the sandbox before that is served all the same
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready[t.Name] = append(p.ready[t.Name], b)
	return nil
}

func (p *Pool) destroyReady() {
	for _, t := range p.Templates {
		for b := p.pop(t.Name); b != nil; b = p.pop(t.Name) {
			p.discard(b)
		}
	}
}
