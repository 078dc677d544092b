// Package sandbox is the contract of a runtime. A runtime does only two things: it starts and
// stops sandboxes, and it gives the server byte streams to the agent in a sandbox.
// Everything else goes over these streams, in the same way for all runtimes.
//
// Package sandboxtest has the tests that every runtime must pass, and a fake runtime.
package sandbox

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"strings"
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
	// ErrNoImage is returned by an Imager for an image that is not there.
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
	// Volume is the name of a volume that the runtime has; see VolumeKeeper.
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
	// Build: the sandbox can write everywhere in its root file system, for Imager.Save.
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
	// Close releases the runtime's resources in this process. Sandboxes live on.
	Close() error
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

// Prebooter is a Runtime that can start sandboxes from a preboot image: the
// checkpoint of one that has booted, which is quicker to restore than it is to boot.
// An image serves all sandboxes of one kind: those that differ in nothing but their
// ids, secrets and the sources of their mounts.
type Prebooter interface {
	// CanPreboot returns nil if the runtime can use images. The error says why not, on this
	// machine or with its settings, in words that can end a sentence.
	CanPreboot() error
	// HasImage says whether Create will start a sandbox of this spec from an image. When
	// that fails, Create removes the image and boots the sandbox.
	HasImage(spec Spec) bool
	// Prebooted says whether b was started from an image: its agent is configured, and
	// its warm interpreters have started.
	Prebooted(b Sandbox) bool
	// MakeImage makes the image of b's kind. The agent of b must be linked, and b not used
	// by any session. MakeImage ends b; the caller must still stop it.
	MakeImage(ctx context.Context, b Sandbox) error
	// DropImage removes the image for spec, after a sandbox did not start from it.
	DropImage(spec Spec)
}

// Hibernator is a Runtime that can write a sandbox to the disk, with its processes and their memory, and make a sandbox
// of that which goes on where it was. What it writes is a frozen image. The mounts are not in it.
type Hibernator interface {
	// CanHibernate returns nil if the runtime can do so. The error says why not, on this machine or with its settings,
	// in words that can end a sentence.
	CanHibernate() error
	// Freeze stops everything in b and writes its image, of at most about maxBytes. Beside it the runtime may keep what
	// all images share, of which it bounds the part of each owner. When it returns, the image is on
	// the disk, also after a crash of the machine, and b stands still until Thaw or Stop. Nobody uses b's connections
	// meanwhile. After an error no image is left, and b stands still or lives on.
	Freeze(ctx context.Context, b Sandbox, owner string, maxBytes int64) (FrozenImage, error)
	// Thaw lets b go on if it stands still, after Freeze of this server or of an earlier one. Images stay. After an error
	// that is ErrLater it can be tried again.
	Thaw(ctx context.Context, b Sandbox) error
	// Wake makes a sandbox of an image, packed or not. After an error that is ErrLater the image can be used again. The
	// spec has a new ID and Secret; Template and Mounts are those of the frozen sandbox, whose limits it gets. An error
	// that is ErrRemains is that of Create. The image stays: whoever has used the sandbox removes it, since its random
	// numbers would be the same in another one.
	Wake(ctx context.Context, spec Spec, image string) (Sandbox, error)
	// CanWake returns an error if Wake would fail with that image for what has changed since it was made. It makes
	// nothing, and is quick. The spec needs no ID and no Secret.
	CanWake(ctx context.Context, spec Spec, image string) error
	// FrozenNeeds returns the limits of the sandbox of which an image was made, and about how many bytes of memory and of
	// files outside its mounts it had; 0: that is not known. It is quick.
	FrozenNeeds(ctx context.Context, image string) (has Limits, inUse int64, err error)
	// PackFrozen makes an image smaller that is not used soon, until ctx ends, or somebody calls Wake or RemoveFrozen,
	// which then wait a moment. After an error the image is as before.
	PackFrozen(ctx context.Context, name string) error
	// CopyFrozen makes an image with the content of another one, whose name begins with CopyPrefix. Both can be removed
	// by themselves. A sandbox of a copy may have its workspace in another folder than the frozen sandbox.
	CopyFrozen(ctx context.Context, image string) (FrozenImage, error)
	// FrozenImages lists the images, the oldest first.
	FrozenImages(ctx context.Context) ([]FrozenImage, error)
	// RemoveFrozen removes the image of that name, if there is one.
	RemoveFrozen(ctx context.Context, name string) error
}

// ImageSealer is a Hibernator that can seal its frozen images, as they hold what users had in memory.
type ImageSealer interface {
	// SealImages gives it the keys that open sealed images. With seal, new images are sealed. It is called before the
	// Hibernator is used. All images can be woken, sealed or not.
	SealImages(keys ImageKeys, seal bool)
}

// ImageKeys seals the keys of frozen images: each image has a random one.
type ImageKeys interface {
	// SealImageKey seals the key of an image. It opens for the same image and the same context alone.
	SealImageKey(image, context string, key []byte) ([]byte, error)
	// OpenImageKey returns a key that SealImageKey has sealed. Lost: no later try opens it.
	OpenImageKey(image, context string, sealed []byte) (key []byte, lost bool, err error)
}

// CopyPrefix begins the names of images that are copies of others.
const CopyPrefix = "copy-"

// IsCopy reports whether the image of that name is a copy of another one: there may be sandboxes with the same memory,
// so that a sandbox of it needs new random numbers.
func IsCopy(image string) bool { return strings.HasPrefix(image, CopyPrefix) }

// FrozenImage is what a Hibernator has written of one sandbox.
type FrozenImage struct {
	Name  string // of 1 to 64 characters of [a-z0-9-]
	Bytes int64  // on the disk
	Made  time.Time
	// Packed: PackFrozen was there.
	Packed bool
	// Unkept are files of the machine that the programs have open, by their paths in the sandbox, and of which there is
	// no copy: no sandbox can be made of the image when the machine has replaced one.
	Unkept []string
}

// Reviser is a Runtime whose sandboxes have files of the machine open, which may be replaced under them.
type Reviser interface {
	// Outdated returns an error if b has files open that are not those of a sandbox that is made now. It is ErrReplaced if
	// b seems to be one that cannot be frozen for that reason.
	Outdated(b Sandbox) error
	// Replaced returns an error if a file that the last call of Outdated has seen was replaced since, and is quick.
	// Without such a call it is Outdated.
	Replaced(b Sandbox) error
}

// Rooter is a Runtime in whose sandboxes root may be able to give files to other users and to become them. In those of any
// other Runtime it cannot.
type Rooter interface {
	// RootIsCapable reports whether root can in the sandboxes of a template.
	RootIsCapable(t *image.Template) bool
}

// UserRunner is a Runtime that may not be able to run programs as another user than root. Any other
// Runtime can.
type UserRunner interface {
	// CanRunAs returns nil if programs can run as any user of a template. The error says why not,
	// in words that can end a sentence; templates then have root as their user.
	CanRunAs() error
}

// UserMapper is a Runtime whose sandboxes' users may have other ids on the host.
type UserMapper interface {
	// HostUser returns the ids on the host of a user of sandboxes. A workspace belongs to these.
	HostUser(ctx context.Context, u image.User) (uid, gid int, err error)
}

// Warner is a Runtime that may work on this machine without enforcing all limits.
type Warner interface {
	// Warning says which limits are not enforced on this machine, and what the operator can
	// do. It is empty if all are. It does not change.
	Warning() string
}

// Searcher is a Runtime that looks for what makes its sandboxes, where no settings name that.
type Searcher interface {
	// Searched returns the address of what makes the sandboxes, empty if settings name it, and each that was looked
	// for and found, with why it cannot be used.
	Searched(ctx context.Context) (chosen string, tried []string)
}

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

// Chooser is a Runtime that has to find out, by a trial, how it makes sandboxes on this machine.
type Chooser interface {
	// Choose finds out, before the first sandbox is created. Its error says why what the settings want does not work.
	Choose(ctx context.Context) error
	// TryAll tries all ways.
	TryAll(ctx context.Context) []Trial
}

// Trial is what the trial of one way to make sandboxes has found out, such as a platform of gVisor.
type Trial struct {
	Platform string
	Err      error         // why it does not work
	Start    time.Duration // until the sandbox's first program ran
	Call     time.Duration // of one system call
	Process  time.Duration // of the start and end of one process
}

// Sealer is a Runtime that can make a folder read-only for sandboxes that run.
type Sealer interface {
	// Seal makes the sandboxes' writable mounts of a folder read-only, or writable again, and
	// returns for how many sandboxes that has not been possible so far.
	Seal(ctx context.Context, source string, readOnly bool) (failed int)
}

// VolumeKeeper is a Runtime that may be unable to give sandboxes folders of the server's machine, such as one whose
// sandboxes are on another machine. It then has volumes for their workspaces, by names of 1 to 64 characters of
// [a-z0-9-].
type VolumeKeeper interface {
	// KeepsVolumes reports whether sandboxes have volumes in place of folders.
	KeepsVolumes(ctx context.Context) (bool, error)
	// KeeperID returns where the volumes are: an address, and what tells whoever is there from others, whatever the
	// address is.
	KeeperID(ctx context.Context) (address, id string, err error)
	// MakeVolume makes a volume, which belongs to a user and a group, unless there is one of that name. It fails if
	// that belongs to others.
	MakeVolume(ctx context.Context, name string, uid, gid int) error
	// HasVolume reports whether there is a volume that MakeVolume has made.
	HasVolume(ctx context.Context, name string) (bool, error)
	// VolumeEmpty reports whether a volume has nothing but files and folders whose paths and types are expected, or
	// does not exist.
	// If that is not certain, such as with a volume without any of them, it may say that there is more.
	VolumeEmpty(ctx context.Context, name string, isExpected func(path string, kind fs.FileMode) bool) (bool, error)
	// RemoveVolume removes a volume that no sandbox has, if there is one.
	RemoveVolume(ctx context.Context, name string) error
	// Volumes returns the names of all volumes that MakeVolume has made.
	Volumes(ctx context.Context) ([]string, error)
}

// VolumeMeter is a VolumeKeeper that knows how large its volumes are.
type VolumeMeter interface {
	// VolumeBytes returns how many bytes the files of a volume have on the disk, and when that was measured, which may
	// be some seconds ago; 0: it does not exist.
	VolumeBytes(ctx context.Context, name string) (bytes int64, at time.Time, err error)
}

// Image is an image of which a runtime makes sandboxes.
type Image struct {
	ID string // what the runtime calls it, by its content: it never comes to mean another image
	// Rootfs is the path of a file with the root file system, of a runtime that needs one.
	Rootfs  string
	User    string // as the image has it: a name or an id, perhaps with a group; empty: root
	Workdir string
	Env     []string
}

// Imager is a Runtime that makes sandboxes of images.
type Imager interface {
	// Image returns the image of that reference, to be used. If there is none, it gets it from a
	// registry. An ID is only looked up. Progress gets what is being done, in words.
	Image(ctx context.Context, ref string, progress func(string)) (Image, error)
	// Find returns the image of that name or ID if it is there, or else ErrNoImage. It asks no
	// registry. What Save of another instance has made is not there.
	Find(ctx context.Context, ref string) (Image, error)
	// Save makes a new image of what b has written outside its mounts, on top of its template's
	// image, and gives it a name. The sandbox goes on.
	Save(ctx context.Context, b Sandbox, name string) (Image, error)
	// RemoveSaved removes the images that Save has made, but not those of which keep says so, and
	// those that must stay for sandboxes. The name is the one that Save gave it; it may have lost it.
	RemoveSaved(ctx context.Context, keep func(name, id string) bool) error
}
