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
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

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
	file, err := s.Agent()
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	s.used.Store(true)
	sum := sha256.Sum256(program)
	name = "sandlot-agent-" + instance + "-" + hex.EncodeToString(sum[:8])
	made, err := s.Make(ctx, name, map[string]string{labelVolume: agentVolume})
	if err != nil {
		return "", err
	}
	err = s.withHelper(ctx, made, func(id string) error { return s.fillAgent(ctx, id, program) })
	if err != nil {
		return "", err
	}
	s.agent = name
	return name, nil
}

// fillAgent copies the agent's program into the volume of a helper, unless it is there. A server or a daemon that was
// killed meanwhile has left a part of it, and a machine that crashed perhaps something else of the same size.
func (s *Store) fillAgent(ctx context.Context, helper string, program []byte) error {
	base := path.Base(wire.AgentPath)
	if is, err := s.hasFile(ctx, helper, base, program); err != nil || is {
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
	_, err := s.Daemon.CopyToContainer(ctx, helper, client.CopyToContainerOptions{DestinationPath: "/",
		Content: content})
	return err
}

// hasFile reports whether a file in a helper's volume has a content.
func (s *Store) hasFile(ctx context.Context, helper, name string, content []byte) (bool, error) {
	answer, err := s.Daemon.CopyFromContainer(ctx, helper,
		client.CopyFromContainerOptions{SourcePath: path.Join("/", HelperDir, name)})
	if isMissing(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer answer.Content.Close()
	archive := tar.NewReader(answer.Content)
	h, err := archive.Next()
	if err != nil || h.Typeflag != tar.TypeReg || h.Size != int64(len(content)) {
		return false, nil
	}
	found, err := io.ReadAll(archive)
	return err == nil && bytes.Equal(found, content), nil
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
	_ = s.RemoveAll(ctx, labelVolume, agentVolume) // those of sandboxes stay
	s.agent = ""
}

// Name returns the daemon's name of a workspace.
func Name(workspace string) string { return "sandlot-workspace-" + workspace }

var validName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// MakeVolume implements sandbox.Storage.
func (s *Store) MakeVolume(ctx context.Context, name string, uid, gid int) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("docker: %q cannot be a volume's name", name)
	}
	owner := fmt.Sprintf("%d:%d", uid, gid)
	found, err := s.find(ctx, name)
	if err == nil && found.Labels[labelOwner] != owner {
		return fmt.Errorf("docker: the volume %s belongs to the user %s, and the template's user is now %s; files "+
			"of a volume do not get another owner: begin a new session", Name(name), found.Labels[labelOwner], owner)
	}
	if isMissing(err) {
		s.owned.Delete(name)
		found, err = s.Make(ctx, Name(name), map[string]string{labelVolume: keptVolume, labelKept: name,
			labelOwner: owner})
	}
	if err != nil {
		return fmt.Errorf("making a volume: %w", err)
	}
	if _, isOwned := s.owned.Load(name); isOwned {
		return nil
	}
	// A server that was killed may have made the volume and not have given it to its owner.
	err = s.withHelper(ctx, found, func(id string) error { return s.own(ctx, id, uid, gid) })
	if err != nil { // the next call tries again
		return fmt.Errorf("giving a volume its owner: %w", err)
	}
	s.owned.Store(name, true)
	return nil
}

// own gives the folder of a helper's volume its owner. It keeps the folder's mode, which its owner may have changed.
func (s *Store) own(ctx context.Context, helper string, uid, gid int) error {
	st, err := s.Daemon.ContainerStatPath(ctx, helper, client.ContainerStatPathOptions{Path: "/" + HelperDir})
	if err != nil {
		return err
	}
	mode := int64(st.Stat.Mode.Perm())
	for bit, value := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if st.Stat.Mode&bit != 0 {
			mode |= value
		}
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: HelperDir + "/", Mode: mode, Uid: uid, Gid: gid,
		ModTime: st.Stat.Mtime})
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	return s.unpack(ctx, helper, archive.Bytes())
}

var errForeign = errors.New("is not this server's")

// HasVolume implements sandbox.Storage.
func (s *Store) HasVolume(ctx context.Context, name string) (bool, error) {
	_, err := s.find(ctx, name)
	if isMissing(err) || errors.Is(err, errForeign) {
		return false, nil
	}
	return err == nil, err
}

// find returns a workspace's volume. The error is one that isMissing knows if there is none.
func (s *Store) find(ctx context.Context, name string) (volume.Volume, error) {
	instance, err := s.Instance()
	if err != nil {
		return volume.Volume{}, err
	}
	found, err := s.Daemon.VolumeInspect(ctx, Name(name), client.VolumeInspectOptions{})
	if err != nil {
		return volume.Volume{}, err
	}
	if found.Volume.Labels[LabelInstance] != instance {
		return volume.Volume{}, fmt.Errorf("docker: the volume %s %w", Name(name), errForeign)
	}
	return found.Volume, nil
}

// IsEmpty reports whether there is nothing in a workspace but what isExpected knows by its path in it and its type, or
// there is no workspace of that name. It reads no further than the first other entry. The daemon leaves out what it
// cannot read, and says nothing of it: only a workspace in which there is an expected folder counts as empty. The agent
// makes such folders, so that one without them was not read, or never used.
func (s *Store) IsEmpty(ctx context.Context, name string, isExpected func(path string, kind fs.FileMode) bool) (empty bool,
	err error) {
	found, err := s.find(ctx, name)
	if isMissing(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	err = s.withHelper(ctx, found, func(id string) error {
		answer, err := s.Daemon.CopyFromContainer(ctx, id,
			client.CopyFromContainerOptions{SourcePath: "/" + HelperDir})
		if err != nil {
			return err
		}
		defer answer.Content.Close()
		empty, err = onlyExpected(tar.NewReader(answer.Content), isExpected)
		return err
	})
	return empty && err == nil, err
}

// onlyExpected is IsEmpty for the archive of a workspace.
func onlyExpected(archive *tar.Reader, isExpected func(path string, kind fs.FileMode) bool) (bool, error) {
	var hasRoot, hasExpected bool
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return hasRoot && hasExpected, nil
		}
		if err != nil {
			return false, err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path.Clean(h.Name), HelperDir), "/")
		kind := h.FileInfo().Mode().Type()
		switch {
		case name == "" && kind.IsDir():
			hasRoot = true
		case name == "" || !isExpected(name, kind):
			return false, nil
		default:
			hasExpected = true
		}
	}
}

// RemoveVolume implements sandbox.Storage.
func (s *Store) RemoveVolume(ctx context.Context, name string) error {
	_, err := s.find(ctx, name)
	if err == nil {
		err = s.Remove(ctx, Name(name))
	}
	if err != nil && !isMissing(err) {
		return fmt.Errorf("removing a volume: %w", err)
	}
	s.owned.Delete(name)
	return nil
}

// Volumes implements sandbox.Storage. It removes helpers that are left, too: it is called once in a while.
func (s *Store) Volumes(ctx context.Context) (names []string, err error) {
	s.removeOldHelpers(ctx, helperAge)
	all, err := s.list(ctx, labelVolume+"="+keptVolume)
	if err != nil {
		return nil, fmt.Errorf("listing volumes: %w", err)
	}
	for _, v := range all {
		if name := v.Labels[labelKept]; v.Name == Name(name) && validName.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Check returns an error if a volume that a sandbox is to have is missing: the daemon would make an empty one.
func (s *Store) Check(ctx context.Context, mounts []sandbox.Mount) error {
	for _, m := range mounts {
		if _, err := s.find(ctx, m.Volume); err != nil {
			return fmt.Errorf("the volume %s, which is to be mounted at %s: %w", m.Volume, m.Target, err)
		}
	}
	return nil
}
