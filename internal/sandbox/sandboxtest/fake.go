// Package sandboxtest has the tests that every runtime must pass, and a fake runtime that can
// be made to fail in many ways.
package sandboxtest

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/agent/agenttest"
	"sandlot/internal/agent/wire"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// Flavors are sizes of sandboxes, the smallest first.
var Flavors = []image.Flavor{{Name: "small", CPUs: 1, MemoryMB: 1024}, {Name: "medium", CPUs: 2, MemoryMB: 2048},
	{Name: "large", CPUs: 4, MemoryMB: 4096}}

// Fake is a runtime whose sandboxes exist only in memory: their agents answer every call, but
// run no code. It works in a synctest bubble. A test sets its fields before the calls that
// they affect.
type Fake struct {
	Called       string        // its name; empty: "fake"
	BootDelay    time.Duration // how long Create takes
	CreateErr    error         // the error of Check and Create
	LeftoversErr error         // the error of Leftovers
	Silent       bool          // the agents of new sandboxes dial and authenticate, but never answer
	WrongSecret  bool          // the agents of new sandboxes have a wrong secret
	SettingsErr  error         // the answer of agents to their settings
	StopHangs    atomic.Bool   // Stop hangs until its context ends
	StatusHangs  atomic.Bool   // Status hangs until its context ends
	Asked        atomic.Int64  // how often Status was called
	// OnRecover is called by Recover, which returns its error. It may be nil.
	OnRecover func(ctx context.Context, id string) error
	// OnStep is called before each Step. If it returns an error, the step fails. It may be nil.
	OnStep func(Step) error
	// Saw is told of the steps StepCreate, StepFreeze, StepStop and StepRemove, with the id of the sandbox or the name of
	// the image, whether they succeed or not. It may be nil.
	Saw          func(s Step, id string)
	HibernateErr error    // the error of CanHibernate
	OutdatedErr  error    // the error of Outdated
	ImageBytes   int64    // of each image
	Unkept       []string // of each image
	// Dial connects to a port in a sandbox. By default nothing listens on any port.
	Dial func(port uint32) (net.Conn, error)
	// Files answers calls about files; nil: none is known.
	Files agenttest.Files

	mu      sync.Mutex
	boxes   map[string]*FakeBox
	images  map[string]*fakeImage
	created int
}

// Name implements sandbox.Runtime.
func (f *Fake) Name() string { return cmp.Or(f.Called, "fake") }

// Check implements sandbox.Runtime.
func (f *Fake) Check(context.Context) error { return f.CreateErr }

// Create implements sandbox.Runtime.
func (f *Fake) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	f.saw(StepCreate, s.ID)
	return f.create(ctx, s)
}

func (f *Fake) create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	select {
	case <-time.After(f.BootDelay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if f.CreateErr != nil {
		return nil, f.CreateErr
	}
	b := &FakeBox{fake: f, silent: f.Silent, wrongSecret: f.WrongSecret, spec: s, exited: make(chan struct{}),
		linked: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.boxes == nil {
		f.boxes = map[string]*FakeBox{}
	}
	if old := f.boxes[s.ID]; old != nil && old.alive() {
		return nil, errors.New("fake: the id was used before")
	}
	f.boxes[s.ID] = b
	f.created++
	return b, nil
}

// Leftovers implements sandbox.Runtime.
func (f *Fake) Leftovers(context.Context) ([]string, error) {
	var ids []string
	for _, b := range f.List() {
		ids = append(ids, b.Spec().ID)
	}
	return ids, f.LeftoversErr
}

// Recover implements sandbox.Runtime.
func (f *Fake) Recover(ctx context.Context, id string) (sandbox.Sandbox, error) {
	if f.OnRecover != nil {
		if err := f.OnRecover(ctx, id); err != nil {
			return nil, err
		}
	}
	if b := f.Box(id); b != nil && b.alive() {
		b.mu.Lock()
		starting := b.starting
		b.mu.Unlock()
		if !starting {
			return b, nil
		}
		return nil, errors.Join(sandbox.ErrGone, sandbox.ErrNotStarted, b.Stop(ctx))
	}
	return nil, sandbox.ErrGone
}

// List implements sandbox.Runtime.
func (f *Fake) List() []sandbox.Sandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []sandbox.Sandbox
	for id, b := range f.boxes {
		if b.alive() {
			all = append(all, b)
		} else {
			delete(f.boxes, id)
		}
	}
	return all
}

// Capabilities implements sandbox.Runtime. Tests of what else runtimes can do wrap the Fake.
func (f *Fake) Capabilities() sandbox.Capabilities { return sandbox.Capabilities{Freezer: f} }

// Close implements sandbox.Runtime.
func (f *Fake) Close() error { return nil }

// Count returns how many sandboxes were created, and how many of them are running.
func (f *Fake) Count() (created, alive int) {
	alive = len(f.List())
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.created, alive
}

// Box returns the sandbox of that id, or nil.
func (f *Fake) Box(id string) *FakeBox {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.boxes[id]
}

// FakeBox is one sandbox of a Fake.
type FakeBox struct {
	fake                *Fake
	silent, wrongSecret bool
	exited              chan struct{}
	linked              chan struct{} // has a value while the agent has a link

	mu     sync.Mutex
	spec   sandbox.Spec
	reason string
	busy   bool
	idle   time.Time
	links  []net.Conn
	memory string
	inUse  [2]int64 // see SetUsed
	told   [2]int64 // see Told
	frozen bool
	// starting: it is made of an image, and nothing runs in it.
	starting bool
}

// Kill ends the sandbox as if it had died by itself.
func (b *FakeBox) Kill(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.alive() {
		return
	}
	b.reason = reason
	close(b.exited)
	b.cut()
}

// CutLink cuts the link to the agent, which dials again.
func (b *FakeBox) CutLink() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut()
}

func (b *FakeBox) cut() {
	for _, c := range b.links {
		c.Close()
	}
	b.links = nil
}

// Silence makes the agent answer no more. It still dials, and says its secret.
func (b *FakeBox) Silence() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent = true
	b.cut()
}

// RefuseLinks makes the agent dial with a wrong secret: it has no link any more.
func (b *FakeBox) RefuseLinks() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrongSecret = true
	b.cut()
}

// SetBusy makes the agent report that a call runs, or that none does.
func (b *FakeBox) SetBusy(busy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy, b.idle = busy, time.Now()
}

func (b *FakeBox) alive() bool {
	select {
	case <-b.exited:
		return false
	default:
		return true
	}
}

// Spec implements sandbox.Sandbox.
func (b *FakeBox) Spec() sandbox.Spec {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spec
}

// Connect implements sandbox.Sandbox.
func (b *FakeBox) Connect(ctx context.Context) (net.Conn, error) {
	for again := true; again; again = b.isFrozen() {
		select { // the agent's pause between two dials
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-b.exited:
			return nil, sandbox.ErrGone
		}
	}
	select { // it dials again when its link has ended
	case b.linked <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-b.exited:
		return nil, sandbox.ErrGone
	}
	host, guest := net.Pipe()
	b.mu.Lock()
	b.links = append(b.links, host, guest)
	secret, wrong := b.spec.Secret, b.wrongSecret
	b.mu.Unlock()
	if wrong {
		secret = make([]byte, wire.SecretLen)
	}
	go b.serve(guest, secret)
	return host, nil
}

// serve is the agent's side of one link.
func (b *FakeBox) serve(c net.Conn, secret []byte) {
	defer func() { <-b.linked }()
	b.mu.Lock()
	silent := b.silent
	b.mu.Unlock()
	agenttest.Agent{Unresponsive: silent, BootID: b.Spec().ID, SettingsErr: b.fake.SettingsErr, Usage: b.usage,
		Used: b.used, Limited: b.limited, Dial: b.dial, Files: b.fake.Files}.Serve(c, secret)
}

func (b *FakeBox) dial(port uint32) (net.Conn, error) {
	if b.fake.Dial == nil {
		return nil, errors.New("nothing listens")
	}
	return b.fake.Dial(port)
}

func (b *FakeBox) usage() (busy bool, idle time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.idle.IsZero() {
		return b.busy, 365 * 24 * time.Hour
	}
	return b.busy, time.Since(b.idle)
}

// SetUsed sets how many bytes of memory and how many processes are in use, in this sandbox and in those that are made of
// its image.
func (b *FakeBox) SetUsed(memory, processes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inUse = [2]int64{memory, processes}
}

func (b *FakeBox) used() (memory uint64, processes uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return uint64(b.inUse[0]), uint32(b.inUse[1])
}

// Told returns the limits of memory and of processes that the agent was told last; 0: none.
func (b *FakeBox) Told() (memory, processes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.told[0], b.told[1]
}

func (b *FakeBox) limited(memory, processes uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = [2]int64{int64(memory), int64(processes)}
}

// Status implements sandbox.Sandbox.
func (b *FakeBox) Status(ctx context.Context) (sandbox.Status, error) {
	b.fake.Asked.Add(1)
	if b.fake.StatusHangs.Load() {
		<-ctx.Done()
		return sandbox.Status{}, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.alive() {
		return sandbox.Status{State: sandbox.Running}, nil
	}
	return sandbox.Status{State: sandbox.Dead, Reason: b.reason}, nil
}

// Resize implements sandbox.Sandbox.
func (b *FakeBox) Resize(_ context.Context, l sandbox.Limits) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spec.Limits = l
	return nil
}

// Admitted implements sandbox.Sandbox.
func (b *FakeBox) Admitted() error { return nil }

// ChangeTools implements sandbox.Sandbox.
func (b *FakeBox) ChangeTools(func(dir string) error) error { return errors.ErrUnsupported }

// Stop implements sandbox.Sandbox.
func (b *FakeBox) Stop(ctx context.Context) error {
	b.fake.saw(StepStop, b.Spec().ID)
	if b.fake.StopHangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if err := b.fake.step(StepStop); err != nil {
		return err
	}
	b.Kill("stopped")
	b.fake.mu.Lock()
	defer b.fake.mu.Unlock()
	delete(b.fake.boxes, b.spec.ID)
	return nil
}
