package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sandlot/internal/sandbox"
	"sandlot/internal/workspace"
)

// A runtime may keep the files of workspaces itself, as volumes with the workspaces' ids. Each still has its folder on
// the server's machine, which is empty, and beside that a note of who keeps the files. A volume goes with its
// workspace.

// keeper returns a runtime if it keeps the files of workspaces, or else nil.
func keeper(ctx context.Context, rt sandbox.Runtime) (sandbox.Storage, error) {
	k := rt.Capabilities().Storage
	if k == nil {
		return nil, nil
	}
	keeps, err := k.KeepsVolumes(ctx)
	if err != nil || !keeps {
		return nil, err
	}
	return k, nil
}

// keepers calls do with each runtime that keeps the files of workspaces.
func (p *Pool) keepers(ctx context.Context, do func(sandbox.Storage) error) (all error) {
	for _, rt := range p.Runtimes() {
		k, err := keeper(ctx, rt)
		if k != nil {
			err = do(k)
		}
		if err != nil {
			all = errors.Join(all, fmt.Errorf("the runtime %s: %w", rt.Name(), err))
		}
	}
	return all
}

// ErrElsewhere means that a session's files are where the sandboxes of another runtime have them.
var ErrElsewhere = errors.New("the files of this workspace are where another runtime has them, and this one does not " +
	"see them; begin a new session for this template")

// ErrMissing means that a session's files were in a volume that is gone.
var ErrMissing = errors.New("the volume with the files of this workspace is gone")

// elsewhere returns ErrElsewhere with what is known of where the files are.
func elsewhere(v workspace.Volume) error {
	return fmt.Errorf("%w, or, if the server's settings have changed, set them back: the files are in a volume that "+
		"the runtime %s has at %s (%s)", ErrElsewhere, v.Runtime, v.Address, v.Keeper)
}

// makeVolume makes the volume of a workspace if its sandbox's runtime keeps it, and reports whether that is so.
func (p *Pool) makeVolume(ctx context.Context, rt sandbox.Runtime, r Request) (kept bool, err error) {
	k, err := keeper(ctx, rt)
	if err != nil {
		return false, err
	}
	known, err := p.Workspaces.Volume(r.Workspace)
	switch {
	case err != nil:
		return false, err
	case k == nil && known != nil && known.Made:
		return false, elsewhere(*known)
	case k == nil: // no runtime is asked: another one may be away
		return false, nil
	}
	if empty, err := p.Workspaces.Empty(r.Workspace); err != nil || !empty {
		if err == nil {
			err = ErrElsewhere
		}
		return true, err
	}
	now := workspace.Volume{Runtime: rt.Name()}
	if now.Made, err = findVolume(ctx, k, r.Workspace, known, &now); err != nil {
		return true, err
	}
	// Noted before there is a volume, so that none is forgotten; it has no files until it is noted as made.
	if err := p.noteVolume(r.Workspace, known, now); err != nil {
		return true, err
	}
	u := p.runnable(r.Template).User
	if err := k.MakeVolume(ctx, r.Workspace, int(u.UID), int(u.GID)); err != nil || now.Made {
		return true, err
	}
	now.Made = true
	return true, p.Workspaces.SetVolume(r.Workspace, now)
}

// findVolume reports whether a runtime has the volume of a workspace, of which known is what was noted, and sets now's
// address and keeper. It returns an error if there are files and the runtime does not have them.
func findVolume(ctx context.Context, k sandbox.Storage, id string, known, now *workspace.Volume) (bool, error) {
	var err error
	if now.Address, now.Keeper, err = k.KeeperID(ctx); err != nil {
		return false, err
	}
	mayHaveFiles := known != nil && known.Made
	if mayHaveFiles && !known.IsAt(now.Address, now.Keeper) {
		return false, elsewhere(*known)
	}
	found, err := k.HasVolume(ctx, id)
	if err != nil {
		return false, err
	}
	if mayHaveFiles && !found {
		return false, fmt.Errorf("%w: the runtime %s had it at %s (%s). Restore it, or begin a new session", ErrMissing,
			known.Runtime, known.Address, known.Keeper)
	}
	return found, nil
}

// noteVolume stores who keeps the files of a workspace, unless that is known.
func (p *Pool) noteVolume(id string, known *workspace.Volume, now workspace.Volume) error {
	if known != nil && *known == now {
		return nil
	}
	return p.Workspaces.SetVolume(id, now)
}

// WorkspaceEmpty reports whether a workspace has nothing but the folders that every agent makes. It is not empty if
// nobody can tell.
func (p *Pool) WorkspaceEmpty(ctx context.Context, id string) (empty bool, err error) {
	if empty, err = p.Workspaces.Empty(id); err != nil || !empty {
		return false, err
	}
	known, err := p.Workspaces.Volume(id)
	if err != nil {
		return false, err
	}
	seen := known == nil || !known.Made // without a note too there may be a volume, such as after a backup
	err = p.keepers(ctx, func(k sandbox.Storage) error {
		if known != nil && known.Made {
			address, keeper, err := k.KeeperID(ctx)
			if err != nil || !known.IsAt(address, keeper) {
				return err
			}
			if _, err := findVolume(ctx, k, id, known, new(workspace.Volume)); err != nil {
				return err
			}
			seen = true
		}
		inVolume, err := k.VolumeEmpty(ctx, id, workspace.IsAgents)
		empty = empty && inVolume
		return err
	})
	return empty && seen && err == nil, err
}

// WorkspaceBytes returns how many bytes the files of a workspace have on the disk, wherever they are, and when
// measuring that began. It reads all of the workspace. One that cannot be measured since a sandbox made it so has as
// much as a sandbox may write.
func (p *Pool) WorkspaceBytes(ctx context.Context, id string) (size int64, at time.Time, err error) {
	at = time.Now()
	size, err = p.Workspaces.Size(ctx, id)
	if errors.Is(err, workspace.ErrUnmeasurable) {
		return max(size, p.DiskBytes), at, nil
	}
	if err != nil {
		return 0, at, err
	}
	known, err := p.Workspaces.Volume(id)
	if err != nil || known == nil {
		return size, at, err
	}
	err = p.keepers(ctx, func(k sandbox.Storage) error {
		n, measured, err := k.VolumeBytes(ctx, id)
		if size += n; measured.Before(at) {
			at = measured
		}
		return err
	})
	return size, at, err
}

// RemoveWorkspace removes a workspace, of which Run removes the files. It returns nil if there is none.
func (p *Pool) RemoveWorkspace(id string) error {
	err := p.Workspaces.Remove(id)
	select {
	case p.removed <- struct{}{}:
	default:
	}
	return err
}

// volumesInterval is the pause between two searches for volumes that can be removed.
const volumesInterval = 10 * time.Minute

// volumesRetry is the pause after the first search that could not remove all. It doubles up to volumesInterval. Most
// often the sandbox that uses a volume is being removed: that of a server that was killed.
const volumesRetry = time.Second

// unknownTime is how long a volume has to have belonged to no workspace, nor to one that was removed, until it is
// removed: there may be a backup that knows it, or another state folder.
const unknownTime = time.Hour

// RunVolumes removes the volumes of workspaces that were removed, also by an earlier server, until ctx ends. Owned
// returns the workspaces of all sessions.
func (p *Pool) RunVolumes(ctx context.Context, owned func(context.Context) ([]string, error)) {
	if !slices.ContainsFunc(p.Runtimes(), func(rt sandbox.Runtime) bool {
		return rt.Capabilities().Storage != nil
	}) {
		return
	}
	retry := volumesRetry
	for ctx.Err() == nil {
		pause := volumesInterval
		if err := p.RemoveVolumes(ctx, owned); err == nil {
			retry = volumesRetry
		} else if ctx.Err() == nil {
			pause, retry = retry, min(2*retry, volumesInterval)
			p.Log.Warn("could not remove all volumes of workspaces that are gone; it is tried again", "in", pause,
				"error", err)
		}
		select {
		case <-p.removed:
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// RemoveVolumes removes the volumes of workspaces that were removed, and those that have been unknown for unknownTime.
// If a runtime does not have its volumes now, those of its workspaces wait. It is not called twice at once.
func (p *Pool) RemoveVolumes(ctx context.Context, owned func(context.Context) ([]string, error)) error {
	unknown := map[string]time.Time{}
	err := p.keepers(ctx, func(k sandbox.Storage) error { return p.removeVolumes(ctx, k, owned, unknown) })
	p.unknown = unknown
	return err
}

// removeVolumes does that for one runtime. It adds to unknown the volumes that it does not know.
func (p *Pool) removeVolumes(ctx context.Context, k sandbox.Storage,
	owned func(context.Context) ([]string, error), unknown map[string]time.Time) error {
	address, keeper, err := k.KeeperID(ctx)
	if err != nil {
		return err
	}
	names, err := k.Volumes(ctx) // before the workspaces: each of them had one then
	if err != nil {
		return err
	}
	workspaces, err := p.Workspaces.All()
	if err != nil {
		return err
	}
	ofSessions, err := owned(ctx)
	if err != nil {
		return err
	}
	known := func(id string) bool { return slices.Contains(workspaces, id) || slices.Contains(ofSessions, id) }
	removed, all := p.Workspaces.Removed()
	for id, v := range removed {
		if known(id) || !v.IsAt(address, keeper) {
			delete(removed, id)
		} else if err := k.RemoveVolume(ctx, id); err != nil {
			all = errors.Join(all, err)
		} else {
			all = errors.Join(all, p.Workspaces.Forget(id))
		}
	}
	for _, name := range names {
		if _, done := removed[name]; done || known(name) {
			continue
		}
		key := keeper + " " + name
		since, again := p.unknown[key]
		if !again {
			since = time.Now()
		}
		if unknown[key] = since; again && time.Since(since) >= unknownTime {
			p.Log.Warn("removing a volume that belongs to no workspace", "volume", name)
			all = errors.Join(all, k.RemoveVolume(ctx, name))
		}
	}
	return all
}
