package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"sandlot/internal/release"
)

// user is the id of the image's user and group, as in deploy/Dockerfile.
const user = 1000

// writeImage writes the container image, for all architectures of Linux, as a tar archive of an OCI layout.
func (m *maker) writeImage(programs map[string]map[string]string) (release.File, error) {
	file := release.File{Name: "sandlot_" + m.version + "_image.tar", Kind: release.KindImage, OS: "linux"}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range slices.Sorted(maps.Keys(programs)) {
		image, err := m.image(arch, programs[arch])
		if err != nil {
			return file, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	dir, err := os.MkdirTemp("", "sandlot-image-")
	if err != nil {
		return file, err
	}
	defer os.RemoveAll(dir)
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return file, err
	}
	if err := to.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": m.version,
		"io.containerd.image.name":          "localhost/sandlot:" + m.version,
	})); err != nil {
		return file, err
	}
	return file, m.pack(dir, filepath.Join(out, file.Name))
}

// image is the image for one architecture: the programs, and the files without which they cannot run.
func (m *maker) image(arch string, programs map[string]string) (v1.Image, error) {
	contents, err := m.layer(programs)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(contents)), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: m.date}, CreatedBy: "make release"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, m.configured(config.DeepCopy(), arch))
}

// configured adds the settings of deploy/Dockerfile to the configuration of an image.
func (m *maker) configured(config *v1.ConfigFile, arch string) *v1.ConfigFile {
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: m.date}
	config.Config = v1.Config{
		User: fmt.Sprintf("%d:%d", user, user), WorkingDir: "/etc/sandlot", StopSignal: "SIGTERM",
		Entrypoint: []string{"/opt/sandlot/sandlot"}, Cmd: []string{"serve"},
		ExposedPorts: map[string]struct{}{"8000/tcp": {}},
		Volumes:      map[string]struct{}{"/var/lib/sandlot": {}},
		Env: []string{"PATH=/opt/sandlot", "HOME=/var/lib/sandlot", "SANDLOT_HOST=0.0.0.0", "SANDLOT_PORT=8000",
			"SANDLOT_STATE_DIR=/var/lib/sandlot", "SANDLOT_CONFIG=/etc/sandlot/"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "sandlot", "org.opencontainers.image.version": m.version,
			"org.opencontainers.image.revision": m.commit, "org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return config
}

// layer is the archive of all files of the image.
func (m *maker) layer(programs map[string]string) ([]byte, error) {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // a file of certificates cannot say for which others the root counts
		}
		if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	l := layerWriter{date: m.date}
	l.to = tar.NewWriter(&l.archive)
	for _, dir := range []string{"etc/", "etc/sandlot/", "etc/ssl/", "etc/ssl/certs/", "opt/", "opt/sandlot/", "var/",
		"var/lib/"} {
		l.add(tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	l.add(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	l.add(tar.Header{Name: "var/lib/sandlot/", Typeflag: tar.TypeDir, Mode: 0o700, Uid: user, Gid: user}, nil)
	l.file("etc/passwd", 0o644, fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\n"+
		"sandlot:x:%d:%[1]d:Sandlot:/var/lib/sandlot:/sbin/nologin\n", user))
	l.file("etc/group", 0o644, fmt.Appendf(nil, "root:x:0:\nsandlot:x:%d:\n", user))
	l.file("etc/nsswitch.conf", 0o644, []byte("hosts: files dns\n"))
	l.file("etc/ssl/certs/ca-certificates.crt", 0o644, roots.Bytes())
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		data, err := os.ReadFile(programs[name])
		if err != nil {
			return nil, err
		}
		l.file("opt/sandlot/"+name, 0o755, data)
	}
	l.file("opt/sandlot/"+release.ManagedName, 0o644, []byte("image\n"))
	err := errors.Join(l.err, l.to.Close())
	return l.archive.Bytes(), err
}

// layerWriter writes an archive. After an error it writes nothing more.
type layerWriter struct {
	archive bytes.Buffer
	to      *tar.Writer
	date    time.Time
	err     error
}

func (l *layerWriter) file(name string, mode int64, data []byte) {
	l.add(tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode}, data)
}

func (l *layerWriter) add(header tar.Header, data []byte) {
	header.ModTime, header.Size, header.Format = l.date, int64(len(data)), tar.FormatUSTAR
	if l.err == nil {
		l.err = l.to.WriteHeader(&header)
	}
	if l.err == nil {
		_, l.err = l.to.Write(data)
	}
}

// pack writes an archive of the files in dir, in the order of their names.
func (m *maker) pack(dir, path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	to := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		header := tar.Header{Name: filepath.ToSlash(strings.TrimPrefix(path, dir+string(filepath.Separator))),
			Typeflag: tar.TypeReg, Mode: 0o644, ModTime: m.date, Size: int64(len(data)), Format: tar.FormatUSTAR}
		if err := to.WriteHeader(&header); err != nil {
			return err
		}
		_, err = to.Write(data)
		return err
	})
	return errors.Join(err, to.Close())
}
