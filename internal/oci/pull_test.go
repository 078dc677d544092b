package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandlot/internal/fault"
)

func TestPull(t *testing.T) {
	ctx, s, r := testContext(t), newStore(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"a": []byte("lower"), "b": []byte("stays")}),
		layerOf(t, map[string][]byte{"a": []byte("upper")}, tarball.WithCompression(compression.ZStd),
			tarball.WithMediaType(types.OCILayerZStd)),
		layerOf(t, map[string][]byte{"c": noise(1, 1<<20)}, tarball.WithCompression(compression.None),
			tarball.WithMediaType(types.OCIUncompressedLayer)))
	ref := r.push(t, "team/app:1", image)
	var mu sync.Mutex
	last := map[string]Progress{}
	got, err := s.Pull(ctx, ref, Options{Progress: func(p Progress) {
		if !mu.TryLock() {
			t.Error("progress is told by two goroutines at a time")
			return
		}
		defer mu.Unlock()
		last[p.Layer] = p
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := Config{User: "app:staff", Workdir: "/srv", Env: []string{"A=b"}, Entrypoint: []string{"/run"},
		Cmd: []string{"x", "y"}}
	if fmt.Sprint(got.Config) != fmt.Sprint(want) || got.Name != ref || got.Platform != "linux/"+runtime.GOARCH ||
		got.Digest != must[v1.Hash](t)(image.Digest()).String() || got.Size == 0 ||
		time.Since(got.Created) > time.Minute {
		t.Errorf("the image is %+v", got)
	}
	if content(t, got, "a") != "upper" || content(t, got, "b") != "stays" || content(t, got, "c") != string(noise(1,
		1<<20)) {
		t.Error("the root file system has other files")
	}
	for _, d := range digestsOf(t, image) {
		if p := last[d.Digest.String()]; p.Stage != Loaded || p.Done != d.Size || p.Total != d.Size {
			t.Errorf("the last progress of %s is %+v", d.Digest, p)
		}
	}
	if left := partials(t, s); len(left) > 0 {
		t.Errorf("partial files are left: %v", left)
	}
	// What is there is not fetched again.
	r.reset()
	if _, err := s.Pull(ctx, ref, Options{}); err != nil || len(r.sent) > 0 {
		t.Errorf("%v; blobs were sent: %v", err, r.sent)
	}
	// Nor is anything of an image that a digest names.
	byDigest := strings.TrimSuffix(ref, ":1") + "@" + got.Digest
	if _, err := s.Pull(ctx, byDigest, Options{}); err != nil {
		t.Fatal(err)
	}
	r.reset()
	if again, err := s.Pull(ctx, byDigest, Options{}); err != nil || len(r.requests) > 0 || again.Name != byDigest {
		t.Errorf("%v; requests: %v; the image is %+v", err, r.requests, again)
	}
}

func TestLayersAreShared(t *testing.T) {
	ctx, s, r := testContext(t), newStore(t), newRegistry(t)
	base := layerOf(t, map[string][]byte{"base": noise(2, 1<<20)})
	one := r.push(t, "one", imageOf(t, base, layerOf(t, map[string][]byte{"one": []byte("1")})))
	two := r.push(t, "two", imageOf(t, base, layerOf(t, map[string][]byte{"two": []byte("2")})))
	if _, err := s.Pull(ctx, one, Options{}); err != nil {
		t.Fatal(err)
	}
	r.reset()
	got, err := s.Pull(ctx, two, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if sent := r.sentOf(must[v1.Hash](t)(base.Digest())); sent != 0 {
		t.Errorf("%d bytes of the shared layer were sent again", sent)
	}
	if content(t, got, "base") != string(noise(2, 1<<20)) || content(t, got, "two") != "2" {
		t.Error("the root file system has other files")
	}
}

// Images that share layers are pulled at the same time, through two stores of one folder, as two processes would.
func TestConcurrentPulls(t *testing.T) {
	ctx, r := testContext(t), newRegistry(t)
	dir := filepath.Join(t.TempDir(), "images")
	var common []v1.Layer
	for i := range 6 {
		common = append(common, layerOf(t, map[string][]byte{fmt.Sprint("common", i): noise(uint64(i), 200<<10)}))
	}
	var refs []string
	for i := range 6 {
		layers := append(slices.Clone(common), layerOf(t, map[string][]byte{"own": fmt.Append(nil, i)}))
		if i%2 == 1 {
			slices.Reverse(layers)
		}
		refs = append(refs, r.push(t, fmt.Sprintf("shared:%d", i), imageOf(t, layers...)))
	}
	r.reset()
	var all sync.WaitGroup
	stores := []*Store{openStore(dir), openStore(dir)}
	for i := range 24 {
		all.Go(func() {
			got, err := stores[i%2].Pull(ctx, refs[i%6], Options{})
			if err != nil {
				t.Error(err)
			} else if c := content(t, got, "own"); c != fmt.Sprint(i%6) {
				t.Errorf("image %d has %q", i%6, c)
			}
		})
	}
	all.Wait()
	for _, l := range common {
		if sent, size := r.sentOf(must[v1.Hash](t)(l.Digest())), must[int64](t)(l.Size()); sent != size {
			t.Errorf("of a layer of %d bytes, %d were sent", size, sent)
		}
	}
	if images := must[[]Image](t)(stores[0].List()); len(images) != 6 {
		t.Errorf("the store has %v", images)
	}
	if left := partials(t, stores[0]); len(left) > 0 {
		t.Errorf("partial files are left: %v", left)
	}
}

// cut ends each answer for blobs after so many bytes, and then refuses all.
func (r *testRegistry) cut(after int64) {
	var mu sync.Mutex
	down := false
	r.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		mu.Lock()
		defer mu.Unlock()
		if down {
			w.WriteHeader(http.StatusServiceUnavailable)
			return nil
		}
		if _, ok := blobOf(q); !ok {
			return w
		}
		return &cuttingWriter{ResponseWriter: w, left: after, cut: func() {
			mu.Lock()
			down = true
			mu.Unlock()
		}}
	})
}

type cuttingWriter struct {
	http.ResponseWriter
	left int64
	cut  func()
}

func (w *cuttingWriter) Write(b []byte) (int, error) {
	if int64(len(b)) <= w.left {
		n, err := w.ResponseWriter.Write(b)
		w.left -= int64(n)
		return n, err
	}
	_, _ = w.ResponseWriter.Write(b[:w.left])
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	w.cut()
	panic(http.ErrAbortHandler)
}

func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A pull that is cut at every tenth of a layer goes on where it was cut: the rest alone is fetched.
func TestPullResumes(t *testing.T) {
	ctx, r := testContext(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"big": noise(3, 2<<20)}))
	ref := r.push(t, "big", image)
	d := digestsOf(t, image)[0]
	for tenth := range int64(10) {
		at := d.Size * tenth / 10
		s := newStore(t)
		seed := must[v1.Hash](t)(image.ConfigName())
		r.misbehave(nil)
		prepare(t, ctx, s, r, "big", seed)
		r.cut(at)
		_, err := s.Pull(ctx, ref, Options{})
		refused(t, err, fault.Connection, r.host)
		if info, err := os.Stat(s.partialPath(d.Digest.Hex)); err != nil || info.Size() != at {
			t.Fatalf("cut at %d: the partial file is %v, %v", at, info, err)
		}
		r.misbehave(nil)
		r.reset()
		got, err := openStore(s.dir).Pull(ctx, ref, Options{})
		if err != nil {
			t.Fatalf("cut at %d: %v", at, err)
		}
		if sent := r.sentOf(d.Digest); sent != d.Size-at {
			t.Errorf("cut at %d of %d: %d bytes were sent again", at, d.Size, sent)
		}
		if content(t, got, "big") != string(noise(3, 2<<20)) {
			t.Errorf("cut at %d: the file differs", at)
		}
	}
}

// prepare has the store have a config, so that the layer is the first blob that is fetched.
func prepare(t *testing.T, ctx context.Context, s *Store, r *testRegistry, repo string, config v1.Hash) {
	t.Helper()
	if err := s.makeFolders(); err != nil {
		t.Fatal(err)
	}
	response := must[*http.Response](t)(http.Get(r.URL + "/v2/" + repo + "/blobs/" + config.String()))
	defer response.Body.Close()
	if _, err := s.writeDocument(must[[]byte](t)(io.ReadAll(response.Body))); err != nil {
		t.Fatal(err)
	}
}

// A download that breaks off again and again is continued by one Pull.
func TestPullContinuesItself(t *testing.T) {
	ctx, s, r := testContext(t), newStore(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"big": noise(4, 1<<20)}))
	ref := r.push(t, "big", image)
	d := digestsOf(t, image)[0]
	r.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		return &cuttingWriter{ResponseWriter: w, left: 150_000, cut: func() {}}
	})
	got, err := s.Pull(ctx, ref, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if sent := r.sentOf(d.Digest); sent != d.Size || content(t, got, "big") != string(noise(4, 1<<20)) {
		t.Errorf("%d of %d bytes were sent", sent, d.Size)
	}
}

// A registry that ignores Range, or refuses it, or answers with another one, sends the whole layer again.
func TestRegistryWithoutRange(t *testing.T) {
	for contentRange, status := range map[string]int{"": http.StatusOK,
		"bytes */9": http.StatusRequestedRangeNotSatisfiable, "bytes 5-9/*": http.StatusPartialContent,
		"bytes 5-9/1000": http.StatusPartialContent} {
		ctx, s, r := testContext(t), newStore(t), newRegistry(t)
		image := imageOf(t, layerOf(t, map[string][]byte{"big": noise(5, 1<<20)}))
		ref := r.push(t, "big", image)
		d := digestsOf(t, image)[0]
		prepare(t, ctx, s, r, "big", must[v1.Hash](t)(image.ConfigName()))
		r.cut(300_000)
		_, err := s.Pull(ctx, ref, Options{})
		refused(t, err, fault.Connection)
		r.reset()
		r.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
			if q.Header.Get("Range") != "" && status != http.StatusOK {
				w.Header().Set("Content-Range", contentRange)
				w.WriteHeader(status)
				return nil
			}
			q.Header.Del("Range")
			return w
		})
		got, err := s.Pull(ctx, ref, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if sent := r.sentOf(d.Digest); sent != d.Size || content(t, got, "big") != string(noise(5, 1<<20)) {
			t.Errorf("%d of %d bytes were sent", sent, d.Size)
		}
	}
}

// slowly has the registry take its time for the rest of a blob, so that what there is of it is unpacked before.
func (r *testRegistry) slowly() {
	r.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		if q.Header.Get("Range") == "" {
			return w
		}
		return slowWriter{w}
	})
}

type slowWriter struct{ http.ResponseWriter }

func (w slowWriter) Write(b []byte) (int, error) {
	time.Sleep(20 * time.Millisecond)
	n, err := w.ResponseWriter.Write(b)
	return n, errors.Join(err, http.NewResponseController(w.ResponseWriter).Flush())
}

// A partial file that was damaged on the disk is not continued: the layer is downloaded again, also when what was
// damaged is unpacked before the rest has come.
func TestDamagedPartialFile(t *testing.T) {
	for _, size := range []int{100_000, 500_000, 5 << 20} {
		ctx, s, r := testContext(t), newStore(t), newRegistry(t)
		image := imageOf(t, layerOf(t, map[string][]byte{"big": noise(6, 1<<20)}))
		ref := r.push(t, "big", image)
		d := digestsOf(t, image)[0]
		if err := s.makeFolders(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.partialPath(d.Digest.Hex), noise(7, size), 0o600); err != nil {
			t.Fatal(err)
		}
		r.slowly()
		got, err := s.Pull(ctx, ref, Options{})
		if err != nil {
			t.Fatalf("%d bytes were damaged: %v", size, err)
		}
		if content(t, got, "big") != string(noise(6, 1<<20)) {
			t.Error("the file differs")
		}
	}
}

// Another registry sends something else under a layer's digest, and then nothing more, or breaks off. Neither keeps
// the layer from anybody.
func TestPoisonedPartialFile(t *testing.T) {
	image := imageOf(t, layerOf(t, map[string][]byte{"big": noise(6, 1<<20)}))
	d := digestsOf(t, image)[0]
	junk := must[io.ReadCloser](t)(layerOf(t, map[string][]byte{"evil": noise(7, 2<<20)}).Compressed())
	defer junk.Close()
	tests := map[string]struct {
		body []byte
		hold bool
		left int64 // of the partial file
		kind fault.Kind
	}{
		"no layer, and holds": {noise(7, 600_000), true, 0, fault.InvalidParameters},
		"a layer, breaks off": {must[[]byte](t)(io.ReadAll(io.LimitReader(junk, 500_000))), false, 500_000,
			fault.Connection},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, s, evil, r := testContext(t), newStore(t), newRegistry(t), newRegistry(t)
			ref, poison := r.push(t, "good", image), evil.push(t, "evil", image)
			prepare(t, ctx, s, r, "good", must[v1.Hash](t)(image.ConfigName()))
			evil.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
				if digest, ok := blobOf(q); !ok || digest != d.Digest.Hex {
					return w
				} else if q.Header.Get("Range") != "" {
					w.WriteHeader(http.StatusServiceUnavailable)
					return nil
				}
				_, _ = w.Write(tt.body)
				_ = http.NewResponseController(w).Flush()
				if tt.hold {
					<-q.Context().Done()
				}
				panic(http.ErrAbortHandler)
			})
			_, err := s.Pull(ctx, poison, Options{})
			refused(t, err, tt.kind)
			info, err := os.Stat(s.partialPath(d.Digest.Hex))
			if err == nil && info.Size() != tt.left || err != nil && tt.left > 0 {
				t.Fatalf("the partial file is %v, %v", info, err)
			}
			r.slowly()
			got, err := s.Pull(ctx, ref, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if content(t, got, "big") != string(noise(6, 1<<20)) {
				t.Error("the file differs")
			}
		})
	}
}

// A pull that its user interrupts says that it can be continued.
func TestPullInterrupted(t *testing.T) {
	s, r := newStore(t), newRegistry(t)
	ref := r.push(t, "big", imageOf(t, layerOf(t, map[string][]byte{"big": noise(8, 4<<20)})))
	ctx, cancel := context.WithCancel(testContext(t))
	_, err := s.Pull(ctx, ref, Options{Progress: func(p Progress) {
		if p.Stage == Loading {
			cancel()
		}
	}})
	refused(t, err, fault.Canceled, "the next pull goes on")
	if _, err := s.Pull(testContext(t), ref, Options{}); err != nil {
		t.Fatal(err)
	}
}

// childStore is the variable by which the test program is told to be a process that pulls.
const childStore = "SANDLOT_TEST_OCI_STORE"

func pullAsChild(dir string) int {
	if _, err := openStore(dir).Pull(context.Background(), os.Getenv(childStore+"_REF"), Options{}); err != nil {
		log.Print(err)
		return 1
	}
	return 0
}

// A process that pulls is killed. The next one gets the rest, and no lock is left.
func TestPullKilled(t *testing.T) {
	ctx, s, r := testContext(t), newStore(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"big": noise(9, 4<<20)}))
	ref := r.push(t, "big", image)
	d := digestsOf(t, image)[0]
	half := make(chan struct{})
	release := make(chan struct{})
	r.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		if digest, ok := blobOf(q); !ok || digest != d.Digest.Hex {
			return w
		}
		return &haltingWriter{ResponseWriter: w, left: d.Size / 2, half: sync.OnceFunc(func() { close(half) }),
			release: release}
	})
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), childStore+"="+s.dir, childStore+"_REF="+ref)
	child.Stderr = os.Stderr
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	<-half
	for info, err := os.Stat(s.partialPath(d.Digest.Hex)); err != nil || info.Size() < d.Size/2; {
		time.Sleep(10 * time.Millisecond)
		if ctx.Err() != nil {
			t.Fatal(context.Cause(ctx))
		}
		info, err = os.Stat(s.partialPath(d.Digest.Hex))
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	close(release)
	r.misbehave(nil)
	r.reset()
	if images := must[[]Image](t)(s.List()); len(images) > 0 {
		t.Errorf("the store has %v", images)
	}
	got, err := s.Pull(ctx, ref, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if sent := r.sentOf(d.Digest); sent != d.Size-d.Size/2 || content(t, got, "big") != string(noise(9, 4<<20)) {
		t.Errorf("%d of %d bytes were sent", sent, d.Size)
	}
	if left := partials(t, s); len(left) > 0 {
		t.Errorf("partial files are left: %v", left)
	}
}

// A haltingWriter waits in the middle.
type haltingWriter struct {
	http.ResponseWriter
	left    int64
	half    func()
	release chan struct{}
}

func (w *haltingWriter) Write(b []byte) (int, error) {
	if int64(len(b)) <= w.left {
		w.left -= int64(len(b))
		return w.ResponseWriter.Write(b)
	}
	_, _ = w.ResponseWriter.Write(b[:w.left])
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	w.half()
	<-w.release
	panic(http.ErrAbortHandler)
}

func TestPlatforms(t *testing.T) {
	ctx, s, r := testContext(t), newStore(t), newRegistry(t)
	index := v1.ImageIndex(empty.Index)
	images := map[string]v1.Image{}
	for _, arch := range []string{"s390x", "amd64", "arm64"} {
		images[arch] = imageFor(t, arch, layerOf(t, map[string][]byte{"arch": []byte(arch)}))
		variant := map[string]string{"arm64": "v8"}[arch]
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: images[arch], Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: arch, Variant: variant}}})
	}
	ref := r.push(t, "many:1", index)
	for _, arch := range []string{"amd64", "arm64"} {
		got, err := s.Pull(ctx, ref, Options{Platform: "linux/" + arch})
		if err != nil {
			t.Fatal(err)
		}
		if content(t, got, "arch") != arch || got.Platform != "linux/"+arch ||
			got.Digest != must[v1.Hash](t)(images[arch].Digest()).String() {
			t.Errorf("%s is %+v", arch, got)
		}
	}
	if got, err := s.Pull(ctx, ref, Options{}); err != nil || got.Platform != "linux/"+runtime.GOARCH {
		t.Errorf("without a platform: %+v, %v", got, err)
	}
	// By the digest of the index, too.
	byDigest := strings.TrimSuffix(ref, ":1") + "@" + must[v1.Hash](t)(index.Digest()).String()
	if got, err := s.Pull(ctx, byDigest, Options{Platform: "linux/arm64/v8"}); err != nil || content(t, got,
		"arch") != "arm64" {
		t.Errorf("by digest: %+v, %v", got, err)
	}
	_, err := s.Pull(ctx, ref, Options{Platform: "linux/riscv64"})
	refused(t, err, fault.InvalidParameters, "linux/riscv64", "linux/amd64, linux/arm64")
	other := r.push(t, "other:1", mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: images["s390x"],
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}}))
	_, err = s.Pull(ctx, other, Options{})
	refused(t, err, fault.NotFound, "has no image for linux/"+runtime.GOARCH+"; it has linux/s390x")
	single := r.push(t, "single:1", images["s390x"])
	_, err = s.Pull(ctx, single, Options{})
	refused(t, err, fault.NotFound, "it has linux/s390x")
}

// corrupt answers a request with changed bytes.
func (r *testRegistry) answer(part string, status int, header map[string]string, body []byte) {
	r.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		if !strings.Contains(q.URL.Path, part) {
			return w
		}
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(status)
		_, _ = w.Write(body)
		return nil
	})
}

func TestHostileBlobs(t *testing.T) {
	ctx, r := testContext(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"f": noise(10, 100_000)}))
	ref := r.push(t, "app", image)
	d := digestsOf(t, image)[0]
	wrong := noise(11, int(d.Size))
	tests := map[string]struct {
		body   []byte
		status int
		header map[string]string
		kind   fault.Kind
		word   string
	}{
		"wrong digest": {body: wrong, kind: fault.InvalidParameters, word: "have the digest"},
		"too long":     {body: append(wrong, 1), kind: fault.InvalidParameters, word: "its manifest says"},
		"too long, without a length": {body: append(wrong, 1),
			header: map[string]string{"Transfer-Encoding": "chunked"},
			kind:   fault.InvalidParameters, word: "its manifest says"},
		"truncated": {body: wrong[:1000], kind: fault.Connection, word: "ended before"},
		"nothing":   {kind: fault.Connection, word: "ended before"},
		"a range": {body: wrong[:5], status: http.StatusPartialContent,
			header: map[string]string{"Content-Range": "bytes 5-9/*"}, kind: fault.InvalidParameters, word: "whole"},
		"no range": {status: http.StatusRequestedRangeNotSatisfiable, kind: fault.InvalidParameters, word: "whole"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			r.answer("/blobs/"+d.Digest.String(), cmp.Or(tt.status, http.StatusOK), tt.header, tt.body)
			_, err := s.Pull(ctx, ref, Options{})
			refused(t, err, tt.kind, tt.word)
			if _, err := os.Stat(s.blobPath(d.Digest)); err == nil {
				t.Error("the blob was stored")
			}
			if images := must[[]Image](t)(s.List()); len(images) > 0 {
				t.Errorf("the store has %v", images)
			}
			// The registry is mended: the pull succeeds with the same store.
			r.misbehave(nil)
			if _, err := s.Pull(ctx, ref, Options{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// The content of a layer is not what the config says.
func TestWrongDiffID(t *testing.T) {
	ctx, s, r := testContext(t), newStore(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"f": []byte("x")}))
	config := must[*v1.ConfigFile](t)(image.ConfigFile()).DeepCopy()
	config.RootFS.DiffIDs[0] = digestOf([]byte("something else"))
	image = must[v1.Image](t)(mutate.ConfigFile(image, config))
	ref := r.push(t, "app", image)
	_, err := s.Pull(ctx, ref, Options{})
	refused(t, err, fault.InvalidParameters, "and its config says")
	if images := must[[]Image](t)(s.List()); len(images) > 0 {
		t.Errorf("the store has %v", images)
	}
}

func TestHostileManifests(t *testing.T) {
	ctx, r := testContext(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"f": []byte("x")}))
	ref := r.push(t, "app", image)
	manifest := *must[*v1.Manifest](t)(image.Manifest())
	edit := func(change func(m *v1.Manifest)) []byte {
		m := manifest
		m.Layers = slices.Clone(m.Layers)
		change(&m)
		return must[[]byte](t)(json.Marshal(m))
	}
	self := must[[]byte](t)(json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{{
		MediaType: types.OCIImageIndex, Digest: digestOf([]byte("itself")), Size: 10,
		Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}}}))
	sparse := func(n int) []byte {
		return []byte(`{"schemaVersion":2,"manifests":[` + strings.TrimSuffix(strings.Repeat(`{},`, n), ",") + `]}`)
	}
	tests := map[string]struct {
		body []byte
		word string
	}{
		"huge": {[]byte(`{"schemaVersion":2,"x":"` + strings.Repeat("x", maxDocument) + `"}`), "has over 4 " +
			"MiB"},
		"no JSON":     {[]byte("\x1b[2Jhello"), "cannot be read"},
		"deep":        {[]byte(strings.Repeat(`[`, 100_000)), "cannot be read"},
		"schema 1":    {[]byte(`{"schemaVersion":1,"fsLayers":[]}`), "schema 1"},
		"both":        {[]byte(`{"schemaVersion":2,"manifests":[],"layers":[]}`), "both"},
		"no config":   {[]byte(`{"schemaVersion":2,"layers":[]}`), "names no config"},
		"loop":        {self, "something with the digest"},
		"empty index": {[]byte(`{"schemaVersion":2,"manifests":[]}`), "names no other platform"},
		"large index": {sparse(5000), "5000 entries"},
		"digest":      {[]byte(`{"schemaVersion":2,"config":{"digest":"sha256:../../../x"}}`), "cannot be read"},
		"sha512": {edit(func(m *v1.Manifest) {
			m.Config.Digest = v1.Hash{Algorithm: "sha512",
				Hex: strings.Repeat("a", 128)}
		}), "sha256:"},
		"type": {edit(func(m *v1.Manifest) {
			m.MediaType = types.MediaType(strings.Repeat("<", 600<<10))
		}), "its manifest has the type"},
		"type of an index": {[]byte(`{"schemaVersion":2,"mediaType":"` + string(types.OCIManifestSchema1) +
			`","manifests":[]}`), "its manifest has the type"},
		"many layers":   {edit(func(m *v1.Manifest) { m.Layers = slices.Repeat(m.Layers, 5000) }), "5000 layers"},
		"negative size": {edit(func(m *v1.Manifest) { m.Layers[0].Size = -1 }), "-1 bytes"},
		"giant layer":   {edit(func(m *v1.Manifest) { m.Layers[0].Size = 1 << 62 }), "at most"},
		"giant config":  {edit(func(m *v1.Manifest) { m.Config.Size = 1 << 40 }), "at most"},
		"two sizes": {edit(func(m *v1.Manifest) {
			m.Layers = append(m.Layers, m.Layers[0])
			m.Layers[0].Size++
		}), "two sizes"},
		"missing diff_id": {edit(func(m *v1.Manifest) { m.Layers = append(m.Layers, m.Layers[0]) }), "has 2 layers, " +
			"and its config 1"},
		"foreign layer": {edit(func(m *v1.Manifest) { m.Layers[0].MediaType = types.DockerForeignLayer }), "may not " +
			"give away"},
		"elsewhere": {edit(func(m *v1.Manifest) { m.Layers[0].URLs = []string{r.URL} }), "may not give away"},
		"no layer":  {edit(func(m *v1.Manifest) { m.Layers[0].MediaType = "text/plain" }), "unknown type"},
		"chart": {edit(func(m *v1.Manifest) { m.Config.MediaType = "application/vnd.cncf.helm.config.v1+json" }),
			"is not a container image"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			r.answer("/manifests/", http.StatusOK, map[string]string{"Content-Type": string(types.OCIImageIndex)},
				tt.body)
			_, err := s.Pull(ctx, ref, Options{})
			if err == nil || !strings.Contains(err.Error(), tt.word) {
				t.Fatalf("the error is %v, and does not say %q", err, tt.word)
			}
			if strings.ContainsAny(err.Error(), "\x1b\n") {
				t.Errorf("the error has control characters: %q", err)
			}
		})
	}
}

// Indexes that lead to indexes end.
func TestNestedIndexes(t *testing.T) {
	ctx, s, r := testContext(t), newStore(t), newRegistry(t)
	here := &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: imageOf(t, layerOf(t,
		map[string][]byte{"f": []byte("x")})),
		Descriptor: v1.Descriptor{Platform: here}})
	for depth := 1; depth <= 6; depth++ {
		ref := r.push(t, fmt.Sprintf("nested:%d", depth), index)
		_, err := s.Pull(ctx, ref, Options{})
		if depth <= maxNesting && err != nil {
			t.Errorf("depth %d: %v", depth, err)
		} else if depth > maxNesting {
			refused(t, err, fault.InvalidParameters, "leads to over")
		}
		index = mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index,
			Descriptor: v1.Descriptor{Platform: here}})
	}
}

// A full disk is said, and what has been downloaded is used when there is room.
func TestDiskFull(t *testing.T) {
	ctx, r := testContext(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"big": noise(12, 8<<20)}))
	ref := r.push(t, "big", image)
	d := digestsOf(t, image)[0]
	dir := smallDisk(t, "6m")
	s := openStore(filepath.Join(dir, "images"))
	_, err := s.Pull(ctx, ref, Options{})
	refused(t, err, fault.ResourceLimit, "is full", "sandlot image prune")
	info, err := os.Stat(s.partialPath(d.Digest.Hex))
	if err != nil || info.Size() == 0 {
		t.Fatalf("nothing is left: %v, %v", info, err)
	}
	had := info.Size()
	enlarge(t, dir, "64m")
	r.reset()
	if _, err := s.Pull(ctx, ref, Options{}); err != nil {
		t.Fatal(err)
	}
	if sent := r.sentOf(d.Digest); sent != d.Size-had {
		t.Errorf("%d of %d bytes were sent, and %d had been there", sent, d.Size, had)
	}
}

// A source that sends nothing is given up.
func TestStalledRegistry(t *testing.T) {
	ctx, s, r := testContext(t), newStore(t), newRegistry(t)
	s.retry.stall, s.retry.attempts = 100*time.Millisecond, 2
	image := imageOf(t, layerOf(t, map[string][]byte{"big": noise(13, 1<<20)}))
	ref := r.push(t, "big", image)
	release := make(chan struct{})
	defer close(release)
	r.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
		if _, ok := blobOf(q); !ok || !strings.Contains(q.URL.Path, digestsOf(t, image)[0].Digest.Hex) {
			return w
		}
		return &haltingWriter{ResponseWriter: w, left: 1000, half: func() {}, release: release}
	})
	_, err := s.Pull(ctx, ref, Options{})
	refused(t, err, fault.Connection, "too few bytes")
	if errors.Is(err, context.DeadlineExceeded) {
		t.Error("the test's own deadline ended it")
	}
}

// A source that sends a byte at a time is given up, too, and so is one that never ends a manifest or a config.
func TestTricklingRegistry(t *testing.T) {
	image := imageOf(t, layerOf(t, map[string][]byte{"big": noise(13, 1<<20)}))
	config := must[v1.Hash](t)(image.ConfigName())
	for _, part := range []string{"/blobs/" + digestsOf(t, image)[0].Digest.String(), "/manifests/",
		"/blobs/" + config.String(), "/v2/ ", "/token "} {
		ctx, s, r := testContext(t), newStore(t), newRegistry(t)
		s.retry.stall, s.retry.attempts, s.retry.most = 200*time.Millisecond, 2, 3
		s.retry.document = time.Second
		ref := r.push(t, "big", image)
		r.misbehave(func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
			if part == "/token " && q.URL.Path == "/v2/" {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+r.URL+`/token",service="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return nil
			}
			if !strings.Contains(q.URL.Path+" ", part) {
				return w
			}
			for q.Context().Err() == nil {
				_, _ = w.Write([]byte{' '})
				_ = http.NewResponseController(w).Flush()
				time.Sleep(10 * time.Millisecond)
			}
			return nil
		})
		_, err := s.Pull(ctx, ref, Options{})
		refused(t, err, fault.Connection)
		if ctx.Err() != nil {
			t.Errorf("%s: the test's own deadline ended it", part)
		}
	}
}
