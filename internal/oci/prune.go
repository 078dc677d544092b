package oci

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
)

// staleAfter is the age at which what an interrupted pull or import left is not waited for any more.
const staleAfter = 24 * time.Hour

// Remove removes the name of an image, or, by its digest or the beginning of that, all its names. The image itself goes with its last name.
// used, which may be nil, returns what uses the name of an image, or, if last, the image, such as "the template
// python"; "" for nothing. Remove refuses to remove what is used. It returns the image, with its first name.
func (s *Store) Remove(ctx context.Context, ref string, used func(i Image, last bool) string) (Image, error) {
	ref, err := s.wholeDigest(ref)
	if err != nil {
		return Image{}, err
	}
	entry, there, err := s.find(ref)
	if err != nil {
		return Image{}, err
	}
	if !there {
		return Image{}, fault.New(fault.NotFound, "there is no image %s; `sandlot image list` shows the images", ref)
	}
	_, byDigest := digestText(ref)
	goes := func(e v1.Descriptor) bool {
		return e.Digest == entry.Digest && (byDigest || nameOf(e) == nameOf(entry))
	}
	image, _ := s.describe(entry) // a damaged image, too, can be removed
	err = s.changeIndex(ctx, func(entries []v1.Descriptor) ([]v1.Descriptor, error) {
		last := !slices.ContainsFunc(entries, func(e v1.Descriptor) bool { return e.Digest == entry.Digest && !goes(e) })
		for _, e := range entries {
			if used == nil || !goes(e) {
				continue
			}
			named := image
			named.Name = nameOf(e)
			if by := used(named, last); by != "" {
				return nil, fault.New(fault.InvalidParameters, "the image %s is used by %s: change that first",
					cmp.Or(named.Name, ref), by)
			}
		}
		return slices.DeleteFunc(entries, goes), nil
	})
	if err != nil {
		return Image{}, err
	}
	// While something is added, the blobs stay for the next prune.
	held, err := tryLock(filepath.Join(s.dir, "users"), exclusive)
	if err != nil || held == nil {
		return image, err
	}
	defer held.Close()
	_, err = s.sweep()
	return image, err
}

// shortDigest is the beginning of a digest, as lists of images have it, or a longer one.
var shortDigest = regexp.MustCompile(`^(?:sha256:)?[0-9a-f]{12,63}$`)

// wholeDigest returns the digest of the one image whose digest begins so. A text that is none, or that no digest begins
// with, stays as it is: it may be a name.
func (s *Store) wholeDigest(ref string) (string, error) {
	if !shortDigest.MatchString(ref) {
		return ref, nil
	}
	index, err := s.readIndex()
	if err != nil {
		return "", err
	}
	found := ""
	for _, e := range index.Manifests {
		if !strings.HasPrefix(e.Digest.Hex, strings.TrimPrefix(ref, "sha256:")) {
			continue
		}
		if found != "" && found != e.Digest.String() {
			return "", fault.New(fault.InvalidParameters, "several images have a digest that begins with %s: write more "+
				"of it", ref)
		}
		found = e.Digest.String()
	}
	return cmp.Or(found, ref), nil
}

// Prune removes the images that keep does not keep (nil: those without a name), what no image needs, and what
// interrupted pulls and imports left. It returns the bytes that it has freed.
func (s *Store) Prune(ctx context.Context, keep func(Image) bool) (freed int64, err error) {
	if err := s.makeFolders(); err != nil {
		return 0, err
	}
	held, err := tryLock(filepath.Join(s.dir, "users"), exclusive)
	if err != nil {
		return 0, s.diskError(err)
	}
	if held == nil {
		return 0, fault.New(fault.Configuration, "an image is being pulled or imported: prune again when that has "+
			"ended")
	}
	defer held.Close()
	err = s.changeIndex(ctx, func(entries []v1.Descriptor) ([]v1.Descriptor, error) {
		return slices.DeleteFunc(entries, func(e v1.Descriptor) bool {
			if keep == nil {
				return nameOf(e) == ""
			}
			image, err := s.describe(e)
			return !atomicfile.IsPassing(err) && !keep(image) // when one was used that cannot be read now is not known
		}), nil
	})
	if err != nil {
		return 0, err
	}
	freed, err = s.sweep()
	more, partialErr := s.removePartial(0)
	return freed + more, errors.Join(err, partialErr)
}

// sweep removes the blobs and root file systems that no image of the index has. Nothing may be added meanwhile. While the
// manifest of an image cannot be read, all blobs stay, as it may have any of them.
func (s *Store) sweep() (freed int64, err error) {
	index, err := s.readIndex()
	if err != nil {
		return 0, err
	}
	needed, unread := map[string]bool{}, false
	for _, e := range index.Manifests {
		needed[e.Digest.Hex] = true
		manifest, err := s.readManifest(e.Digest)
		if atomicfile.IsPassing(err) {
			unread = true
			s.log.Warn("the manifest of an image cannot be read now; layers that no image needs stay until the next prune",
				"image", nameOf(e), "error", err)
		}
		if err != nil {
			continue // it is got again as a whole
		}
		needed[manifest.Config.Digest.Hex] = true
		for _, l := range manifest.Layers {
			needed[l.Digest.Hex] = true
		}
	}
	for _, dir := range []string{s.blobs(), filepath.Join(s.dir, "rootfs")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return freed, s.diskError(err)
		}
		for _, e := range entries {
			digest, _, _ := strings.Cut(e.Name(), ".")
			if needed[digest] || unread && dir == s.blobs() {
				continue
			}
			n, err := removeFile(filepath.Join(dir, e.Name()))
			if freed += n; err != nil {
				return freed, s.diskError(err)
			}
		}
	}
	return freed, nil
}

// Clean removes what pulls and imports left that were interrupted over a day ago. Servers call it when they start.
func (s *Store) Clean() error {
	_, err := s.removePartial(staleAfter)
	return err
}

func (s *Store) removeStale() {
	if err := s.Clean(); err != nil {
		s.log.Warn("what interrupted pulls left could not be removed", "error", err)
	}
}

// removePartial removes the files of partial/ that are older than that and that nobody writes.
func (s *Store) removePartial(older time.Duration) (freed int64, err error) {
	entries, err := os.ReadDir(s.partial())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	for _, e := range entries {
		age := older
		if strings.HasPrefix(e.Name(), documentPrefix) { // it has no lock, and lives for milliseconds
			age = max(age, time.Minute)
		}
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < age || !info.Mode().IsRegular() {
			continue
		}
		path := filepath.Join(s.partial(), e.Name())
		held, err := tryLock(path, exclusive)
		if err != nil {
			return freed, err
		}
		if held == nil {
			continue
		}
		n, err := removeFile(path)
		freed += n
		if err = errors.Join(err, held.Close()); err != nil {
			return freed, err
		}
	}
	return freed, nil
}
