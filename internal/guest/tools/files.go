// Package tools owns the sandbox's side of calls of tools: the tool tree, which programs of the sandbox can read and
// not change, and the socket in it, over which they call the tools.
package tools

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// newPrefix begins the names of files that are not in place yet.
const newPrefix = ".new-"

// Set changes the tool tree as a request of the host says. Each file is replaced at once. After an error the tree may
// have some of the changes.
func (t *Tools) Set(r *agentv1.SetToolsRequest) error {
	t.setting.Lock()
	defer t.setting.Unlock()
	if len(r.Files) == 0 && !exists(t.dir) {
		return nil
	}
	root, err := openTree(t.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	kept := map[string]bool{wire.ToolSocket: true}
	for i, f := range r.Files {
		if err := checkPath(f.Path); err != nil {
			return err
		}
		for p := f.Path; p != "."; p = path.Dir(p) {
			kept[p] = true
		}
		if err := put(root, f, fmt.Sprintf("%s%d", newPrefix, i)); err != nil {
			return fmt.Errorf("writing %s: %w", f.Path, err)
		}
	}
	for _, p := range r.Removed {
		if err := checkPath(p); err != nil {
			return err
		}
		if kept[p] {
			continue
		}
		if err := root.RemoveAll(p); err != nil {
			return fmt.Errorf("removing %s: %w", p, err)
		}
	}
	if r.Complete {
		if err := removeOthers(root, kept); err != nil {
			return err
		}
	}
	removeEmpty(root)
	return t.listen()
}

// openTree opens the folder of the tree, and makes it if there is none. Programs that may write to the folder above it
// may have put something else there: then nothing is written.
func openTree(dir string) (*os.Root, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o755); err == nil {
		_ = os.Chmod(dir, 0o755) // whatever the umask is
	} else if !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	opened, err := root.Stat(".")
	if err == nil {
		s, ok := opened.Sys().(*syscall.Stat_t)
		switch {
		case !st.IsDir() || !os.SameFile(st, opened):
			err = wire.Errorf(connect.CodeFailedPrecondition, "%s is no folder of the agent's", dir)
		case !ok || int(s.Uid) != os.Geteuid() || opened.Mode().Perm()&0o022 != 0:
			err = wire.Errorf(connect.CodeFailedPrecondition, "%s belongs to others than the agent: remove it", dir)
		}
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// checkPath returns an error for a path that is none of a file below the tree.
func checkPath(p string) error {
	if !fs.ValidPath(p) || p == "." || p == wire.ToolSocket || strings.HasPrefix(path.Base(p), newPrefix) {
		return wire.Errorf(connect.CodeInvalidArgument, "%.100q is no path of a file in the tool tree", p)
	}
	return nil
}

// put writes one file under another name, and then puts it in place.
func put(root *os.Root, f *agentv1.ToolFile, temporary string) error {
	if dir := path.Dir(f.Path); dir != "." {
		if err := makeFolder(root, dir); err != nil {
			return err
		}
		temporary = dir + "/" + temporary
	}
	_ = root.RemoveAll(temporary) // an agent that was killed may have left it
	err := write(root, f, temporary)
	if err == nil {
		err = root.Rename(temporary, f.Path)
		if errors.Is(err, syscall.EISDIR) || errors.Is(err, fs.ErrExist) {
			if err = root.RemoveAll(f.Path); err == nil {
				err = root.Rename(temporary, f.Path)
			}
		}
	}
	if err != nil {
		_ = root.RemoveAll(temporary)
	}
	return err
}

// makeFolder makes a folder and those above it. A file in the place of one is removed.
func makeFolder(root *os.Root, dir string) error {
	if above := path.Dir(dir); above != "." {
		if err := makeFolder(root, above); err != nil {
			return err
		}
	}
	if st, err := root.Lstat(dir); err == nil {
		if st.IsDir() {
			return nil
		}
		if err := root.Remove(dir); err != nil {
			return err
		}
	}
	if err := root.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return root.Chmod(dir, 0o755)
}

func write(root *os.Root, f *agentv1.ToolFile, name string) error {
	if f.Link != "" {
		return root.Symlink(f.Link, name)
	}
	mode := fs.FileMode(0o444)
	if f.Executable {
		mode = 0o555
	}
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(f.Data)
	return errors.Join(err, file.Chmod(mode), file.Close())
}

// removeOthers removes the files and folders that are not kept.
func removeOthers(root *os.Root, kept map[string]bool) error {
	var others []string
	err := fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." || kept[p] {
			return err
		}
		others = append(others, p)
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	for _, p := range others {
		err = errors.Join(err, root.RemoveAll(p))
	}
	return err
}

// removeEmpty removes folders without files.
func removeEmpty(root *os.Root) {
	var folders []string
	_ = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && p != "." {
			folders = append(folders, p)
		}
		return nil
	})
	for _, p := range slices.Backward(folders) {
		_ = root.Remove(p) // fails if there is a file in it
	}
}
