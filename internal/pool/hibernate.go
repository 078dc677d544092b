package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// HibernatorNamed returns the runtime of that name if it can put its sandboxes to sleep. The error is
// sandbox.Explained.
func (p *Pool) HibernatorNamed(name string) (sandbox.Freezer, error) {
	rt := p.RuntimeNamed(name)
	if rt == nil {
		return nil, sandbox.Explain(fmt.Sprintf("its runtime %s is not among the setting runtimes", name), nil)
	}
	h := rt.Capabilities().Freezer
	if h == nil {
		return nil, sandbox.Explain(fmt.Sprintf("the runtime %s cannot do that", rt.Name()), nil)
	}
	if err := h.CanHibernate(); err != nil {
		return h, sandbox.Explain(err.Error(), nil)
	}
	return h, nil
}

// Hibernators returns the runtimes that can put sandboxes to sleep, or have images of some.
func (p *Pool) Hibernators() (all []sandbox.Freezer) {
	for _, rt := range p.Runtimes() {
		if h := rt.Capabilities().Freezer; h != nil {
			all = append(all, h)
		}
	}
	return all
}

// CanWake returns an error if Wake would fail for what has changed since the image was made.
func (p *Pool) CanWake(ctx context.Context, h sandbox.Freezer, r Request, image string) error {
	return h.CanWake(ctx, p.spec(r), image)
}

// WakesAs returns f with the memory that a sandbox of an image has at most: one with more in use than f allows keeps what
// it had. Of an image that cannot be read nothing is known: Wake says why.
func (p *Pool) WakesAs(ctx context.Context, h sandbox.Freezer, name string, f image.Flavor) image.Flavor {
	has, used, err := h.FrozenNeeds(ctx, name)
	now := p.Limits(f).MemoryBytes
	if err != nil || !narrower(now, has.MemoryBytes) || used > 0 && !tight(uint64(used+wakingBytes), now) {
		return f
	}
	return sized(f, sandbox.Limits{MemoryBytes: has.MemoryBytes})
}

// wakingBytes is how much memory a sandbox may have in use when it has woken beyond that of its image, such as for its
// runtime.
const wakingBytes = 64 << 20

// settle gives a sandbox that was made of an image the limits of now, and its agent the settings.
func (p *Pool) settle(ctx context.Context, b *Booted, now sandbox.Limits, s agent.Settings) error {
	silent := func(err error) error { // a time that is over says nothing about the image
		return sandbox.Explain("its agent did not get ready", errors.Join(err, ctx.Err()))
	}
	if err := b.probe(ctx); err != nil {
		return silent(err)
	}
	if err := p.resize(ctx, b, now); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrLater, sandbox.Explain("its limits could not be set", err))
	}
	if err := p.configure(ctx, b, s); err != nil { // they may have changed while it slept
		return silent(err)
	}
	return nil
}

// resize gives a sandbox its limits of now, if it has others. A sandbox that has more in use than they allow keeps those
// that it has: what runs in it would end, and nobody could have saved it while it slept.
func (p *Pool) resize(ctx context.Context, b *Booted, now sandbox.Limits) error {
	has := b.Box.Spec().Limits
	if has == now {
		return nil
	}
	want := inUse(ctx, b, has, now)
	err := b.Box.Resize(ctx, want)
	if err == errors.ErrUnsupported { // not errors.Is: some errors of the kernel count as it
		return nil
	}
	if err != nil && narrower(want.MemoryBytes, has.MemoryBytes) { // the kernel takes no limit below what is in use
		want.MemoryBytes = has.MemoryBytes
		err = b.Box.Resize(ctx, want)
	}
	if err != nil {
		return err
	}
	if b.Flavor = sized(b.Flavor, want); want != now {
		p.Log.Warn("a session that woke uses more than its current limits allow, and keeps its old limits",
			"sandbox", b.ID, "has", want, "now", now)
	}
	return nil
}

// inUse returns the limits of now, and in place of those that a sandbox is over, or could be soon, those that it has. What
// cannot be found out counts as in use.
func inUse(ctx context.Context, b *Booted, has, now sandbox.Limits) sandbox.Limits {
	less, fewer := narrower(now.MemoryBytes, has.MemoryBytes), narrower(now.Processes, has.Processes)
	if !less && !fewer {
		return now
	}
	u, err := b.Agent.Usage(ctx)
	st, statusErr := b.Box.Status(ctx)
	unknown := errors.Join(err, statusErr) != nil
	if less && (unknown || tight(u.MemoryBytes, now.MemoryBytes) || st.MemoryBytes > now.MemoryBytes) {
		now.MemoryBytes = has.MemoryBytes
	}
	if fewer && (unknown || tight(uint64(u.Processes), now.Processes)) {
		now.Processes = has.Processes
	}
	return now
}

// narrower reports whether a limit is below another one; 0: none.
func narrower(limit, than int64) bool { return limit > 0 && (than == 0 || limit < than) }

// tight reports whether less than a tenth of a limit is free: what wakes needs some.
func tight(used uint64, limit int64) bool { return used > uint64(limit-limit/10) }

// Wake makes a sandbox of a frozen image, and waits until its agent answers. connect is called before the sandbox's
// programs can use the network. When Wake fails, only the workspace and the image are left, unless the error is
// sandbox.ErrRemains. After sandbox.ErrLater the image can be used again.
func (p *Pool) Wake(ctx context.Context, h sandbox.Freezer, r Request, image string,
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
	err = p.settle(ctx, b, p.Limits(r.Flavor), agent.Settings{Renew: sandbox.IsCopy(image)})
	if err != nil {
		if stopErr := b.Destroy(); stopErr != nil {
			err = errors.Join(err, sandbox.ErrRemains, stopErr)
		}
		return nil, err
	}
	return b, nil
}
