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
// the server's machine, which is empty: a volume whose workspace has no folder any more is removed.

// keeper returns a runtime if it keeps the files of workspaces, or else nil.
func keeper(ctx context.Context, rt sandbox.Runtime) (sandbox.VolumeKeeper, error) {
	k, ok := rt.(sandbox.VolumeKeeper)
	if !ok {
		return nil, nil
	}
	keeps, err := k.KeepsVolumes(ctx)
	if err != nil || !keeps {
		return nil, err
	}
	return k, nil
}

// keepers calls do with each runtime that keeps the files of workspaces.
func (p *Pool) keepers(ctx context.Context, do func(sandbox.VolumeKeeper) error) (all error) {
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

// errElsewhere means that a session's files are where the sandboxes of another runtime have them.
var errElsewhere = errors.New("the files of this workspace are where another runtime has them, and this one does not " +
	"see them; begin a new session for this template")

// makeVolume makes the volume of a workspace if its sandbox's runtime keeps it, and reports whether that is so.
func (p *Pool) makeVolume(ctx context.Context, rt sandbox.Runtime, r Request) (kept bool, err error) {
	k, err := keeper(ctx, rt)
	if err != nil {
		return false, err
	}
	if k == nil {
		return false, p.keepers(ctx, func(other sandbox.VolumeKeeper) error {
			if names, err := other.Volumes(ctx); err == nil && slices.Contains(names, r.Workspace) {
				return errElsewhere
			}
			return nil
		})
	}
	if empty, err := p.Workspaces.Empty(r.Workspace); err != nil || !empty {
		return true, errors.Join(err, errElsewhere)
	}
	u := p.runnable(r.Template).User
	return true, k.MakeVolume(ctx, r.Workspace, int(u.UID), int(u.GID))
}

// WorkspaceEmpty reports whether a workspace has nothing but the folders that every agent makes.
func (p *Pool) WorkspaceEmpty(ctx context.Context, id string) (empty bool, err error) {
	if empty, err = p.Workspaces.Empty(id); err != nil || !empty {
		return empty, err
	}
	err = p.keepers(ctx, func(k sandbox.VolumeKeeper) error {
		inVolume, err := k.VolumeEmpty(ctx, id, workspace.IsAgents)
		empty = empty && inVolume
		return err
	})
	return empty && err == nil, err
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

// volumesInterval is the pause before removing volumes is tried again.
const volumesInterval = 10 * time.Minute

// RunVolumes removes the volumes of workspaces that were removed, also by an earlier server, until ctx ends.
func (p *Pool) RunVolumes(ctx context.Context) {
	if !slices.ContainsFunc(p.Runtimes(), func(rt sandbox.Runtime) bool {
		_, ok := rt.(sandbox.VolumeKeeper)
		return ok
	}) {
		return
	}
	for ctx.Err() == nil {
		if err := p.RemoveVolumes(ctx); err != nil && ctx.Err() == nil {
			p.Log.Warn("could not remove all volumes of workspaces that are gone; it is tried again", "error", err)
		}
		select {
		case <-p.removed:
		case <-time.After(volumesInterval):
		case <-ctx.Done():
		}
	}
}

// RemoveVolumes removes the volumes of workspaces that were removed.
func (p *Pool) RemoveVolumes(ctx context.Context) error {
	return p.keepers(ctx, func(k sandbox.VolumeKeeper) error {
		names, err := k.Volumes(ctx) // before the workspaces: each of them had one then
		if err != nil {
			return err
		}
		workspaces, err := p.Workspaces.All()
		if err != nil {
			return err
		}
		for _, name := range names {
			if !slices.Contains(workspaces, name) {
				err = errors.Join(err, k.RemoveVolume(ctx, name))
			}
		}
		return err
	})
}
