package pool

import (
	"context"
	"errors"
	"fmt"

	"sandlot/internal/agent"
	"sandlot/internal/sandbox"
)

// HibernatorNamed returns the runtime of that name if it can put its sandboxes to sleep. The error says why not, in
// words that can end a sentence.
func (p *Pool) HibernatorNamed(name string) (sandbox.Hibernator, error) {
	rt := p.RuntimeNamed(name)
	if rt == nil {
		return nil, fmt.Errorf("its runtime %s is not among the setting runtimes", name)
	}
	h, ok := rt.(sandbox.Hibernator)
	if !ok {
		return nil, fmt.Errorf("the runtime %s cannot do that", rt.Name())
	}
	return h, h.CanHibernate()
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

// Wake makes a sandbox of a frozen image, and waits until its agent answers. connect is called before the sandbox's
// programs can use the network. When Wake fails, only the workspace and the image are left, unless the error is
// sandbox.ErrRemains. After sandbox.ErrLater the image can be used again.
func (p *Pool) Wake(ctx context.Context, h sandbox.Hibernator, r Request, image string,
	connect func(*Booted)) (*Booted, error) {
	ctx, cancel := context.WithTimeout(ctx, p.BootTimeout)
	defer cancel()
	select {
	case p.wakes <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: too many sessions wake at once", sandbox.ErrLater)
	}
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
	if err != nil {
		err = fmt.Errorf("its agent did not get ready: %w", err)
		if stopErr := b.Destroy(); stopErr != nil {
			err = errors.Join(err, sandbox.ErrRemains, stopErr)
		}
		return nil, err
	}
	return b, nil
}
