package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"

	"github.com/moby/moby/api/types/mount"

	"sandlot/internal/agent/wire"
	"sandlot/internal/runtime/docker/volumes"
	"sandlot/internal/sandbox"
)

// filesDirName is the folder of the files that are mounted over the image's, in the volume that has the
// agent's socket. Programs of the sandbox can change nothing in it but what belongs to root.
const filesDirName = ".files"

// volumeName returns the name of the volume with a sandbox's files and the folder of its agent's socket.
func (b *box) volumeName() string { return b.name }

// fillVolumes makes the volumes that the container of a separate daemon's sandbox needs.
func (b *box) fillVolumes(ctx context.Context) error {
	r := b.runtime
	if u := b.spec.Template.User; u.UID == wire.ConnectUser {
		return fmt.Errorf("docker: the template %s has a user with the id %d, which a sandbox on a daemon that does "+
			"not see the server's files needs for itself; give the template's user another id", b.spec.Template.Name,
			u.UID)
	}
	err := r.volumes.Check(ctx, b.spec.Mounts)
	if err != nil {
		return err
	}
	if b.agentVolume, err = r.volumes.ProvideAgent(ctx); err != nil {
		return fmt.Errorf("docker: bringing the agent to the daemon: %w", err)
	}
	b.unmade = false
	made, err := r.volumes.Make(ctx, b.volumeName(), map[string]string{labelID: b.spec.ID})
	if err != nil {
		return fmt.Errorf("docker: making the sandbox's volume: %w", err)
	}
	if b.volumePath = made.Mountpoint; b.volumePath == "" {
		return fmt.Errorf("docker: the volume %s has no folder", b.volumeName())
	}
	archive, err := b.volumeArchive()
	if err != nil {
		return err
	}
	return r.volumes.Fill(ctx, made, archive)
}

// volumeArchive returns what is in the volume of a sandbox at first: its own files, those of its template, and the
// secret, which `sandlot-agent connect` removes when the agent has dialed.
func (b *box) volumeArchive() ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	folder := func(name string, owner int) error {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: path.Join(volumes.HelperDir, name) + "/",
			Mode: 0o755, Uid: owner, Gid: owner})
	}
	file := func(name string, owner int, content []byte) error {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(volumes.HelperDir, name), Mode: 0o644,
			Uid: owner, Gid: owner, Size: int64(len(content))})
		if err == nil {
			_, err = w.Write(content)
		}
		return err
	}
	err := errors.Join(folder("", wire.ConnectUser), folder(filesDirName, wire.ConnectUser),
		file(wire.SecretFile, wire.ConnectUser, []byte(hex.EncodeToString(b.spec.Secret))))
	own := ownFiles()
	for _, target := range slices.Sorted(maps.Keys(own)) {
		owner := wire.ConnectUser
		if target == writableFile {
			owner = 0
		}
		err = errors.Join(err, file(path.Join(filesDirName, path.Base(target)), owner, []byte(own[target])))
	}
	for i, name := range fileNames(b.spec.Template) {
		err = errors.Join(err, file(path.Join(filesDirName, strconv.Itoa(i)), wire.ConnectUser,
			b.spec.Template.Files[name]))
	}
	return archive.Bytes(), errors.Join(err, w.Close())
}

// separateMounts returns the mounts of a separate daemon's sandbox of what is its own. The files of a volume are
// mounted by their paths on the daemon's machine: older daemons cannot mount a part of a volume.
func (b *box) separateMounts() []mount.Mount {
	list := []mount.Mount{
		{Type: mount.TypeVolume, Source: b.agentVolume, Target: path.Dir(wire.AgentPath), ReadOnly: true},
		{Type: mount.TypeVolume, Source: b.volumeName(), Target: wire.SocketDir,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true}}}
	files := path.Join(b.volumePath, filesDirName)
	for target := range ownFiles() {
		list = append(list, bind(path.Join(files, path.Base(target)), target, target != writableFile))
	}
	for i, name := range fileNames(b.spec.Template) {
		list = append(list, bind(path.Join(files, strconv.Itoa(i)), "/"+name, true))
	}
	for _, m := range b.spec.Mounts {
		list = append(list, mount.Mount{Type: mount.TypeVolume, Source: volumes.Name(m.Volume), Target: m.Target,
			ReadOnly: m.ReadOnly, VolumeOptions: &mount.VolumeOptions{NoCopy: true}})
	}
	return list
}

// checkSeparate refuses a sandbox that a separate daemon cannot make.
func (r *Runtime) checkSeparate(spec sandbox.Spec) error {
	if spec.Template.Image == "" {
		return fmt.Errorf("docker: the template %s is made of folders of the server's machine, which the Docker "+
			"daemon does not see; give it an image (in sandlot.yaml: templates, image)", spec.Template.Name)
	}
	for _, m := range spec.Mounts {
		if m.Volume == "" {
			return fmt.Errorf("docker: the folder %s of the server's machine is to be mounted at %s, and the Docker "+
				"daemon does not see it; remove it from the shared folders", m.Source, m.Target)
		}
	}
	return nil
}
