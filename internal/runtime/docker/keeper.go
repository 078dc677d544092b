package docker

import (
	"context"
	"io/fs"
	"time"

	"sandlot/internal/runtime/docker/volumes"
)

// KeepsVolumes implements sandbox.Storage.
func (r *Runtime) KeepsVolumes(ctx context.Context) (bool, error) { return r.isSeparate(ctx) }

// KeeperID implements sandbox.Storage.
func (r *Runtime) KeeperID(ctx context.Context) (address, id string, err error) {
	d, err := r.ask(ctx)
	return d.identity.Host, d.identity.ID, r.explain(err)
}

// MakeVolume implements sandbox.Storage.
func (r *Runtime) MakeVolume(ctx context.Context, name string, uid, gid int) error {
	if _, err := r.ask(ctx); err != nil {
		return r.explain(err)
	}
	if err := r.client.Remember(); err != nil {
		return err
	}
	return r.explain(r.volumes.MakeVolume(ctx, name, uid, gid))
}

// HasVolume implements sandbox.Storage.
func (r *Runtime) HasVolume(ctx context.Context, name string) (bool, error) {
	has, err := r.volumes.HasVolume(ctx, name)
	return has, r.explain(err)
}

// VolumeBytes implements sandbox.Storage.
func (r *Runtime) VolumeBytes(ctx context.Context, name string) (int64, time.Time, error) {
	sizes, at, err := r.sizes.Get(ctx)
	return sizes[volumes.Name(name)], at, r.explain(err)
}

// RemoveVolume implements sandbox.Storage.
func (r *Runtime) RemoveVolume(ctx context.Context, name string) error {
	return r.explain(r.volumes.RemoveVolume(ctx, name))
}

// VolumeEmpty implements sandbox.Storage.
func (r *Runtime) VolumeEmpty(ctx context.Context, name string, isExpected func(path string, kind fs.FileMode) bool) (bool, error) {
	empty, err := r.volumes.IsEmpty(ctx, name, isExpected)
	return empty, r.explain(err)
}

// Volumes implements sandbox.Storage.
func (r *Runtime) Volumes(ctx context.Context) ([]string, error) {
	names, err := r.volumes.Volumes(ctx)
	return names, r.explain(err)
}
