package docker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"sandlot/internal/runtime/docker/volumes"
)

// sizeInterval is how long the sizes of volumes are good that the daemon has measured.
const sizeInterval = 10 * time.Second

// watchVolumes is watchDisk for a daemon that does not see the server's files: the daemon measures its volumes.
func (b *box) watchVolumes() {
	r, ctx := b.runtime, b.runtime.ctx
	var groups [][]string
	var measured time.Time
	var use volumes.Use
	warned := false
	for {
		limit := b.Spec().Limits.DiskBytes // it may have been changed
		var err error
		if groups == nil {
			groups, err = b.findVolumes(ctx)
		}
		var sizes map[string]int64
		at := measured
		if err == nil && limit > 0 {
			sizes, at, err = r.sizes.Get(ctx)
		}
		if err != nil && !warned && ctx.Err() == nil {
			warned = true
			r.Log.Warn("a sandbox's use of the disk is not watched until the daemon measures its volumes", "sandbox",
				b.spec.ID, "error", err)
		}
		if err == nil && at.After(measured) {
			measured = at
			if why := use.Judge(sums(groups, sizes), nil, limit); why != "" {
				b.endFull(ctx, why) // if the daemon is away, the next look sees it again
			}
		}
		select {
		case <-time.After(diskInterval):
		case <-b.exited:
			return
		case <-ctx.Done():
			return
		}
	}
}

// findVolumes returns the names of the volumes that a sandbox can write: groups whose sizes are limited together.
func (b *box) findVolumes(ctx context.Context) (groups [][]string, err error) {
	found, err := b.runtime.client.ContainerInspect(ctx, b.name, client.ContainerInspectOptions{})
	if err != nil {
		return nil, err
	}
	groups = [][]string{nil}
	for _, m := range b.spec.Mounts {
		if !m.ReadOnly && !m.Shared && m.Volume != "" {
			groups = append(groups, []string{volumes.Name(m.Volume)})
		}
	}
	for _, m := range found.Container.Mounts {
		isKept := slices.ContainsFunc(groups[1:], func(group []string) bool { return group[0] == m.Name })
		if m.Type == mount.TypeVolume && m.RW && !isKept {
			groups[0] = append(groups[0], m.Name)
		}
	}
	if groups[0] == nil {
		return nil, errors.New("the daemon does not say which volumes the container has")
	}
	return groups, nil
}

// sums returns the size of each group of volumes.
func sums(groups [][]string, sizes map[string]int64) []int64 {
	all := make([]int64, len(groups))
	for i, group := range groups {
		for _, name := range group {
			all[i] += sizes[name]
		}
	}
	return all
}
