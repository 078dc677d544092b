// Package skeleton makes the files from which the image of a template without one is made.
package skeleton

import (
	"archive/tar"
	"bytes"
	"errors"
	"maps"
	"path"
	"slices"

	"sandlot/internal/image"
)

// baseFolders are the folders that programs expect, with their modes.
var baseFolders = map[string]int64{"etc": 0o755, "tmp": 0o1777, "run": 0o755, "var": 0o755, "var/tmp": 0o1777,
	"var/lib": 0o755, "root": 0o700, "home": 0o755, "opt": 0o755, "mnt": 0o755, "workspace": 0o755}

// Archive returns a tar archive with the files of a template. It is always the same for the same template.
func Archive(t *image.Template) ([]byte, error) {
	files := map[string][]byte{}
	for name, text := range image.BaseFiles() {
		files[name] = []byte(text)
	}
	maps.Copy(files, t.Files)
	folders := maps.Clone(baseFolders)
	for name := range files {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, found := folders[dir]; !found {
				folders[dir] = 0o755
			}
		}
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(h tar.Header, content []byte) error {
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	var err error
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		err = errors.Join(err, add(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: folders[name]}, nil))
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err = errors.Join(err, add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, files[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Links)) {
		err = errors.Join(err, add(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: t.Links[name],
			Mode: 0o777}, nil))
	}
	return archive.Bytes(), errors.Join(err, w.Close())
}
