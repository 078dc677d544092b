// Package workspace owns the folders with files that outlive a sandbox. It
// never opens or follows anything inside one: what is in there was written by
// hostile code.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/secret"
	"sandlot/internal/tree"
)

// Store holds all workspaces of one server.
type Store struct {
	dir     string
	removed chan struct{}
}

// Open returns the store in the folder dir, which it makes when needed.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder for workspaces: %w", err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{real, make(chan struct{}, 1)}
	if err := os.Mkdir(s.trash(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("making the folder for removed workspaces: %w", err)
	}
	return s, nil
}

var valid = regexp.MustCompile(`^[a-z2-7]{26}$`)

// New makes an empty workspace and returns its id.
func (s *Store) New() (string, error) {
	id := secret.ID()
	if err := os.Mkdir(filepath.Join(s.dir, id), 0o700); err != nil {
		return "", fmt.Errorf("making a workspace: %w", err)
	}
	return id, nil
}

// Ensure makes the workspace again if its folder is gone.
func (s *Store) Ensure(id string) error {
	err := os.Mkdir(s.Path(id), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// Path is the folder on the host.
func (s *Store) Path(id string) string {
	if !valid.MatchString(id) {
		panic("workspace: not an id: " + id)
	}
	return filepath.Join(s.dir, id)
}

// furniture are the folders that a sandbox's agent makes in its workspace.
var furniture = map[string][]string{"": {".local"}, ".local": {"bin", "lib"}}

// Empty says whether there is nothing in it but the folders that every sandbox
// makes.
func (s *Store) Empty(id string) (bool, error) {
	f, err := os.Open(s.Path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	return bare(f, "")
}

// bare says whether an open folder has nothing but furniture. Links are not
// followed.
func bare(f *os.File, name string) (bool, error) {
	known := furniture[name]
	names, err := f.Readdirnames(len(known) + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	for _, n := range names {
		if len(names) > len(known) || !slices.Contains(known, n) {
			return false, nil
		}
		fd, err := unix.Openat(int(f.Fd()), n, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return false, nil // no folder, or closed by its user
		}
		below := os.NewFile(uintptr(fd), n)
		empty, err := bare(below, n)
		below.Close()
		if err != nil || !empty {
			return false, err
		}
	}
	return true, nil
}

// Remove takes it away at once, and leaves what is in it to Run. One that is not
// there is fine.
func (s *Store) Remove(id string) error {
	from, to := s.Path(id), filepath.Join(s.trash(), id+"-"+secret.ID())
	err := os.Rename(from, to)
	if errors.Is(err, fs.ErrPermission) { // its own user has closed it
		if os.Chmod(from, 0o700) == nil {
			err = os.Rename(from, to)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := os.Lstat(from); errors.Is(gone, fs.ErrNotExist) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("removing a workspace: %w", err)
	}
	select {
	case s.removed <- struct{}{}:
	default:
	}
	return nil
}

// again is how long after a failure Run tries to remove what is left.
const again = 10 * time.Minute

// Run empties what Remove has taken away, also before an earlier server ended,
// until ctx ends. It says what cannot be removed, and tries again later. It is
// called once.
func (s *Store) Run(ctx context.Context, log *slog.Logger) {
	for {
		later := time.NewTimer(again)
		if s.empty(ctx, log) {
			later.Stop()
		}
		select {
		case <-s.removed:
		case <-later.C:
		case <-ctx.Done():
		}
		later.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// empty removes all that was taken away, and says whether nothing is left.
func (s *Store) empty(ctx context.Context, log *slog.Logger) bool {
	entries, err := os.ReadDir(s.trash())
	if err != nil {
		log.Error("could not list removed workspaces", "error", err)
		return false
	}
	all := true
	for _, e := range entries {
		err := tree.Remove(ctx, filepath.Join(s.trash(), e.Name()))
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			log.Error("could not remove what was in a workspace; it is tried again later", "error", err)
			all = false
		}
	}
	return all
}

// trash is the folder of what was removed and is not emptied yet.
func (s *Store) trash() string { return filepath.Join(s.dir, ".removed") }

// All lists the ids of all workspaces.
func (s *Store) All() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if valid.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
