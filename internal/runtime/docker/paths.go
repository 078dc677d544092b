package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/proc"
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
				return fmt.Errorf("the image has its own volume (VOLUME) at %s, in a folder that the sandbox has for "+
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
			st, err := r.client.ContainerStatPath(ctx, id, client.ContainerStatPathOptions{Path: part})
			if err != nil && !isMissing(err) {
				return fmt.Errorf("looking for %s in the image: %w", part, err)
			}
			if exists[part] = err == nil; err != nil {
				break
			}
			if st.Stat.Mode&os.ModeSymlink != 0 {
				return fmt.Errorf("in the image, %s is a symbolic link; a sandbox has a folder of its own at %s, "+
					"which would be mounted elsewhere: make it a folder in the image", part, p)
			}
		}
	}
	return nil
}

// checkAgent proves, after the start, that the path that the first process was started from is the server's agent, and
// its socket's folder the server's: no program in a container can mount anything. That the paths lead there without
// a link can be seen from the outside, where the container is a process of this machine.
func (b *box) checkAgent(ctx context.Context) error {
	isNative := slices.Contains([]string{"", "runc", "crun", "youki"}, b.runtime.OCIRuntime)
	if b.separate || !isNative || !b.runtime.seesProcesses() {
		return nil // its file systems are inside of a virtual machine, or another kernel
	}
	state, err := b.inspect(ctx)
	if err != nil {
		return err
	}
	if state == nil || state.Pid == 0 {
		return errors.New("the container ended at its start; the daemon has its log")
	}
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", state.Pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the root file system of the container's first process: %w", err)
	}
	defer unix.Close(root)
	mounted := map[string]string{wire.AgentPath: b.runtime.Agent, wire.SocketDir: b.socketDir()}
	for target, source := range mounted {
		if err := isMounted(root, target, source); err != nil {
			return fmt.Errorf("in the container, %s is something else than %s, which was mounted there; the image, "+
				"or a shared folder, has links: %w", target, source, err)
		}
	}
	return b.checkFolders(root, proc.Mounts(state.Pid))
}

// checkFolders proves that the folders of this machine that a container has are what the server sees at their paths: a
// daemon with mounts of its own may see something else there. What is mounted in read-only ones is read-only, too.
func (b *box) checkFolders(root int, mounts []proc.Mount) error {
	folders := slices.Clone(b.spec.Mounts)
	for _, x := range b.spec.Template.Binds {
		folders = append(folders, sandbox.Mount{Source: x.Source, Target: x.Target, ReadOnly: true})
		for _, below := range mountsBelow(x.Source) {
			folders = append(folders, sandbox.Mount{Source: below, Target: x.Target + below[len(x.Source):],
				ReadOnly: true})
		}
	}
	var writable []string
	for _, m := range folders {
		if err := isMounted(root, m.Target, m.Source); err != nil {
			return fmt.Errorf("in the container, %s is something else than %s, which was mounted there; if this was "+
				"mounted on the machine after the daemon's start, start the daemon again: %w", m.Target, m.Source, err)
		}
		if !m.ReadOnly {
			writable = append(writable, m.Target)
		}
	}
	for _, m := range folders {
		if at := writableIn(mounts, m.Target); m.ReadOnly && at != "" && !isBelow(at, writable) {
			return fmt.Errorf("in the container, %s, in %s, is not read-only", at, m.Target)
		}
	}
	return nil
}

// writableIn returns where something that is not read-only is mounted in a folder; "": nowhere. What is mounted over
// counts no more.
func writableIn(mounts []proc.Mount, folder string) string {
	for _, m := range mounts {
		isCovered := slices.ContainsFunc(mounts, func(over proc.Mount) bool {
			return over.Parent == m.ID && over.Target == m.Target
		})
		if isIn(m.Target, folder) && !m.ReadOnly && !isCovered {
			return m.Target
		}
	}
	return ""
}

// isMounted returns an error unless a path in a root file system is a file of this machine, without links on the way.
func isMounted(root int, target, source string) error {
	fd := root
	for part := range strings.SplitSeq(strings.TrimPrefix(target, "/"), "/") {
		next, err := unix.Openat(fd, part, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: part, Err: err}
		}
		defer unix.Close(next)
		fd = next
	}
	var found, want unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &found), unix.Stat(source, &want)); err != nil {
		return err
	}
	if found.Dev != want.Dev || found.Ino != want.Ino {
		return errors.New("it is another file")
	}
	return nil
}
