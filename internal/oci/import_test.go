package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"sandlot/internal/fault"
)

func writeFile(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func gzipped(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	must[int](t)(w.Write(content))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstandard(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := must[*zstd.Encoder](t)(zstd.NewWriter(&b))
	must[int](t)(w.Write(content))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// layoutOf writes an OCI layout into a folder.
func layoutOf(t *testing.T, images map[string]v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	path := must[layout.Path](t)(layout.Write(dir, empty.Index))
	for called, image := range images {
		var options []layout.Option
		if called != "" {
			options = append(options, layout.WithAnnotations(map[string]string{annotationName: called}))
		}
		if err := path.AppendImage(image, options...); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tarFolder archives a folder.
func tarFolder(t *testing.T, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// savedArchive returns an archive as `docker save` wrote it for years, with uncompressed layers.
func savedArchive(t *testing.T, image v1.Image, tags ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(name string, content []byte) {
		t.Helper()
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		must[int](t)(w.Write(content))
	}
	config := must[[]byte](t)(image.RawConfigFile())
	one := saved{Config: digestOf(config).Hex + ".json", RepoTags: tags}
	first := map[v1.Hash]string{}
	for i, l := range must[[]v1.Layer](t)(image.Layers()) {
		id := fmt.Sprintf("%064x/layer.tar", i+1)
		one.Layers = append(one.Layers, id)
		diffID := must[v1.Hash](t)(l.DiffID())
		if earlier, ok := first[diffID]; ok { // Docker links to a layer that is there already
			if err := w.WriteHeader(&tar.Header{Name: id, Typeflag: tar.TypeSymlink, Linkname: "../" +
				earlier}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		first[diffID] = id
		put(id, must[[]byte](t)(io.ReadAll(must[io.ReadCloser](t)(l.Uncompressed()))))
	}
	put(one.Config, config)
	put("manifest.json", must[[]byte](t)(json.Marshal([]saved{one})))
	put("repositories", []byte("{}"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestImport(t *testing.T) {
	twice := layerOf(t, map[string][]byte{"f": []byte("lower"), "g": noise(1, 300_000)})
	image := imageOf(t, twice, layerOf(t, map[string][]byte{"f": []byte("upper")}), twice,
		layerOf(t, map[string][]byte{"f": []byte("upper")}))
	root := tarOf(t, map[string][]byte{"./f": []byte("upper"), "./g": noise(1, 300_000)})
	tag := must[name.Tag](t)(name.NewTag("my-image:1"))
	byTool := filepath.Join(t.TempDir(), "archive.tar") // with compressed layers
	if err := tarball.WriteToFile(byTool, tag, image); err != nil {
		t.Fatal(err)
	}
	folder := layoutOf(t, map[string]v1.Image{"": image})
	docker := savedArchive(t, image, "my-image:1")
	for kind, source := range map[string]string{
		"layout":               folder,
		"archive of a layout":  writeFile(t, tarFolder(t, folder)),
		"compressed layout":    writeFile(t, gzipped(t, tarFolder(t, folder))),
		"docker save":          writeFile(t, docker),
		"docker save, gzip":    writeFile(t, gzipped(t, docker)),
		"docker save, zstd":    writeFile(t, zstandard(t, docker)),
		"docker save of tools": byTool,
		"root":                 writeFile(t, root),
		"root, gzip":           writeFile(t, gzipped(t, root)),
		"root, zstd":           writeFile(t, zstandard(t, root)),
	} {
		t.Run(kind, func(t *testing.T) {
			s := newStore(t)
			got, err := s.Import(testContext(t), source, "my-image:1", Options{})
			if err != nil {
				t.Fatal(err)
			}
			if got.Name != "my-image:1" || got.Platform != "linux/"+runtime.GOARCH {
				t.Errorf("the image is %+v", got)
			}
			if content(t, got, "f") != "upper" || content(t, got, "g") != string(noise(1, 300_000)) {
				t.Error("the files differ")
			}
			if isRoot := strings.HasPrefix(kind, "root"); !isRoot && got.Config.User != "app:staff" {
				t.Errorf("the config is %+v", got.Config)
			}
			if left := partials(t, s); len(left) > 0 {
				t.Errorf("partial files are left: %v", left)
			}
			again, err := s.Import(testContext(t), source, "my-image:1", Options{})
			if err != nil || again.Digest != got.Digest {
				t.Errorf("the second import: %+v, %v", again, err)
			}
		})
	}
}

// fakeDaemon is a Docker daemon with one image.
func fakeDaemon(t *testing.T, archive []byte) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "docker.sock")
	listener := must[net.Listener](t)(net.Listen("unix", socket))
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/_ping":
				w.Header().Set("API-Version", "1.45")
			case r.URL.Path == "/v1.45/images/get" && r.URL.Query().Get("names") == "my/image:1":
				_, _ = w.Write(archive)
			default:
				w.WriteHeader(http.StatusNotFound)
				fmt.Fprint(w, `{"message":"No such image\u001b[2J"}`)
			}
		})}}
	server.Start()
	t.Cleanup(server.Close)
	t.Setenv("DOCKER_HOST", "unix://"+socket)
}

func TestImportFromDaemon(t *testing.T) {
	image := imageOf(t, layerOf(t, map[string][]byte{"f": []byte("x")}))
	fakeDaemon(t, savedArchive(t, image, "my/image:1"))
	s := newStore(t)
	got, err := s.Import(testContext(t), "docker-daemon:my/image:1", "", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "my/image:1" || content(t, got, "f") != "x" {
		t.Errorf("the image is %+v", got)
	}
	home, socket := t.TempDir(), os.Getenv("DOCKER_HOST")
	t.Setenv("DOCKER_HOST", "")
	t.Setenv("DOCKER_CONFIG", home)
	t.Setenv("DOCKER_CONTEXT", "mine")
	_, err = s.Import(testContext(t), "docker-daemon:my/image:1", "", Options{})
	refused(t, err, fault.Configuration, "mine")
	meta := filepath.Join(home, "contexts", "meta", fmt.Sprintf("%x", sha256.Sum256([]byte("mine"))))
	if err := errors.Join(os.MkdirAll(meta, 0o700), os.WriteFile(filepath.Join(meta, "meta.json"),
		fmt.Appendf(nil, `{"Name":"mine","Endpoints":{"docker":{"Host":%q}}}`, socket), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err = s.Import(testContext(t), "docker-daemon:my/image:1", "", Options{}); err != nil {
		t.Errorf("from the daemon of a context: %v", err)
	}
	_, err = s.Import(testContext(t), "docker-daemon:other:1", "", Options{})
	refused(t, err, fault.NotFound, "has no image other:1")
	t.Setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
	_, err = s.Import(testContext(t), "docker-daemon:my/image:1", "", Options{})
	refused(t, err, fault.Connection, "/nowhere/docker.sock", "docker save")
	t.Setenv("DOCKER_HOST", "ssh://somewhere")
	_, err = s.Import(testContext(t), "docker-daemon:my/image:1", "", Options{})
	refused(t, err, fault.Configuration, "docker save")
}

func TestNamesOfImports(t *testing.T) {
	one := imageOf(t, layerOf(t, map[string][]byte{"f": []byte("1")}))
	two := imageOf(t, layerOf(t, map[string][]byte{"f": []byte("2")}))
	several := layoutOf(t, map[string]v1.Image{"example.test/one:1": one, "example.test/two:1": two})
	s := newStore(t)
	_, err := s.Import(testContext(t), several, "", Options{})
	refused(t, err, fault.InvalidParameters, "several images", "example.test/one:1", "example.test/two:1")
	if got, err := s.Import(testContext(t), several, "example.test/two:1", Options{}); err != nil ||
		content(t, got, "f") != "2" {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = s.Import(testContext(t), layoutOf(t, map[string]v1.Image{"": one}), "", Options{})
	refused(t, err, fault.InvalidParameters, "give one")
	tags := writeFile(t, savedArchive(t, one, "first:1", "second:1"))
	if got, err := s.Import(testContext(t), tags, "", Options{}); err != nil || got.Name != "first:1" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := s.Import(testContext(t), tags, "third:1", Options{}); err != nil || got.Name != "third:1" {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = s.Import(testContext(t), tags, "a@sha256:"+strings.Repeat("a", 64), Options{})
	refused(t, err, fault.InvalidParameters, "no digest")
	// A layout with one image for several platforms.
	platforms := t.TempDir()
	path := must[layout.Path](t)(layout.Write(platforms, empty.Index))
	for _, arch := range []string{"amd64", "arm64"} {
		image := imageFor(t, arch, layerOf(t, map[string][]byte{"f": []byte(arch)}))
		if err := path.AppendImage(image, layout.WithPlatform(v1.Platform{OS: "linux",
			Architecture: arch})); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Import(testContext(t), platforms, "both", Options{Platform: "linux/arm64"}); err != nil ||
		content(t, got, "f") != "arm64" {
		t.Errorf("%+v, %v", got, err)
	}
}

// Archives and folders that no tool makes are refused, and nothing outside them is read.
func TestHostileImports(t *testing.T) {
	canary := writeFile(t, []byte("canary"))
	image := imageOf(t, layerOf(t, map[string][]byte{"f": []byte("x")}))
	good := savedArchive(t, image, "x:1")
	escaping := layoutOf(t, map[string]v1.Image{"": image})
	d := digestsOf(t, image)[0]
	blob := filepath.Join(escaping, "blobs", "sha256", d.Digest.Hex)
	if err := os.Rename(blob, canary+"-layer"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(canary+"-layer", blob); err != nil { // what it leads to has the right digest
		t.Fatal(err)
	}
	document := func(name string, content string, links ...string) string {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		_ = w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644})
		_, _ = io.WriteString(w, content)
		for i := 0; i+1 < len(links); i += 2 {
			_ = w.WriteHeader(&tar.Header{Name: links[i], Typeflag: tar.TypeSymlink, Linkname: links[i+1]})
		}
		_ = w.Close()
		return writeFile(t, b.Bytes())
	}
	outside := t.TempDir() // its manifest.json names a config that is right, and outside
	config := writeFile(t, must[[]byte](t)(image.RawConfigFile()))
	up := must[string](t)(filepath.Rel(outside, config))
	manifest := must[[]byte](t)(json.Marshal([]saved{{Config: up, RepoTags: []string{"x:1"}, Layers: []string{"l"}}}))
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "manifest.json"), manifest, 0o600),
		os.WriteFile(filepath.Join(outside, "l"), tarOf(t, map[string][]byte{"f": []byte("x")}), 0o600)); err != nil {
		t.Fatal(err)
	}
	a, c := strings.Repeat("a", 64)+".json", strings.Repeat("c", 64)+".json"
	for name, tt := range map[string]struct{ source, word string }{
		"missing":        {"/nowhere/at/all", "cannot be read"},
		"empty":          {writeFile(t, nil), "is not an image"},
		"text":           {writeFile(t, bytes.Repeat([]byte("hello "), 1000)), "is not an image"},
		"no archive":     {writeFile(t, gzipped(t, []byte("hello"))), "is not an image"},
		"cut":            {writeFile(t, good[:len(good)/4]), ""},
		"cut gzip":       {writeFile(t, gzipped(t, good)[:200]), ""},
		"empty folder":   {t.TempDir(), "neither index.json"},
		"leads out":      {escaping, "escapes"},
		"config outside": {outside, "escapes"},
		"long name":      {document("index.json", "{}", strings.Repeat("blobs/", 1000), "x"), "over 4096 bytes"},
		"long link":      {document("index.json", "{}", "blobs/x", strings.Repeat("x/", 3000)), "over 4096 bytes"},
		"circle of links": {document("manifest.json", `[{"Config":"`+a+`","Layers":[]}]`, a, c, c, a), "cannot be " +
			"read"},
		"many images":   {document("manifest.json", "["+strings.Repeat("{},", 99)+"{}]"), "over 64 images"},
		"huge document": {document("manifest.json", strings.Repeat(" ", maxDocument+1)), "over 4 MiB"},
		"no images":     {document("index.json", `{"schemaVersion":2,"manifests":[]}`), "has no image"},
		"missing blob": {document("index.json", `{"schemaVersion":2,"manifests":[{"mediaType":`+
			`"application/vnd.oci.image.manifest.v1+json","size":3,"digest":"`+digestOf([]byte("abc")).String()+`"}]}`),
			"is not in it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			_, err := s.Import(testContext(t), tt.source, "x:1", Options{})
			if err == nil || !strings.Contains(err.Error(), tt.word) {
				t.Errorf("the error is %v, and does not say %q", err, tt.word)
			}
			if images := must[[]Image](t)(s.List()); len(images) > 0 {
				t.Errorf("the store has %v", images)
			}
		})
	}
	if b := must[[]byte](t)(os.ReadFile(canary)); string(b) != "canary" {
		t.Error("the canary was changed")
	}
}

// A manifest may say of a document of its source that it is a larger layer, of which there is a part already.
func TestMadeDocumentIsShort(t *testing.T) {
	f := newFolder("x")
	d := f.make([]byte("abc"), types.OCIConfigJSON)
	for offset, want := range map[int64]string{0: "abc", 1: "bc", 3: "", 9: "abc"} {
		body, start, err := f.blob(testContext(t), d, offset)
		if err != nil {
			t.Fatal(err)
		}
		if got := must[[]byte](t)(io.ReadAll(body)); string(got) != want || start != offset && start != 0 {
			t.Errorf("from %d: %q from %d", offset, got, start)
		}
	}
}
