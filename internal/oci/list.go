package oci

import (
	"cmp"
	"os"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandlot/internal/atomicfile"
)

// Get returns the image with a name, such as python:3.12-slim, or with the digest of a manifest, and notes that it is
// used. It reports false for an image that is not there, or that is damaged: Pull and Import get again what it lacks.
func (s *Store) Get(ref string) (Image, bool, error) {
	image, there, err := s.Find(ref)
	if err == nil && there {
		s.markUsed(image.Digest)
	}
	return image, there, err
}

// Find is Get for who does not use the image.
func (s *Store) Find(ref string) (Image, bool, error) {
	entry, ok, err := s.find(ref)
	if err != nil || !ok {
		return Image{}, false, err
	}
	image, err := s.describe(entry)
	if atomicfile.IsPassing(err) {
		return Image{}, false, s.unreadable(err)
	}
	if err != nil {
		return Image{}, false, nil
	}
	return image, true, nil
}

// damage returns what is wrong with the store's image of a name; nil: nothing, or there is none.
func (s *Store) damage(ref string) error {
	entry, ok, err := s.find(ref)
	if err != nil || !ok {
		return nil
	}
	_, err = s.describe(entry)
	return err
}

// find returns the entry of a name or a digest.
func (s *Store) find(ref string) (v1.Descriptor, bool, error) {
	index, err := s.readIndex()
	if err != nil {
		return v1.Descriptor{}, false, err
	}
	var matches func(v1.Descriptor) bool
	if digest, ok := digestText(ref); ok {
		matches = func(e v1.Descriptor) bool { return e.Digest == digest }
	} else {
		parsed, err := parseReference(ref)
		if err != nil {
			return v1.Descriptor{}, false, err
		}
		matches = func(e v1.Descriptor) bool { return nameOf(e) == familiar(parsed) }
	}
	if i := slices.IndexFunc(index.Manifests, matches); i >= 0 {
		return index.Manifests[i], true, nil
	}
	return v1.Descriptor{}, false, nil
}

// List returns the images, sorted by name. Size is 0 where an image is damaged, or cannot be read now.
func (s *Store) List() ([]Image, error) {
	index, err := s.readIndex()
	if err != nil {
		return nil, err
	}
	images := []Image{}
	for _, entry := range index.Manifests {
		image, _ := s.describe(entry)
		images = append(images, image)
	}
	slices.SortStableFunc(images, func(a, b Image) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Digest, b.Digest))
	})
	return images, nil
}

// describe returns the image of an entry. With an error, a part of it is damaged or gone, and the image says what the
// entry does.
func (s *Store) describe(entry v1.Descriptor) (Image, error) {
	image := Image{Name: nameOf(entry), Digest: entry.Digest.String(), Rootfs: s.rootfsPath(entry.Digest)}
	if entry.Platform != nil {
		image.Platform = platformText(*entry.Platform)
	}
	image.Created, _ = time.Parse(time.RFC3339, entry.Annotations[annotationAdded])
	image.Used = image.Created
	_, config, err := s.readImage(entry.Digest)
	if err != nil {
		return image, err
	}
	c := config.Config
	image.Config = Config{User: c.User, Workdir: c.WorkingDir, Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd}
	if image.Size, err = s.checkRootfs(entry.Digest); err != nil {
		return image, err
	}
	if used, err := os.Stat(s.usedPath(entry.Digest)); err == nil && used.ModTime().After(image.Created) {
		image.Used = used.ModTime()
	}
	return image, nil
}

// UsedInterval is how often a use of an image is noted: Image.Used may be as much before its last use.
const UsedInterval = time.Minute

// markUsed notes that the image with a digest is used. A store that cannot be written is used as well.
func (s *Store) markUsed(digest string) {
	h, err := v1.NewHash(digest)
	if err != nil {
		return
	}
	path := s.usedPath(h)
	if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) < UsedInterval {
		return
	}
	now := time.Now()
	if os.Chtimes(path, now, now) != nil {
		if f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
			_ = f.Close()
		}
	}
}
