package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"log"

	"sandlot/internal/fault"
	"sandlot/internal/oci/rootfs"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childStore); dir != "" { // with the variables that its parent has set below
		os.Exit(pullAsChild(dir))
	}
	// The credentials of whoever runs the tests are none of theirs.
	home, err := os.MkdirTemp("", "sandlot-oci-home-")
	if err != nil {
		panic(err)
	}
	for _, name := range []string{"HOME", "DOCKER_CONFIG", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"} {
		os.Setenv(name, home)
	}
	os.Unsetenv("REGISTRY_AUTH_FILE")
	code := m.Run()
	os.RemoveAll(home)
	os.Exit(code)
}

// newStore opens an empty store that does not wait long.
func newStore(t *testing.T) *Store {
	t.Helper()
	return openStore(filepath.Join(t.TempDir(), "images"))
}

func openStore(dir string) *Store {
	s := Open(dir, slog.New(slog.DiscardHandler))
	s.retry = retryPolicy{attempts: 3, most: 20, pause: time.Millisecond, stall: 5 * time.Second,
		document: time.Minute}
	return s
}

// A testRegistry is a registry that counts what it sends, and can misbehave.
type testRegistry struct {
	*httptest.Server
	host string

	mu       sync.Mutex
	sent     map[string]int64 // bytes of blobs by digest
	requests []string
	change   func(w http.ResponseWriter, r *http.Request) http.ResponseWriter // nil: it answered itself
}

func newRegistry(t *testing.T) *testRegistry {
	t.Helper()
	r := &testRegistry{sent: map[string]int64{}}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		r.requests = append(r.requests, q.Method+" "+q.URL.Path)
		change := r.change
		r.mu.Unlock()
		if digest, ok := blobOf(q); ok {
			w = &countingWriter{ResponseWriter: w, count: func(n int) {
				r.mu.Lock()
				r.sent[digest] += int64(n)
				r.mu.Unlock()
			}}
		}
		if change != nil {
			if w = change(w, q); w == nil {
				return
			}
		}
		inner.ServeHTTP(w, q)
	}))
	t.Cleanup(r.Close)
	r.host = strings.TrimPrefix(r.URL, "http://")
	return r
}

func blobOf(r *http.Request) (string, bool) {
	_, digest, ok := strings.Cut(r.URL.Path, "/blobs/sha256:")
	return digest, ok && r.Method == http.MethodGet
}

type countingWriter struct {
	http.ResponseWriter
	count func(int)
}

func (w *countingWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.count(n)
	return n, err
}

func (r *testRegistry) misbehave(change func(http.ResponseWriter, *http.Request) http.ResponseWriter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.change = change
}

// reset forgets what was sent.
func (r *testRegistry) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent, r.requests = map[string]int64{}, nil
}

func (r *testRegistry) sentOf(h v1.Hash) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent[h.Hex]
}

// push stores an image or an index, and returns its reference.
func (r *testRegistry) push(t *testing.T, called string, what remote.Taggable) string {
	t.Helper()
	ref, err := name.ParseReference(r.host + "/" + called)
	if err != nil {
		t.Fatal(err)
	}
	switch what := what.(type) {
	case v1.Image:
		err = remote.Write(ref, what)
	case v1.ImageIndex:
		err = remote.WriteIndex(ref, what)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.reset()
	return ref.Name()
}

// noise returns bytes that do not compress.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return b
}

// tarOf returns an archive with files.
func tarOf(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func layerOf(t *testing.T, files map[string][]byte, options ...tarball.LayerOption) v1.Layer {
	t.Helper()
	content := tarOf(t, files)
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, options...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// imageOf returns an image for this machine.
func imageOf(t *testing.T, layers ...v1.Layer) v1.Image {
	t.Helper()
	return imageFor(t, runtime.GOARCH, layers...)
}

func imageFor(t *testing.T, architecture string, layers ...v1.Layer) v1.Image {
	t.Helper()
	image, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", architecture
	config.Config = v1.Config{User: "app:staff", WorkingDir: "/srv", Env: []string{"A=b"}, Entrypoint: []string{"/run"},
		Cmd: []string{"x", "y"}}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	return image
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func digestsOf(t *testing.T, image v1.Image) []v1.Descriptor {
	t.Helper()
	return must[*v1.Manifest](t)(image.Manifest()).Layers
}

// content returns a file of an image.
func content(t *testing.T, image Image, path string) string {
	t.Helper()
	f := must[*os.File](t)(os.Open(image.Rootfs))
	defer f.Close()
	root := must[*rootfs.Image](t)(rootfs.OpenImage(f))
	return string(must[[]byte](t)(fs.ReadFile(root, path)))
}

// refused checks an error's kind and words.
func refused(t *testing.T, err error, kind fault.Kind, words ...string) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Fatalf("the error is %v, and not of the kind %d", err, kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error %q does not say %q", err, w)
		}
	}
}

// partials lists the files of partial/.
func partials(t *testing.T, s *Store) []string {
	t.Helper()
	var found []string
	for _, e := range must[[]os.DirEntry](t)(os.ReadDir(s.partial())) {
		found = append(found, e.Name())
	}
	return found
}

// testContext ends before the tests do, so that what hangs says where.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, fmt.Errorf("%s hangs", t.Name()))
	t.Cleanup(cancel)
	return ctx
}
