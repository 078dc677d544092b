package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"

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
			err = fault.New(fault.NotFound, "the image %s is not in the store any more", base)
		}
		if err != nil {
			return Image{}, err
		}
		from, want, err := s.extension(ctx, entry.Digest, layer, called)
		if err != nil {
			return Image{}, err
		}
		defer from.close()
		a := &addition{store: s, from: from, called: called, want: want, progress: newProgress(nil)}
		return a.add(ctx, from.images[0])
	})
}

// extension returns a source with the image of the store that has that digest, and one more layer.
func (s *Store) extension(ctx context.Context, base v1.Hash, layer io.Reader, called string) (
	f *folder, want v1.Platform, err error) {
	manifest, config, err := s.readImage(base)
	if err != nil {
		return nil, want, err
	}
	sum := sha256.New()
	file, err := s.spool(io.TeeReader(contextReader{ctx, layer}, sum))
	if err != nil {
		return nil, want, err
	}
	f = newFolder("the store")
	info, err := file.Stat()
	if err != nil {
		return nil, want, errors.Join(err, file.Close())
	}
	f.files = oneFile{file, info.Size()}
	digest := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
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
