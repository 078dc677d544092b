package tools

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A program that is root may move or remove the tree and the socket, or put something else there. They are put back
// when the kernel says that something has changed beside them, and before a program starts.

// restoreInterval is how often the tree is put back at most because of changes: a program may go on replacing it.
const restoreInterval = 20 * time.Millisecond

// Restore puts the tree and the socket back if they are not where they were set.
func (t *Tools) Restore() {
	if !t.setting.TryLock() {
		return // it is set at this moment
	}
	defer t.setting.Unlock()
	t.restore()
}

// restore is Restore for who holds setting.
func (t *Tools) restore() {
	if t.set == nil || t.inPlace() {
		return
	}
	if err := t.set(); err != nil {
		fmt.Fprintln(os.Stderr, "sandlot-agent: putting back the tool tree:", err)
	}
}

// inPlace reports whether the tree and the socket are where they were set.
func (t *Tools) inPlace() bool {
	if t.tree == nil {
		return t.isShared() && t.listens(t.sharedSocket())
	}
	st, err := os.Lstat(t.config.Dir)
	now, openErr := t.tree.Stat()
	return err == nil && openErr == nil && os.SameFile(st, now) && t.listens(t.ownSocket())
}

// putLink is what Restore does for a tree that is a link to the host's folder.
func (t *Tools) putLink() error {
	if err := os.MkdirAll(filepath.Dir(t.config.Dir), 0o755); err != nil {
		return err
	}
	if !t.isShared() {
		if err := clearAway(t.config.Dir); err != nil {
			return err
		}
	}
	return t.share()
}

// putFolder is what Restore does for a tree that the agent has written. One that was removed comes with the host's
// next change of it.
func (t *Tools) putFolder() error {
	st, err := os.Lstat(t.config.Dir)
	now, openErr := t.tree.Stat()
	if openErr != nil {
		return openErr
	}
	if err != nil || !os.SameFile(st, now) {
		path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", t.tree.Fd()))
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, " (deleted)") {
			return errors.New("it was removed")
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(t.config.Dir), 0o755), clearAway(t.config.Dir)); err != nil {
			return err
		}
		if err := os.Rename(path, t.config.Dir); err != nil {
			return err
		}
	}
	return t.listen(t.ownSocket())
}

// maxAside bounds the names of what programs have put in the tree's or the socket's place.
const maxAside = 8

// clearAway moves aside what a program has put at a path that is the agent's. A link has nothing to keep.
func clearAway(place string) error {
	st, err := os.Lstat(place)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		return os.Remove(place)
	}
	for n := range maxAside {
		aside := fmt.Sprintf("%s.old%d", place, n)
		if err := unix.Renameat2(unix.AT_FDCWD, place, unix.AT_FDCWD, aside, unix.RENAME_NOREPLACE); err == nil ||
			!errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return fmt.Errorf("there are already %d of %s.old0 and so on: remove them", maxAside, place)
}

// remember makes Restore put the tree back as set does, and watches the folder above it. tree is the folder that the
// agent has written; nil: the tree is a link. The caller holds setting.
func (t *Tools) remember(tree *os.File, set func() error) {
	if t.tree != nil {
		t.tree.Close()
	}
	t.tree, t.set = tree, set
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watched || t.closed {
		return
	}
	if w, watched := newWatch(filepath.Dir(t.config.Dir)); w != nil { // else Restore is called before programs start
		t.watched = true
		t.work.Go(func() { t.watch(w, watched) })
	}
}

// watch puts the tree back when something has changed beside it.
func (t *Tools) watch(w *os.File, watched os.FileInfo) {
	for w != nil {
		t.watchFolder(w, watched)
		w = nil
		// The folder above was moved, too, and is there again with the tree, unless it is moved at this moment.
		for try := 0; w == nil && try < watchTries && t.ctx.Err() == nil; try++ {
			t.setting.Lock()
			t.restore()
			t.setting.Unlock()
			if w, watched = newWatch(filepath.Dir(t.config.Dir)); w == nil {
				time.Sleep(restoreInterval)
			}
		}
	}
}

// watchTries is how often a folder is watched that is moved each time. Restore is called before programs start.
const watchTries = 50

// watchFolder does as watch, until the folder above the tree is another one than watched. It closes w.
func (t *Tools) watchFolder(w *os.File, watched os.FileInfo) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() { // closing ends the read below
		defer close(ended)
		select {
		case <-t.ctx.Done():
		case <-over:
		}
		w.Close()
	}()
	defer func() { close(over); <-ended }()
	buffer := make([]byte, 64<<10)
	for {
		t.setting.Lock()
		t.restore()
		t.setting.Unlock()
		if now, err := os.Stat(filepath.Dir(t.config.Dir)); err == nil && !os.SameFile(now, watched) {
			return
		}
		select {
		case <-time.After(restoreInterval):
		case <-t.ctx.Done():
		}
		if _, err := w.Read(buffer); err != nil {
			if t.ctx.Err() == nil {
				<-t.ctx.Done()
			}
			return
		}
	}
}

// newWatch returns a descriptor that is readable when the names in a folder change, or the folder is moved, and which
// folder that is; nil: it cannot be watched.
func newWatch(dir string) (*os.File, os.FileInfo) {
	watched, err := os.Stat(dir)
	if err != nil {
		return nil, nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, nil
	}
	f := os.NewFile(uintptr(fd), "inotify")
	_, err = unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_MOVED_TO|
		unix.IN_MOVE_SELF|unix.IN_ONLYDIR)
	if err != nil {
		f.Close()
		return nil, nil
	}
	return f, watched
}
