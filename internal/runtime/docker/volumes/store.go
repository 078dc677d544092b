package volumes

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"

	"sandlot/internal/secret"
)

// LabelInstance is the label of all that a server has on a daemon, with a random value for each state folder.
const LabelInstance = "dev.sandlot.instance"

// Further labels.
const (
	labelVolume = "dev.sandlot.volume"    // of volumes: what is in it
	labelHelper = "dev.sandlot.helper"    // of helpers: the volume
	labelKept   = "dev.sandlot.workspace" // of workspaces: the name that MakeVolume was given
	labelOwner  = "dev.sandlot.owner"     // of workspaces: the ids of the user and group
)

// Values of labelVolume.
const (
	agentVolume = "agent"
	keptVolume  = "workspace"
)

// HelperDir is the folder in which a helper has its volume.
const HelperDir = "volume"

const (
	// makeTimeout is how long the daemon may take to make a volume or a helper, or to unpack an archive.
	makeTimeout = 2 * time.Minute
	// removeTimeout is how long the daemon may take to remove a helper or a volume.
	removeTimeout = 20 * time.Second
	// listTimeout is how long it may take to remove the volumes with agents.
	listTimeout = 10 * time.Second
)

// Store has the volumes of one server on one daemon.
type Store struct {
	Daemon   *client.Client
	Agent    func() (path string, _ error)                                  // the agent's program
	Instance func() (string, error)                                         // the value of LabelInstance
	Import   func(ctx context.Context, archive []byte) (id string, _ error) // makes an image of an archive, once
	Log      *slog.Logger

	used  atomic.Bool // there are, or were, sandboxes with a volume that has the agent
	busy  sync.Map    // the names of the helpers of this process that are in use
	owned sync.Map    // the names of the workspaces that are known to have their owner
	mu    sync.Mutex
	agent string // the name of the volume with the agent; empty: not made yet
}

// Make makes a volume with labels, and that of this server, or returns the one with that name.
func (s *Store) Make(ctx context.Context, name string, labels map[string]string) (volume.Volume, error) {
	instance, err := s.Instance()
	if err != nil {
		return volume.Volume{}, err
	}
	if ctx.Err() != nil {
		return volume.Volume{}, ctx.Err()
	}
	labels = maps.Clone(labels)
	labels[LabelInstance] = instance
	makeCtx, cancel := detach(ctx, makeTimeout)
	defer cancel()
	made, err := s.Daemon.VolumeCreate(makeCtx, client.VolumeCreateOptions{Name: name, Labels: labels})
	if err != nil {
		return volume.Volume{}, err
	}
	if made.Volume.Labels[LabelInstance] != instance {
		return volume.Volume{}, fmt.Errorf("the volume %s is not this server's", name)
	}
	return made.Volume, ctx.Err()
}

// Remove removes a volume, and helpers that have it and are left.
func (s *Store) Remove(ctx context.Context, name string) error {
	ctx, cancel := detach(ctx, removeTimeout)
	defer cancel()
	_, err := s.Daemon.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	if !errdefs.IsConflict(err) {
		return err
	}
	left, listErr := s.helpers(ctx, labelHelper+"="+name)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	s.RemoveHelpers(ctx, left)
	_, err = s.Daemon.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	return err
}

// list returns the volumes of this server with a label: its name, or NAME=VALUE.
func (s *Store) list(ctx context.Context, label string) ([]volume.Volume, error) {
	instance, err := s.Instance()
	if err != nil {
		return nil, err
	}
	list, err := s.Daemon.VolumeList(ctx, client.VolumeListOptions{
		Filters: make(client.Filters).Add("label", LabelInstance+"="+instance, label)})
	return list.Items, err
}

// helpers returns the containers of this server that are helpers, with a label: its name, or NAME=VALUE.
func (s *Store) helpers(ctx context.Context, label string) ([]container.Summary, error) {
	instance, err := s.Instance()
	if err != nil {
		return nil, err
	}
	list, err := s.Daemon.ContainerList(ctx, client.ContainerListOptions{All: true,
		Filters: make(client.Filters).Add("label", LabelInstance+"="+instance, label)})
	return list.Items, err
}

// RemoveAll removes the volumes of this server in which a label has a value.
func (s *Store) RemoveAll(ctx context.Context, label, value string) error {
	all, err := s.list(ctx, label+"="+value)
	for _, v := range all {
		if removeErr := s.Remove(ctx, v.Name); removeErr != nil && !isMissing(removeErr) {
			err = removeErr
		}
	}
	return err
}

// Values returns the values that a label has in the volumes of this server.
func (s *Store) Values(ctx context.Context, label string) (values []string, err error) {
	all, err := s.list(ctx, label)
	for _, v := range all {
		values = append(values, v.Labels[label])
	}
	return values, err
}

// helperAge is how old a helper is that this process does not use and another one does not use any more.
const helperAge = 10 * time.Minute

// detach returns a context for a request with which the daemon goes on when it is given up. What it makes then is known
// to nobody, and comes after what was to remove it.
func detach(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}

// withHelper calls do with a container that has a volume and is never started.
func (s *Store) withHelper(ctx context.Context, v volume.Volume, do func(id string) error) (err error) {
	instance, err := s.Instance()
	if err != nil {
		return err
	}
	image, err := s.helperImage(ctx)
	if err != nil {
		return fmt.Errorf("making the image for helpers: %w", err)
	}
	name := "sandlot-helper-" + secret.ID()
	s.busy.Store(name, true)
	defer s.busy.Delete(name)
	// A daemon that answers too late makes the volume anew if it was removed.
	of := &mount.VolumeOptions{NoCopy: true, Labels: v.Labels}
	makeCtx, cancel := detach(ctx, makeTimeout)
	defer cancel()
	made, err := s.Daemon.ContainerCreate(makeCtx, client.ContainerCreateOptions{Name: name,
		Config: &container.Config{Image: image, Cmd: []string{"/none"},
			Labels: map[string]string{LabelInstance: instance, labelHelper: v.Name}},
		HostConfig: &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{{Type: mount.TypeVolume,
			Source: v.Name, Target: "/" + HelperDir, VolumeOptions: of}}}})
	if err != nil {
		return err
	}
	defer func() {
		removeCtx, cancel := detach(ctx, removeTimeout)
		defer cancel()
		_, removeErr := s.Daemon.ContainerRemove(removeCtx, made.ID, client.ContainerRemoveOptions{Force: true})
		if removeErr != nil && !isMissing(removeErr) {
			err = errors.Join(err, fmt.Errorf("removing a helper: %w", removeErr))
		}
	}()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return do(made.ID)
}

// helperImage returns the id of the image of helpers, which has an empty folder.
func (s *Store) helperImage(ctx context.Context) (string, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: HelperDir + "/", Mode: 0o755})
	if err = errors.Join(err, w.Close()); err != nil {
		return "", err
	}
	return s.Import(ctx, archive.Bytes())
}

// Fill unpacks an archive, in which the volume is the folder HelperDir, into a volume.
func (s *Store) Fill(ctx context.Context, v volume.Volume, archive []byte) error {
	return s.withHelper(ctx, v, func(id string) error { return s.unpack(ctx, id, archive) })
}

// unpack unpacks an archive into a helper.
func (s *Store) unpack(ctx context.Context, helper string, archive []byte) error {
	fillCtx, cancel := detach(ctx, makeTimeout)
	defer cancel()
	_, err := s.Daemon.CopyToContainer(fillCtx, helper, client.CopyToContainerOptions{DestinationPath: "/",
		Content: bytes.NewReader(archive)})
	return errors.Join(err, ctx.Err())
}

// RemoveHelpers removes those of the containers that are helpers which this process does not use: a server that died
// has left them, or a daemon has made them too late.
func (s *Store) RemoveHelpers(ctx context.Context, all []container.Summary) {
	for _, c := range all {
		if c.Labels[labelHelper] == "" || slices.ContainsFunc(c.Names, s.isBusy) {
			continue
		}
		removeCtx, cancel := detach(ctx, removeTimeout)
		_, err := s.Daemon.ContainerRemove(removeCtx, c.ID, client.ContainerRemoveOptions{Force: true})
		cancel()
		if err != nil && !isMissing(err) {
			s.Log.Warn("could not remove a container that filled a volume", "container", c.ID, "error", err)
		}
	}
}

func (s *Store) isBusy(name string) bool {
	_, busy := s.busy.Load(strings.TrimPrefix(name, "/"))
	return busy
}

// removeOldHelpers removes helpers that are left, but none that is so young that another process may use it.
func (s *Store) removeOldHelpers(ctx context.Context, age time.Duration) {
	all, err := s.helpers(ctx, labelHelper)
	if err != nil {
		s.Log.Warn("the Docker daemon did not list the containers that fill volumes", "error", err)
		return
	}
	s.RemoveHelpers(ctx, slices.DeleteFunc(all, func(c container.Summary) bool {
		return time.Since(time.Unix(c.Created, 0)) < age
	}))
}

func isMissing(err error) bool { return errdefs.IsNotFound(err) }
