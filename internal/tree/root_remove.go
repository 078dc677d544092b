package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// rootStage is a folder that a rootRemover empties.
type rootStage struct {
	name    string
	root    *os.Root
	pending []string
	stuck   map[string]bool // names of what cannot be removed
}

// rootRemover removes one folder by os.Root, which every system has. What is nested deeper than maxOpenStages it
// moves to the top folder, and removes it there.
type rootRemover struct {
	stages     []rootStage
	movedCount int
	firstErr   error // of the first file that could not be removed
}

// removeByRoot is Remove for systems without a way of their own.
func removeByRoot(ctx context.Context, dir string) error {
	dir = filepath.Clean(dir)
	parent, info, err := openTop(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	r := rootRemover{}
	if err = r.run(ctx, parent, filepath.Base(dir), info); err == nil {
		err = parent.Remove(filepath.Base(dir))
	}
	if err != nil {
		return fmt.Errorf("removing %s: %w", dir, err)
	}
	return nil
}

func (r *rootRemover) run(ctx context.Context, parent *os.Root, name string, info fs.FileInfo) error {
	defer func() {
		for _, s := range r.stages {
			s.root.Close()
		}
	}()
	if err := r.push(parent, name, info); err != nil {
		return err
	}
	for len(r.stages) > 0 {
		current := &r.stages[len(r.stages)-1]
		if n := len(current.pending); n > 0 {
			name := current.pending[n-1]
			current.pending = current.pending[:n-1]
			r.enter(current, name)
			continue
		}
		removed, err := r.readNames(ctx, current)
		if err != nil {
			return err
		}
		if !removed && len(current.pending) == 0 { // else a second reading finds what was skipped or moved meanwhile
			r.leave()
		}
	}
	return r.firstErr
}

func (r *rootRemover) push(parent *os.Root, name string, info fs.FileInfo) error {
	if err := allow(parent, name, info, 0o700); err != nil {
		return err
	}
	root, err := openIn(parent, name, info)
	if err != nil {
		return err
	}
	r.stages = append(r.stages, rootStage{name: name, root: root})
	return nil
}

// recordError records that something in s cannot be removed.
func (r *rootRemover) recordError(s *rootStage, name string, err error) {
	if s.stuck == nil {
		s.stuck = map[string]bool{}
	}
	s.stuck[name] = true
	if r.firstErr == nil {
		r.firstErr = err
	}
}

// readNames removes the files of a folder, and notes its folders, except what is stuck. It returns an error when ctx
// has ended or the folder cannot be read.
func (r *rootRemover) readNames(ctx context.Context, s *rootStage) (removed bool, err error) {
	f, err := s.root.Open(".")
	if err != nil {
		return false, err
	}
	defer f.Close()
	for {
		if err := ctx.Err(); err != nil {
			return removed, err
		}
		names, err := f.Readdirnames(namesAtOnce)
		for _, name := range names {
			if s.stuck[name] {
				continue
			}
			info, err := s.root.Lstat(name)
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				r.recordError(s, name, err)
			case info.IsDir():
				s.pending = append(s.pending, name)
			default:
				removed = r.remove(s, name) || removed
			}
		}
		if errors.Is(err, io.EOF) || len(names) == 0 && err == nil {
			return removed, nil
		}
		if err != nil {
			return removed, err
		}
	}
}

func (r *rootRemover) remove(s *rootStage, name string) bool {
	err := s.root.Remove(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.recordError(s, name, err)
		return false
	}
	return true
}

// enter opens a folder to empty it, or moves it to the top folder when it is too deep.
func (r *rootRemover) enter(parent *rootStage, name string) {
	info, err := parent.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil && !info.IsDir() {
		r.remove(parent, name)
		return
	}
	if err == nil && len(r.stages) >= maxOpenStages {
		err = r.moveToTop(name)
	} else if err == nil {
		err = r.push(parent.root, name, info)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.recordError(parent, name, err)
	}
}

// moveToTop moves a folder of the present one to the top folder.
func (r *rootRemover) moveToTop(name string) error {
	var path string
	for _, s := range r.stages[1:] {
		path = filepath.Join(path, s.name)
	}
	top := r.stages[0].root
	for {
		r.movedCount++
		to := fmt.Sprintf(".moved-%d", r.movedCount)
		if _, err := top.Lstat(to); err == nil {
			continue
		}
		return top.Rename(filepath.Join(path, name), to)
	}
}

// leave removes the present folder, unless something in it is stuck, and goes back to its parent.
func (r *rootRemover) leave() {
	last := r.stages[len(r.stages)-1]
	last.root.Close()
	r.stages = r.stages[:len(r.stages)-1]
	if len(r.stages) == 0 {
		return
	}
	parent := &r.stages[len(r.stages)-1]
	if len(last.stuck) > 0 {
		r.recordError(parent, last.name, r.firstErr)
		return
	}
	r.remove(parent, last.name)
}
