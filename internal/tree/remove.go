package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// deepest is how many levels of folders Remove has open at once. It moves deeper folders to
// the top folder, and removes them there.
const deepest = 48

// Remove removes a folder and everything in it. It returns nil if the folder does not exist.
// When something cannot be removed, Remove goes on with the rest, and returns the first such
// error at the end.
func Remove(ctx context.Context, dir string) error {
	dir = filepath.Clean(dir)
	parent, err := open(unix.AT_FDCWD, filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.close()
	top, err := open(parent.fd, filepath.Base(dir))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	r := remover{buffer: make([]byte, batch), top: top}
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
	buffer []byte
	top    folder
	stages []stage
	moved  int
	failed error // of the first file that could not be removed
}

func (r *remover) run(ctx context.Context) error {
	r.stages = []stage{{folder: r.top}}
	defer func() {
		for _, s := range r.stages {
			s.close()
		}
	}()
	if err := r.prepare(r.top); err != nil {
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
	return r.failed
}

// prepare gives the owner of a folder the permissions to remove its entries.
func (r *remover) prepare(f folder) error {
	if f.mode&0o700 == 0o700 {
		return nil
	}
	return unix.Fchmod(f.fd, 0o700)
}

// fail records that something in s cannot be removed.
func (r *remover) fail(s *stage, err error) {
	s.stuck = true
	if r.failed == nil {
		r.failed = err
	}
}

func (r *remover) step() error {
	at := &r.stages[len(r.stages)-1]
	if n := len(at.pending); n > 0 {
		name := at.pending[n-1]
		at.pending = at.pending[:n-1]
		return r.enter(at, name)
	}
	list, _, err := at.read(r.buffer)
	if err != nil {
		r.fail(at, fmt.Errorf("reading a folder: %w", err))
		list, at.removed = nil, false
	}
	if len(list) == 0 {
		if at.removed { // a second reading finds entries that were skipped while others were removed
			at.removed = false
			_, err := unix.Seek(at.fd, 0, unix.SEEK_SET)
			return err
		}
		r.leave()
		return nil
	}
	for _, e := range list {
		if e.kind == unix.DT_UNKNOWN {
			if _, err := at.stat(&e); err != nil {
				continue
			}
		}
		if e.kind == unix.DT_DIR {
			at.pending = append(at.pending, e.name)
			continue
		}
		r.unlink(at, e.name, 0)
	}
	return nil
}

func (r *remover) unlink(at *stage, name string, flags int) {
	err := unix.Unlinkat(at.fd, name, flags)
	switch {
	case err == nil:
		at.removed = true
	case err != unix.ENOENT:
		r.fail(at, &os.PathError{Op: "remove", Path: name, Err: err})
	}
}

// enter opens a folder to empty it, or moves it to the top folder when it is too deep.
func (r *remover) enter(at *stage, name string) error {
	f, err := open(at.fd, name)
	if gone(err) {
		return nil
	}
	if err == nil {
		if err = r.prepare(f); err != nil {
			f.close()
		}
	}
	if err != nil {
		if scarce(err) {
			return err
		}
		r.fail(at, err)
		return nil
	}
	if len(r.stages) < deepest {
		r.stages = append(r.stages, stage{folder: f, name: name})
		return nil
	}
	f.close()
	return r.lift(at, name)
}

// lift moves a folder to the top folder, which is read again afterwards.
func (r *remover) lift(at *stage, name string) error {
	for {
		r.moved++
		to := fmt.Sprintf(".moved-%d", r.moved)
		err := unix.Renameat2(at.fd, name, r.top.fd, to, unix.RENAME_NOREPLACE)
		switch {
		case err == nil:
			at.removed, r.stages[0].removed = true, true
			return nil
		case err == unix.EEXIST:
		case gone(err):
			return nil
		default:
			r.fail(at, &os.PathError{Op: "move", Path: name, Err: err})
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
	above := &r.stages[len(r.stages)-1]
	if last.stuck {
		above.stuck = true
		return
	}
	r.unlink(above, last.name, unix.AT_REMOVEDIR)
}

// scarce says whether an error means that the server lacks descriptors or memory. Such an
// error is not about the folder.
func scarce(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}
