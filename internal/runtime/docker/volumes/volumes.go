// Package volumes owns the volumes that a Docker daemon has for the sandboxes of a server whose files it does not see:
// those with the agent's program, and workspaces. It fills and reads volumes by helpers: containers that have one.
package volumes

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
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
	// removeTimeout is how long the daemon may take to remove a helper.
	removeTimeout = 20 * time.Second
	// listTimeout is how long it may take to remove the volumes with agents.
	listTimeout = 10 * time.Second
)

// Store has the volumes of one server on one daemon.
type Store struct {
	Daemon   *client.Client
	Agent    string                                                         // the path of the agent's program
	Instance func() (string, error)                                         // the value of LabelInstance
	Import   func(ctx context.Context, archive []byte) (id string, _ error) // makes an image of an archive, once
	Log      *slog.Logger

	used  atomic.Bool // there are, or were, sandboxes with a volume that has the agent
	mu    sync.Mutex
	agent string // the name of the volume with the agent; empty: not made yet
}

// Use tells that there are sandboxes of an earlier server, so that Close removes the volumes with agents.
func (s *Store) Use() { s.used.Store(true) }

// ProvideAgent returns the name of a volume with the agent's program, and fills one if there is none.
func (s *Store) ProvideAgent(ctx context.Context) (name string, err error) {
	instance, err := s.Instance()
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.agent != "" {
		if _, err := s.Daemon.VolumeInspect(ctx, s.agent, client.VolumeInspectOptions{}); !isMissing(err) {
			return s.agent, err
		}
	}
	program, err := os.ReadFile(s.Agent)
	if err != nil {
		return "", err
	}
	s.used.Store(true)
	sum := sha256.Sum256(program)
	name = "sandlot-agent-" + instance + "-" + hex.EncodeToString(sum[:8])
	made, err := s.Daemon.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name,
		Labels: map[string]string{LabelInstance: instance, labelVolume: agentVolume}})
	if err != nil {
		return "", err
	}
	if made.Volume.Labels[LabelInstance] != instance {
		return "", fmt.Errorf("the volume %s is not this server's", name)
	}
	err = s.withHelper(ctx, name, func(id string) error { return s.fillAgent(ctx, id, program) })
	if err != nil {
		return "", err
	}
	s.agent = name
	return name, nil
}

// fillAgent copies the agent's program into the volume of a helper, unless it is there. A server or a daemon that was
// killed meanwhile has left a part of it.
func (s *Store) fillAgent(ctx context.Context, helper string, program []byte) error {
	base := path.Base(wire.AgentPath)
	st, err := s.Daemon.ContainerStatPath(ctx, helper,
		client.ContainerStatPathOptions{Path: path.Join("/", HelperDir, base)})
	if err == nil && st.Stat.Size == int64(len(program)) {
		return nil
	}
	if err != nil && !isMissing(err) {
		return err
	}
	content, w := io.Pipe()
	go func() { // ends with the request, which reads from it
		archive := tar.NewWriter(w)
		err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(HelperDir, base), Mode: 0o755,
			Size: int64(len(program))})
		if err == nil {
			_, err = archive.Write(program)
		}
		w.CloseWithError(errors.Join(err, archive.Close()))
	}()
	defer content.Close()
	_, err = s.Daemon.CopyToContainer(ctx, helper, client.CopyToContainerOptions{DestinationPath: "/",
		Content: content})
	return err
}

// withHelper calls do with a container that has a volume and is never started.
func (s *Store) withHelper(ctx context.Context, volume string, do func(id string) error) (err error) {
	instance, err := s.Instance()
	if err != nil {
		return err
	}
	image, err := s.helperImage(ctx)
	if err != nil {
		return fmt.Errorf("making the image for helpers: %w", err)
	}
	made, err := s.Daemon.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: image, Cmd: []string{"/none"},
			Labels: map[string]string{LabelInstance: instance, labelHelper: volume}},
		HostConfig: &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{{Type: mount.TypeVolume,
			Source: volume, Target: "/" + HelperDir, VolumeOptions: &mount.VolumeOptions{NoCopy: true}}}}})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		_, removeErr := s.Daemon.ContainerRemove(ctx, made.ID, client.ContainerRemoveOptions{Force: true})
		if removeErr != nil && !isMissing(removeErr) {
			err = errors.Join(err, fmt.Errorf("removing a helper: %w", removeErr))
		}
	}()
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
func (s *Store) Fill(ctx context.Context, volume string, archive []byte) error {
	return s.withHelper(ctx, volume, func(id string) error {
		_, err := s.Daemon.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: "/",
			Content: bytes.NewReader(archive)})
		return err
	})
}

// RemoveHelpers removes the containers of helpers that a server which died has left.
func (s *Store) RemoveHelpers(ctx context.Context, all []container.Summary) {
	for _, c := range all {
		if c.Labels[labelHelper] == "" {
			continue
		}
		_, err := s.Daemon.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true})
		if err != nil && !isMissing(err) {
			s.Log.Warn("could not remove a container that filled a volume", "container", c.ID, "error", err)
		}
	}
}

// Close removes the volumes with agents of which no sandbox is left, if this server has used one. The daemon keeps the
// others.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.used.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), listTimeout)
	defer cancel()
	instance, err := s.Instance()
	if err != nil {
		return
	}
	list, err := s.Daemon.VolumeList(ctx, client.VolumeListOptions{Filters: make(client.Filters).
		Add("label", LabelInstance+"="+instance, labelVolume+"="+agentVolume)})
	if err != nil {
		return
	}
	for _, v := range list.Items {
		_, _ = s.Daemon.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{}) // it may be in use
	}
	s.agent = ""
}

// Name returns the daemon's name of a workspace.
func Name(workspace string) string { return "sandlot-workspace-" + workspace }

var validName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// MakeVolume implements sandbox.VolumeKeeper.
func (s *Store) MakeVolume(ctx context.Context, name string, uid, gid int) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("docker: %q cannot be a volume's name", name)
	}
	instance, err := s.Instance()
	if err != nil {
		return err
	}
	owner := fmt.Sprintf("%d:%d", uid, gid)
	found, err := s.find(ctx, instance, name)
	if err == nil && found.Labels[labelOwner] != owner {
		return fmt.Errorf("docker: the volume %s belongs to the user %s, and the template's user is now %s; files "+
			"of a volume do not get another owner: begin a new session", Name(name), found.Labels[labelOwner], owner)
	}
	if !isMissing(err) {
		return err
	}
	_, err = s.Daemon.VolumeCreate(ctx, client.VolumeCreateOptions{Name: Name(name),
		Labels: map[string]string{LabelInstance: instance, labelVolume: keptVolume, labelKept: name,
			labelOwner: owner}})
	if err != nil {
		return fmt.Errorf("making a volume: %w", err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: HelperDir + "/", Mode: 0o755, Uid: uid, Gid: gid})
	if err = errors.Join(err, w.Close()); err == nil {
		err = s.Fill(ctx, Name(name), archive.Bytes())
	}
	if err != nil { // as it is, it would belong to root
		_, removeErr := s.Daemon.VolumeRemove(context.WithoutCancel(ctx), Name(name), client.VolumeRemoveOptions{})
		return errors.Join(fmt.Errorf("giving a volume its owner: %w", err), removeErr)
	}
	return nil
}

// find returns a workspace's volume. The error is one that isMissing knows if there is none.
func (s *Store) find(ctx context.Context, instance, name string) (volume.Volume, error) {
	found, err := s.Daemon.VolumeInspect(ctx, Name(name), client.VolumeInspectOptions{})
	if err != nil {
		return volume.Volume{}, err
	}
	if found.Volume.Labels[LabelInstance] != instance {
		return volume.Volume{}, fmt.Errorf("docker: the volume %s is not this server's", Name(name))
	}
	return found.Volume, nil
}

// IsEmpty reports whether there is nothing in a workspace but folders that isExpected knows by their paths in it, or
// there is no workspace of that name. It reads no further than the first other entry.
func (s *Store) IsEmpty(ctx context.Context, name string, isExpected func(path string) bool) (empty bool, err error) {
	instance, err := s.Instance()
	if err != nil {
		return false, err
	}
	if _, err = s.find(ctx, instance, name); isMissing(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	err = s.withHelper(ctx, Name(name), func(id string) error {
		answer, err := s.Daemon.CopyFromContainer(ctx, id,
			client.CopyFromContainerOptions{SourcePath: "/" + HelperDir})
		if err != nil {
			return err
		}
		defer answer.Content.Close()
		for archive := tar.NewReader(answer.Content); ; {
			h, err := archive.Next()
			if errors.Is(err, io.EOF) {
				empty = true
				return nil
			}
			if err != nil {
				return err
			}
			name := strings.TrimPrefix(strings.TrimPrefix(path.Clean(h.Name), HelperDir), "/")
			if name != "" && (h.Typeflag != tar.TypeDir || !isExpected(name)) {
				return nil
			}
		}
	})
	return empty, err
}

// RemoveVolume implements sandbox.VolumeKeeper.
func (s *Store) RemoveVolume(ctx context.Context, name string) error {
	instance, err := s.Instance()
	if err != nil {
		return err
	}
	_, err = s.find(ctx, instance, name)
	if err == nil {
		_, err = s.Daemon.VolumeRemove(ctx, Name(name), client.VolumeRemoveOptions{})
	}
	if err != nil && !isMissing(err) {
		return fmt.Errorf("removing a volume: %w", err)
	}
	return nil
}

// Volumes implements sandbox.VolumeKeeper.
func (s *Store) Volumes(ctx context.Context) (names []string, err error) {
	instance, err := s.Instance()
	if err != nil {
		return nil, err
	}
	list, err := s.Daemon.VolumeList(ctx, client.VolumeListOptions{Filters: make(client.Filters).
		Add("label", LabelInstance+"="+instance, labelVolume+"="+keptVolume)})
	if err != nil {
		return nil, fmt.Errorf("listing volumes: %w", err)
	}
	for _, v := range list.Items {
		if name := v.Labels[labelKept]; v.Name == Name(name) && validName.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Check returns an error if a volume that a sandbox is to have is missing: the daemon would make an empty one.
func (s *Store) Check(ctx context.Context, mounts []sandbox.Mount) error {
	instance, err := s.Instance()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if _, err := s.find(ctx, instance, m.Volume); err != nil {
			return fmt.Errorf("the volume %s, which is to be mounted at %s: %w", m.Volume, m.Target, err)
		}
	}
	return nil
}

func isMissing(err error) bool { return errdefs.IsNotFound(err) }
