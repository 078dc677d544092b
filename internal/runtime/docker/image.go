package docker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/container"
	apiimage "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/client"

	"sandlot/internal/agent/wire"
	"sandlot/internal/dockercommand"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// Image implements sandbox.Images. The daemon pulls an image that it does not have.
func (r *Runtime) Image(ctx context.Context, ref string, progress func(sandbox.Progress)) (sandbox.Image, error) {
	found, err := r.inspectImage(ctx, ref)
	if !isMissing(err) {
		return found, err
	}
	if strings.HasPrefix(ref, "sha256:") { // as a name, it would be looked for at a registry
		return sandbox.Image{}, fmt.Errorf("docker: %w: %s", sandbox.ErrNoImage, ref)
	}
	name, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return sandbox.Image{}, fmt.Errorf("docker: the daemon has no image %q, and that is not a name of one: %w", ref,
			err)
	}
	tell := func(step string, done, total int64) {
		if progress != nil {
			progress(sandbox.Progress{Step: step, Done: done, Total: total})
		}
	}
	if err := dockercommand.Pull(ctx, r.client.Client, reference.TagNameOnly(name), tell); err != nil {
		return sandbox.Image{}, fmt.Errorf("docker: pulling the image %s: %w", ref, err)
	}
	return r.inspectImage(ctx, ref)
}

// Find implements sandbox.Images.
func (r *Runtime) Find(ctx context.Context, ref string) (sandbox.Image, error) {
	instance, err := r.instanceID()
	if err != nil {
		return sandbox.Image{}, err
	}
	found, err := r.client.ImageInspect(ctx, ref)
	isTheirs := err == nil && found.Config != nil && !strings.HasPrefix(ref, "sha256:") &&
		found.Config.Labels[labelSaved] != "" && found.Config.Labels[labelSaved] != instance
	if isMissing(err) || isTheirs {
		return sandbox.Image{}, fmt.Errorf("docker: %w: %s", sandbox.ErrNoImage, ref)
	}
	if err != nil {
		return sandbox.Image{}, r.explain(err)
	}
	return imageFrom(found.InspectResponse), nil
}

// inspectImage returns an image that the daemon has. The error satisfies isMissing if it has none.
func (r *Runtime) inspectImage(ctx context.Context, ref string) (sandbox.Image, error) {
	found, err := r.client.ImageInspect(ctx, ref)
	if err != nil {
		return sandbox.Image{}, r.explain(err)
	}
	return imageFrom(found.InspectResponse), nil
}

func imageFrom(found apiimage.InspectResponse) sandbox.Image {
	i := sandbox.Image{ID: found.ID}
	if found.Config != nil {
		i.User, i.Workdir = found.Config.User, found.Config.WorkingDir
		for _, kv := range found.Config.Env { // an image that was made of a sandbox has the agent's variables
			if !strings.HasPrefix(kv, wire.EnvPrefix) {
				i.Env = append(i.Env, kv)
			}
		}
	}
	return i
}

// Save implements sandbox.Images.
func (r *Runtime) Save(ctx context.Context, b sandbox.Sandbox, name string) (sandbox.Image, error) {
	box, ok := b.(*box)
	if !ok {
		return sandbox.Image{}, errors.New("docker: this is a sandbox of another runtime")
	}
	if r.known().lacks(daemonFiles) {
		return sandbox.Image{}, errors.New("docker: gVisor keeps what sandboxes write where the daemon cannot save " +
			"it: add " + daemonFiles + " to the runtimeArgs of runsc in the daemon's daemon.json")
	}
	found, err := r.client.ContainerInspect(ctx, box.name, client.ContainerInspectOptions{})
	if err != nil {
		return sandbox.Image{}, fmt.Errorf("docker: the container to save: %w", err)
	}
	base, err := r.client.ImageInspect(ctx, found.Container.Image)
	if err != nil {
		return sandbox.Image{}, fmt.Errorf("docker: the image of the container to save: %w", err)
	}
	instance, err := r.instanceID()
	if err != nil {
		return sandbox.Image{}, err
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
	config.Labels[labelSaved], config.Labels[labelName] = instance, name
	id, err := r.commit(ctx, box.name, name, savedComment(name), config)
	if err != nil {
		return sandbox.Image{}, fmt.Errorf("docker: saving a container as an image: %w", err)
	}
	return r.inspectImage(ctx, id)
}

// savedComment tells an image that Save has made from those that others have made of it, with its labels.
func savedComment(name string) string { return "saved by Sandlot as " + name }

// RemoveSaved implements sandbox.Images. The daemon keeps images that have containers.
func (r *Runtime) RemoveSaved(ctx context.Context, keep func(name, id string) bool) (failed error) {
	instance, err := r.instanceID()
	if err != nil {
		return err
	}
	list, err := r.client.ImageList(ctx, client.ImageListOptions{Filters: make(client.Filters).
		Add("label", labelSaved+"="+instance)})
	if err != nil {
		return fmt.Errorf("docker: images of earlier builds: %w", err)
	}
	for _, i := range list.Items {
		name, err := r.nameOfSaved(ctx, i)
		if err == nil && (name == "" || keep(name, i.ID)) {
			continue
		}
		if err == nil {
			_, err = r.client.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{PruneChildren: true})
		}
		if err != nil && !isMissing(err) && !errdefs.IsConflict(err) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// nameOfSaved returns the name that Save gave an image, also if another image has it by now. It is empty for an image
// that somebody else has made of a saved one, or has named.
func (r *Runtime) nameOfSaved(ctx context.Context, i apiimage.Summary) (string, error) {
	tags := slices.DeleteFunc(slices.Clone(i.RepoTags), func(tag string) bool { return tag == "<none>:<none>" })
	name := i.Labels[labelName]
	if name == "" && len(tags) == 1 && strings.HasPrefix(tags[0], "sandlot/") { // an earlier version has made it
		name = tags[0]
	}
	for _, tag := range tags {
		if tag != name && !strings.HasSuffix(tag, "/"+name) { // Podman says localhost/NAME
			return "", nil
		}
	}
	if len(tags) > 0 {
		return name, nil
	}
	found, err := r.client.ImageInspect(ctx, i.ID)
	if err != nil || found.Comment != savedComment(name) {
		return "", err
	}
	return name, nil
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
		return "", fmt.Errorf("docker: no sandboxes can be made from the root file system of the template %s; give it an "+
			"image, or `runtime: gvisor`", t.Name)
	}
	return r.skeleton(ctx, t)
}

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
	id, err := r.archiveImage(ctx, archive)
	if err != nil {
		return "", fmt.Errorf("docker: the image of the template %s: %w", t.Name, err)
	}
	r.skeletons[t.Name] = id
	return id, nil
}

// archiveImage returns the id of the image of an archive, which it makes if there is none. The caller holds setupMu.
func (r *Runtime) archiveImage(ctx context.Context, archive []byte) (string, error) {
	sum := sha256.Sum256(archive)
	name := skeletonName + ":" + hex.EncodeToString(sum[:8])
	found, err := r.inspectImage(ctx, name)
	if isMissing(err) {
		found, err = r.importImage(ctx, bytes.NewReader(archive), name)
	}
	return found.ID, err
}

// importArchive is archiveImage for callers that do not hold setupMu.
func (r *Runtime) importArchive(ctx context.Context, archive []byte) (string, error) {
	r.setupMu.Lock()
	defer r.setupMu.Unlock()
	return r.archiveImage(ctx, archive)
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
