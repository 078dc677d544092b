package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Size is what a folder takes.
type Size struct {
	Bytes   int64 // on the disk, of its files; one with several names counts for each
	Entries int64 // files and folders
}

// Limits are where Measure gives up.
type Limits struct {
	Entries int64
	Depth   int // of folders in folders
	// Foreign: the folders are not the server's own, and their modes stay as they are.
	// A folder that cannot be read is not counted, if no sandbox can have closed it or
	// can write it; else it is ErrClosed.
	Foreign bool
}

// Why a folder is not measured to its end.
var (
	ErrEntries = errors.New("the folder has too many files")
	ErrDepth   = errors.New("the folder is too deep")
	// ErrMoved means that a deep folder was moved while it was measured, again and
	// again.
	ErrMoved = errors.New("the folder changes faster than it can be measured")
	// ErrClosed means that a folder in it cannot be read by this user, though
	// sandboxes may have put into it what they like.
	ErrClosed = errors.New("the folder has one in it that cannot be read")
)

const (
	// held is how many levels keep their folder open; from those below, the way
	// back is by "..".
	held = 48
	// tries is how often a walk begins again that lost its way back.
	tries = 4
)

// Measure says what a folder takes. With an error it returns what it has seen.
func Measure(ctx context.Context, dir string, l Limits) (size Size, err error) {
	for range tries {
		w := walk{limits: l, buffer: make([]byte, batch)}
		if size, err = w.run(ctx, dir); !errors.Is(err, ErrMoved) {
			break
		}
	}
	return size, err
}

// level is a folder on the way from the top to where a walk is.
type level struct {
	folder           // fd is -1 while it is closed
	pending []string // folders in it that were read and not entered
	next    int64    // where the rest of it is
}

type walk struct {
	limits Limits
	buffer []byte
	size   Size
	levels []level
}

func (w *walk) run(ctx context.Context, dir string) (Size, error) {
	top, err := w.open(unix.AT_FDCWD, dir)
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

func (w *walk) open(at int, name string) (folder, error) {
	if w.limits.Foreign {
		return openAsIs(at, name)
	}
	return open(at, name)
}

// step enters a folder, reads some names, or goes back up.
func (w *walk) step(ctx context.Context) error {
	at := &w.levels[len(w.levels)-1]
	if n := len(at.pending); n > 0 {
		name := at.pending[n-1]
		at.pending = at.pending[:n-1]
		return w.enter(at, name)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	list, next, err := at.read(w.buffer)
	if err != nil && !gone(err) {
		return fmt.Errorf("reading a folder: %w", err)
	}
	if len(list) == 0 {
		return w.leave()
	}
	at.next = next
	for _, e := range list {
		if w.size.Entries++; w.size.Entries >= w.limits.Entries {
			return ErrEntries
		}
		if e.kind == unix.DT_DIR {
			at.pending = append(at.pending, e.name)
			continue
		}
		st, err := at.stat(&e)
		if errors.Is(err, unix.EACCES) {
			if err := w.unsearchable(at); err != nil {
				return err
			}
			st, err = at.stat(&e)
		}
		switch {
		case err != nil: // it is gone, or nobody's here
		case e.kind == unix.DT_DIR:
			at.pending = append(at.pending, e.name)
		default:
			w.size.Bytes += st.Blocks * 512
		}
	}
	return nil
}

func (w *walk) enter(at *level, name string) error {
	f, err := w.open(at.fd, name)
	if w.limits.Foreign && errors.Is(err, fs.ErrPermission) {
		return closed(at.fd, name)
	}
	if errors.Is(err, unix.EACCES) {
		if err := w.unsearchable(at); err != nil {
			return err
		}
		f, err = w.open(at.fd, name)
	}
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(w.levels) > w.limits.Depth {
		f.close()
		return ErrDepth
	}
	if len(w.levels) > held {
		at.close()
		at.fd = -1
	}
	w.levels = append(w.levels, level{folder: f})
	return nil
}

// unsearchable is called when a name in a folder cannot be looked at, and returns
// nil if that is to be tried once more. A folder that is open for reading may be
// closed to look-ups, which would hide how large its files are.
func (w *walk) unsearchable(at *level) error {
	if w.limits.Foreign {
		return closed(at.fd, ".")
	}
	if err := unix.Fchmod(at.fd, 0o700); err != nil {
		return &os.PathError{Op: "chmod", Path: ".", Err: err}
	}
	return nil
}

// closed judges a folder that cannot be read or searched, by its name in an open one,
// or "." for that one itself. It returns ErrClosed if sandboxes may have closed it,
// who are the server's own user on the machine, and if they can write it unread.
func closed(at int, name string) error {
	var st, above unix.Stat_t
	if unix.Fstat(at, &above) != nil {
		return nil
	}
	err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.EACCES) && own(&above) && unsearched(at):
		return ErrClosed
	case err != nil || name == ".":
		return nil // it is gone, or others' file system
	case own(&st), unix.Faccessat(at, name, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil:
		return ErrClosed
	}
	return nil
}

// unsearched says whether names in an open folder cannot be looked up.
func unsearched(fd int) bool {
	var st unix.Stat_t
	return errors.Is(unix.Fstatat(fd, ".", &st, 0), unix.EACCES)
}

// own says whether a mode can keep this process out of its own user's file. Modes do not
// keep root out: only a file system on which root is another user does.
func own(st *unix.Stat_t) bool {
	return int(st.Uid) == os.Geteuid() && !overrides()
}

// overrides says whether this process has the capability to read every folder.
func overrides() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	const any = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	return unix.Capget(&h, &has[0]) == nil && has[0].Effective&any != 0
}

// leave goes back up. The folder above is opened again where it was closed: by
// "..", if that is still the same.
func (w *walk) leave() error {
	last := w.levels[len(w.levels)-1]
	defer last.close()
	w.levels = w.levels[:len(w.levels)-1]
	if len(w.levels) == 0 || w.levels[len(w.levels)-1].fd >= 0 {
		return nil
	}
	above := &w.levels[len(w.levels)-1]
	f, err := w.open(last.fd, "..")
	if err != nil {
		return err
	}
	if f.identity != above.identity {
		f.close()
		return ErrMoved
	}
	above.folder = f
	if _, err := unix.Seek(f.fd, above.next, unix.SEEK_SET); err != nil {
		return fmt.Errorf("reading a folder on: %w", err)
	}
	return nil
}
