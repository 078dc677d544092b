// Package sandbox is the contract of a runtime. A runtime does only two things: it starts and
// stops sandboxes, and it gives the server byte streams to the agent in a sandbox.
// Everything else goes over these streams, in the same way for all runtimes.
//
// Package sandboxtest has the tests that every runtime must pass, and a fake runtime.
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
	// ErrNotStarted is returned by Recover beside ErrGone for a sandbox in which nothing has run yet.
	ErrNotStarted = errors.New("it had not finished starting")
	// ErrLater is returned when nothing was done, which may work later.
	ErrLater = errors.New("it cannot be done now")
	// ErrReplaced is returned when a sandbox cannot be written to the disk since its programs have files of the machine
	// open that others have replaced. It can again when these programs have ended.
	ErrReplaced = errors.New("its programs have files of the machine open that were replaced")
	// ErrNoProcess is returned when the machine has no room for one more process: of its limit, or its memory.
	ErrNoProcess = errors.New("the machine has no room for more processes at the moment")
	// ErrNoImage is returned by Images for an image that is not there.
	ErrNoImage = errors.New("there is no such image")
	// ErrRemains is returned beside other errors when what is left of a sandbox could not be removed: it has to be
	// recovered and stopped. Without ErrGone it may live.
	ErrRemains = errors.New("not all of the sandbox could be removed")
)

// Explained is an error with words for users, which can end a sentence: they name no file of the server's machine.
type Explained struct {
	Words string
	// Limit: a limit of the server was reached.
	Limit bool
	Cause error // for the operator; it may be nil
}

// Explain returns an error with words for users.
func Explain(words string, cause error) error { return &Explained{Words: words, Cause: cause} }

func (e *Explained) Error() string {
	if e.Cause == nil {
		return e.Words
	}
	return e.Words + ": " + e.Cause.Error()
}

func (e *Explained) Unwrap() error { return e.Cause }

// Adviser is the error of a Runtime that does not work here, beside ErrUnavailable, that says what to tell users: what
// to do about it, without the names of hosts and files.
type Adviser interface {
	error
	Advice() string
}

// Advice returns what to tell users of a runtime that does not work.
func Advice(err error) string {
	if a, ok := errors.AsType[Adviser](err); ok {
		return a.Advice()
	}
	return "the runtime does not work on this machine; run `sandlot doctor` there"
}

// Removed reports whether an error of Recover means that nothing is left of the sandbox.
func Removed(err error) bool { return errors.Is(err, ErrGone) && !errors.Is(err, ErrRemains) }

// Limits bound a sandbox. Zero means the runtime's own default.
type Limits struct {
	CPUs        float64
	MemoryBytes int64
	Processes   int64 // threads included
	DiskBytes   int64 // of the root file system, and of each writable mount that is not shared
}

// Mount is a folder of the host, or a volume, that the sandbox sees.
type Mount struct {
	Source string // an existing folder, without symbolic links; empty with a Volume
	// Volume is the name of a volume that the runtime has; see Storage.
	Volume   string `json:",omitempty"`
	Target   string // an absolute, clean path in the sandbox
	ReadOnly bool
	// Shared: other sandboxes have the folder mounted too. Its files do not count against
	// DiskBytes.
	Shared bool
}

// Spec is what a sandbox is created from.
type Spec struct {
	// ID cannot be guessed, and has 1 to 64 characters of [a-z0-9-]. It is not reused,
	// except to boot again after a sandbox that did not get ready and was stopped.
	ID       string
	Template *image.Template
	Limits   Limits
	Mounts   []Mount
	// OrphanTimeout is how long the sandbox lives without a server, until its agent ends it;
	// 0: for ever.
	OrphanTimeout time.Duration
	// Build: the sandbox can write everywhere in its root file system, for Images.Save.
	Build bool
	// Secret authenticates the agent to the server. It has wire.SecretLen bytes. A runtime
	// stores it with mode 0600, so that the Spec has it after Recover.
	Secret []byte
}

// State is whether a sandbox runs.
type State string

const (
	Running State = "running"
	Dead    State = "dead"
)

// Status is what a runtime knows of a sandbox from outside.
type Status struct {
	State State
	// Reason says why a sandbox is dead, as far as the runtime knows: "memory" or "disk" (it
	// was over that limit), "volume" (it went on writing into a shared folder that is
	// full), "killed", "exited", or empty.
	Reason      string
	MemoryBytes int64         // what it uses of the host's memory now
	CPU         time.Duration // processor time used so far
}

// Runtime makes sandboxes. Its methods may be called from many goroutines.
type Runtime interface {
	// Name is the word in the settings: "gvisor".
	Name() string
	// Check returns nil if sandboxes can be made on this machine, or else an error that
	// tells the operator what to do. It is quick and changes nothing.
	Check(ctx context.Context) error
	// Create makes and starts a sandbox. When it fails, nothing of it is left, unless the error
	// is ErrRemains. The sandbox goes on when ctx ends, and when the server does.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	// Leftovers returns the ids of the sandboxes of an earlier server of this instance, alive
	// or dead. It is called before the first Create, and is quick even with many of them.
	Leftovers(ctx context.Context) ([]string, error)
	// Recover takes over one of these sandboxes. If it is dead, or cannot be used, Recover
	// removes what is left of it and returns ErrGone; if that cannot be removed, the error is
	// ErrRemains too. After an error without ErrGone it may live. After both the caller may try
	// again. A sandbox that this Runtime has already is returned as it is.
	Recover(ctx context.Context, id string) (Sandbox, error)
	// List returns the sandboxes that this Runtime has created or recovered, and that were not stopped.
	List() []Sandbox
	// Capabilities returns what else the runtime can do. It is always the same, and quick.
	Capabilities() Capabilities
	// Close releases the runtime's resources in this process. Sandboxes live on.
	Close() error
}

// Capabilities are what a runtime can do beyond Runtime, in groups. A runtime has a whole group, or nil. A runtime that
// wraps another one passes its groups on.
//
// There were eighteen optional interfaces before, asserted in 29 places: nobody could read what a runtime has
// to do, and a runtime that wrapped another one lost what it did not know of. The cut is where the runtimes
// differ. Nothing asserts the type of a runtime or a sandbox any more (TestCapabilitiesAreAsked); what a
// single sandbox may be unable to do is a method of Sandbox that returns errors.ErrUnsupported.
type Capabilities struct {
	Users   Users   // nil: programs run as any user, with the same ids on the host
	Storage Storage // nil: sandboxes see the folders of the server's machine
	Images  Images  // nil: sandboxes are made of images if there are Files
	Files   Files
	Preboot Preboot // nil: each sandbox boots
	Freezer Freezer // nil: no sandbox can sleep
	Doctor  Doctor  // nil: it works everywhere in the same way
	// ImagesOnly: sandboxes are made of Images alone, and not of the machine's own programs and folders.
	ImagesOnly bool
}

// Sandbox is one living sandbox.
type Sandbox interface {
	// Spec returns what the sandbox was created from. After Recover, its Template has only
	// the name.
	Spec() Spec
	// Connect waits until the agent dials, and returns that connection, which is not
	// authenticated yet. The agent makes one connection for its link, and one for each of
	// its connections to the network, so Connect is called again while earlier connections
	// are open, but never twice at a time. It returns ErrGone once the sandbox is dead.
	Connect(ctx context.Context) (net.Conn, error)
	// Admitted is called when a connection that Connect has returned has said the agent's secret.
	Admitted() error
	// Status returns what the host knows of the sandbox. It does not ask the agent.
	Status(ctx context.Context) (Status, error)
	// Resize changes the limits while the sandbox runs. It returns errors.ErrUnsupported where they cannot change.
	Resize(ctx context.Context, l Limits) error
	// ChangeTools calls change with the path of a folder of the host that the sandbox sees, read-only, at
	// wire.SharedTools. The folder may not exist yet. The sandbox is neither frozen nor removed meanwhile. It returns
	// ErrGone after Stop, and errors.ErrUnsupported where there is no such folder.
	ChangeTools(change func(dir string) error) error
	// Stop kills the sandbox and removes everything that belongs to it: processes, mounts,
	// cgroups, sockets, folders. The sources of its mounts stay. It may be called again.
	Stop(ctx context.Context) error
}
