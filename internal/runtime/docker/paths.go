package docker

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

// reservedPaths are the places of a container at and below which nothing of the image, and no folder of others, may
// be mounted.
var reservedPaths = []string{path.Dir(wire.AgentPath), wire.SocketDir, "/proc", "/sys", "/dev"}

// startChecked starts a container whose first process is the agent, and no program of the image or of a user. That
// process has capabilities.
func (b *box) startChecked(ctx context.Context, id string, options client.ContainerCreateOptions) error {
	prepared := b.runtime.known().isPodman && b.runtime.seesProcesses()
	check := b.checkPaths
	if prepared {
		check = b.prepare
	}
	if err := check(ctx, id, options); err != nil {
		return fmt.Errorf("docker: no sandbox of the template %s: %w", b.spec.Template.Name, err)
	}
	if _, err := b.runtime.client.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("starting the container: %w", err)
	}
	if prepared {
		return nil
	}
	if err := b.checkAgent(ctx); err != nil {
		return fmt.Errorf("docker: no sandbox of the template %s: %w", b.spec.Template.Name, err)
	}
	return nil
}

// checkPaths refuses a container, before it starts, if anything could be mounted over the agent, which is the first
// process and has capabilities. An image may have symbolic links where the daemon mounts folders, follows them, and
// mounts in an order of its own. So there may be none on the way to a mount point of a folder whose content is the
// image's or a user's, and no such mount point at the reserved paths. An image stays as it is: each is looked at once.
func (b *box) checkPaths(ctx context.Context, id string, options client.ContainerCreateOptions) error {
	points := []string{wire.AgentPath, wire.SocketDir}
	taken := slices.Clone(reservedPaths)
	for _, m := range b.spec.Mounts {
		points, taken = append(points, m.Target), append(taken, m.Target)
	}
	for _, m := range options.HostConfig.Mounts {
		if m.Type == mount.TypeVolume {
			points = append(points, m.Target)
		}
	}
	if b.spec.Build && !b.runtime.WritableRoot { // so that it is said when the template is built, and not at each use
		points = append(points, scratch...)
	}
	if err := b.checkFiles(ctx, id, options); err != nil {
		return err
	}
	slices.Sort(points)
	key := options.Config.Image + "\n" + strings.Join(points, "\n")
	if _, done := b.runtime.checkedPaths.Load(key); done {
		return nil
	}
	image, err := b.runtime.client.ImageInspect(ctx, options.Config.Image)
	if err != nil {
		return fmt.Errorf("the image's volumes: %w", err)
	}
	if image.Config != nil {
		for v := range image.Config.Volumes {
			v = path.Clean("/" + v)
			if slices.Contains(points, v) {
				continue // the daemon mounts no other one there
			}
			if isBelow(v, taken) {
				return refuse("the image has its own volume (VOLUME) at %s, in a folder that the sandbox has for "+
					"something else; use another image, or, for a shared folder, another place", v)
			}
			points = append(points, v)
		}
	}
	if err := b.runtime.refuseLinks(ctx, id, points); err != nil {
		return err
	}
	b.runtime.checkedPaths.Store(key, true)
	return nil
}

// stat looks at a path in a container that does not run. For that the daemon mounts what the container has. An image can
// prevent it, and only an answer with a body says why.
func (r *Runtime) stat(ctx context.Context, id, p string) (st container.PathStat, exists bool, err error) {
	answer, err := r.client.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: p})
	switch {
	case err == nil || isMissing(err):
		return answer.Stat, err == nil, nil
	case !errdefs.IsInternal(err):
		return st, false, fmt.Errorf("looking for %s in the image: %w", p, err)
	}
	file, copyErr := r.client.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: p})
	if copyErr == nil {
		file.Content.Close()
	} else {
		err = copyErr
	}
	return st, false, sandbox.Explain("the daemon cannot mount the sandbox's own files and folders in the image. Where a "+
		"sandbox has a folder, the image may have no file, and the reverse, and no link that leads to itself: remove it from "+
		"the image. The server's log has the daemon's words", err)
}

// refuse returns the error for an image that cannot be used, in words for the users of the template.
func refuse(format string, args ...any) error {
	return sandbox.Explain(fmt.Sprintf(format, args...), nil)
}

// refuseLinks returns an error if a part of one of the paths is a symbolic link in a container that does not run.
func (r *Runtime) refuseLinks(ctx context.Context, id string, paths []string) error {
	exists := map[string]bool{}
	for _, p := range paths {
		for i := 1; i <= len(p); i++ {
			if i < len(p) && p[i] != '/' {
				continue
			}
			part := p[:i]
			if found, known := exists[part]; known && found {
				continue
			} else if known {
				break
			}
			st, found, err := r.stat(ctx, id, part)
			if err != nil {
				return err
			}
			if exists[part] = found; !found {
				break
			}
			if st.Mode&os.ModeSymlink != 0 {
				return refuse("in the image, %s is a symbolic link; a sandbox has a folder of its own at %s, "+
					"which would be mounted elsewhere: make it a folder in the image", part, p)
			}
		}
	}
	return nil
}

// checkFiles refuses a container, before it starts, if one of the server's own files would be mounted over the agent,
// its socket, or a folder that the sandbox has. An image stays as it is: each is looked at once. Podman cannot say where
// such a path leads; there an agent that does not connect is given up soon.
func (b *box) checkFiles(ctx context.Context, id string, options client.ContainerCreateOptions) error {
	taken := slices.Clone(reservedPaths)
	for _, m := range b.spec.Mounts {
		taken = append(taken, m.Target)
	}
	var files []string
	for _, m := range options.HostConfig.Mounts {
		if m.Type == mount.TypeBind && m.Target != wire.AgentPath && !slices.Contains(taken, m.Target) {
			files = append(files, m.Target)
		}
	}
	slices.Sort(files)
	key := "files of " + options.Config.Image + "\n" + strings.Join(files, "\n") + "\n\n" + strings.Join(taken, "\n")
	if _, done := b.runtime.checkedPaths.Load(key); done {
		return nil
	}
	if err := b.runtime.refuseHidden(ctx, id, files, taken); err != nil {
		return err
	}
	b.runtime.checkedPaths.Store(key, true)
	return nil
}

// refuseHidden returns an error if links in a container that does not run lead from one of these paths, where files and
// folders of the server are mounted, into one of the folders that are taken: such a file would hide what is there, as
// the agent's socket. Many images have links to other places, as /etc/resolv.conf and bundles of certificates.
func (r *Runtime) refuseHidden(ctx context.Context, id string, paths, taken []string) error {
	type place struct {
		path   string // where links lead
		exists bool
	}
	known := map[string]place{"/": {"/", true}}
	var lead func(p string) (place, error)
	lead = func(p string) (place, error) {
		if at, ok := known[p]; ok {
			return at, nil
		}
		parent, err := lead(path.Dir(p))
		if err != nil {
			return place{}, err
		}
		at := place{path: path.Join(parent.path, path.Base(p))}
		if parent.exists {
			st, found, err := r.stat(ctx, id, at.path)
			if err != nil {
				return place{}, err
			}
			at.exists = found
			if at.exists && st.Mode&os.ModeSymlink != 0 {
				at.path = path.Clean("/" + st.LinkTarget) // which has no further links
			}
		}
		known[p] = at
		return at, nil
	}
	for _, p := range paths {
		at, err := lead(p)
		if err != nil {
			return err
		}
		if at.path != p && isBelow(at.path, taken) {
			return refuse("in the image, %s leads to %s by a symbolic link; the sandbox's own file for the one would "+
				"hide what it has at the other: remove the link from the image", p, at.path)
		}
	}
	return nil
}
