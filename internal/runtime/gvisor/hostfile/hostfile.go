// Package hostfile owns what of the host's files a sandbox of gVisor has open, and whether they are still the same.
// It makes mounts of a sandbox read-only.
package hostfile

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandlot/internal/sandbox"
)

// State identifies a file, folder or link of the host in the state that it had when Stat looked at it. The time of its
// last change of status is not part of it: giving the file to somebody, or another name, changes that time alone.
type State struct {
	Path                string `json:"path"`
	Follow              bool   // the fields below are of the target of a link at Path
	Mode                uint32
	Device, Inode, Size uint64
	Modified            int64 // ns since 1970
}

// Stat looks at the file at path, or at the link there unless follow is set.
func Stat(path string, follow bool) (State, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if follow {
		flags = 0
	}
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, path, &st, flags); err != nil {
		return State{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return State{Path: path, Follow: follow, Mode: st.Mode, Device: st.Dev, Inode: st.Ino, Size: uint64(st.Size),
		Modified: st.Mtim.Nano()}, nil
}

// SameAs says whether both are the same file in the same state; their paths may differ.
func (f State) SameAs(g State) bool {
	g.Path, g.Follow = f.Path, f.Follow
	return f == g
}

// CheckUnchanged returns an error if the file at the path is not in the same state any more.
func (f State) CheckUnchanged() error {
	now, err := Stat(f.Path, f.Follow)
	if err == nil && now != f {
		err = fmt.Errorf("%s has changed", f.Path)
	}
	return err
}

// IsFolder says whether it is a folder.
func (f State) IsFolder() bool { return f.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsRegular says whether it is a file, and no folder or link.
func (f State) IsRegular() bool { return f.Mode&unix.S_IFMT == unix.S_IFREG }

// GoferRoot is where the gofer, gVisor's file server of a sandbox, has mounted the sandbox's root file system.
const GoferRoot = "/root"

// Sandbox is a sandbox of gVisor. Root and Mounts belong to its bundle.
type Sandbox struct {
	PID       int
	Root      string // the folder of its root file system
	Image     string // the image that is its root file system; empty: the folder is
	SocketDir string // only it has this folder, and what is beside it, mounted
	Mounts    []specs.Mount
}

// File is a file, folder or link of the host that a sandbox holds open.
type File struct {
	State         // of what is open
	Open   string // the descriptor below /proc
	Target string // its path in the sandbox
	// Replaced: another file is at its path by now, or none.
	Replaced bool
}

// Files returns the host's files that the sandbox holds open: those that its programs
// have mapped or read, and the folders and links on the way to them. The sandbox's socket
// and its writable files are left out.
func (s Sandbox) Files() ([]File, error) {
	open, err := OpenBy(s.PID)
	if err != nil {
		return nil, err
	}
	return s.filesOf(open)
}

func (s Sandbox) filesOf(open []Open) ([]File, error) {
	files := map[string]File{}
	if s.Image != "" {
		f, err := s.imageFile(open)
		if err != nil {
			return nil, err
		}
		files[f.Path] = f
	}
	for _, o := range open {
		if !strings.HasPrefix(o.Target, GoferRoot+"/") || o.Target == s.Image {
			continue
		}
		f, shared, err := s.file(o)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was closed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if before, twice := files[f.Path]; twice && !before.SameAs(f.State) {
			return nil, fmt.Errorf("%w: two that were %s one after the other are open", sandbox.ErrReplaced, f.Target)
		}
		if shared {
			files[f.Path] = f
		}
	}
	if len(files) == 0 {
		return nil, errors.New("the sandbox seems to have none of the host's files")
	}
	return slices.Collect(maps.Values(files)), nil
}

// deleted is what the kernel adds to the path of an open file that has no name any more.
const deleted = " (deleted)"

// file returns what of the host is open, and whether all sandboxes of the kind share it. The error is that the
// descriptor was closed.
func (s Sandbox) file(o Open) (f File, shared bool, err error) {
	f = File{Open: o.Path, Target: strings.TrimPrefix(o.Target, GoferRoot)}
	if f.State, err = Stat(o.Path, true); err != nil {
		return f, false, err
	}
	there := func() (path string) {
		path, shared = s.hostPath(f.Target)
		for _, follow := range []bool{false, true} {
			now, err := Stat(path, follow)
			if err == nil && !now.SameAs(f.State) && throughOverlay(o.Path, f.State, now) {
				f.State.Device, f.State.Inode = now.Device, now.Inode
			}
			if err == nil && now.SameAs(f.State) {
				f.Follow, f.Replaced = follow, false
				return path
			}
		}
		f.Follow, f.Replaced = false, true
		return path
	}
	f.Path = there()
	if name, gone := strings.CutSuffix(f.Target, deleted); gone && f.Replaced {
		f.Target = name
		f.Path = there()
	}
	return f, shared, nil
}

// throughOverlay reports whether a descriptor has a file of the host open through an overlay, which has a device of its
// own, and may put the number of a layer into the highest bits of an inode. A sandbox that woke has such over folders
// that the machine has removed files of: the other files there are the machine's.
func throughOverlay(descriptor string, open, now State) bool {
	const bits = 1<<48 - 1
	if !open.IsRegular() || open.Inode&bits != now.Inode&bits {
		return false
	}
	open.Device, open.Inode = now.Device, now.Inode
	var fs unix.Statfs_t
	return now.SameAs(open) && unix.Statfs(descriptor, &fs) == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC
}

// imageFile returns the image that is the sandbox's root file system, if it is the one that the sandbox has open.
func (s Sandbox) imageFile(open []Open) (File, error) {
	f, err := Stat(s.Image, false)
	if err != nil {
		return File{}, err
	}
	for _, o := range open {
		if o.Target != s.Image {
			continue
		}
		if opened, err := Stat(o.Path, true); err == nil && f.SameAs(opened) {
			return File{State: f, Open: o.Path}, nil
		}
	}
	return File{}, fmt.Errorf("%s is not the image that the sandbox has open", s.Image)
}

// hostPath returns the host's path of a file in the sandbox. shared means that all
// sandboxes of the kind see the file, and that none can change it.
func (s Sandbox) hostPath(path string) (host string, shared bool) {
	source, target := s.Root, ""
	shared = s.Image == "" // else this folder has none of its files
	for _, m := range s.Mounts {
		if len(m.Destination) > len(target) && (path == m.Destination || strings.HasPrefix(path, m.Destination+"/")) {
			source, target = m.Source, m.Destination
			shared = m.Type == "bind" && slices.Contains(m.Options, "ro") && source != s.SocketDir &&
				filepath.Dir(source) != filepath.Dir(s.SocketDir)
		}
	}
	return filepath.Join(source, strings.TrimPrefix(path, target)), shared
}

// Open is a descriptor of a process: its path below /proc, and the path of the file.
type Open struct{ Path, Target string }

// OpenBy lists the open descriptors of a process. When it returns an error, some are missing. The kernel refuses single
// ones for a moment while a process changes its user or ends, so that it tries again.
func OpenBy(pid int) (files []Open, err error) {
	for range 5 {
		if files, err = openBy(pid); !errors.Is(err, fs.ErrPermission) {
			return files, err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return files, err
}

func openBy(pid int) (files []Open, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		target, lerr := os.Readlink(path)
		switch {
		case lerr == nil:
			files = append(files, Open{path, target})
		case !os.IsNotExist(lerr): // else it was closed meanwhile
			err = lerr
		}
	}
	return files, err
}

// Needed is a file, folder or link of the host that a frozen sandbox had open, in the state that it has to have when
// the sandbox wakes.
type Needed struct {
	State
	Target string `json:"target,omitempty"` // its path in the sandbox
	// Sum is the SHA-256 of the copy that is kept of a file; empty: none is.
	Sum string `json:"sum,omitempty"`
}

// Needed returns what has to be the same of a file when the sandbox wakes. In a folder, files may come and go.
func (f File) Needed() Needed { return Needed{State: f.State.needed(), Target: f.Target} }

func (f State) needed() State {
	if f.IsFolder() {
		return State{Path: f.Path, Follow: f.Follow, Mode: unix.S_IFDIR}
	}
	return f
}

// Check returns an error if something else is at the path by now, or nothing.
func (n Needed) Check() error {
	now, err := Stat(n.Path, n.Follow)
	if err != nil {
		return fmt.Errorf("a file of the machine that it had open is gone: %w", err)
	}
	if now.needed() != n.State {
		return fmt.Errorf("a file of the machine that it had open has changed: %s", n.Path)
	}
	return nil
}

// Seen are files that a sandbox held open.
type Seen []State

// Seen returns the files that the sandbox holds open, and an error if other files are by now where some of them were, or
// none.
func (s Sandbox) Seen() (seen Seen, err error) {
	files, err := s.Files()
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if seen = append(seen, f.State); f.Replaced {
			err = notThere(f.State)
		}
	}
	return seen, err
}

func notThere(f State) error {
	return fmt.Errorf("%s is not the file that the sandbox has open", f.Path)
}

// Replaced returns an error if another file is by now where one of them was, or none. It takes a look at each path.
func (s Seen) Replaced() error {
	for _, f := range s {
		if now, err := Stat(f.Path, f.Follow); err != nil || now.Device != f.Device || now.Inode != f.Inode {
			return notThere(f)
		}
	}
	return nil
}
