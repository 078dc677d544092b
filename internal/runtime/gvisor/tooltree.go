package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/toolfolder"
)

// toolsDir is the folder of the tool tree, which is in that of the socket: the sandbox sees it read-only.
func (b *box) toolsDir() string { return filepath.Join(b.socketDir(), wire.SharedName) }

// ChangeTools implements sandbox.ToolKeeper.
func (b *box) ChangeTools(change func(dir string) error) error {
	b.tools.Lock()
	defer b.tools.Unlock()
	if b.toolsGone {
		return sandbox.ErrGone
	}
	return change(b.toolsDir())
}

// keepTools puts the tool tree of a sandbox that stands still into a folder, for the sandboxes that are made of its
// image: gVisor opens again by name what its programs have open, and refuses another file. The caller holds b.tools.
func (b *box) keepTools(dir string) error {
	err := toolfolder.Link(b.toolsDir(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pid, _ := b.process()
	open, err := hostfile.OpenBy(pid)
	if err != nil {
		return err
	}
	kept := map[string]uint64{} // the inodes of those that are open, by name
	for _, f := range open {
		name, found := strings.CutPrefix(f.Target, hostfile.GoferRoot+wire.SharedTools+"/")
		if name = strings.TrimSuffix(name, " (deleted)"); !found {
			continue
		}
		inode, err := keepOpen(f, filepath.Join(dir, name))
		if before, twice := kept[name]; err == nil && twice && before != inode {
			err = errors.New("an older one is open, too")
		}
		if err != nil {
			return fmt.Errorf("keeping %s/%s, which is open: %w", wire.ToolsDir, name, err)
		}
		kept[name] = inode
	}
	return nil
}

// keepOpen puts a file that a sandbox has open at a path, unless it is there: another one may be in its place by now,
// or none. It returns the inode of the one that is open; 0: a folder.
func keepOpen(f hostfile.Open, path string) (inode uint64, err error) {
	var opened, there unix.Stat_t
	if err := unix.Stat(f.Path, &opened); err != nil {
		return 0, err
	}
	folder := opened.Mode&unix.S_IFMT == unix.S_IFDIR
	if !folder {
		inode = opened.Ino
	}
	err = unix.Lstat(path, &there)
	switch {
	case err == nil && (opened.Ino == there.Ino && opened.Dev == there.Dev ||
		folder && there.Mode&unix.S_IFMT == unix.S_IFDIR):
		return inode, nil
	case err == nil:
		err = os.RemoveAll(path)
	case errors.Is(err, fs.ErrNotExist):
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err != nil {
		return inode, err
	}
	if folder {
		return 0, os.Mkdir(path, 0o755)
	}
	return inode, toolfolder.Copy(f.Path, path)
}
