// Package tools owns the sandbox's side of calls of tools: the tool tree, which programs of the sandbox can read and
// not change, and the socket in it, over which they call the tools.
package tools

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/internal/toolfolder"
	"sandlot/proto/agentv1"
)

// Set changes the tool tree as a request of the host says. Each file is replaced at once. After an error the tree may
// have some of the changes.
func (t *Tools) Set(r *agentv1.SetToolsRequest) error {
	t.setting.Lock()
	defer t.setting.Unlock()
	t.restore()
	if r.Shared {
		err := t.share()
		if err == nil {
			t.remember(nil, t.putLink)
		}
		return err
	}
	if len(r.Files) == 0 && !exists(t.config.Dir) {
		return nil
	}
	if t.isShared() { // an older server has taken over the sandbox, and shares no folder
		if err := os.Remove(t.config.Dir); err != nil {
			return err
		}
	}
	root, err := openTree(t.config.Dir)
	if err != nil && exists(t.config.Dir) { // a program has put something else there
		if err = clearAway(t.config.Dir); err == nil {
			root, err = openTree(t.config.Dir)
		}
	}
	if err != nil {
		return err
	}
	defer root.Close()
	c := toolfolder.Change{Removed: r.Removed, Complete: r.Complete, Other: wire.ToolSocket}
	for _, f := range r.Files {
		c.Files = append(c.Files, toolfolder.File{Path: f.Path, Data: f.Data, Executable: f.Executable, Link: f.Link})
	}
	err = toolfolder.Write(root, c)
	if errors.Is(err, toolfolder.ErrPath) {
		err = wire.Errorf(connect.CodeInvalidArgument, "%v", err)
	}
	if err != nil {
		return err
	}
	if err := t.listen(t.ownSocket()); err != nil {
		return err
	}
	tree, err := root.Open(".")
	if err == nil {
		t.remember(tree, t.putFolder)
	}
	return err
}

// sharedSocket and ownSocket are where the socket is beside a tree that is a link, and in one that the agent has written.
func (t *Tools) sharedSocket() string { return t.config.Dir + wire.SharedSocketSuffix }

func (t *Tools) ownSocket() string { return filepath.Join(t.config.Dir, wire.ToolSocket) }

// share makes the tree a link to the folder that the host shares, in which there is a link to the socket.
func (t *Tools) share() error {
	if err := t.listen(t.sharedSocket()); err != nil {
		return err
	}
	if t.isShared() {
		return nil
	}
	err := os.Symlink(t.config.Shared, t.config.Dir)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if own, openErr := openTree(t.config.Dir); openErr == nil { // the agent has written it, or an image has it
		own.Close()
		err = os.RemoveAll(t.config.Dir)
	} else { // a program has put it there
		err = clearAway(t.config.Dir)
	}
	if err != nil {
		return err
	}
	return os.Symlink(t.config.Shared, t.config.Dir)
}

// isShared reports whether the tree is a link to the folder that the host shares.
func (t *Tools) isShared() bool {
	to, err := os.Readlink(t.config.Dir)
	return err == nil && to == t.config.Shared
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
			err = wire.Errorf(connect.CodeFailedPrecondition, "%s is not a folder of the agent's", dir)
		case !ok || int(s.Uid) != os.Geteuid() || opened.Mode().Perm()&0o022 != 0:
			err = wire.Errorf(connect.CodeFailedPrecondition, "%s does not belong to the agent: remove it", dir)
		}
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}
