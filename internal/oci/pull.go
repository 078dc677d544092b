package oci

import (
	"context"
	"errors"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandlot/internal/fault"
)

// Pull gets an image from its registry. What the store has already, or has in part, is not transferred again. An
// error or an interruption leaves what has been transferred, and the next Pull goes on from there.
func (s *Store) Pull(ctx context.Context, ref string, o Options) (Image, error) {
	parsed, err := parseReference(ref)
	if err != nil {
		return Image{}, err
	}
	want, err := parsePlatform(o.Platform)
	if err != nil {
		return Image{}, err
	}
	if _, ok := parsed.(name.Digest); ok { // what a digest names does not change
		if image, there, err := s.Get(ref); err != nil || there && image.Platform == platformText(want) {
			return image, err
		}
	}
	damage := s.damage(ref)
	image, err := s.using(ctx, func() (Image, error) {
		from, err := dialRegistry(ctx, parsed.Context(), s.retry)
		if err != nil {
			return Image{}, err
		}
		a := &addition{store: s, from: from, called: familiar(parsed), want: want, progress: newProgress(o.Progress)}
		root := v1.Descriptor{}
		if d, ok := parsed.(name.Digest); ok {
			if root.Digest, err = v1.NewHash(d.DigestStr()); err != nil {
				return Image{}, err
			}
		} else {
			from.tag = parsed.Identifier()
		}
		return a.add(ctx, root)
	})
	if err != nil && damage != nil && ctx.Err() == nil {
		err = fault.Wrap(fault.From(err).Kind, err, "the image %s is damaged on the disk (%v), and could not be got "+
			"again: %v. If it was imported, import it again (`sandlot image import`)", ref, damage, err)
	}
	if err != nil && ctx.Err() != nil {
		err = fault.Wrap(fault.Canceled, errors.Join(ctx.Err(), err), "the pull of %s was interrupted; what has been "+
			"downloaded is kept, and the next pull goes on from there", ref)
	}
	return image, err
}

// using runs add while no blob is removed.
func (s *Store) using(ctx context.Context, add func() (Image, error)) (Image, error) {
	users, err := s.lockUsers(ctx)
	if err != nil {
		return Image{}, err
	}
	defer users.Close()
	if _, err := s.readIndex(); err != nil { // before anything is transferred
		return Image{}, err
	}
	s.removeStale()
	return add()
}
