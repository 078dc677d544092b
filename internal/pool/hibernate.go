package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/sandbox"
)

// HibernatorNamed returns the runtime of that name if it can put its sandboxes to sleep. The error is
// sandbox.Explained.
func (p *Pool) HibernatorNamed(name string) (sandbox.Hibernator, error) {
	rt := p.RuntimeNamed(name)
	if rt == nil {
		return nil, sandbox.Explain(fmt.Sprintf("its runtime %s is not among the setting runtimes", name), nil)
	}
	h, ok := rt.(sandbox.Hibernator)
	if !ok {
		return nil, sandbox.Explain(fmt.Sprintf("the runtime %s cannot do that", rt.Name()), nil)
	}
	if err := h.CanHibernate(); err != nil {
		return h, sandbox.Explain(err.Error(), nil)
	}
	return h, nil
}

// Hibernators returns the runtimes that can put sandboxes to sleep, or have images of some.
func (p *Pool) Hibernators() (all []sandbox.Hibernator) {
	for _, rt := range p.Runtimes() {
		if h, ok := rt.(sandbox.Hibernator); ok {
			all = append(all, h)
		}
	}
	return all
}

// CanWake returns an error if Wake would fail for what has changed since the image was made.
func (p *Pool) CanWake(ctx context.Context, h sandbox.Hibernator, r Request, image string) error {
	return h.CanWake(ctx, p.spec(r), image)
}

// resize gives a sandbox its limits of now, if it has others.
func resize(ctx context.Context, box sandbox.Sandbox, l sandbox.Limits) error {
	r, ok := box.(sandbox.Resizer)
	if !ok || box.Spec().Limits == l {
		return nil
	}
	return r.Resize(ctx, l)
}

// Wake makes a sandbox of a frozen image, and waits until its agent answers. connect is called before the sandbox's
// programs can use the network. When Wake fails, only the workspace and the image are left, unless the error is
// sandbox.ErrRemains. After sandbox.ErrLater the image can be used again.
func (p *Pool) Wake(ctx context.Context, h sandbox.Hibernator, r Request, image string,
	connect func(*Booted)) (*Booted, error) {
	turn := time.NewTimer(p.BootTimeout)
	defer turn.Stop()
	select {
	case p.wakes <- struct{}{}:
	case <-turn.C:
		return nil, fmt.Errorf("%w: %w", sandbox.ErrLater, sandbox.Explain("too many sessions wake at once", nil))
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", sandbox.ErrLater, ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, p.BootTimeout) // begins with its turn
	defer cancel()
	box, err := h.Wake(ctx, p.spec(r), image)
	<-p.wakes // its programs may take long to answer, while others wake
	if err != nil {
		return nil, err
	}
	b := p.Adopt(box, r)
	connect(b)
	if err = b.probe(ctx); err == nil { // the settings may have changed while it slept
		err = p.configure(ctx, b, agent.Settings{Renew: sandbox.IsCopy(image)})
	}
	if err != nil { // a time that is over says nothing about the image
		err = sandbox.Explain("its agent did not get ready", errors.Join(err, ctx.Err()))
	} else if err = resize(ctx, box, p.Limits(r.Flavor)); err != nil {
		err = fmt.Errorf("%w: %w", sandbox.ErrLater, sandbox.Explain("its limits could not be set", err))
	}
	if err != nil {
		if stopErr := b.Destroy(); stopErr != nil {
			err = errors.Join(err, sandbox.ErrRemains, stopErr)
		}
		return nil, err
	}
	return b, nil
}
