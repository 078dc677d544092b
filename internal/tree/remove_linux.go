//go:build !mac

package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Remove removes a folder and everything in it. It returns nil if the folder does not exist.
// When something cannot be removed, Remove goes on with the rest, and returns the first such
// error at the end.
func Remove(ctx context.Context, dir string) error {
	dir = filepath.Clean(dir)
	parent, err := openFolder(unix.AT_FDCWD, filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.close()
	top, err := openFolder(parent.fd, filepath.Base(dir))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	r := remover{buffer: make([]byte, dirBufferSize), top: top}
	err = r.run(ctx)
	if err == nil {
		err = unix.Unlinkat(parent.fd, filepath.Base(dir), unix.AT_REMOVEDIR)
	}
	if err != nil {
		return fmt.Errorf("removing %s: %w", dir, err)
	}
	return nil
}

// stage is a folder that is being emptied.
type stage struct {
	folder
	name    string
	pending []string
	removed bool // something was removed since reading began at the start of the folder
	stuck   bool // something in it cannot be removed
}

// remover removes one folder.
type remover struct {
	buffer     []byte
	top        folder
	stages     []stage
	movedCount int
	firstErr   error // of the first file that could not be removed
}

func (r *remover) run(ctx context.Context) error {
	r.stages = []stage{{folder: r.top}}
	defer func() {
		for _, s := range r.stages {
			s.close()
		}
	}()
	if err := r.allowRemoval(r.top); err != nil {
		return err
	}
	for len(r.stages) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.step(); err != nil {
			return err
		}
	}
	return r.firstErr
}

// allowRemoval gives the owner of a folder the permissions to remove its entries.
func (r *remover) allowRemoval(f folder) error {
	if f.mode&0o700 == 0o700 {
		return nil
	}
	return unix.Fchmod(f.fd, 0o700)
}

// recordError records that something in s cannot be removed.
func (r *remover) recordError(s *stage, err error) {
	s.stuck = true
	if r.firstErr == nil {
		r.firstErr = err
	}
}

func (r *remover) step() error {
	current := &r.stages[len(r.stages)-1]
	if n := len(current.pending); n > 0 {
		name := current.pending[n-1]
		current.pending = current.pending[:n-1]
		return r.enter(current, name)
	}
	list, _, err := current.read(r.buffer)
	if err != nil {
		r.recordError(current, fmt.Errorf("reading a folder: %w", err))
		list, current.removed = nil, false
	}
	if len(list) == 0 {
		if current.removed { // a second reading finds entries that were skipped while others were removed
			current.removed = false
			_, err := unix.Seek(current.fd, 0, unix.SEEK_SET)
			return err
		}
		r.leave()
		return nil
	}
	for _, e := range list {
		if e.kind == unix.DT_UNKNOWN {
			if _, err := current.stat(&e); err != nil {
				continue
			}
		}
		if e.kind == unix.DT_DIR {
			current.pending = append(current.pending, e.name)
			continue
		}
		r.unlink(current, e.name, 0)
	}
	return nil
}

func (r *remover) unlink(parent *stage, name string, flags int) {
	err := unix.Unlinkat(parent.fd, name, flags)
	switch {
	case err == nil:
		parent.removed = true
	case err != unix.ENOENT:
		r.recordError(parent, &os.PathError{Op: "remove", Path: name, Err: err})
	}
}

// enter opens a folder to empty it, or moves it to the top folder when it is too deep.
func (r *remover) enter(parent *stage, name string) error {
	f, err := openFolder(parent.fd, name)
	if isGone(err) {
		return nil
	}
	if err == nil {
		if err = r.allowRemoval(f); err != nil {
			f.close()
		}
	}
	if err != nil {
		if isTemporary(err) {
			return err
		}
		r.recordError(parent, err)
		return nil
	}
	if len(r.stages) < maxOpenStages {
		r.stages = append(r.stages, stage{folder: f, name: name})
		return nil
	}
	f.close()
	return r.moveToTop(parent, name)
}

// moveToTop moves a folder to the top folder, which is read again afterwards.
func (r *remover) moveToTop(parent *stage, name string) error {
	for {
		r.movedCount++
		to := fmt.Sprintf(".moved-%d", r.movedCount)
		err := unix.Renameat2(parent.fd, name, r.top.fd, to, unix.RENAME_NOREPLACE)
		switch {
		case err == nil:
			parent.removed, r.stages[0].removed = true, true
			return nil
		case err == unix.EEXIST:
		case isGone(err):
			return nil
		default:
			r.recordError(parent, &os.PathError{Op: "move", Path: name, Err: err})
			return nil
		}
	}
}

// leave removes the present folder, unless something in it is stuck, and goes back to its
// parent.
func (r *remover) leave() {
	last := r.stages[len(r.stages)-1]
	defer last.close()
	r.stages = r.stages[:len(r.stages)-1]
	if len(r.stages) == 0 {
		return
	}
	parent := &r.stages[len(r.stages)-1]
	if last.stuck {
		parent.stuck = true
		return
	}
	r.unlink(parent, last.name, unix.AT_REMOVEDIR)
}

// isTemporary reports whether an error means that the server lacks descriptors or memory. Such an
// error is not about the folder.
func isTemporary(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}
