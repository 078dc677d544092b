package gvisor

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

// fileState identifies a file, folder or link of the host in the state that it had when statFile looked at it.
type fileState struct {
	Path                string `json:"path"`
	Follow              bool   // the fields below are of the target of a link at Path
	Mode                uint32
	Device, Inode, Size uint64
	Modified, Changed   int64 // ns since 1970
}

// statFile looks at the file at path, or at the link there unless follow is set.
func statFile(path string, follow bool) (fileState, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if follow {
		flags = 0
	}
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, path, &st, flags); err != nil {
		return fileState{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fileState{path, follow, st.Mode, st.Dev, st.Ino, uint64(st.Size), st.Mtim.Nano(), st.Ctim.Nano()}, nil
}

// sameAs says whether both are the same file in the same state; their paths may differ.
func (f fileState) sameAs(g fileState) bool {
	g.Path, g.Follow = f.Path, f.Follow
	return f == g
}

// checkUnchanged returns an error if the file at the path is not in the same state any more.
func (f fileState) checkUnchanged() error {
	now, err := statFile(f.Path, f.Follow)
	if err == nil && now != f {
		err = fmt.Errorf("%s has changed", f.Path)
	}
	return err
}

// goferRoot is where the gofer, gVisor's file server of a sandbox, has mounted the sandbox's root file system.
const goferRoot = "/root"

// hostFiles returns the host's files that the sandbox holds open: those that its programs
// have mapped or read, and the folders and links on the way to them. The sandbox's socket
// and its writable files are left out. The root file system and the mounts are those of its bundle.
func (b *box) hostFiles(rootPath string, mounts []specs.Mount) ([]fileState, error) {
	pid, _ := b.process()
	open, err := openFiles(pid)
	if err != nil {
		return nil, err
	}
	files := map[string]fileState{}
	if b.root.Image != "" {
		f, err := b.imageFile(open)
		if err != nil {
			return nil, err
		}
		files[f.Path] = f
	}
	for _, o := range open {
		relative, ok := strings.CutPrefix(o.target, goferRoot+"/")
		if !ok || o.target == b.root.Image {
			continue
		}
		if agent := strings.TrimSuffix("/"+relative, " (deleted)"); agent == wire.AgentPath {
			relative = agent[1:] // an upgrade has replaced it
		}
		path, shared := b.hostPath("/"+relative, rootPath, mounts)
		if !shared {
			continue
		}
		opened, err := statFile(o.path, true)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		f, err := statFile(path, false)
		if err == nil && !f.sameAs(opened) {
			f, err = statFile(path, true)
		}
		if err != nil {
			return nil, err
		}
		if !f.sameAs(opened) {
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
func (b *box) imageFile(open []openFile) (fileState, error) {
	f, err := statFile(b.root.Image, false)
	if err != nil {
		return f, err
	}
	for _, o := range open {
		if o.target != b.root.Image {
			continue
		}
		if opened, err := statFile(o.path, true); err == nil && f.sameAs(opened) {
			return f, nil
		}
	}
	return f, fmt.Errorf("%s is not the image that the sandbox has open", b.root.Image)
}

// hostPath returns the host's path of a file in the sandbox. shared means that all
// sandboxes of the kind see the file, and that none can change it.
func (b *box) hostPath(path, rootPath string, mounts []specs.Mount) (host string, shared bool) {
	source, target := rootPath, ""
	shared = b.root.Image == "" // else this folder has none of its files
	for _, m := range mounts {
		if len(m.Destination) > len(target) && (path == m.Destination || strings.HasPrefix(path, m.Destination+"/")) {
			source, target = m.Source, m.Destination
			shared = m.Type == "bind" && slices.Contains(m.Options, "ro") && source != b.socketDir()
		}
	}
	return filepath.Join(source, strings.TrimPrefix(path, target)), shared
}
