package oci

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandlot/internal/fault"
)

// Extend makes an image of one of the store and one more layer, an uncompressed tar archive, and gives it a name. The
// new image has the settings of the old one. The archive may be hostile: it is checked as layers of registries are.
func (s *Store) Extend(ctx context.Context, base string, layer io.Reader, name string) (Image, error) {
	parsed, err := parseReference(name)
	if err != nil {
		return Image{}, err
	}
	called := familiar(parsed)
	return s.using(ctx, func() (Image, error) {
		entry, there, err := s.find(base)
		if err == nil && !there {
			err = fault.New(fault.NotFound, "the image %s is no longer in the store", base)
		}
		if err != nil {
			return Image{}, err
		}
		from, want, err := s.extension(ctx, entry, layer, called)
		if err != nil {
			return Image{}, err
		}
		defer from.close()
		a := &addition{store: s, from: from, called: called, want: want, progress: newProgress(nil)}
		return a.add(ctx, from.images[0])
	})
}

// extended is the source of an image that is one of the store and one more layer. Layers that the store has damaged,
// or not at all, are got from the registry of the base's name.
type extended struct {
	*folder // the documents, and the layer that is added
	added   v1.Hash
	store   *Store
	base    string // a name of the image of the store; empty: it has none

	mu       sync.Mutex
	registry *repository // nil: not asked yet
}

func (e *extended) blob(ctx context.Context, d v1.Descriptor, offset int64) (io.ReadCloser, int64, error) {
	if _, own := e.made[d.Digest]; own || d.Digest == e.added {
		return e.folder.blob(ctx, d, offset)
	}
	from, err := e.dial(ctx)
	var body io.ReadCloser
	if err == nil {
		body, offset, err = from.blob(ctx, d, offset)
	}
	if err != nil {
		err = fault.Wrap(fault.From(err).Kind, err, "the layer %s of the image %s is damaged on the disk, or gone, and "+
			"could not be got again: %v. Get the image again (`sandlot image pull`, or `sandlot image import` if it "+
			"was imported)", d.Digest, e.base, err)
	}
	return body, offset, err
}

// dial returns the registry of the base's name.
func (e *extended) dial(ctx context.Context) (*repository, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.registry != nil {
		return e.registry, nil
	}
	parsed, err := parseReference(e.base)
	if err != nil {
		return nil, err
	}
	e.registry, err = dialRegistry(ctx, parsed.Context(), e.store.retry)
	if err != nil {
		e.registry = nil
	}
	return e.registry, err
}

// extension returns a source with the image of the store that has that digest, and one more layer.
func (s *Store) extension(ctx context.Context, base v1.Descriptor, layer io.Reader, called string) (
	f *extended, want v1.Platform, err error) {
	manifest, config, err := s.readImage(base.Digest)
	if err != nil {
		return nil, want, fault.Wrap(fault.Configuration, err, "the image %s is damaged on the disk: %v. Get it again "+
			"(`sandlot image pull`, or `sandlot image import` if it was imported)", cmp.Or(nameOf(base),
			base.Digest.String()), err)
	}
	sum := sha256.New()
	file, err := s.spool(io.TeeReader(contextReader{ctx, layer}, sum))
	if err != nil {
		return nil, want, err
	}
	f = &extended{folder: newFolder("the store"), store: s, base: nameOf(base)}
	info, err := file.Stat()
	if err != nil {
		return nil, want, errors.Join(err, file.Close())
	}
	f.files = oneFile{file, info.Size()}
	digest := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
	f.added = digest
	config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest)
	config.History = append(config.History, v1.History{CreatedBy: "sandlot", Comment: called})
	text, configErr := json.Marshal(config)
	added := v1.Descriptor{MediaType: types.OCIUncompressedLayer, Digest: digest, Size: info.Size()}
	text, err = json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: f.make(text, types.OCIConfigJSON), Layers: append(manifest.Layers, added)})
	f.images = []v1.Descriptor{f.make(text, types.OCIManifestSchema1)}
	if err = errors.Join(err, configErr); err != nil {
		f.close()
	}
	return f, v1.Platform{OS: config.OS, Architecture: config.Architecture, Variant: config.Variant}, err
}
