package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// Image implements sandbox.Imager. The daemon pulls an image that it does not have.
func (r *Runtime) Image(ctx context.Context, ref string, progress func(string)) (sandbox.Image, error) {
	found, err := r.inspectImage(ctx, ref)
	if !isMissing(err) {
		return found, err
	}
	name, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return sandbox.Image{}, fmt.Errorf("docker: the daemon has no image %q, and that is no name of one: %w", ref,
			err)
	}
	if err := r.pull(ctx, reference.TagNameOnly(name), progress); err != nil {
		return sandbox.Image{}, fmt.Errorf("docker: pulling the image %s: %w", ref, err)
	}
	return r.inspectImage(ctx, ref)
}

// inspectImage returns an image that the daemon has. The error satisfies isMissing if it has none.
func (r *Runtime) inspectImage(ctx context.Context, ref string) (sandbox.Image, error) {
	found, err := r.client.ImageInspect(ctx, ref)
	if err != nil {
		return sandbox.Image{}, err
	}
	i := sandbox.Image{ID: found.ID}
	if found.Config != nil {
		i.User, i.Workdir = found.Config.User, found.Config.WorkingDir
		for _, kv := range found.Config.Env { // an image that was made of a sandbox has the agent's variables
			if !strings.HasPrefix(kv, agentVariables) {
				i.Env = append(i.Env, kv)
			}
		}
	}
	return i, nil
}

// agentVariables begins the names of the variables for the agent (package wire).
const agentVariables = "SANDLOT_AGENT_"

// pull makes the daemon pull an image.
func (r *Runtime) pull(ctx context.Context, name reference.Named, progress func(string)) error {
	auth, err := registryAuth(ctx, name)
	if err != nil {
		return err
	}
	answer, err := r.client.ImagePull(ctx, name.String(), client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return err
	}
	defer answer.Close()
	last := ""
	for m, err := range answer.JSONMessages(ctx) {
		if err != nil {
			return err
		}
		if m.Error != nil {
			return m.Error
		}
		line := strings.TrimSpace(m.ID + " " + m.Status)
		if p := m.Progress; p != nil && p.Total > 0 {
			line += fmt.Sprintf(" %d%%", p.Current*100/p.Total)
		}
		if progress != nil && line != "" && line != last {
			progress(line)
			last = line
		}
	}
	return nil
}

// Save implements sandbox.Imager.
func (r *Runtime) Save(ctx context.Context, b sandbox.Sandbox, name string) (sandbox.Image, error) {
	box, ok := boxOf(b)
	if !ok {
		return sandbox.Image{}, errors.New("docker: this is a sandbox of another runtime")
	}
	found, err := r.client.ContainerInspect(ctx, box.name, client.ContainerInspectOptions{})
	if err != nil {
		return sandbox.Image{}, fmt.Errorf("docker: the container to save: %w", err)
	}
	base, err := r.client.ImageInspect(ctx, found.Container.Image)
	if err != nil {
		return sandbox.Image{}, fmt.Errorf("docker: the image of the container to save: %w", err)
	}
	config := &container.Config{Labels: map[string]string{}}
	if base.Config != nil {
		config.User, config.WorkingDir, config.Env = base.Config.User, base.Config.WorkingDir, base.Config.Env
	}
	for label := range found.Container.Config.Labels { // it is no container of ours
		if strings.HasPrefix(label, "dev.sandlot.") {
			config.Labels[label] = ""
		}
	}
	saved, err := r.client.ContainerCommit(ctx, box.name,
		client.ContainerCommitOptions{Reference: name, Config: config})
	if err != nil {
		return sandbox.Image{}, fmt.Errorf("docker: saving a container as an image: %w", err)
	}
	return r.inspectImage(ctx, saved.ID)
}

// imageOf returns the id of the image for a template's containers.
func (r *Runtime) imageOf(ctx context.Context, t *image.Template) (string, error) {
	switch {
	case t.ImageID != "":
		return t.ImageID, nil
	case t.Image != "":
		found, err := r.Image(ctx, t.Image, nil)
		return found.ID, err
	case t.Rootfs != "" || t.RootfsImage != "":
		return "", fmt.Errorf("docker: the template %s has a root file system of its own, of which the runtime docker "+
			"makes no sandboxes; give it an image, or `runtime: gvisor`", t.Name)
	}
	return r.skeleton(ctx, t)
}

// baseFiles are the files that programs expect in every root file system.
var baseFiles = map[string]string{
	"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"etc/group":         "root:x:0:\nnogroup:x:65534:\n",
	"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}

// baseFolders are the folders that programs expect, with their modes.
var baseFolders = map[string]int64{"etc": 0o755, "tmp": 0o1777, "run": 0o755, "var": 0o755, "var/tmp": 0o1777,
	"var/lib": 0o755, "root": 0o700, "home": 0o755, "opt": 0o755, "mnt": 0o755, "workspace": 0o755}

// skeletonName is the name of the images of templates without an image; the tag is a hash of the contents.
const skeletonName = "sandlot-skeleton"

// skeleton returns the id of an image with the files of a template that is made of folders of this machine, which
// are mounted over it.
func (r *Runtime) skeleton(ctx context.Context, t *image.Template) (string, error) {
	r.setupMu.Lock()
	defer r.setupMu.Unlock()
	if id := r.skeletons[t.Name]; id != "" {
		if _, err := r.inspectImage(ctx, id); err == nil {
			return id, nil
		}
	}
	archive, err := skeletonArchive(t)
	if err != nil {
		return "", fmt.Errorf("docker: the files of the template %s: %w", t.Name, err)
	}
	sum := sha256.Sum256(archive)
	name := skeletonName + ":" + hex.EncodeToString(sum[:8])
	found, err := r.inspectImage(ctx, name)
	if isMissing(err) {
		found, err = r.importImage(ctx, bytes.NewReader(archive), name)
	}
	if err != nil {
		return "", fmt.Errorf("docker: the image of the template %s: %w", t.Name, err)
	}
	r.skeletons[t.Name] = found.ID
	return found.ID, nil
}

// importImage makes an image of an archive.
func (r *Runtime) importImage(ctx context.Context, archive io.Reader, name string) (sandbox.Image, error) {
	answer, err := r.client.ImageImport(ctx, client.ImageImportSource{Source: archive, SourceName: "-"}, name,
		client.ImageImportOptions{})
	if err != nil {
		return sandbox.Image{}, err
	}
	defer answer.Close()
	for d := json.NewDecoder(answer); ; {
		var m struct{ Error string }
		if err := d.Decode(&m); err == io.EOF {
			break
		} else if err != nil {
			return sandbox.Image{}, err
		}
		if m.Error != "" {
			return sandbox.Image{}, errors.New(m.Error)
		}
	}
	return r.inspectImage(ctx, name)
}

// skeletonArchive returns a tar archive with the files of a template. It is always the same for the same template.
func skeletonArchive(t *image.Template) ([]byte, error) {
	files := map[string][]byte{}
	for name, text := range baseFiles {
		files[name] = []byte(text)
	}
	maps.Copy(files, t.Files)
	folders := maps.Clone(baseFolders)
	for name := range files {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, found := folders[dir]; !found {
				folders[dir] = 0o755
			}
		}
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(h tar.Header, content []byte) error {
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	var err error
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		err = errors.Join(err, add(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: folders[name]}, nil))
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err = errors.Join(err, add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, files[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Links)) {
		err = errors.Join(err, add(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: t.Links[name],
			Mode: 0o777}, nil))
	}
	return archive.Bytes(), errors.Join(err, w.Close())
}
