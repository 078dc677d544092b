package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// quiet is how long a server has been up before it makes snapshots: its first
// users do not wait for that.
const quiet = 5 * time.Second

// settled is how long a sandbox that is made a snapshot of is left alone before:
// its agent gives back what booting took.
const settled = 4 * time.Second

// again is how long after it those are looked for that are lacking then: one that
// could not be made, or was no longer good.
const again = 10 * time.Minute

// answers waits until a copy answers. It is configured, and its warm interpreters
// have started, as they had in what it is a copy of.
func (p *Pool) answers(ctx context.Context, b *Booted) error {
	if err := b.Agent.Wait(ctx); err != nil {
		return err
	}
	_, err := b.Agent.Hello(ctx)
	return err
}

// watch looks whether a copy answers that somebody uses already. One that does
// not is stopped, which its user is told, and the next sandbox boots. It ends with
// the sandbox's client.
func (p *Pool) watch(b *Booted, spec sandbox.Spec) {
	ctx, cancel := context.WithTimeout(context.Background(), min(p.Start/2, copied))
	defer cancel()
	if p.answers(ctx, b) == nil || ctx.Err() == nil {
		return // what breaks otherwise is noticed by its user
	}
	p.Log.Warn("a sandbox that was started from a snapshot does not answer, and is stopped", "sandbox", b.ID)
	if shooter, ok := p.Runtime.(sandbox.Snapshotter); ok {
		shooter.Forget(spec)
	}
	stop, done := context.WithTimeout(context.Background(), 30*time.Second)
	defer done()
	if err := b.Box.Stop(stop); err != nil {
		p.Log.Warn("could not stop a sandbox", "sandbox", b.ID, "error", err)
	}
}

// snapshot makes the snapshots that the templates lack, one after the other,
// where the runtime can. What goes wrong is said, and sandboxes boot.
func (p *Pool) snapshot(ctx context.Context) {
	shooter, ok := p.Runtime.(sandbox.Snapshotter)
	if !ok || shooter.CanSnapshot() != nil {
		return
	}
	for pause := quiet; ; pause = again {
		select {
		case <-time.After(pause):
			p.shootAll(ctx, shooter)
		case <-ctx.Done():
			return
		}
	}
}

func (p *Pool) shootAll(ctx context.Context, shooter sandbox.Snapshotter) {
	for _, t := range p.Templates {
		began := time.Now()
		made, err := p.shoot(ctx, shooter, t)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			p.Log.Warn("no snapshot of a booted sandbox could be made: each one boots", "template", t.Name, "error",
				err)
		case made:
			p.Log.Info("new sandboxes start from a snapshot", "template", t.Name, "took", time.Since(began))
		}
	}
}

func (p *Pool) shoot(ctx context.Context, shooter sandbox.Snapshotter, t *image.Template) (made bool, err error) {
	ws, err := p.Workspaces.New()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, p.Workspaces.Remove(ws)) }()
	o := Order{ID: secret.ID(), Workspace: ws, Template: t, Flavor: p.Flavor}
	if shooter.Snapshotted(p.spec(o)) {
		return false, nil
	}
	p.own(o.ID, true)
	defer p.own(o.ID, false)
	b, err := p.Boot(ctx, o)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.Destroy()) }()
	select {
	case <-time.After(settled):
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if !b.Agent.Linked() {
		return false, errors.New("the agent has no link just now")
	}
	limit, cancel := context.WithTimeout(ctx, p.Start)
	defer cancel()
	if err := shooter.Snapshot(limit, b.Box); err != nil {
		return false, fmt.Errorf("making a snapshot: %w", err)
	}
	return true, nil
}
