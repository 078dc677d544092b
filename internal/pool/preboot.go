package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

const (
	// firstImagesDelay is how long after the server's start the first images are made, so that
	// they do not delay its first users.
	firstImagesDelay = 5 * time.Second
	// quietTime is how long a booted sandbox stays unused before its image is made: in that time
	// its agent frees the memory that booting needed.
	quietTime = 4 * time.Second
	// imagesInterval is the time between two checks for missing images, which could not be
	// made before, or are outdated.
	imagesInterval = 10 * time.Minute
)

// makeImages makes the missing preboot images of the templates, one after the other, if the
// runtimes support images. A failure is logged; new sandboxes of that template then boot.
func (p *Pool) makeImages(ctx context.Context) {
	able := slices.ContainsFunc(p.Runtimes(), func(rt sandbox.Runtime) bool {
		prebooter := rt.Capabilities().Preboot
		return prebooter != nil && prebooter.CanPreboot() == nil
	})
	if !able {
		return
	}
	var remake chan struct{} // not before the first
	for pause := firstImagesDelay; ; pause, remake = imagesInterval, p.remake {
		select {
		case <-time.After(pause):
		case <-remake:
		case <-ctx.Done():
			return
		}
		for _, t := range p.Templates() {
			began := time.Now()
			made, err := p.makeImage(ctx, t)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				p.Log.Warn("no preboot image could be made: each sandbox boots", "template", t.Name, "error", err)
			case made:
				p.Log.Info("new sandboxes start from a preboot image", "template", t.Name, "took", time.Since(began))
			}
		}
	}
}

// makeImage makes the image of one template, unless there is one.
func (p *Pool) makeImage(ctx context.Context, t *image.Template) (made bool, err error) {
	rt, err := p.RuntimeOf(t)
	if err != nil {
		return false, err
	}
	prebooter := prebooterOf(rt, t)
	if prebooter == nil || prebooter.CanPreboot() != nil {
		return false, nil
	}
	ws, err := p.Workspaces.New()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, p.RemoveWorkspace(ws)) }()
	r := Request{ID: p.reserveID(), Workspace: ws, Template: t, Flavor: p.flavorOf(t)}
	defer p.releaseID(r.ID)
	if prebooter.HasImage(p.spec(r)) {
		return false, nil
	}
	b, err := p.Boot(ctx, r)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.Destroy()) }()
	select {
	case <-time.After(quietTime):
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if !b.Agent.Linked() {
		return false, errors.New("the agent has no link just now")
	}
	makeCtx, cancel := context.WithTimeout(ctx, p.BootTimeout)
	defer cancel()
	if err := prebooter.MakeImage(makeCtx, b.Box); err != nil {
		return false, fmt.Errorf("making a preboot image: %w", err)
	}
	p.mu.Lock()
	p.imaged[t] = b.Box.Spec()
	p.mu.Unlock()
	return true, nil
}

// dropImages drops the images of templates that are not among these any more.
func (p *Pool) dropImages(current []*image.Template) {
	p.mu.Lock()
	dropped := map[*image.Template]sandbox.Spec{}
	for t, spec := range p.imaged {
		if !slices.Contains(current, t) {
			dropped[t] = spec
			delete(p.imaged, t)
		}
	}
	p.mu.Unlock()
	for t, spec := range dropped {
		if rt, err := p.RuntimeOf(t); err == nil {
			if prebooter := prebooterOf(rt, t); prebooter != nil {
				prebooter.DropImage(spec)
			}
		}
	}
}
