package docker

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/moby/moby/client"

	"sandlot/internal/agent/wire"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
)

var validID = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// Create implements sandbox.Runtime.
func (r *Runtime) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if !validID.MatchString(spec.ID) || len(spec.Secret) != wire.SecretLen || spec.Template == nil {
		return nil, errors.New("docker: the spec is incomplete")
	}
	d, err := r.ask(ctx)
	if err != nil {
		return nil, r.explain(err)
	}
	separate, err := r.isSeparate(ctx)
	if err != nil {
		return nil, err
	}
	if separate {
		err = r.checkSeparate(spec)
	}
	agent, agentErr := r.agent.File(d.machine)
	if err = errors.Join(err, r.checkMounts(spec.Mounts), agentErr); err != nil {
		return nil, err
	}
	if err := r.client.Remember(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.sandboxesDir(), 0o700); err != nil {
		return nil, err
	}
	if err := os.Mkdir(r.sandboxDir(spec.ID), 0o700); err != nil {
		return nil, fmt.Errorf("making the sandbox's folder: %w", err)
	}
	b := newBox(r, spec)
	b.unmade, b.daemon, b.separate, b.agent = true, d.identity, separate, agent
	err = r.explain(r.start(ctx, b))
	if err == nil {
		return b, nil
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	var stopErr error
	if !b.unanswered {
		stopErr = b.Stop(stopCtx)
	}
	if stopErr != nil {
		err = errors.Join(err, sandbox.ErrRemains, stopErr)
	}
	if b.unanswered || stopErr != nil { // there may be a container: List has the box, so that it is not forgotten
		r.mu.Lock()
		r.boxes[spec.ID] = b
		r.mu.Unlock()
	}
	return nil, err
}

// checkMounts refuses a mount without its folder, which Podman does not, and those by which a sandbox could change the
// machine or another sandbox's mounts.
func (r *Runtime) checkMounts(mounts []sandbox.Mount) error {
	for i, m := range mounts {
		if err := checkTarget(mounts, i); err != nil {
			return err
		}
		if m.Volume != "" {
			continue
		}
		source, err := filepath.EvalSymlinks(m.Source)
		if st, serr := os.Stat(source); err != nil || serr != nil || !st.IsDir() {
			return fmt.Errorf("docker: the folder %s, which is to be mounted at %s, is missing", m.Source, m.Target)
		}
		if err := r.checkSource(source, m.ReadOnly); err != nil {
			return fmt.Errorf("docker: the folder %s, which is to be mounted at %s, %w", m.Source, m.Target, err)
		}
	}
	return nil
}

// checkTarget refuses a mount in a folder of another one, or of the sandbox's own.
func checkTarget(mounts []sandbox.Mount, i int) error {
	m, taken := mounts[i], slices.Clone(reservedPaths)
	for j, other := range mounts {
		if i != j {
			taken = append(taken, other.Target)
		}
	}
	if isBelow(path.Clean(m.Target), taken) {
		return fmt.Errorf("docker: the folder %s cannot be mounted at %s, in a folder that the sandbox has for "+
			"something else: a sandbox could put a link there, and the next one would have it elsewhere; choose a "+
			"place of its own, such as /data", m.Source, m.Target)
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
	if err := specfile.Write(b.dir, b.record()); err != nil {
		return err
	}
	image, err := r.imageOf(ctx, b.spec.Template)
	if err != nil {
		return err
	}
	if err := b.provideFiles(ctx); err != nil {
		return err
	}
	options, err := r.container(b, image, instance)
	if err != nil {
		return err
	}
	// The daemon goes on with a request that was given up, and would make a container that no server here knows.
	makeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeTimeout)
	defer cancel()
	b.unmade = false
	created, err := r.client.ContainerCreate(makeCtx, options)
	if err != nil {
		_, b.unanswered = errors.AsType[*url.Error](err) // an answer has no URL, and no more has a failure to connect
		return fmt.Errorf("making the container: %w", err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, w := range created.Warnings {
		r.Log.Debug("the Docker daemon warns about a container", "sandbox", b.spec.ID, "warning", w)
	}
	if err := b.startChecked(ctx, created.ID, options); err != nil {
		return err
	}
	if b.separate {
		b.openLink()
	}
	r.adopt(b)
	return nil
}

// provideFiles brings what a sandbox needs to where the daemon sees it.
func (b *box) provideFiles(ctx context.Context) error {
	if b.separate {
		return b.fillVolumes(ctx)
	}
	if err := b.makeFolders(); err != nil {
		return err
	}
	if err := b.listen(); err != nil {
		return err
	}
	// The agent may be another user on the host.
	return b.socket.WriteSecret(b.spec.Secret, 0o644)
}

// adopt adds a box whose container runs, and waits for the container's end in the background.
func (r *Runtime) adopt(b *box) {
	r.mu.Lock()
	r.boxes[b.spec.ID] = b
	r.mu.Unlock()
	r.background.Go(b.awaitEnd)
	if b.separate {
		r.background.Go(b.watchVolumes)
	} else {
		r.background.Go(b.watchDisk)
	}
}

// Leftovers implements sandbox.Runtime. Each sandbox has a folder before it has a container; the daemon also knows
// containers and volumes whose folder was lost.
func (r *Runtime) Leftovers(ctx context.Context) ([]string, error) {
	entries, err := os.ReadDir(r.sandboxesDir())
	if errors.Is(err, os.ErrNotExist) {
		if _, err = os.Stat(r.instanceFile()); errors.Is(err, os.ErrNotExist) { // there was no use of a daemon
			return nil, nil
		}
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
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	list, err := r.client.ContainerList(ctx, client.ContainerListOptions{All: true,
		Filters: make(client.Filters).Add("label", labelInstance+"="+instance)})
	if err != nil {
		r.Log.Error("the Docker daemon did not list its containers; those without a folder in the state folder stay",
			"error", err)
	}
	r.volumes.RemoveHelpers(ctx, list.Items)
	found, err := r.volumes.Values(ctx, labelID)
	if err != nil {
		r.Log.Error("the Docker daemon did not list its volumes", "error", err)
	}
	for _, c := range list.Items {
		found = append(found, c.Labels[labelID])
	}
	for _, id := range found {
		if validID.MatchString(id) && !slices.Contains(ids, id) {
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
	r.mu.Lock()
	b, found := r.boxes[id]
	r.mu.Unlock()
	if found { // Stop has failed
		return b, nil
	}
	b, err := r.recoverBox(ctx, id)
	if err = r.explain(err); err == nil {
		return b, nil
	}
	if !errors.Is(err, sandbox.ErrGone) { // it may live, and can be recovered later
		b.detach()
		return nil, err
	}
	r.Log.Info("removing what is left of a sandbox", "sandbox", id, "reason", err)
	stopErr := r.explain(b.Stop(ctx))
	switch {
	case stopErr == nil:
		return nil, err
	case errors.Is(err, errEnded):
		return nil, errors.Join(err, sandbox.ErrRemains, stopErr)
	}
	return nil, fmt.Errorf("%w: it cannot be used (%v), and may live on: %w", sandbox.ErrRemains, err, stopErr)
}

// errEnded means that the daemon has no such container, or one that does not run.
var errEnded = errors.New("its container has ended")

// recoverBox takes one sandbox over. The box that it returns with an error can only be stopped or detached.
func (r *Runtime) recoverBox(ctx context.Context, id string) (*box, error) {
	b := newBox(r, sandbox.Spec{ID: id})
	var rec record
	err := specfile.Read(b.dir, &rec)
	if err == nil {
		var spec sandbox.Spec
		if spec, err = rec.Spec(id); err == nil {
			b.spec, b.daemon, b.separate, b.agent = spec, rec.Daemon, rec.Separate, r.agent.Named(rec.Agent)
			if rec.Separate {
				r.volumes.Use()
			}
		}
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, specfile.ErrBroken) {
		b.separate = true // perhaps: it has volumes
		return b, fmt.Errorf("%w: %w", sandbox.ErrGone, err)
	}
	if err != nil { // such as no free descriptors
		return b, err
	}
	if _, err := r.ask(ctx); err != nil {
		return b, err
	}
	if err := r.checkDaemon(ctx, rec); err != nil {
		return b, err
	}
	state, err := b.inspect(ctx)
	if err != nil {
		return b, err
	}
	if state == nil || !state.Running {
		return b, fmt.Errorf("%w: %w", sandbox.ErrGone, errEnded)
	}
	if b.separate {
		b.openLink()
		r.adopt(b)
		return b, nil
	}
	err = b.listen()
	if errors.Is(err, os.ErrNotExist) {
		return b, fmt.Errorf("%w: the folder that its agent dials is lost: %w", sandbox.ErrGone, err)
	}
	if err != nil {
		return b, err
	}
	r.adopt(b)
	r.background.Go(b.wakeAgent)
	return b, nil
}
