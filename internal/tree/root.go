package tree

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
)

// namesAtOnce is how many names of a folder a walk by os.Root reads at once.
const namesAtOnce = 256

// rootLevel is a folder on the path from the top to the present folder of a rootWalk.
type rootLevel struct {
	name    string
	root    *os.Root // nil while it is closed
	info    fs.FileInfo
	pending []string // names of its folders that were not entered yet
}

// rootWalk measures one folder by os.Root, which every system has.
type rootWalk struct {
	limits Limits
	visit  func(folder *os.Root, name string) error // called for each entry; nil: nothing
	size   Size
	levels []rootLevel
}

// measureByRoot is Measure for systems without a way of their own.
func measureByRoot(ctx context.Context, dir string, l Limits) (size Size, err error) {
	for range maxAttempts {
		w := rootWalk{limits: l}
		if size, err = w.run(ctx, dir); !errors.Is(err, ErrMoved) {
			break
		}
	}
	return size, err
}

// setOwnerByRoot is SetOwner for systems without a way of their own.
func setOwnerByRoot(ctx context.Context, dir string, uid, gid int) error {
	var err error
	for range maxAttempts {
		w := rootWalk{limits: Limits{Entries: math.MaxInt64, Depth: maxOwnedDepth},
			visit: func(folder *os.Root, name string) error {
				if err := folder.Lchown(name, uid, gid); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
				return nil
			}}
		if _, err = w.run(ctx, dir); !errors.Is(err, ErrMoved) {
			break
		}
	}
	if err != nil {
		return err
	}
	return os.Lchown(dir, uid, gid)
}

// openTop opens the folder dir, which may not be a link.
func openTop(dir string) (parent *os.Root, info fs.FileInfo, err error) {
	parent, err = os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return nil, nil, err
	}
	info, err = parent.Lstat(filepath.Base(dir))
	if err == nil && !info.IsDir() {
		err = &os.PathError{Op: "open", Path: dir, Err: errors.New("it is not a folder")}
	}
	if err != nil {
		parent.Close()
		return nil, nil, err
	}
	return parent, info, nil
}

// openIn opens a folder of an open one, for which Lstat has returned info. It returns fs.ErrNotExist if another file
// has that name now: os.Root follows a link, if only to another place below the same folder.
func openIn(parent *os.Root, name string, info fs.FileInfo) (*os.Root, error) {
	root, err := parent.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	now, err := root.Lstat(".")
	if err == nil && !os.SameFile(info, now) {
		err = &os.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

func (w *rootWalk) run(ctx context.Context, dir string) (Size, error) {
	dir = filepath.Clean(dir)
	parent, info, err := openTop(dir)
	if err != nil {
		return Size{}, err
	}
	defer parent.Close()
	defer func() {
		for _, l := range w.levels {
			if l.root != nil {
				l.root.Close()
			}
		}
	}()
	if err := w.push(ctx, parent, filepath.Base(dir), info); err != nil {
		return w.size, err
	}
	for len(w.levels) > 0 {
		if err := w.step(ctx); err != nil {
			return w.size, err
		}
	}
	return w.size, nil
}

// push opens a folder, reads it, and makes it the present one.
func (w *rootWalk) push(ctx context.Context, parent *os.Root, name string, info fs.FileInfo) error {
	if !w.limits.Foreign {
		if err := allow(parent, name, info, 0o500); err != nil {
			return err
		}
	}
	root, err := openIn(parent, name, info)
	if err != nil {
		return err
	}
	w.levels = append(w.levels, rootLevel{name: name, root: root, info: info})
	return w.readNames(ctx, &w.levels[len(w.levels)-1])
}

// allow gives the owner of a folder permissions that it lacks. To root they do not matter.
func allow(parent *os.Root, name string, info fs.FileInfo, mode fs.FileMode) error {
	if info.Mode().Perm()&mode == mode || os.Geteuid() == 0 {
		return nil
	}
	return parent.Chmod(name, 0o700)
}

// readNames counts what is in a folder, and notes its folders.
func (w *rootWalk) readNames(ctx context.Context, level *rootLevel) error {
	f, err := level.root.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		names, err := f.Readdirnames(namesAtOnce)
		for _, name := range names {
			if err := w.count(level, name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || len(names) == 0 && err == nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w *rootWalk) count(level *rootLevel, name string) error {
	if w.size.Entries++; w.size.Entries >= w.limits.Entries {
		return ErrEntries
	}
	if w.visit != nil {
		if err := w.visit(level.root, name); err != nil {
			return err
		}
	}
	info, err := level.root.Lstat(name)
	switch {
	case err != nil && w.limits.Foreign && errors.Is(err, fs.ErrPermission):
		return checkWritable(level.info)
	case err != nil: // it was removed
	case info.IsDir():
		level.pending = append(level.pending, name)
	default:
		w.size.Bytes += diskBytes(info)
	}
	return nil
}

// checkWritable is called for a folder of others that cannot be read or searched. It returns ErrUnreadable unless it
// is certain, from the folder's owner and mode, that no sandbox can have changed its mode or can write into it.
func checkWritable(info fs.FileInfo) error {
	if isOwn(info) || info.Mode().Perm()&0o022 != 0 {
		return ErrUnreadable
	}
	return nil
}

// step enters one folder, or goes back to its parent.
func (w *rootWalk) step(ctx context.Context) error {
	current := &w.levels[len(w.levels)-1]
	n := len(current.pending)
	if n == 0 {
		return w.leave()
	}
	name := current.pending[n-1]
	current.pending = current.pending[:n-1]
	info, err := current.root.Lstat(name)
	if err != nil || !info.IsDir() {
		return nil // it was removed or replaced
	}
	if len(w.levels) > w.limits.Depth {
		return ErrDepth
	}
	depth := len(w.levels)
	err = w.push(ctx, current.root, name, info)
	if len(w.levels) > depth && len(w.levels) > maxOpenLevels {
		closed := &w.levels[len(w.levels)-1-maxOpenLevels]
		if closed.root != nil && len(w.levels)-1-maxOpenLevels > 0 {
			closed.root.Close()
			closed.root = nil
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case w.limits.Foreign && errors.Is(err, fs.ErrPermission):
		return checkWritable(info)
	}
	return err
}

// leave goes back to the parent folder. If that was closed, it is opened again from the top, and must be the same
// folder as before.
func (w *rootWalk) leave() error {
	last := w.levels[len(w.levels)-1]
	last.root.Close()
	w.levels = w.levels[:len(w.levels)-1]
	if len(w.levels) == 0 || w.levels[len(w.levels)-1].root != nil {
		return nil
	}
	names := make([]string, 0, len(w.levels))
	for _, l := range w.levels[1:] {
		names = append(names, l.name)
	}
	parent := &w.levels[len(w.levels)-1]
	root, err := openIn(w.levels[0].root, filepath.Join(names...), parent.info)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrMoved
	}
	parent.root = root
	return err
}
