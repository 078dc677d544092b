package oci

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
)

// The annotations of an image in index.json.
const (
	annotationName  = "org.opencontainers.image.ref.name"
	annotationAdded = "sandlot.image.added"
)

// maxIndex bounds the bytes of index.json.
const maxIndex = 64 << 20

// readIndex reads index.json. A store without one is empty.
func (s *Store) readIndex() (*v1.IndexManifest, error) {
	index := &v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{}}
	f, err := os.Open(filepath.Join(s.dir, "index.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return index, nil
	} else if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "the image store cannot be read: %v. Give this user the "+
			"right to read the folder %s", err, s.dir)
	}
	defer f.Close()
	err = json.NewDecoder(io.LimitReader(f, maxIndex)).Decode(index)
	if atomicfile.IsPassing(err) {
		return nil, s.unreadable(err)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "the index of the image store is damaged: %v. Remove it "+
			"(rm %s), and get the images again: complete parts are not transferred again", err, f.Name())
	}
	return index, nil
}

// changeIndex lets change edit the entries of index.json, and writes what it returns.
func (s *Store) changeIndex(ctx context.Context, change func([]v1.Descriptor) ([]v1.Descriptor, error)) error {
	if err := s.makeFolders(); err != nil {
		return err
	}
	held, err := lock(ctx, filepath.Join(s.dir, "lock"), exclusive)
	if err != nil {
		return s.diskError(err)
	}
	defer held.Close()
	index, err := s.readIndex()
	if err != nil {
		return err
	}
	if index.Manifests, err = change(index.Manifests); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return err
	}
	if len(raw) > maxIndex { // nobody could read it
		return fault.New(fault.ResourceLimit, "the image store %s has too many images for its index: make room "+
			"(`sandlot image prune`, `sandlot image remove NAME`)", s.dir)
	}
	const layout = `{"imageLayoutVersion":"1.0.0"}`
	if path := filepath.Join(s.dir, "oci-layout"); !isFile(path) {
		if err := s.writeFile(path, []byte(layout)); err != nil {
			return err
		}
	}
	return s.writeFile(filepath.Join(s.dir, "index.json"), raw)
}

func isFile(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular()
}

// giveName makes an image the one of a name. An image that had the name before stays, without a name, since
// sandboxes may use it.
func (s *Store) giveName(ctx context.Context, called string, d v1.Descriptor) error {
	return s.changeIndex(ctx, func(entries []v1.Descriptor) ([]v1.Descriptor, error) {
		kept := entries[:0]
		for _, e := range entries {
			same := e.Digest == d.Digest
			if same && nameOf(e) == called {
				d.Annotations = e.Annotations // it is there already
			}
			if same && (nameOf(e) == called || nameOf(e) == "") {
				continue
			}
			if nameOf(e) == called {
				e = withoutName(e)
				if slices.ContainsFunc(kept, func(o v1.Descriptor) bool { return o.Digest == e.Digest }) {
					continue
				}
			}
			kept = append(kept, e)
		}
		if d.Annotations == nil {
			d.Annotations = map[string]string{annotationAdded: time.Now().UTC().Format(time.RFC3339)}
		}
		d.Annotations[annotationName] = called
		return append(dropNameless(kept), d), nil
	})
}

// dropNameless drops entries without a name of images that another entry names.
func dropNameless(entries []v1.Descriptor) []v1.Descriptor {
	return slices.DeleteFunc(entries, func(e v1.Descriptor) bool {
		return nameOf(e) == "" && slices.ContainsFunc(entries, func(o v1.Descriptor) bool {
			return o.Digest == e.Digest && nameOf(o) != ""
		})
	})
}

func nameOf(d v1.Descriptor) string { return d.Annotations[annotationName] }

func withoutName(d v1.Descriptor) v1.Descriptor {
	added := d.Annotations[annotationAdded]
	d.Annotations = map[string]string{annotationAdded: added}
	return d
}
