package docker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
)

// daemon is what a daemon says of itself.
type daemon struct {
	identity daemonID
	// isPodman: it changes no limits of containers that run, has limits of its own for users' processes, and mounts
	// what is missing as an empty folder.
	isPodman      bool
	endsSandboxes bool // containers end with it
	hasLimits     bool // the kernel bounds memory, processors and processes of containers
}

// known returns what the daemon has said of itself, or the zero value: it was not asked yet.
func (r *Runtime) known() daemon {
	if d := r.asked.Load(); d != nil {
		return *d
	}
	return daemon{}
}

// ask asks the daemon what it is, unless it has answered before.
func (r *Runtime) ask(ctx context.Context) (daemon, error) {
	if d := r.asked.Load(); d != nil {
		return *d, nil
	}
	version, err := r.client.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return daemon{}, fmt.Errorf("asking the Docker daemon for its version: %w", err)
	}
	answer, err := r.client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return daemon{}, fmt.Errorf("asking the Docker daemon which one it is: %w", err)
	}
	info := answer.Info
	d := daemon{
		identity: daemonID{r.client.DaemonHost(), info.ID},
		isPodman: slices.ContainsFunc(version.Components, func(c system.ComponentVersion) bool {
			return strings.HasPrefix(c.Name, "Podman")
		}),
		endsSandboxes: !info.LiveRestoreEnabled,
		hasLimits:     info.MemoryLimit && info.PidsLimit && info.CPUCfsQuota,
	}
	if d.isPodman {
		d.identity.ID = info.Name + ":" + info.DockerRootDir // its ID is another one each time
		d.endsSandboxes = false
	}
	r.asked.Store(&d)
	return d, nil
}
