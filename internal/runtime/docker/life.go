package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

var validID = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// Create implements sandbox.Runtime.
func (r *Runtime) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if !validID.MatchString(spec.ID) || len(spec.Secret) != wire.SecretLen || spec.Template == nil {
		return nil, errors.New("docker: the spec is incomplete")
	}
	if err := r.checkMounts(spec.Mounts); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.sandboxesDir(), 0o700); err != nil {
		return nil, err
	}
	if err := os.Mkdir(r.sandboxDir(spec.ID), 0o700); err != nil {
		return nil, fmt.Errorf("making the sandbox's folder: %w", err)
	}
	b := newBox(r, spec)
	err := r.start(ctx, b)
	if err == nil {
		return b.sandbox(), nil
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	stopErr := b.Stop(stopCtx)
	if stopErr != nil { // there may be a container: List has the box, so that it is not forgotten
		r.mu.Lock()
		r.boxes[spec.ID] = b
		r.mu.Unlock()
	}
	return nil, errors.Join(err, stopErr)
}

// otherSockets are the usual sockets of daemons that are root's access to the machine, as Docker's is.
var otherSockets = []string{"/run/containerd/containerd.sock", "/run/podman/podman.sock"}

// checkMounts refuses a mount without its folder, which Podman does not, and one with the socket of the daemon or of
// another one like it, even if that one does not run yet: it is root's access to the machine.
func (r *Runtime) checkMounts(mounts []sandbox.Mount) error {
	sockets := otherSockets
	if daemon, isPath := strings.CutPrefix(r.client.DaemonHost(), "unix://"); isPath {
		if resolved, err := filepath.EvalSymlinks(daemon); err == nil {
			daemon = resolved
		}
		sockets = append([]string{daemon}, otherSockets...)
	}
	for _, m := range mounts {
		source, err := filepath.EvalSymlinks(m.Source)
		if st, serr := os.Stat(source); err != nil || serr != nil || !st.IsDir() {
			return fmt.Errorf("docker: the folder %s, which is to be mounted at %s, is missing", m.Source, m.Target)
		}
		inSource := func(socket string) bool { return strings.HasPrefix(socket, strings.TrimSuffix(source, "/")+"/") }
		if i := slices.IndexFunc(sockets, inSource); i >= 0 {
			return fmt.Errorf("docker: the folder %s, which is to be mounted at %s, is the place of %s, the socket of "+
				"a daemon, with which a sandbox would be root on this machine; share another folder",
				m.Source, m.Target,
				sockets[i])
		}
	}
	return nil
}

const (
	// stopTimeout is how long Create may take to remove what a failed start has left.
	stopTimeout = 20 * time.Second
	// makeTimeout is how long the daemon may take to make a container.
	makeTimeout = 2 * time.Minute
)

// start makes and starts the container of a sandbox whose folder exists.
func (r *Runtime) start(ctx context.Context, b *box) error {
	instance, err := r.instanceID()
	if err != nil {
		return err
	}
	if err := r.storeRecord(b.record()); err != nil {
		return err
	}
	if err := r.findKind(ctx); err != nil {
		return err
	}
	image, err := r.imageOf(ctx, b.spec.Template)
	if err != nil {
		return err
	}
	if err := b.makeFolders(); err != nil {
		return err
	}
	if err := b.listen(); err != nil {
		return err
	}
	if err := b.socket.WriteSecret(b.spec.Secret); err != nil {
		return err
	}
	options, err := r.container(b, image, instance)
	if err != nil {
		return err
	}
	// The daemon goes on with a request that was given up, and would make a container of which nobody here knows.
	makeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeTimeout)
	defer cancel()
	created, err := r.client.ContainerCreate(makeCtx, options)
	if err != nil {
		return fmt.Errorf("making the container: %w", err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, w := range created.Warnings {
		r.Log.Debug("the Docker daemon warns about a container", "sandbox", b.spec.ID, "warning", w)
	}
	if _, err := r.client.ContainerStart(ctx, created.ID, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("starting the container: %w", err)
	}
	r.adopt(b)
	return nil
}

// adopt adds a box whose container runs, and waits for the container's end in the background.
func (r *Runtime) adopt(b *box) {
	r.mu.Lock()
	r.boxes[b.spec.ID] = b
	r.mu.Unlock()
	r.background.Go(b.awaitEnd)
	r.background.Go(b.watchDisk)
}

// Leftovers implements sandbox.Runtime. Each sandbox has a folder before it has a container; the daemon also knows
// containers whose folder was lost.
func (r *Runtime) Leftovers(ctx context.Context) ([]string, error) {
	entries, err := os.ReadDir(r.sandboxesDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if validID.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	instance, err := r.instanceID()
	if err != nil {
		return nil, err
	}
	list, err := r.client.ContainerList(ctx, client.ContainerListOptions{All: true,
		Filters: make(client.Filters).Add("label", labelInstance+"="+instance)})
	if err != nil {
		r.Log.Warn("the Docker daemon did not list its containers; those without a folder in the state folder stay",
			"error", err)
	}
	for _, c := range list.Items {
		if id := c.Labels[labelID]; validID.MatchString(id) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Recover implements sandbox.Runtime.
func (r *Runtime) Recover(ctx context.Context, id string) (sandbox.Sandbox, error) {
	if !validID.MatchString(id) {
		return nil, fmt.Errorf("docker: %q is not a sandbox id", id)
	}
	b, err := r.recoverBox(ctx, id)
	if err == nil {
		return b.sandbox(), nil
	}
	if !errors.Is(err, sandbox.ErrGone) { // it may live, and can be recovered later
		b.detach()
		return nil, err
	}
	r.Log.Info("removing what is left of a sandbox", "sandbox", id, "reason", err)
	if stopErr := b.Stop(ctx); stopErr != nil {
		r.Log.Error("could not remove what is left of a sandbox", "sandbox", id, "error", stopErr)
	}
	return nil, err
}

// recoverBox takes one sandbox over. The box that it returns with an error can only be stopped or detached.
func (r *Runtime) recoverBox(ctx context.Context, id string) (*box, error) {
	b := newBox(r, sandbox.Spec{ID: id})
	spec, err := r.readRecord(id)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, errBrokenRecord) {
		return b, fmt.Errorf("%w: %w", sandbox.ErrGone, err)
	}
	if err != nil { // such as no free descriptors
		return b, err
	}
	b.spec = spec
	if err := r.findKind(ctx); err != nil {
		return b, err
	}
	state, err := b.inspect(ctx)
	if err != nil {
		return b, err
	}
	if state == nil || !state.Running {
		return b, fmt.Errorf("%w: its container has ended", sandbox.ErrGone)
	}
	if err := b.listen(); err != nil {
		return b, err
	}
	r.adopt(b)
	r.background.Go(b.wakeAgent)
	return b, nil
}
