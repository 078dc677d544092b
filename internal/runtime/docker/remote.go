package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"sandlot/internal/runtime/carrier"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// Values of Config.Files.
const (
	FilesAuto     = "auto"     // the runtime finds out
	FilesShared   = "shared"   // the daemon sees the server's files, at the same paths
	FilesSeparate = "separate" // it sees none of them: what sandboxes need is in volumes of the daemon
)

// isSeparate reports whether sandboxes are made with volumes of the daemon in place of folders of the server. It asks
// the daemon once.
func (r *Runtime) isSeparate(ctx context.Context) (bool, error) {
	if known := r.filesMode.Load(); known != nil {
		return *known, nil
	}
	separate, err := r.findFilesMode(ctx)
	if err != nil {
		return false, err
	}
	r.filesMode.Store(&separate)
	return separate, nil
}

func (r *Runtime) findFilesMode(ctx context.Context) (separate bool, err error) {
	d, err := r.ask(ctx)
	if err != nil {
		return false, r.explain(err)
	}
	switch {
	case r.Files == FilesSeparate, d.separateKernel:
		return true, nil
	case r.Files != FilesAuto:
		return false, nil
	case !strings.HasPrefix(r.client.DaemonHost(), "unix://"):
		return true, nil
	case os.Geteuid() != 0 && !d.isRootless:
		return true, nil // the server could not remove what root in a sandbox writes
	}
	sees, err := r.seesFiles(ctx)
	return !sees, err
}

// seesFiles reports whether the daemon sees the files of the state folder at the same paths.
func (r *Runtime) seesFiles(ctx context.Context) (bool, error) {
	if err := os.MkdirAll(r.dir(), 0o700); err != nil {
		return false, err
	}
	path := filepath.Join(r.dir(), "probe-"+secret.ID())
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return false, err
	}
	defer os.Remove(path)
	found, err := r.canBind(ctx, path)
	if err != nil || !found {
		return false, err
	}
	// Podman does not look at the paths: then the same machine has to be enough.
	if found, err = r.canBind(ctx, path+"-missing"); err != nil || !found {
		return true, err
	}
	return r.seesProcesses(), nil
}

// canBind reports whether the daemon lets a container have a file of this machine, by a request for one that it
// refuses in any case: Docker looks at the file first, and there is no such image.
func (r *Runtime) canBind(ctx context.Context, path string) (bool, error) {
	made, err := r.client.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: "sandlot-none:" + filepath.Base(path), Cmd: []string{"none"}},
		HostConfig: &container.HostConfig{NetworkMode: "none",
			Mounts: []mount.Mount{{Type: mount.TypeBind, Source: path, Target: "/probe", ReadOnly: true}}}})
	switch {
	case err == nil:
		_, err = r.client.ContainerRemove(ctx, made.ID, client.ContainerRemoveOptions{Force: true})
		return false, errors.Join(errors.New("the Docker daemon makes a container without an image"), err)
	case isMissing(err):
		return true, nil
	case strings.Contains(err.Error(), "bind"): // its source does not exist, or binds are forbidden
		return false, nil
	}
	return false, fmt.Errorf("asking the Docker daemon whether it sees the state folder: %w; docker.files says it "+
		"without a question", r.explain(err))
}

// checkFiles returns an error if the daemon cannot have the files that sandboxes need, and whether it is separate.
func (r *Runtime) checkFiles(ctx context.Context) (separate bool, err error) {
	host := r.client.DaemonHost()
	if r.Files == FilesShared && !strings.HasPrefix(host, "unix://") {
		return false, fmt.Errorf("%w: the Docker daemon at %s is on another machine, and docker.files is shared: set "+
			"it to auto or separate", sandbox.ErrUnavailable, host)
	}
	if r.Files == FilesShared && r.known().separateKernel {
		return false, fmt.Errorf("%w: sandboxes with another kernel than the server's cannot connect to its "+
			"sockets, and docker.files is shared: set it to auto or separate", sandbox.ErrUnavailable)
	}
	separate, err = r.isSeparate(ctx)
	if err == nil && separate && r.HasFolders {
		err = fmt.Errorf("%w: the Docker daemon at %s does not see the folders of the server's machine that the "+
			"setting volumes shares with sandboxes; remove that setting, or use a daemon that does",
			sandbox.ErrUnavailable, host)
	}
	return separate, err
}

// openLink starts the link of a separate daemon's box whose container runs.
func (b *box) openLink() {
	r := b.runtime
	l := carrier.New(r.ctx, b.startConnect, b.wakeAgent, r.Log.With("container", b.name))
	b.mu.Lock()
	b.link = l
	b.mu.Unlock()
	r.background.Go(l.Run)
}

// resources returns the limits of a box's container.
func (b *box) resources(l sandbox.Limits) container.Resources {
	all := b.runtime.resources(l)
	if !b.separate {
		return all
	}
	if all.Memory > 0 {
		all.Memory += carrier.Memory
		all.MemorySwap = all.Memory
	}
	if all.PidsLimit != nil {
		*all.PidsLimit += carrier.Threads
	}
	return all
}
