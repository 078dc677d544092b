// Package sandbox is the contract of a runtime. A runtime gives a sandbox two
// things only: life, and a byte stream to the agent inside. Everything else is
// done over that stream, once for all runtimes.
//
// Package sandboxtest holds the suite that every runtime passes, and a fake
// that can fail in every way.
package sandbox

import (
	"context"
	"errors"
	"net"
	"time"

	"sandlot/internal/image"
)

// Errors that a runtime returns, wrapped with what happened.
var (
	// ErrGone is returned by calls on a sandbox that no longer lives.
	ErrGone = errors.New("sandbox is gone")
	// ErrUnavailable is returned when the runtime itself does not work here.
	ErrUnavailable = errors.New("runtime unavailable")
)

// Limits bound a sandbox. Zero means the runtime's own default.
type Limits struct {
	CPUs        float64
	MemoryBytes int64
	Processes   int64 // threads included
	DiskBytes   int64 // of the root file system, and of each writable mount of its own
}

// Mount is a folder of the host that the sandbox sees.
type Mount struct {
	Source   string // an existing folder, without symbolic links
	Target   string // an absolute, clean path in the sandbox
	ReadOnly bool
	// Shared: other sandboxes see it too, and its files count for none of them.
	Shared bool
}

// Spec is what a sandbox is created from.
type Spec struct {
	// ID is unguessable, 1 to 64 characters of [a-z0-9-], and not used again, but
	// for what did not get ready and was stopped.
	ID       string
	Template *image.Template
	Limits   Limits
	Mounts   []Mount
	// Orphan is how long it lives without a server, until its agent ends it with
	// all that runs in it; 0 is for ever.
	Orphan time.Duration
	// Secret proves the agent: wire.SecretLen bytes. A runtime stores it, with
	// mode 0600, so that Recover can return it.
	Secret []byte
}

// Life is where a sandbox is in its life.
type Life string

const (
	Running Life = "running"
	Dead    Life = "dead"
)

// Status is what a runtime knows of a sandbox from outside.
type Status struct {
	Life Life
	// Reason says why it is dead, as far as that can be told:
	// "memory", "disk", "volume" (it went on writing into a shared folder that is
	// full), "killed", "exited", or empty.
	Reason      string
	MemoryBytes int64         // now, all that it costs the host
	CPU         time.Duration // used so far
}

// Runtime makes sandboxes. Its methods may be called from many goroutines.
type Runtime interface {
	// Name is the word in the settings: "gvisor".
	Name() string
	// Check says whether sandboxes can be made here, in an error that tells the
	// operator what to do. It changes nothing and is quick.
	Check(ctx context.Context) error
	// Create makes and starts a sandbox. When it fails, nothing is left.
	// The sandbox outlives ctx, and the server.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	// Left returns the ids of this instance's sandboxes that an earlier server
	// left, alive or dead. It is quick whatever their number, and is called
	// before the first Create.
	Left(ctx context.Context) ([]string, error)
	// Recover takes over one of those. With ErrGone it was dead, or unfit, and
	// its remains are removed; with any other error nothing has changed.
	Recover(ctx context.Context, id string) (Sandbox, error)
	// Close releases what the runtime holds in this process. Sandboxes live on.
	Close() error
}

// Sandbox is one living sandbox.
type Sandbox interface {
	// Spec is what it was created from; Template holds the name alone after
	// Recover.
	Spec() Spec
	// Connect waits for the agent to dial and returns that connection. Nobody
	// has proved anything on it yet. The agent makes one for its link, and one
	// for each connection to the network, so it is called again and again, while
	// others are open; it returns ErrGone once the sandbox is dead. At most one
	// call at a time.
	Connect(ctx context.Context) (net.Conn, error)
	// Status looks at it from outside; it never asks the agent.
	Status(ctx context.Context) (Status, error)
	// Stop kills it and removes all that it left: processes, mounts, cgroups,
	// sockets, folders. Mounted sources stay. Calling it again is fine.
	Stop(ctx context.Context) error
}

// Resizer is a Sandbox whose limits can change while it runs.
type Resizer interface {
	Resize(ctx context.Context, l Limits) error
}

// Prebooter is a Runtime that can start sandboxes from a preboot image: the
// checkpoint of one that has booted, which is quicker to restore than it is to boot.
// An image serves all sandboxes of one kind: those that differ in nothing but their
// ids, secrets and the sources of their mounts.
type Prebooter interface {
	// CanPreboot returns nil where the runtime does that, and else why not here, or not
	// with its settings, in words that end a sentence.
	CanPreboot() error
	// HasImage says whether Create starts sandboxes like spec from an image. When that
	// fails, Create boots them, and the image is gone.
	HasImage(spec Spec) bool
	// Prebooted says whether b was started from an image: its agent is configured, and
	// its warm interpreters have started.
	Prebooted(b Sandbox) bool
	// MakeImage makes the image of b's kind. The agent of b is linked and has done
	// nothing for anybody. MakeImage ends b, which has to be stopped all the same.
	MakeImage(ctx context.Context, b Sandbox) error
	// DropImage removes the image for spec, from which sandboxes do not start well.
	DropImage(spec Spec)
}

// Warner is a Runtime that may work here and yet hold less than it should.
type Warner interface {
	// Warning says what does not hold here, and what the operator can do; it is
	// empty when there is nothing to say. It does not change.
	Warning() string
}

// Lister is a Runtime that can say which of this instance's sandboxes live.
type Lister interface {
	List() []Sandbox
}

// Sealer is a Runtime that can change how sandboxes that run see a folder.
type Sealer interface {
	// Seal makes the sandboxes' writable mounts of a folder read-only, or writable
	// again, and returns in how many that could not be done, or not yet.
	Seal(ctx context.Context, source string, readOnly bool) (left int)
}
