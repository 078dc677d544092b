package sandbox

import (
	"context"
	"io"
	"io/fs"
	"strings"
	"time"

	"sandlot/internal/image"
)

// Users is what users in sandboxes can do, and who they are on the host.
type Users interface {
	// CanRunAs returns nil if programs can run as any user of a template. The error says why not,
	// in words that can end a sentence; templates then have root as their user.
	CanRunAs() error
	// HostUser returns the ids on the host of a user of sandboxes. A workspace belongs to these.
	HostUser(ctx context.Context, u image.User) (uid, gid int, err error)
	// RootIsCapable reports whether root can give files to other users and become them, in the sandboxes of a template.
	RootIsCapable(t *image.Template) bool
}

// Storage is of a runtime that may be unable to give sandboxes folders of the server's machine, such as one whose
// sandboxes are on another machine. It then has volumes for their workspaces, by names of 1 to 64 characters of
// [a-z0-9-].
type Storage interface {
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
	// VolumeBytes returns how many bytes the files of a volume have on the disk, and when that was measured, which may
	// be some seconds ago; 0: it does not exist.
	VolumeBytes(ctx context.Context, name string) (bytes int64, at time.Time, err error)
}

// Image is an image from which a runtime makes sandboxes.
type Image struct {
	ID string // what the runtime calls it, by its content: it never comes to mean another image
	// Rootfs is the path of a file with the root file system, of a runtime that needs one.
	Rootfs  string
	User    string // as the image has it: a name or an id, perhaps with a group; empty: root
	Workdir string
	Env     []string
}

// Images has the images from which a runtime makes sandboxes.
type Images interface {
	// Image returns the image of that reference, to be used. If there is none, it gets it from a
	// registry. An ID is only looked up. Progress, which may be nil, gets how far that is.
	Image(ctx context.Context, ref string, progress func(Progress)) (Image, error)
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

// Progress is how far the getting of an image is.
type Progress struct {
	Step        string // what is being done, in words
	Done, Total int64  // bytes, of all layers of which the size is known; Total is 0 before that
}

// Files reaches the files of sandboxes that run from outside.
type Files interface {
	// Seal makes the sandboxes' writable mounts of a folder read-only, or writable again, and
	// returns for how many sandboxes that has not been possible so far.
	Seal(ctx context.Context, source string, readOnly bool) (failed int)
	// Export writes what b has written outside its mounts, as a layer of an image: a tar archive with
	// whiteouts. A runtime without Images has images of the server's store, in which such layers are saved.
	Export(ctx context.Context, b Sandbox, w io.Writer) error
}

// Preboot starts sandboxes from a preboot image: the checkpoint of one that has booted, which is quicker to restore than
// it is to boot. An image serves all sandboxes of one kind: those that differ in nothing but their ids, secrets and the
// sources of their mounts.
type Preboot interface {
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

// Freezer writes a sandbox to the disk, with its processes and their memory, and makes a sandbox of that which goes on
// where it was. What it writes is a frozen image. The mounts are not in it.
type Freezer interface {
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
	// spec has a new ID and Secret; Template and Mounts come from the frozen sandbox, whose limits it gets. An error
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
	// SealImages gives it the keys that open sealed images, as images hold what users had in memory. With seal, new
	// images are sealed. It is called before all else. All images can be woken, sealed or not.
	SealImages(keys ImageKeys, seal bool)
	// Outdated returns an error if b has files of the machine open that are not those of a sandbox that is made now. It
	// is ErrReplaced if b seems to be one that cannot be frozen for that reason.
	Outdated(b Sandbox) error
	// Replaced returns an error if a file that the last call of Outdated has seen was replaced since, and is quick.
	// Without such a call it is Outdated.
	Replaced(b Sandbox) error
}

// FrozenImage is what a Freezer has written of one sandbox.
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

// CopyPrefix begins the names of images that are copies of others.
const CopyPrefix = "copy-"

// IsCopy reports whether the image of that name is a copy of another one: there may be sandboxes with the same memory,
// so that a sandbox of it needs new random numbers.
func IsCopy(image string) bool { return strings.HasPrefix(image, CopyPrefix) }

// ImageKeys seals the keys of frozen images: each image has a random one.
type ImageKeys interface {
	// SealImageKey seals the key of an image. It opens for the same image and the same context alone.
	SealImageKey(image, context string, key []byte) ([]byte, error)
	// OpenImageKey returns a key that SealImageKey has sealed. Lost: no later try opens it.
	OpenImageKey(image, context string, sealed []byte) (key []byte, lost bool, err error)
}

// Doctor finds out how a runtime works on this machine.
type Doctor interface {
	// Warning says which limits are not enforced on this machine, and what the operator can
	// do. It is empty if all are. It does not change.
	Warning() string
	// Searched returns the address of what makes the sandboxes, empty if settings name it, and each that was looked
	// for and found, with why it cannot be used.
	Searched(ctx context.Context) (chosen string, tried []string)
	// Choose finds out, by a trial, how sandboxes are made here, before the first one is created. Its error says why what
	// the settings want does not work.
	Choose(ctx context.Context) error
	// TryAll tries all ways; nil: there is one.
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
