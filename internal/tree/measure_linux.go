//go:build !mac

package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Measure returns the size of a folder. With an error it returns the size of what it has read
// until then.
func Measure(ctx context.Context, dir string, l Limits) (size Size, err error) {
	for range maxAttempts {
		w := walk{limits: l, buffer: make([]byte, dirBufferSize)}
		if size, err = w.run(ctx, dir); !errors.Is(err, ErrMoved) {
			break
		}
	}
	return size, err
}

// level is a folder on the path from the top to the present folder of a walk.
type level struct {
	folder              // fd is -1 while it is closed
	pending    []string // names of its folders that were read and not entered yet
	nextOffset int64    // offset of the names that were not read yet
}

// walk measures one folder.
type walk struct {
	limits Limits
	visit  func(folder int, name string) error // called for each entry; nil: nothing
	buffer []byte
	size   Size
	levels []level
}

func (w *walk) run(ctx context.Context, dir string) (Size, error) {
	top, err := w.openFolder(unix.AT_FDCWD, dir)
	if err != nil {
		return Size{}, err
	}
	w.levels = []level{{folder: top}}
	defer func() {
		for _, l := range w.levels {
			if l.fd >= 0 {
				l.close()
			}
		}
	}()
	for len(w.levels) > 0 {
		if err := w.step(ctx); err != nil {
			return w.size, err
		}
	}
	return w.size, nil
}

func (w *walk) openFolder(dirFD int, name string) (folder, error) {
	if w.limits.Foreign {
		return openAsIs(dirFD, name)
	}
	return openFolder(dirFD, name)
}

// step enters one folder, reads some names of the present one, or goes back to its parent.
func (w *walk) step(ctx context.Context) error {
	current := &w.levels[len(w.levels)-1]
	if n := len(current.pending); n > 0 {
		name := current.pending[n-1]
		current.pending = current.pending[:n-1]
		return w.enter(current, name)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	list, next, err := current.read(w.buffer)
	if err != nil && !isGone(err) {
		return fmt.Errorf("reading a folder: %w", err)
	}
	if len(list) == 0 {
		return w.leave()
	}
	current.nextOffset = next
	for _, e := range list {
		if w.size.Entries++; w.size.Entries >= w.limits.Entries {
			return ErrEntries
		}
		if w.visit != nil {
			if err := w.visit(current.fd, e.name); err != nil {
				return err
			}
		}
		if e.kind == unix.DT_DIR {
			current.pending = append(current.pending, e.name)
			continue
		}
		st, err := current.stat(&e)
		if errors.Is(err, unix.EACCES) {
			if err := w.allowSearch(current); err != nil {
				return err
			}
			st, err = current.stat(&e)
		}
		switch {
		case err != nil: // it was removed, or cannot be looked up, which checkUnreadable allows
		case e.kind == unix.DT_DIR:
			current.pending = append(current.pending, e.name)
		default:
			w.size.Bytes += st.Blocks * 512
		}
	}
	return nil
}

func (w *walk) enter(parent *level, name string) error {
	f, err := w.openFolder(parent.fd, name)
	if w.limits.Foreign && errors.Is(err, fs.ErrPermission) {
		return checkUnreadable(parent.fd, name)
	}
	if errors.Is(err, unix.EACCES) {
		if err := w.allowSearch(parent); err != nil {
			return err
		}
		f, err = w.openFolder(parent.fd, name)
	}
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(w.levels) > w.limits.Depth {
		f.close()
		return ErrDepth
	}
	if len(w.levels) > maxOpenLevels {
		parent.close()
		parent.fd = -1
	}
	w.levels = append(w.levels, level{folder: f})
	return nil
}

// allowSearch is called when a look-up of a name in a folder was denied. It makes the folder
// searchable, and returns nil if the caller is to try again: a folder that can be read may
// not be searchable, which would hide the sizes of its files.
func (w *walk) allowSearch(current *level) error {
	if w.limits.Foreign {
		return checkUnreadable(current.fd, ".")
	}
	if err := unix.Fchmod(current.fd, 0o700); err != nil {
		return &os.PathError{Op: "chmod", Path: ".", Err: err}
	}
	return nil
}

// checkUnreadable is called for a folder that cannot be read or searched: the one of that name in the
// open folder dirFD, or, for ".", that one itself. It returns ErrUnreadable if a sandbox can
// have changed its mode, which means that it belongs to the server's user, or can write into
// it. Else it returns nil, and the folder is skipped.
func checkUnreadable(dirFD int, name string) error {
	var st, parent unix.Stat_t
	if unix.Fstat(dirFD, &parent) != nil {
		return nil
	}
	err := unix.Fstatat(dirFD, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.EACCES) && modesApply(&parent) && lookupDenied(dirFD):
		return ErrUnreadable
	case err != nil || name == ".":
		return nil // it was removed, or is on another user's file system
	case modesApply(&st), unix.Faccessat(dirFD, name, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil:
		return ErrUnreadable
	}
	return nil
}

// lookupDenied reports whether look-ups in an open folder are denied.
func lookupDenied(fd int) bool {
	var st unix.Stat_t
	return errors.Is(unix.Fstatat(fd, ".", &st, 0), unix.EACCES)
}

// modesApply reports whether a file belongs to this user, and its mode can deny this process access.
// Modes do not apply to root, except on a file system that maps root to another user.
func modesApply(st *unix.Stat_t) bool {
	return int(st.Uid) == os.Geteuid() && !canReadAll()
}

// canReadAll reports whether this process has a capability that lets it read every folder.
func canReadAll() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	const eitherCap = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	return unix.Capget(&h, &has[0]) == nil && has[0].Effective&eitherCap != 0
}

// leave goes back to the parent folder. If that was closed, it is opened again by "..", and
// must be the same folder as before.
func (w *walk) leave() error {
	last := w.levels[len(w.levels)-1]
	defer last.close()
	w.levels = w.levels[:len(w.levels)-1]
	if len(w.levels) == 0 || w.levels[len(w.levels)-1].fd >= 0 {
		return nil
	}
	parent := &w.levels[len(w.levels)-1]
	f, err := w.openFolder(last.fd, "..")
	if err != nil {
		return err
	}
	if f.identity != parent.identity {
		f.close()
		return ErrMoved
	}
	parent.folder = f
	if _, err := unix.Seek(f.fd, parent.nextOffset, unix.SEEK_SET); err != nil {
		return fmt.Errorf("reading a folder on: %w", err)
	}
	return nil
}
