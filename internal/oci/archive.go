package oci

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
	"sandlot/internal/oci/rootfs"
)

// maxMembers and maxMemberName bound the members of an archive with images, which are kept in memory.
const (
	maxMembers    = 1 << 16
	maxMemberName = 4096
)

// ofImages are the names of members of archives with images: of OCI layouts, and of `docker save` in its forms.
var ofImages = regexp.MustCompile(`^(blobs(/.*)?|oci-layout|index\.json|manifest\.json|repositories|` +
	`(sha256:)?[0-9a-f]{64}(\.json|\.tar|\.tar\.gz|/.*)?)$`)

// readArchive finds out what an archive is, and reads its list of members or makes an image of it. The folder owns the
// file from now on.
func (f *folder) readArchive(ctx context.Context, s *Store, file *os.File, want v1.Platform) error {
	f.files = noFiles{file}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	compressed := isCompressed(io.NewSectionReader(file, 0, info.Size()))
	plain, err := rootfs.Uncompressed(contextReader{ctx, io.NewSectionReader(file, 0, info.Size())})
	if err != nil {
		return decompressError(f.title, err)
	}
	hasImages, err := archiveHasImages(plain, f.title)
	if err := errors.Join(err, plain.Close()); err != nil {
		return err
	}
	if !hasImages {
		f.files = oneFile{file, info.Size()}
		return f.makeImage(ctx, compressed, want)
	}
	if compressed { // its members are read in any order
		plain, err := rootfs.Uncompressed(contextReader{ctx, io.NewSectionReader(file, 0, info.Size())})
		if err != nil {
			return decompressError(f.title, err)
		}
		whole, err := s.spool(plain)
		if err := errors.Join(err, plain.Close()); err != nil {
			return decompressError(f.title, err)
		}
		_ = file.Close()
		file = whole
		f.files = noFiles{file}
	}
	found, err := readMembers(ctx, file, f.title)
	if err != nil {
		return err
	}
	f.files = found
	return f.readImages()
}

// archiveHasImages tells an archive with images from one of a root file system. It reads no further than it has to.
func archiveHasImages(r io.Reader, title string) (bool, error) {
	members := tar.NewReader(r)
	for n := 0; n < maxMembers; n++ {
		h, err := members.Next()
		if errors.Is(err, io.EOF) && n > 0 {
			break
		}
		if err != nil {
			if fault.From(err).Kind != fault.Internal {
				return false, err
			}
			return false, fault.Wrap(fault.InvalidParameters, err, "%s is not an image: neither a folder nor a tar "+
				"archive (plain, gzip or zstd)", title)
		}
		switch name := memberPath(h.Name); {
		case name == ".":
		case !ofImages.MatchString(name):
			return false, nil
		case name == "index.json", name == "manifest.json":
			return true, nil
		}
	}
	return false, nil
}

// memberPath returns the path of a member, which cannot lead out of the archive. The archive's root is "".
func memberPath(name string) string { return path.Clean("/" + name)[1:] }

// spool writes the content of a reader to a file without a name.
func (s *Store) spool(r io.Reader) (*os.File, error) {
	file, err := os.CreateTemp(s.partial(), "spool-*")
	if err != nil {
		return nil, s.diskError(err)
	}
	err = os.Remove(file.Name()) // what a crash leaves has no name, and is gone
	if err == nil {
		var n int64
		n, err = io.Copy(file, io.LimitReader(r, maxCompressed))
		if n == maxCompressed {
			err = fault.New(fault.ResourceLimit, "the archive has over %d GiB", maxCompressed>>30)
		}
	}
	if atomicfile.IsDiskFull(err) {
		err = s.diskError(err)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// A contextReader ends with its context.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r contextReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(b)
}

// members are the regular files of an archive with images.
type members struct {
	*os.File
	at    map[string]extent
	links map[string]string
}

// An extent is where a member's content is.
type extent struct{ offset, size int64 }

// readMembers lists the members of an archive.
func readMembers(ctx context.Context, file *os.File, title string) (*members, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	whole := io.NewSectionReader(file, 0, info.Size())
	m := &members{File: file, at: map[string]extent{}, links: map[string]string{}}
	archive := tar.NewReader(whole)
	for n := 0; ; n++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return m, nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return nil, malformed(title, "the archive cannot be read: %v", err)
		}
		if n == maxMembers {
			return nil, malformed(title, "it has over %d members", maxMembers)
		}
		if len(h.Name) > maxMemberName || len(h.Linkname) > maxMemberName {
			return nil, malformed(title, "a name in it has over %d bytes", maxMemberName)
		}
		name := memberPath(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			if _, sparse := h.PAXRecords["GNU.sparse.major"]; sparse || h.PAXRecords["GNU.sparse.map"] != "" {
				continue // its content is not in one piece
			}
			offset, err := whole.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			if h.Size > info.Size()-offset {
				return nil, malformed(title, "the archive ends early")
			}
			m.at[name] = extent{offset, h.Size}
		case tar.TypeSymlink: // older versions of Docker link to a layer that another image has too
			m.links[name] = memberPath(path.Join(path.Dir(name), h.Linkname))
		case tar.TypeLink:
			m.links[name] = memberPath(h.Linkname)
		}
	}
}

// maxLinks bounds the links that lead to a member.
const maxLinks = 8

func (m *members) open(name string) (io.ReadSeekCloser, int64, error) {
	name = memberPath(name)
	for range maxLinks {
		if at, ok := m.at[name]; ok {
			return unowned{io.NewSectionReader(m.File, at.offset, at.size)}, at.size, nil
		}
		next, ok := m.links[name]
		if !ok {
			break
		}
		name = next
	}
	return nil, 0, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// unowned is a part of a file that is closed elsewhere.
type unowned struct{ io.ReadSeeker }

func (unowned) Close() error { return nil }

// noFiles is a file of which nothing has been read yet.
type noFiles struct{ *os.File }

func (noFiles) open(name string) (io.ReadSeekCloser, int64, error) {
	return nil, 0, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// oneFile is the archive of a root file system, which is the one layer of an image.
type oneFile struct {
	*os.File
	size int64
}

func (f oneFile) open(string) (io.ReadSeekCloser, int64, error) {
	return unowned{io.NewSectionReader(f.File, 0, f.size)}, f.size, nil
}

// diskFolder is a folder on the disk. What leads out of it is not opened.
type diskFolder struct{ *os.Root }

func (d diskFolder) open(name string) (io.ReadSeekCloser, int64, error) {
	info, err := d.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would wait for its writer
		return nil, 0, &fs.PathError{Op: "open", Path: name, Err: errors.New("it is not a regular file")}
	}
	file, err := d.OpenFile(name, os.O_RDONLY|nonblock, 0)
	return file, info.Size(), err
}

// makeImage makes an image of the archive of a root file system.
func (f *folder) makeImage(ctx context.Context, compressed bool, want v1.Platform) error {
	file, size, err := f.files.open("")
	if err != nil {
		return err
	}
	ofBlob, ofContent := sha256.New(), sha256.New()
	raw := io.TeeReader(contextReader{ctx, file}, ofBlob)
	if compressed {
		plain, err := rootfs.Uncompressed(raw)
		if err == nil {
			_, err = io.Copy(ofContent, plain)
			err = errors.Join(err, plain.Close())
		}
		if err != nil {
			return decompressError(f.title, err)
		}
	}
	if _, err := io.Copy(io.Discard, raw); err != nil {
		return fault.Wrap(fault.FileAccess, err, "%s cannot be read: %v", f.title, err)
	}
	layer := v1.Descriptor{MediaType: types.OCIUncompressedLayer, Size: size,
		Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(ofBlob.Sum(nil))}}
	diffID := layer.Digest
	if compressed {
		diffID.Hex, layer.MediaType = hex.EncodeToString(ofContent.Sum(nil)), types.OCILayer
	}
	config, err := json.Marshal(v1.ConfigFile{OS: want.OS, Architecture: want.Architecture,
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{diffID}}})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: f.make(config, types.OCIConfigJSON), Layers: []v1.Descriptor{layer}})
	f.images = []v1.Descriptor{f.make(manifest, types.OCIManifestSchema1)}
	return err
}
