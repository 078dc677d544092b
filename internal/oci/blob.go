package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
	"sandlot/internal/oci/rootfs"
)

// hasBlob reports whether the store has a blob.
func (s *Store) hasBlob(d v1.Descriptor) bool {
	info, err := os.Stat(s.blobPath(d.Digest))
	return err == nil && info.Mode().IsRegular() && info.Size() == d.Size
}

// openBlob opens a blob that the store has, and compares it with its digest: the disk may have changed it. A damaged
// one is removed, so that it is got again, and one that cannot be read now is not. The file is nil where there is none.
func (s *Store) openBlob(ctx context.Context, d v1.Descriptor) (*os.File, error) {
	path := s.blobPath(d.Digest)
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && s.hasBlob(d) {
		var f *os.File
		if f, err = os.Open(path); err == nil {
			sum := sha256.New()
			if _, err = io.Copy(sum, contextReader{ctx, f}); err == nil && hex.EncodeToString(sum.Sum(nil)) == d.Digest.Hex {
				return f, nil
			}
			_ = f.Close() // it was only read
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	if atomicfile.IsPassing(err) {
		return nil, s.unreadable(err)
	}
	return nil, s.discardBlob(d.Digest, err)
}

// discardBlob removes a blob that cannot be read, or is not what its digest says.
func (s *Store) discardBlob(digest v1.Hash, why error) error {
	s.log.Warn("a blob of the image store was damaged on the disk, and is got again", "digest", digest.String(),
		"error", why)
	return s.diskError(os.RemoveAll(s.blobPath(digest)))
}

// writeDocument stores a document under its digest.
func (s *Store) writeDocument(raw []byte) (v1.Hash, error) {
	digest := digestOf(raw)
	_, err := s.readDocument(digest)
	switch {
	case err == nil:
		return digest, nil
	case !errors.Is(err, fs.ErrNotExist):
		if err := s.discardBlob(digest, err); err != nil {
			return digest, err
		}
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
		return nil, fault.New(fault.Configuration, "%s is not what its digest says: it was changed on the disk", f.Name())
	}
	return raw, nil
}

// readManifest reads the manifest of an image of the store.
func (s *Store) readManifest(digest v1.Hash) (*document, error) {
	raw, err := s.readDocument(digest)
	if err != nil {
		return nil, err
	}
	manifest, err := parseDocument(raw, digest.String())
	if err == nil && manifest.isIndex() {
		err = malformed(digest.String(), "it is an index")
	}
	return manifest, err
}

// readImage reads the manifest and the config of an image of the store.
func (s *Store) readImage(digest v1.Hash) (*document, *v1.ConfigFile, error) {
	manifest, err := s.readManifest(digest)
	if err != nil {
		return nil, nil, err
	}
	raw, err := s.readDocument(manifest.Config.Digest)
	if err != nil {
		return nil, nil, err
	}
	config, err := parseConfig(raw, len(manifest.Layers), digest.String())
	return manifest, config, err
}

// checkRootfs looks at the root file system of an image: a file of another size than it says, or without a header, is
// damaged. The rest is too long to be read at each use.
func (s *Store) checkRootfs(digest v1.Hash) (size int64, err error) {
	f, err := os.Open(s.rootfsPath(digest))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	image, err := rootfs.OpenImage(f)
	if err != nil {
		return 0, err
	}
	if info.Size() != image.Size() {
		return 0, fmt.Errorf("%s has %d bytes of %d", f.Name(), info.Size(), image.Size())
	}
	return info.Size(), nil
}

// removeFile removes a file that may be gone already, and returns its size.
func removeFile(path string) (int64, error) {
	info, err := os.Lstat(path)
	if err == nil {
		err = os.RemoveAll(path) // a damaged disk may have a folder there
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
