package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandlot/internal/fault"
)

// daemonPrefix begins a source that is an image of a Docker daemon.
const daemonPrefix = "docker-daemon:"

// Import gets an image from a file or folder of this machine, or from a Docker daemon (docker-daemon:NAME). What the
// source is, its content says: an OCI layout (a folder or an archive), an archive of `docker save`, or the archive of
// a root file system. Archives may be compressed. Without a name the image gets the one that the source has for it.
func (s *Store) Import(ctx context.Context, path, name string, o Options) (Image, error) {
	want, err := parsePlatform(o.Platform)
	if err != nil {
		return Image{}, err
	}
	if name != "" {
		parsed, err := parseReference(name)
		if err != nil {
			return Image{}, err
		}
		if strings.Contains(name, "@") {
			return Image{}, fault.New(fault.InvalidParameters, "an imported image gets a name such as my-image:1, and "+
				"no digest")
		}
		name = familiar(parsed)
	}
	image, err := s.using(ctx, func() (Image, error) {
		progress := newProgress(o.Progress)
		from, err := s.openSource(ctx, path, want, progress.tell)
		if err != nil {
			return Image{}, err
		}
		defer from.close()
		root, called, err := from.pick(name)
		if err != nil {
			return Image{}, err
		}
		a := &addition{store: s, from: from, called: called, want: want, progress: progress}
		return a.add(ctx, root)
	})
	if err != nil && ctx.Err() != nil {
		err = fault.Wrap(fault.Canceled, errors.Join(ctx.Err(), err), "the import of %s was interrupted", path)
	}
	return image, err
}

// A folder is a source that is on the disk: an archive, whose members are parts of one file, or a folder.
type folder struct {
	title string
	files files
	// images are the images of the source: manifests and indexes.
	images []v1.Descriptor
	// made are documents that the source does not have, and blobs that have other names in it.
	made  map[v1.Hash][]byte
	names map[v1.Hash]string
}

// files are the files of a folder.
type files interface {
	// open returns a regular file by its path, and its size.
	open(path string) (io.ReadSeekCloser, int64, error)
	io.Closer
}

func newFolder(title string) *folder {
	return &folder{title: title, made: map[v1.Hash][]byte{}, names: map[v1.Hash]string{}}
}

func (f *folder) String() string { return f.title }

func (f *folder) close() { _ = f.files.Close() }

// openSource opens a source, and finds out what it is.
func (s *Store) openSource(ctx context.Context, path string, want v1.Platform, tell func(Progress)) (
	*folder, error) {
	if image, ok := strings.CutPrefix(path, daemonPrefix); ok {
		return s.openDaemon(ctx, image, want, tell)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fault.Wrap(fault.FileAccess, err, "%s cannot be read: %v", path, err)
	}
	f := newFolder(path)
	switch {
	case info.IsDir():
		root, err := os.OpenRoot(path)
		if err != nil {
			return nil, fault.Wrap(fault.FileAccess, err, "%s cannot be read: %v", path, err)
		}
		f.files = diskFolder{root}
		if err := f.readImages(); err != nil {
			f.close()
			return nil, err
		}
		return f, nil
	case info.Mode().IsRegular():
		file, err := os.Open(path)
		if err != nil {
			return nil, fault.Wrap(fault.FileAccess, err, "%s cannot be read: %v", path, err)
		}
		if err := f.readArchive(ctx, s, file, want); err != nil {
			f.close()
			return nil, err
		}
		return f, nil
	}
	return nil, fault.New(fault.FileAccess, "%s is neither a file nor a folder", path)
}

// readImages finds the images of an OCI layout or of an archive of `docker save`.
func (f *folder) readImages() error {
	if raw, err := f.read("index.json"); err == nil {
		index, err := parseDocument(raw, f.title)
		if err != nil {
			return err
		}
		if !index.isIndex() {
			return malformed(f.title, "its index.json is not an index")
		}
		f.images = index.Manifests
		return nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if raw, err := f.read("manifest.json"); err == nil {
		return f.readSaved(raw)
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return fault.New(fault.InvalidParameters, "%s is not an image: it has neither index.json (an OCI layout) nor "+
		"manifest.json (`docker save`). A folder with a root file system can be imported as a tar archive", f.title)
}

// read reads a document.
func (f *folder) read(path string) ([]byte, error) {
	file, size, err := f.files.open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if size > maxDocument {
		return nil, malformed(f.title, "%s has over %d MiB", path, maxDocument>>20)
	}
	return io.ReadAll(io.LimitReader(file, maxDocument))
}

// path returns where a blob is.
func (f *folder) path(h v1.Hash) string {
	if name, ok := f.names[h]; ok {
		return name
	}
	return "blobs/sha256/" + h.Hex
}

func (f *folder) manifest(_ context.Context, d v1.Descriptor) ([]byte, error) {
	if raw, ok := f.made[d.Digest]; ok {
		return raw, nil
	}
	raw, err := f.read(f.path(d.Digest))
	if err != nil {
		return nil, f.missing(d, err)
	}
	return raw, checkDocument(raw, d, f.title)
}

func (f *folder) blob(_ context.Context, d v1.Descriptor, offset int64) (io.ReadCloser, int64, error) {
	if raw, ok := f.made[d.Digest]; ok {
		if offset > int64(len(raw)) { // the size of the manifest is wrong
			offset = 0
		}
		return io.NopCloser(strings.NewReader(string(raw[offset:]))), offset, nil
	}
	file, size, err := f.files.open(f.path(d.Digest))
	if err != nil {
		return nil, 0, f.missing(d, err)
	}
	if size != d.Size {
		return nil, 0, errors.Join(malformed(f.title, "%s has %d bytes, and its manifest says %d", d.Digest, size,
			d.Size),
			file.Close())
	}
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, offset, nil
}

func (f *folder) missing(d v1.Descriptor, err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return malformed(f.title, "%s is not in it", d.Digest)
	}
	return err
}

// pick returns the image that a name means, and what it will be called.
func (f *folder) pick(called string) (v1.Descriptor, string, error) {
	var images []v1.Descriptor
	var names []string
	for _, d := range f.images {
		if !d.MediaType.IsImage() && !d.MediaType.IsIndex() {
			continue
		}
		title := f.nameOf(d)
		if called != "" && title == called {
			return d, called, checkDescriptor(d, maxDocument, f.title)
		}
		if !slices.ContainsFunc(images, func(o v1.Descriptor) bool { return o.Digest == d.Digest }) {
			images = append(images, d)
		}
		if title != "" && !slices.Contains(names, title) {
			names = append(names, title)
		}
	}
	switch {
	case len(images) == 0:
		return v1.Descriptor{}, "", malformed(f.title, "it has no image")
	case len(images) > 1 && len(names) < 2: // one image for several platforms
		return f.join(images, called, names)
	case len(images) > 1:
		return v1.Descriptor{}, "", fault.New(fault.InvalidParameters, "%s has several images: say which one by its "+
			"name (%s)",
			f.title, printable(strings.Join(names, ", ")))
	case called == "" && len(names) == 0:
		return v1.Descriptor{}, "", fault.New(fault.InvalidParameters, "%s has no name for its image: give one",
			f.title)
	case called == "":
		called = names[0]
	}
	return images[0], called, checkDescriptor(images[0], maxDocument, f.title)
}

// join makes an index of images that are one for several platforms.
func (f *folder) join(images []v1.Descriptor, called string, names []string) (v1.Descriptor, string, error) {
	if called == "" && len(names) == 0 {
		return v1.Descriptor{}, "", fault.New(fault.InvalidParameters, "%s has no name for its image: give one",
			f.title)
	}
	if called == "" {
		called = names[0]
	}
	raw, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: images})
	return f.make(raw, types.OCIImageIndex), called, err
}

// make adds a document to the source.
func (f *folder) make(raw []byte, mediaType types.MediaType) v1.Descriptor {
	digest := digestOf(raw)
	f.made[digest] = raw
	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: int64(len(raw))}
}

// nameOf returns the name that a layout has for an image: containerd's, which is whole, or else the standard one, if it
// is more than a tag.
func (f *folder) nameOf(d v1.Descriptor) string {
	for _, key := range []string{"io.containerd.image.name", annotationName} {
		text := d.Annotations[key]
		if text == "" || key == annotationName && !strings.ContainsAny(text, ":/") {
			continue
		}
		if parsed, err := parseReference(text); err == nil && !strings.Contains(text, "@") {
			return familiar(parsed)
		}
	}
	return ""
}

// saved is an image in the manifest.json of `docker save`.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// readSaved finds the images of an archive of `docker save`, and makes a manifest for each.
func (f *folder) readSaved(raw []byte) error {
	var images []saved
	if err := json.Unmarshal(raw, &images); err != nil {
		return malformed(f.title, "its manifest.json cannot be read: %v", err)
	}
	const most = 64
	if len(images) > most {
		return malformed(f.title, "it has over %d images", most)
	}
	for _, image := range images {
		d, err := f.manifestOf(image)
		if err != nil {
			return err
		}
		if len(image.RepoTags) == 0 {
			f.images = append(f.images, d)
		}
		for _, tag := range image.RepoTags {
			d.Annotations = map[string]string{"io.containerd.image.name": tag}
			f.images = append(f.images, d)
		}
	}
	return nil
}

// manifestOf makes the manifest of an image of `docker save`.
func (f *folder) manifestOf(image saved) (v1.Descriptor, error) {
	raw, err := f.read(image.Config)
	if err != nil {
		return v1.Descriptor{}, malformed(f.title, "the config %s cannot be read: %v", image.Config, err)
	}
	config, err := parseConfig(raw, len(image.Layers), f.title)
	if err != nil {
		return v1.Descriptor{}, err
	}
	if len(image.Layers) > maxLayers {
		return v1.Descriptor{}, malformed(f.title, "it has %d layers, and at most %d are supported", len(image.Layers),
			maxLayers)
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.DockerManifestSchema2,
		Config: f.make(raw, types.DockerConfigJSON)}
	for i, path := range image.Layers {
		layer, err := f.layerOf(path, config.RootFS.DiffIDs[i])
		if err != nil {
			return v1.Descriptor{}, err
		}
		manifest.Layers = append(manifest.Layers, layer)
	}
	raw, err = json.Marshal(manifest)
	if err != nil {
		return v1.Descriptor{}, err
	}
	return f.make(raw, types.DockerManifestSchema2), nil
}

// layerOf describes a layer of `docker save`. One that is not compressed has the digest of its content.
func (f *folder) layerOf(path string, diffID v1.Hash) (v1.Descriptor, error) {
	file, size, err := f.files.open(path)
	if err != nil {
		return v1.Descriptor{}, malformed(f.title, "the layer %s cannot be read: %v", path, err)
	}
	defer file.Close()
	d := v1.Descriptor{MediaType: types.DockerUncompressedLayer, Digest: diffID, Size: size}
	if isCompressed(file) {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return v1.Descriptor{}, err
		}
		if d.Digest, _, err = v1.SHA256(file); err != nil {
			return v1.Descriptor{}, fmt.Errorf("read the layer %s: %w", path, err)
		}
		d.MediaType = types.DockerLayer
	}
	f.names[d.Digest] = path
	return d, nil
}

// isCompressed reports whether a file is compressed with gzip or Zstandard.
func isCompressed(r io.Reader) bool {
	magic := make([]byte, 4)
	n, _ := io.ReadFull(r, magic)
	return n == 4 && (magic[0] == 0x1f && magic[1] == 0x8b || string(magic) == "\x28\xb5\x2f\xfd" ||
		magic[0]&0xf0 == 0x50 && string(magic[1:]) == "\x2a\x4d\x18")
}
