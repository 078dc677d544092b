package oci

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
)

// hasBlob reports whether the store has a blob.
func (s *Store) hasBlob(d v1.Descriptor) bool {
	info, err := os.Stat(s.blobPath(d.Digest))
	return err == nil && info.Mode().IsRegular() && info.Size() == d.Size
}

// writeDocument stores a document under its digest.
func (s *Store) writeDocument(raw []byte) (v1.Hash, error) {
	digest := digestOf(raw)
	if s.hasBlob(v1.Descriptor{Digest: digest, Size: int64(len(raw))}) {
		return digest, nil
	}
	return digest, s.writeFile(s.blobPath(digest), raw)
}

// documentPrefix begins the names of files of partial/ that writeFile writes.
const documentPrefix = "document-"

// writeFile replaces a file of the store at once: who reads it sees the old content or the new.
func (s *Store) writeFile(path string, content []byte) error {
	f, err := os.CreateTemp(s.partial(), documentPrefix+"*")
	if err != nil {
		return s.diskError(err)
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return s.diskError(errors.Join(err, os.Remove(f.Name())))
	}
	return atomicfile.Sync(filepath.Dir(path))
}

// readDocument reads a document of the store, and compares it with its digest.
func (s *Store) readDocument(digest v1.Hash) ([]byte, error) {
	f, err := os.Open(s.blobPath(digest))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err != nil {
		return nil, err
	}
	if digestOf(raw) != digest {
		return nil, fault.New(fault.Configuration, "%s was changed on the disk", f.Name())
	}
	return raw, nil
}

// readImage reads the manifest and the config of an image of the store.
func (s *Store) readImage(digest v1.Hash) (*document, *v1.ConfigFile, error) {
	raw, err := s.readDocument(digest)
	if err != nil {
		return nil, nil, err
	}
	manifest, err := parseDocument(raw, digest.String())
	if err != nil {
		return nil, nil, err
	}
	if manifest.isIndex() {
		return nil, nil, malformed(digest.String(), "it is an index")
	}
	if raw, err = s.readDocument(manifest.Config.Digest); err != nil {
		return nil, nil, err
	}
	config, err := parseConfig(raw, len(manifest.Layers), digest.String())
	return manifest, config, err
}

// removeFile removes a file that may be gone already, and returns its size.
func removeFile(path string) (int64, error) {
	info, err := os.Lstat(path)
	if err == nil {
		err = os.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// A source is where an image comes from: a registry, an archive, a folder.
type source interface {
	// manifest reads a manifest or an index, of at most maxDocument bytes.
	manifest(ctx context.Context, d v1.Descriptor) ([]byte, error)
	// blob opens a blob at an offset. It returns where the body begins: there, or at 0.
	blob(ctx context.Context, d v1.Descriptor, offset int64) (body io.ReadCloser, start int64, err error)
	// String returns the source for messages.
	String() string
}
