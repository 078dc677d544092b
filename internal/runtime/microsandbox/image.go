package microsandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

// described is what msb says of an image.
type described struct {
	Digest string `json:"digest"`
	Config *struct {
		Env        []string `json:"env"`
		WorkingDir string   `json:"working_dir"`
		User       string   `json:"user"`
	} `json:"config"`
}

// idSeparator stands in an image's ID between the reference and the digest. msb finds no image by a digest alone.
const idSeparator = "@@"

// Image implements sandbox.Images. msb pulls an image that it does not have.
func (r *Runtime) Image(ctx context.Context, ref string, progress func(sandbox.Progress)) (sandbox.Image, error) {
	found, err := r.Find(ctx, ref)
	if !errors.Is(err, sandbox.ErrNoImage) || strings.Contains(ref, idSeparator) {
		return found, err
	}
	if strings.HasPrefix(ref, "-") {
		return found, fmt.Errorf("microsandbox: %q is not the name of an image", ref)
	}
	if progress != nil {
		progress(sandbox.Progress{Step: "msb is pulling " + ref})
	}
	if err := r.run(ctx, "pull", "--quiet", ref); err != nil {
		return found, fmt.Errorf("microsandbox: pulling the image %s: %w", ref, explain(err))
	}
	return r.Find(ctx, ref)
}

// Find implements sandbox.Images.
func (r *Runtime) Find(ctx context.Context, ref string) (sandbox.Image, error) {
	name, digest, isID := strings.Cut(ref, idSeparator)
	if name == "" || strings.HasPrefix(name, "-") {
		return sandbox.Image{}, fmt.Errorf("microsandbox: %w: %q", sandbox.ErrNoImage, ref)
	}
	var d described
	err := r.ask(ctx, &d, "image", "inspect", name)
	if isMissing(err) || err == nil && isID && d.Digest != digest {
		return sandbox.Image{}, fmt.Errorf("microsandbox: %w: %s", sandbox.ErrNoImage, ref)
	}
	if err != nil {
		return sandbox.Image{}, explain(err)
	}
	i := sandbox.Image{ID: name + idSeparator + d.Digest}
	if d.Config != nil {
		i.User, i.Workdir = d.Config.User, d.Config.WorkingDir
		for _, kv := range d.Config.Env {
			if !strings.HasPrefix(kv, wire.EnvPrefix) {
				i.Env = append(i.Env, kv)
			}
		}
	}
	return i, nil
}

// reference returns the name by which msb makes machines of a template's image, if that is still the image that the
// name meant when the template was made ready.
func (r *Runtime) reference(ctx context.Context, ref, id string) (string, error) {
	if id == "" {
		id = ref
	}
	found, err := r.Image(ctx, id, nil)
	if errors.Is(err, sandbox.ErrNoImage) {
		return "", sandbox.Explain("the template's image is gone, or its name means another one now: the server makes the "+
			"template ready again within a minute", err)
	}
	name, _, _ := strings.Cut(found.ID, idSeparator)
	return name, err
}

// Save implements sandbox.Images. msb makes no images of machines.
func (r *Runtime) Save(context.Context, sandbox.Sandbox, string) (sandbox.Image, error) {
	return sandbox.Image{}, sandbox.Explain("the runtime microsandbox adds no packages and no files to images: name an "+
		"image that has them, or give the template the runtime gvisor or docker", nil)
}

// RemoveSaved implements sandbox.Images: there are none.
func (r *Runtime) RemoveSaved(context.Context, func(name, id string) bool) error { return nil }
