// Package tree measures and removes folders that hostile code has written, and may change at
// the same time, and changes their owners. It opens each folder by its name in the descriptor of its parent and
// follows no link, so no path is longer than one name. On Linux, the time is linear in the number of
// files; descriptors and memory are bounded, whatever the depth and width. Elsewhere a walk goes through os.Root: it
// has as few descriptors, keeps the names of folders that it has not entered, and finds a deep folder again from
// the top.
package tree

import "errors"

// Size is the size of a folder.
type Size struct {
	Bytes   int64 // of its files, on the disk; a file with several names counts once for each
	Entries int64 // files and folders
}

// Limits are the limits at which Measure stops with an error.
type Limits struct {
	Entries int64
	Depth   int // of nested folders
	// Foreign: the folder was not made by the server, so Measure changes no modes in it. It
	// skips a folder that cannot be read, unless a sandbox can have changed its mode, or
	// can write into it: then Measure returns ErrUnreadable.
	Foreign bool
}

// Errors of Measure.
var (
	ErrEntries = errors.New("the folder has too many files")
	ErrDepth   = errors.New("the folder is too deep")
	// ErrMoved means that in each attempt a deep folder was moved while it was measured.
	ErrMoved = errors.New("the folder changes faster than it can be measured")
	// ErrUnreadable means that this user cannot read a folder in it, into which sandboxes may
	// have written anything.
	ErrUnreadable = errors.New("the folder has one in it that cannot be read")
)

const (
	// maxOpenLevels is how many levels of folders are open at once. A walk returns to a folder above
	// them that was closed by "..".
	maxOpenLevels = 48
	// maxAttempts is how often a folder is measured before ErrMoved is returned.
	maxAttempts = 4
	// maxOwnedDepth is how deep the folders may be nested for SetOwner.
	maxOwnedDepth = 1 << 20
	// maxOpenStages is how many levels of folders Remove has open at once. It moves deeper folders to
	// the top folder, and removes them there.
	maxOpenStages = 48
)
