package hub

import (
	"context"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/inventory"
	"sandlot/internal/oci"
	"sandlot/internal/policy"
)

// What is known of the images of the server's store.
type (
	Image     = inventory.Image
	ImagePull = inventory.Pull
)

// The states of a pull.
const (
	PullRunning = inventory.PullRunning
	PullDone    = inventory.PullDone
	PullFailed  = inventory.PullFailed
)

// ImageList is the images of the server's store, and the pulls that the server makes.
type ImageList struct {
	Images []Image     `json:"images"`
	Pulls  []ImagePull `json:"pulls" jsonschema:"Those that run, and the last ones that have ended; the oldest first."`
}

// ImageRequest asks for an image.
type ImageRequest struct {
	Image    string `json:"image" jsonschema:"A reference, as Docker has them: python:3.12-slim, HOST/NAME:TAG or NAME@sha256:DIGEST."`
	Platform string `json:"platform,omitempty" jsonschema:"linux/amd64 or linux/arm64. Default: the server's."`
}

// resource implements resourceInput.
func (r ImageRequest) resource(*Hub, auth.Principal) policy.Resource {
	return policy.Resource{Kind: "image", ID: r.Image}
}

// detail implements detailInput: the image's name as lists have it, whichever way it is written.
func (r ImageRequest) detail(*Hub, auth.Principal) string {
	if name, err := oci.CheckReference(r.Image, ""); err == nil {
		return name
	}
	return r.Image
}

// ImageName is the name or the digest of an image.
type ImageName string

// resource implements resourceInput.
func (n ImageName) resource(*Hub, auth.Principal) policy.Resource {
	return policy.Resource{Kind: "image", ID: string(n)}
}

// ImageRemoved is what was removed.
type ImageRemoved struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

// PullID is the id of a pull.
type PullID string

var errNoImages = fault.New(fault.NotFound, "this server has no image store")

func (h *Hub) listImages(context.Context, auth.Principal, None) (ImageList, error) {
	if h.Images == nil {
		return ImageList{}, errNoImages
	}
	all, err := h.Images.List()
	return ImageList{all, h.Pulls.List()}, err
}

// pullImage begins to get an image from its registry, and does not wait for it.
func (h *Hub) pullImage(ctx context.Context, p auth.Principal, r ImageRequest) (ImagePull, error) {
	if h.Images == nil {
		return ImagePull{}, errNoImages
	}
	pull, err := h.Pulls.Start(r.Image, r.Platform)
	if err == nil {
		h.Log.InfoContext(ctx, "an image is being pulled", "image", pull.Image, "by", p.ID)
	}
	return pull, err
}

// endPull ends a pull that runs. What has come is kept for the next one.
func (h *Hub) endPull(_ context.Context, _ auth.Principal, id PullID) (None, error) {
	if h.Images == nil || !h.Pulls.End(string(id)) {
		return None{}, fault.New(fault.NotFound, "no such pull runs")
	}
	return None{}, nil
}

// removeImage removes an image, unless a template uses it.
func (h *Hub) removeImage(ctx context.Context, p auth.Principal, name ImageName) (ImageRemoved, error) {
	if h.Images == nil {
		return ImageRemoved{}, errNoImages
	}
	removed, err := h.Images.Remove(ctx, string(name))
	if err != nil {
		return ImageRemoved{}, err
	}
	h.Pulls.Changed()
	h.Log.InfoContext(ctx, "an image was removed", "image", removed.Name, "digest", removed.Digest, "by", p.ID)
	return ImageRemoved{removed.Name, removed.Digest}, nil
}

// TemplatesChange and ImagesChange are what a face is told of templates and images: all of them, or one that is new or
// has changed.
type (
	TemplatesChange struct {
		Change    string      `json:"change"` // all or put
		Templates *[]Template `json:"templates,omitempty"`
		Template  *Template   `json:"template,omitempty"`
	}
	ImagesChange struct {
		Change string       `json:"change"` // all, or put of a pull
		Images *[]Image     `json:"images,omitempty"`
		Pulls  *[]ImagePull `json:"pulls,omitempty"`
		Pull   *ImagePull   `json:"pull,omitempty"`
	}
)

// liveNews watches what tells of its changes by a channel that is closed. It reads at most four times a second.
type liveNews struct {
	watched
	news <-chan struct{} // since the last read; nil: the first is to come
	read func(ctx context.Context, first bool) (changes []any, news <-chan struct{}, err error)
	at   time.Time // of the last read
}

// Next implements Live.
func (l *liveNews) Next(ctx context.Context) ([]any, error) {
	for {
		first := l.news == nil
		if !first {
			if err := l.await(ctx); err != nil {
				return nil, err
			}
			if err := l.again(ctx); err != nil {
				return nil, err
			}
		}
		changes, news, err := l.read(ctx, first)
		l.news, l.at = news, time.Now()
		if len(changes) > 0 || err != nil {
			return changes, err
		}
	}
}

// await waits for the next change.
func (l *liveNews) await(ctx context.Context) error {
	select {
	case <-l.news:
	case <-l.hub.Stopping():
		return ErrStops
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if wait := readInterval - time.Since(l.at); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Close implements Live.
func (l *liveNews) Close() {}

// WatchTemplates begins to watch the templates, as listTemplates lists them.
func (h *Hub) WatchTemplates(ctx context.Context, p auth.Principal) (Live, error) {
	w, err := h.watch(ctx, p, policy.TemplateList)
	if err != nil {
		return nil, err
	}
	if h.Templates == nil {
		return nil, fault.New(fault.NotFound, "this server has no templates")
	}
	told := map[string]string{} // the JSON of each, by its name
	return &liveNews{watched: w, read: func(ctx context.Context, first bool) (changes []any, _ <-chan struct{}, _ error) {
		news := h.Templates.News() // before the list: what changes after it is not missed
		all, err := h.listTemplates(ctx, p, None{})
		if err != nil {
			return nil, news, err
		}
		return templateChanges(told, all, first), news, nil
	}}, nil
}

// templateChanges returns the changes from the templates that were told to all that there are, and notes them as told. When
// one is gone, all are told anew.
func templateChanges(told map[string]string, all []Template, first bool) (changes []any) {
	left := 0
	for _, t := range all {
		if _, ok := told[t.Name]; ok {
			left++
		}
	}
	anew := first || left < len(told)
	if anew {
		clear(told)
		changes = append(changes, TemplatesChange{Change: changeAll, Templates: &all})
	}
	for _, t := range all {
		text := textOf(t)
		if !anew && told[t.Name] != text {
			changes = append(changes, TemplatesChange{Change: changePut, Template: &t})
		}
		told[t.Name] = text
	}
	return changes
}

// WatchImages begins to watch the images of the store and the pulls, as listImages lists them.
func (h *Hub) WatchImages(ctx context.Context, p auth.Principal) (Live, error) {
	w, err := h.watch(ctx, p, policy.ImageList)
	if err != nil {
		return nil, err
	}
	if h.Images == nil {
		return nil, errNoImages
	}
	var last uint64 // what News said when the images were read
	told := map[string]string{}
	return &liveNews{watched: w, read: func(ctx context.Context, first bool) (changes []any, _ <-chan struct{}, _ error) {
		news, now := h.Pulls.News()
		if first || now != last {
			last = now
			all, err := h.listImages(ctx, p, None{})
			if err != nil {
				return nil, news, err
			}
			clear(told)
			for _, one := range all.Pulls {
				told[one.ID] = textOf(one)
			}
			return []any{ImagesChange{Change: changeAll, Images: &all.Images, Pulls: &all.Pulls}}, news, nil
		}
		for _, one := range h.Pulls.List() {
			if text := textOf(one); told[one.ID] != text {
				told[one.ID] = text
				changes = append(changes, ImagesChange{Change: changePut, Pull: &one})
			}
		}
		return changes, news, nil
	}}, nil
}
