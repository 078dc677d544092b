// Package hostfile owns what of the host's files a sandbox of gVisor has open, and whether they are still the same.
// It makes mounts of a sandbox read-only.
package hostfile

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

// State identifies a file, folder or link of the host in the state that it had when Stat looked at it.
type State struct {
	Path                string `json:"path"`
	Follow              bool   // the fields below are of the target of a link at Path
	Mode                uint32
	Device, Inode, Size uint64
	Modified, Changed   int64 // ns since 1970
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
	return State{path, follow, st.Mode, st.Dev, st.Ino, uint64(st.Size), st.Mtim.Nano(), st.Ctim.Nano()}, nil
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

// GoferRoot is where the gofer, gVisor's file server of a sandbox, has mounted the sandbox's root file system.
const GoferRoot = "/root"

// Sandbox is a sandbox of gVisor. Root and Mounts are those of its bundle.
type Sandbox struct {
	PID       int
	Root      string // the folder of its root file system
	Image     string // the image that is its root file system; empty: the folder is
	SocketDir string // the mount that only it has
	Mounts    []specs.Mount
}

// Files returns the host's files that the sandbox holds open: those that its programs
// have mapped or read, and the folders and links on the way to them. The sandbox's socket
// and its writable files are left out.
func (s Sandbox) Files() ([]State, error) {
	open, err := OpenBy(s.PID)
	if err != nil {
		return nil, err
	}
	files := map[string]State{}
	if s.Image != "" {
		f, err := s.imageFile(open)
		if err != nil {
			return nil, err
		}
		files[f.Path] = f
	}
	for _, o := range open {
		relative, ok := strings.CutPrefix(o.Target, GoferRoot+"/")
		if !ok || o.Target == s.Image {
			continue
		}
		if agent := strings.TrimSuffix("/"+relative, " (deleted)"); agent == wire.AgentPath {
			relative = agent[1:] // an upgrade has replaced it
		}
		path, shared := s.hostPath("/" + relative)
		if !shared {
			continue
		}
		opened, err := Stat(o.Path, true)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		f, err := Stat(path, false)
		if err == nil && !f.SameAs(opened) {
			f, err = Stat(path, true)
		}
		if err != nil {
			return nil, err
		}
		if !f.SameAs(opened) {
			return nil, fmt.Errorf("%s is not the file that the sandbox has open", path)
		}
		files[path] = f
	}
	if len(files) == 0 {
		return nil, errors.New("the sandbox seems to have none of the host's files")
	}
	return slices.Collect(maps.Values(files)), nil
}

// imageFile returns the image that is the sandbox's root file system, if it is the one that the sandbox has open.
func (s Sandbox) imageFile(open []Open) (State, error) {
	f, err := Stat(s.Image, false)
	if err != nil {
		return f, err
	}
	for _, o := range open {
		if o.Target != s.Image {
			continue
		}
		if opened, err := Stat(o.Path, true); err == nil && f.SameAs(opened) {
			return f, nil
		}
	}
	return f, fmt.Errorf("%s is not the image that the sandbox has open", s.Image)
}

// hostPath returns the host's path of a file in the sandbox. shared means that all
// sandboxes of the kind see the file, and that none can change it.
func (s Sandbox) hostPath(path string) (host string, shared bool) {
	source, target := s.Root, ""
	shared = s.Image == "" // else this folder has none of its files
	for _, m := range s.Mounts {
		if len(m.Destination) > len(target) && (path == m.Destination || strings.HasPrefix(path, m.Destination+"/")) {
			source, target = m.Source, m.Destination
			shared = m.Type == "bind" && slices.Contains(m.Options, "ro") && source != s.SocketDir
		}
	}
	return filepath.Join(source, strings.TrimPrefix(path, target)), shared
}

// Open is a descriptor of a process: its path below /proc, and the path of the file.
type Open struct{ Path, Target string }

// OpenBy lists the open descriptors of a process. When it returns an error, some are missing.
func OpenBy(pid int) (files []Open, err error) {
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

// Kept returns what of a file's state has to be the same when the sandbox wakes. In a folder, files may come and go.
func (f State) Kept() State {
	if f.Mode&unix.S_IFMT == unix.S_IFDIR {
		return State{Path: f.Path, Follow: f.Follow, Mode: unix.S_IFDIR}
	}
	return f
}
