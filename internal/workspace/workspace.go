// Package workspace owns the workspaces: the folders with the files of sessions, which stay
// when a sandbox ends. Hostile code writes them, so the package follows no link in them and
// opens no file.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sandlot/internal/atomicfile"
	"sandlot/internal/secret"
	"sandlot/internal/tree"
)

// Store has all workspaces of one server.
type Store struct {
	dir        string
	trashAdded chan struct{} // receives when a workspace was moved to the trash
}

// Open returns the store in the folder dir, and makes the folder if it does not exist.
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

var validID = regexp.MustCompile(`^[a-z2-7]{26}$`)

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

// Has reports whether the folder of a workspace is there.
func (s *Store) Has(id string) bool {
	info, err := os.Lstat(s.Path(id))
	return err == nil && info.IsDir()
}

// Free returns how many bytes the disk of the workspaces has left.
func (s *Store) Free() (int64, error) { return freeBytes(s.dir) }

// SetOwner makes a workspace, and all files in it, belong to a user and a group, and says whether they
// belonged to others. No sandbox may use the workspace meanwhile. The folder itself is last, so
// that a call that did not end is repeated.
func (s *Store) SetOwner(ctx context.Context, id string, uid, gid int) (changed bool, err error) {
	path := s.Path(id)
	nowUID, nowGID, err := owner(path)
	if err != nil {
		return false, err
	}
	if nowUID == uid && nowGID == gid {
		return false, nil
	}
	return true, tree.SetOwner(ctx, path, uid, gid)
}

// Path is the folder on the host.
func (s *Store) Path(id string) string {
	if !validID.MatchString(id) {
		panic("workspace: not an id: " + id)
	}
	return filepath.Join(s.dir, id)
}

// agentFolders and agentFiles are patterns of what a sandbox's agent makes in its workspace.
var (
	agentFolders = []string{".local", ".local/bin", ".local/lib", ".local/lib/python3.*", ".local/lib/python3.*/site-packages"}
	agentFiles   = []string{".local/lib/python3.*/site-packages/sandlot_tools.pth",
		".local/lib/python3.*/site-packages/sandlot_ready.pth"}
)

// IsAgents reports whether a path in a workspace, of a file of that type, is one that the agents make.
func IsAgents(name string, kind fs.FileMode) bool {
	patterns := agentFiles
	switch {
	case kind.IsDir():
		patterns = agentFolders
	case !kind.IsRegular():
		return false
	}
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matches, err := path.Match(pattern, name)
		return err == nil && matches
	})
}

// Empty reports whether a workspace has nothing but what the agents make.
func (s *Store) Empty(id string) (bool, error) {
	root, err := os.OpenRoot(s.Path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer root.Close()
	return isEmpty(root, ".")
}

// maxAgents is how many entries a folder of the agents may have to count as empty.
const maxAgents = 16

// isEmpty is Empty for a folder in a workspace. It does not follow links.
func isEmpty(root *os.Root, name string) (bool, error) {
	f, err := root.Open(name)
	if err != nil {
		return false, err
	}
	names, err := f.Readdirnames(maxAgents + 1)
	f.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	if len(names) > maxAgents {
		return false, nil
	}
	for _, n := range names {
		below := path.Join(name, n)
		info, err := root.Lstat(below)
		if err != nil || !IsAgents(below, info.Mode().Type()) {
			return false, err
		}
		if info.IsDir() {
			if empty, err := isEmpty(root, below); err != nil || !empty {
				return false, err
			}
		}
	}
	return true, nil
}

// ErrUnmeasurable means that a sandbox has written more files, or deeper folders, into a workspace than are measured.
var ErrUnmeasurable = errors.New("the workspace cannot be measured")

// Size returns how many bytes the files of a workspace's folder have on the disk. It reads the whole folder.
func (s *Store) Size(ctx context.Context, id string) (int64, error) {
	limited, cancel := context.WithTimeout(ctx, tree.SandboxTimeout)
	defer cancel()
	size, err := tree.Measure(limited, s.Path(id), tree.SandboxLimits)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case tree.IsSandboxFault(err) && ctx.Err() == nil:
		return size.Bytes, fmt.Errorf("%w: %w", ErrUnmeasurable, err)
	}
	return size.Bytes, err
}

// Copy makes a workspace with a copy of the files of another one, which nobody changes meanwhile. When it returns, the
// copy is on the disk; after an error there is none.
func (s *Store) Copy(ctx context.Context, id string) (copied string, bytes int64, err error) {
	if copied, err = s.New(); err != nil {
		return "", 0, err
	}
	size, err := tree.Copy(ctx, s.Path(id), s.Path(copied), tree.SandboxLimits)
	if err == nil {
		err = atomicfile.Sync(s.dir)
	}
	if err != nil {
		return "", 0, errors.Join(fmt.Errorf("copying a workspace: %w", err), s.Remove(copied))
	}
	return copied, size.Bytes, nil
}

// keptSuffix is of the file that says that a workspace stays though it belongs to no session.
const keptSuffix = ".kept"

// Keep makes a workspace stay until Remove, though no session knows it any more. It is on the disk when Keep returns.
func (s *Store) Keep(id string) error {
	if err := atomicfile.WriteThrough(s.Path(id)+keptSuffix, nil); err != nil {
		return fmt.Errorf("storing that a workspace is kept: %w", err)
	}
	return nil
}

// Kept returns the ids of the workspaces for which Keep was called.
func (s *Store) Kept() ([]string, error) { return s.list(keptSuffix) }

// Remove moves a workspace to the trash; Run then removes its files. Its volume, if it has one, becomes one of
// Removed. It returns nil if the workspace does not exist.
func (s *Store) Remove(id string) error {
	if err := os.Rename(s.volumeFile(id), s.removedFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing a workspace: %w", err)
	}
	if err := os.Remove(s.Path(id) + keptSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing a workspace: %w", err)
	}
	from, to := s.Path(id), filepath.Join(s.trash(), id+"-"+secret.ID())
	err := os.Rename(from, to)
	if errors.Is(err, fs.ErrPermission) { // its sandbox may have changed its mode
		if os.Chmod(from, 0o700) == nil {
			err = os.Rename(from, to)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		if _, statErr := os.Lstat(from); errors.Is(statErr, fs.ErrNotExist) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("removing a workspace: %w", err)
	}
	select {
	case s.trashAdded <- struct{}{}:
	default:
	}
	return nil
}

// retryInterval is the pause before Run tries again after a failure.
const retryInterval = 10 * time.Minute

// Run empties the trash, also what an earlier server left there, until ctx ends. It logs what
// cannot be removed, and tries again later. It is called once.
func (s *Store) Run(ctx context.Context, log *slog.Logger) {
	for {
		retry := time.NewTimer(retryInterval)
		if s.emptyTrash(ctx, log) {
			retry.Stop()
		}
		select {
		case <-s.trashAdded:
		case <-retry.C:
		case <-ctx.Done():
		}
		retry.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// emptyTrash empties the trash, and reports whether everything was removed.
func (s *Store) emptyTrash(ctx context.Context, log *slog.Logger) bool {
	entries, err := os.ReadDir(s.trash())
	if err != nil {
		log.Error("could not list removed workspaces", "error", err)
		return false
	}
	allRemoved := true
	for _, e := range entries {
		err := tree.Remove(ctx, filepath.Join(s.trash(), e.Name()))
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			log.Error("could not remove what was in a workspace; it is tried again later", "error", err)
			allRemoved = false
		}
	}
	return allRemoved
}

// trash is the folder of removed workspaces whose files are not removed yet.
func (s *Store) trash() string { return filepath.Join(s.dir, ".removed") }

// All lists the ids of all workspaces: those that have a folder, and those that have a volume.
func (s *Store) All() ([]string, error) {
	ids, err := s.list("")
	if err != nil {
		return nil, err
	}
	inVolumes, err := s.list(volumeSuffix)
	for _, id := range inVolumes {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// list returns the ids that, with a suffix, are names in the store's folder.
func (s *Store) list(suffix string) (ids []string, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), suffix); ok && validID.MatchString(id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
