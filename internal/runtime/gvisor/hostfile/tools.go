package hostfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
	"sandlot/internal/toolfolder"
)

// KeepTools puts the tool tree of a sandbox that stands still, whose process is pid, into a folder, for the sandboxes
// that are made of its image: gVisor opens again by name what programs have open, and refuses another file.
func KeepTools(pid int, tree, dir string) error {
	err := toolfolder.Link(tree, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	open, err := OpenBy(pid)
	if err != nil {
		return err
	}
	kept := map[string]uint64{} // the inodes of those that are open, by name
	for _, f := range open {
		name, found := strings.CutPrefix(f.Target, GoferRoot+wire.SharedTools+"/")
		if name = strings.TrimSuffix(name, " (deleted)"); !found {
			continue
		}
		inode, err := keepOpen(f, filepath.Join(dir, name))
		if before, twice := kept[name]; err == nil && twice && before != inode {
			err = errors.New("an older one is open, too")
		}
		if err != nil {
			return sandbox.Explain(fmt.Sprintf("%s/%s, which a program has open, cannot be kept", wire.ToolsDir, name), err)
		}
		kept[name] = inode
	}
	return nil
}

// ExplainTools says of an error of gVisor's checkpoint that it is about the tool tree: gVisor writes no file that is
// open or watched, that another one has replaced on the host, and whose name a program has looked up since.
func ExplainTools(err error) error {
	if strings.Contains(err.Error(), `gofer.dentry("`+wire.SharedName+"/") {
		return sandbox.Explain(fmt.Sprintf("a program has a file of %s open, or watches it, that has changed since",
			wire.ToolsDir), err)
	}
	return err
}

// maxHeldTools bounds the files that were in the tool tree of a sandbox, and that its programs still have open, in
// bytes: they are on the host's disk, and no other limit of the sandbox counts them.
const maxHeldTools = 64 << 20

// UnlessHeld returns a change of a tool tree that is refused while the sandbox whose process is pid has too much of
// earlier trees open.
func UnlessHeld(pid int, change func(dir string) error) func(dir string) error {
	return func(dir string) error {
		if err := checkHeld(pid); err != nil {
			return err
		}
		return change(dir)
	}
}

func checkHeld(pid int) error {
	open, err := OpenBy(pid)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // else it has ended
		return err
	}
	var held int64
	seen := map[uint64]bool{}
	for _, f := range open {
		var st unix.Stat_t
		if strings.HasPrefix(f.Target, GoferRoot+wire.SharedTools+"/") && unix.Stat(f.Path, &st) == nil &&
			st.Nlink == 0 && !seen[st.Ino] {
			seen[st.Ino] = true
			held += st.Blocks * 512
		}
	}
	if held > maxHeldTools {
		return fmt.Errorf("programs in the sandbox have %d MB of files open that were in %s: it does not change until "+
			"they have closed some", held>>20, wire.ToolsDir)
	}
	return nil
}

// keepOpen puts a file that a sandbox has open at a path, unless it is there: another one may be in its place by now,
// or none. It returns the inode of the one that is open; 0: a folder.
func keepOpen(f Open, path string) (inode uint64, err error) {
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
