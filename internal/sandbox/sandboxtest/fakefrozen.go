package sandboxtest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// Step is one step of a Fake that puts sandboxes to sleep and wakes them. A hook is called before the step begins.
type Step string

const (
	StepFreeze Step = "freeze" // nothing has happened yet
	StepFrozen Step = "frozen" // the image is there, and the sandbox stands still
	StepThaw   Step = "thaw"
	StepAsk    Step = "ask"    // whether a sandbox can be woken
	StepWake   Step = "wake"   // there is no sandbox yet
	StepWaking Step = "waking" // the sandbox is known, and nothing runs in it
	StepWoken  Step = "woken"  // the sandbox runs
	StepStop   Step = "stop"   // a sandbox is about to be stopped
	StepRemove Step = "remove" // an image is about to be removed
	StepPack   Step = "pack"   // an image is about to be packed
	StepCreate Step = "create" // a sandbox is about to be made, of an image or not; for Fake.Saw alone
)

// fakeImage is what a Fake keeps of a frozen sandbox.
type fakeImage struct {
	sandbox.FrozenImage
	memory string
	owner  string
	limits sandbox.Limits
	inUse  [2]int64
}

// ImageOwners returns whose the frozen images are.
func (f *Fake) ImageOwners() (owners []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range f.images {
		owners = append(owners, i.owner)
	}
	return owners
}

// step calls the hook.
func (f *Fake) step(s Step) error {
	if f.OnStep == nil {
		return nil
	}
	return f.OnStep(s)
}

// saw calls Saw.
func (f *Fake) saw(s Step, id string) {
	if f.Saw != nil {
		f.Saw(s, id)
	}
}

// CanHibernate implements sandbox.Freezer.
func (f *Fake) CanHibernate() error { return f.HibernateErr }

// SealImages implements sandbox.Freezer.
func (f *Fake) SealImages(sandbox.ImageKeys, bool) {}

// Outdated implements sandbox.Freezer.
func (f *Fake) Outdated(sandbox.Sandbox) error { return f.OutdatedErr }

// Replaced implements sandbox.Freezer.
func (f *Fake) Replaced(b sandbox.Sandbox) error { return f.Outdated(b) }

// Freeze implements sandbox.Freezer.
func (f *Fake) Freeze(ctx context.Context, sb sandbox.Sandbox, owner string, _ int64) (sandbox.FrozenImage, error) {
	b := sb.(*FakeBox)
	f.saw(StepFreeze, b.Spec().ID)
	if err := cmp.Or(f.step(StepFreeze), ctx.Err()); err != nil {
		return sandbox.FrozenImage{}, err
	}
	if !b.alive() {
		return sandbox.FrozenImage{}, sandbox.ErrGone
	}
	b.mu.Lock()
	b.frozen = true
	b.cut()
	i := &fakeImage{sandbox.FrozenImage{Name: secret.ID(), Bytes: f.ImageBytes, Made: time.Now(), Unkept: f.Unkept}, b.memory,
		owner, b.spec.Limits, b.inUse}
	b.mu.Unlock()
	f.mu.Lock()
	if f.images == nil {
		f.images = map[string]*fakeImage{}
	}
	f.images[i.Name] = i
	f.mu.Unlock()
	return i.FrozenImage, f.step(StepFrozen)
}

// Thaw implements sandbox.Freezer.
func (f *Fake) Thaw(ctx context.Context, sb sandbox.Sandbox) error {
	b := sb.(*FakeBox)
	if err := ctx.Err(); err != nil {
		return err
	}
	if !b.isFrozen() {
		return nil
	}
	if err := f.step(StepThaw); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frozen = false
	return nil
}

// CanWake implements sandbox.Freezer.
func (f *Fake) CanWake(_ context.Context, _ sandbox.Spec, image string) error {
	if err := f.step(StepAsk); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.images[image] == nil {
		return errors.New("its image is gone")
	}
	return nil
}

// FrozenNeeds implements sandbox.Freezer.
func (f *Fake) FrozenNeeds(_ context.Context, image string) (sandbox.Limits, int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.images[image]
	if i == nil {
		return sandbox.Limits{}, 0, errors.New("its image is gone")
	}
	return i.limits, i.inUse[0], nil
}

// Wake implements sandbox.Freezer.
func (f *Fake) Wake(ctx context.Context, spec sandbox.Spec, image string) (sandbox.Sandbox, error) {
	f.saw(StepCreate, spec.ID)
	if err := f.step(StepWake); err != nil {
		return nil, err
	}
	f.mu.Lock()
	i := f.images[image]
	f.mu.Unlock()
	if i == nil {
		return nil, errors.New("its image is gone")
	}
	spec.Limits = i.limits
	made, err := f.create(ctx, spec)
	if err != nil {
		return nil, err
	}
	b := made.(*FakeBox)
	b.mu.Lock()
	b.memory, b.inUse, b.starting = i.memory, i.inUse, true
	b.mu.Unlock()
	if err := f.step(StepWaking); err != nil {
		return nil, errors.Join(err, b.Stop(ctx))
	}
	b.mu.Lock()
	b.starting = false
	b.mu.Unlock()
	return b, f.step(StepWoken)
}

// PackFrozen implements sandbox.Freezer.
func (f *Fake) PackFrozen(_ context.Context, name string) error {
	if err := f.step(StepPack); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := f.images[name]; i != nil {
		i.Packed, i.Bytes = true, i.Bytes/4
	}
	return nil
}

// CopyFrozen implements sandbox.Freezer.
func (f *Fake) CopyFrozen(_ context.Context, image string) (sandbox.FrozenImage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.images[image]
	if i == nil {
		return sandbox.FrozenImage{}, errors.New("its image is gone")
	}
	copied := *i
	copied.Name = sandbox.CopyPrefix + secret.ID()
	f.images[copied.Name] = &copied
	return copied.FrozenImage, nil
}

// FrozenImages implements sandbox.Freezer.
func (f *Fake) FrozenImages(context.Context) ([]sandbox.FrozenImage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []sandbox.FrozenImage
	for _, i := range f.images {
		all = append(all, i.FrozenImage)
	}
	slices.SortFunc(all, func(x, y sandbox.FrozenImage) int {
		if c := x.Made.Compare(y.Made); c != 0 {
			return c
		}
		return strings.Compare(x.Name, y.Name)
	})
	return all, nil
}

// RemoveFrozen implements sandbox.Freezer.
func (f *Fake) RemoveFrozen(_ context.Context, name string) error {
	f.saw(StepRemove, name)
	if err := f.step(StepRemove); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.images, name)
	return nil
}

// KillServer ends the connections of the server, as when it is killed. The next one recovers the sandboxes.
func (f *Fake) KillServer() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, b := range f.boxes {
		if !b.alive() {
			continue
		}
		b.mu.Lock()
		f.boxes[id] = &FakeBox{fake: f, silent: b.silent, wrongSecret: b.wrongSecret, spec: b.spec, memory: b.memory,
			inUse: b.inUse, frozen: b.frozen, starting: b.starting, exited: make(chan struct{}), linked: make(chan struct{}, 1)}
		b.mu.Unlock()
		b.Kill("its server was killed")
	}
}

// SetMemory sets what the sandbox has in its memory, and Memory returns it.
func (b *FakeBox) SetMemory(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.memory = text
}

// Memory returns what SetMemory has set, in this sandbox or in the one that was frozen.
func (b *FakeBox) Memory() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.memory
}

func (b *FakeBox) isFrozen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.frozen
}
