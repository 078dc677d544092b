package oci

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandlot/internal/fault"
)

// A document is a manifest or an index: which one, its fields say.
type document struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     types.MediaType `json:"mediaType"`
	Config        *v1.Descriptor  `json:"config"`
	Layers        []v1.Descriptor `json:"layers"`
	Manifests     []v1.Descriptor `json:"manifests"`
	FSLayers      json.RawMessage `json:"fsLayers"` // of Docker's schema 1
}

func (d *document) isIndex() bool { return d.Manifests != nil }

// malformed returns the error for an image that no honest tool makes.
func malformed(what, format string, args ...any) error {
	e := fault.New(fault.InvalidParameters, format, args...)
	e.Message = what + " is malformed: " + printable(e.Message)
	return e
}

// parseDocument reads and checks a manifest or an index.
func parseDocument(raw []byte, what string) (*document, error) {
	var d document
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, malformed(what, "its manifest cannot be read: %v", err)
	}
	switch {
	case d.FSLayers != nil || d.SchemaVersion == 1:
		return nil, fault.New(fault.InvalidParameters, "%s has Docker's format of before 2016 (schema 1), which is "+
			"not supported: build or push it again", what)
	case d.Manifests != nil && (d.Layers != nil || d.Config != nil):
		return nil, malformed(what, "one document is both an index and a manifest")
	case !d.hasKnownType():
		return nil, fault.New(fault.InvalidParameters, "%s is not a container image: its manifest has the type %q", what,
			printable(string(d.MediaType)))
	case d.isIndex():
		return &d, checkIndex(&d, what)
	}
	return &d, checkManifest(&d, what)
}

// hasKnownType reports whether a document says that it is what its fields say, or nothing. The type goes into the
// store's index.
func (d *document) hasKnownType() bool {
	known := []types.MediaType{"", types.OCIManifestSchema1, types.DockerManifestSchema2}
	if d.isIndex() {
		known = []types.MediaType{"", types.OCIImageIndex, types.DockerManifestList}
	}
	return slices.Contains(known, d.MediaType)
}

func checkIndex(d *document, what string) error {
	if len(d.Manifests) > maxPlatforms {
		return malformed(what, "its index has %d entries, and at most %d are read", len(d.Manifests), maxPlatforms)
	}
	return nil
}

func checkManifest(d *document, what string) error {
	if d.Config == nil {
		return malformed(what, "its manifest names no config")
	}
	if !d.Config.MediaType.IsConfig() {
		return fault.New(fault.InvalidParameters, "%s is not a container image: its config has the type %q", what,
			printable(string(d.Config.MediaType)))
	}
	if err := checkDescriptor(*d.Config, maxDocument, what); err != nil {
		return err
	}
	if len(d.Layers) > maxLayers {
		return malformed(what, "it has %d layers, and at most %d are supported", len(d.Layers), maxLayers)
	}
	var total int64
	sizes := map[v1.Hash]int64{}
	for _, l := range d.Layers {
		if !l.MediaType.IsDistributable() || len(l.URLs) > 0 {
			return fault.New(fault.InvalidParameters, "%s has a layer that its registry may not give away (%s). Such "+
				"images, of Windows, are not supported", what, printable(string(l.MediaType)))
		}
		if !isLayer(l.MediaType) {
			return fault.New(fault.InvalidParameters, "%s has a layer of the unknown type %q", what,
				printable(string(l.MediaType)))
		}
		if err := checkDescriptor(l, maxCompressed, what); err != nil {
			return err
		}
		if size, seen := sizes[l.Digest]; seen && size != l.Size {
			return malformed(what, "it says two sizes of %s", l.Digest)
		}
		sizes[l.Digest] = l.Size
		if total += l.Size; total > maxCompressed {
			return malformed(what, "its layers have over %d GiB", maxCompressed>>30)
		}
	}
	return nil
}

// isLayer reports whether a media type is one of a layer. How the layer is compressed, its first bytes say.
func isLayer(t types.MediaType) bool {
	return t.IsLayer() || t == "application/vnd.docker.image.rootfs.diff.tar.zstd"
}

func checkDescriptor(d v1.Descriptor, most int64, what string) error {
	if d.Digest.Algorithm != "sha256" {
		return malformed(what, "the digest %q does not begin with sha256:", d.Digest.String())
	}
	if d.Size < 0 || d.Size > most {
		return malformed(what, "%s has %d bytes, and at most %d are allowed", d.Digest, d.Size, most)
	}
	return nil
}

// parseConfig reads and checks the config of an image with a number of layers.
func parseConfig(raw []byte, layers int, what string) (*v1.ConfigFile, error) {
	var c v1.ConfigFile
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, malformed(what, "its config cannot be read: %v", err)
	}
	if len(c.RootFS.DiffIDs) != layers {
		return nil, malformed(what, "its manifest has %d layers, and its config %d", layers, len(c.RootFS.DiffIDs))
	}
	for _, id := range c.RootFS.DiffIDs {
		if id.Algorithm != "sha256" {
			return nil, malformed(what, "the digest %q does not begin with sha256:", id)
		}
	}
	return &c, nil
}

// checkPlatform compares the platform of a config with the wanted one.
func checkPlatform(c *v1.ConfigFile, want v1.Platform, what string) error {
	have := v1.Platform{OS: cmp.Or(c.OS, "linux"), Architecture: cmp.Or(c.Architecture, want.Architecture),
		Variant: c.Variant}
	if have.OS == want.OS && have.Architecture == want.Architecture {
		return nil
	}
	return fault.New(fault.NotFound, "%s has no image for %s; it has %s", what, platformText(want), platformText(have))
}

// digestOf returns the digest of bytes.
func digestOf(raw []byte) v1.Hash {
	sum := sha256.Sum256(raw)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

// checkDocument compares a document with its descriptor.
func checkDocument(raw []byte, d v1.Descriptor, what string) error {
	if got := digestOf(raw); got != d.Digest {
		return malformed(what, "%s was asked for, and something with the digest %s came", d.Digest, got)
	}
	return nil
}

// mediaTypeOf returns the media type of a manifest that may not have one.
func mediaTypeOf(d *document) types.MediaType {
	if d.isIndex() {
		return cmp.Or(d.MediaType, types.OCIImageIndex)
	}
	return cmp.Or(d.MediaType, types.OCIManifestSchema1)
}

// digestText returns the digest in a reference to an image by digest alone, and whether it is one.
func digestText(ref string) (v1.Hash, bool) {
	if !strings.HasPrefix(ref, "sha256:") {
		return v1.Hash{}, false
	}
	h, err := v1.NewHash(ref)
	return h, err == nil
}
