package oci

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"sandlot/internal/fault"
)

func blobsOf(t *testing.T, s *Store) int {
	t.Helper()
	return len(must[[]os.DirEntry](t)(os.ReadDir(s.blobs())))
}

func TestRemove(t *testing.T) {
	ctx, s, r := testContext(t), newStore(t), newRegistry(t)
	base := layerOf(t, map[string][]byte{"base": noise(2, 100_000)})
	one := imageOf(t, base, layerOf(t, map[string][]byte{"one": []byte("1")}))
	two := imageOf(t, base, layerOf(t, map[string][]byte{"two": []byte("2")}))
	oneRef, twoRef, alias := r.push(t, "one:1", one), r.push(t, "two:1", two), r.push(t, "alias:1", one)
	for _, ref := range []string{oneRef, twoRef, alias} {
		if _, err := s.Pull(ctx, ref, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := blobsOf(t, s); n != 7 {
		t.Errorf("there are %d blobs", n)
	}
	_, err := s.Remove(ctx, oneRef, func(i Image, last bool) string {
		if i.Name != oneRef || last {
			t.Errorf("asked about %+v, %t", i, last)
		}
		return "the template python"
	})
	refused(t, err, fault.InvalidParameters, "is used by the template python")
	if _, there, err := s.Get(oneRef); !there || err != nil {
		t.Errorf("it is gone: %v", err)
	}
	// By its digest all names go.
	of, _, _ := s.Get(alias)
	digest := of.Digest
	asked := map[string]bool{}
	_, err = s.Remove(ctx, digest, func(i Image, last bool) string {
		asked[i.Name] = last
		return map[string]string{alias: "the template node"}[i.Name]
	})
	refused(t, err, fault.InvalidParameters, "the image "+alias+" is used by the template node")
	if !asked[oneRef] || !asked[alias] {
		t.Errorf("asked about %v", asked)
	}
	// So they do by the beginning of the digest, as lists show it.
	for _, short := range []string{digest[:len("sha256:")+12], strings.TrimPrefix(digest, "sha256:")[:12], digest[:40]} {
		_, err = s.Remove(ctx, short, func(i Image, _ bool) string {
			return map[string]string{alias: "the template node"}[i.Name]
		})
		refused(t, err, fault.InvalidParameters, "the image "+alias+" is used by the template node")
	}
	_, err = s.Remove(ctx, "sha256:"+strings.Repeat("0", 12), nil)
	refused(t, err, fault.NotFound, "there is no image")
	if _, err := s.Remove(ctx, oneRef, nil); err != nil {
		t.Fatal(err)
	}
	if got, there, err := s.Get(alias); !there || err != nil || content(t, got, "one") != "1" {
		t.Errorf("the other name: %t, %v", there, err)
	}
	if _, err := s.Remove(ctx, alias, nil); err != nil {
		t.Fatal(err)
	}
	if got, there, err := s.Get(twoRef); !there || err != nil || content(t, got, "base") != string(noise(2, 100_000)) {
		t.Errorf("the other image: %t, %v", there, err)
	}
	if n := blobsOf(t, s); n != 4 {
		t.Errorf("%d blobs are left", n)
	}
	_, err = s.Remove(ctx, oneRef, nil)
	refused(t, err, fault.NotFound, "sandlot image list")
	if _, err := s.Remove(ctx, must[v1.Hash](t)(two.Digest()).String(), nil); err != nil {
		t.Fatal(err)
	}
	if images := must[[]Image](t)(s.List()); len(images) > 0 || blobsOf(t, s) > 0 {
		t.Errorf("the store has %v and %d blobs", images, blobsOf(t, s))
	}
	if left := must[[]os.DirEntry](t)(os.ReadDir(filepath.Join(s.dir, "rootfs"))); len(left) > 0 {
		t.Errorf("root file systems are left: %v", left)
	}
}

// An image whose name another one has got stays until prune, and as long as something keeps it.
func TestPrune(t *testing.T) {
	ctx, s, r := testContext(t), newStore(t), newRegistry(t)
	old := imageOf(t, layerOf(t, map[string][]byte{"f": []byte("old")}))
	ref := r.push(t, "app:1", old)
	if _, err := s.Pull(ctx, ref, Options{}); err != nil {
		t.Fatal(err)
	}
	r.push(t, "app:1", imageOf(t, layerOf(t, map[string][]byte{"f": []byte("new")})))
	if got, err := s.Pull(ctx, ref, Options{}); err != nil || content(t, got, "f") != "new" {
		t.Fatalf("%+v, %v", got, err)
	}
	digest := must[v1.Hash](t)(old.Digest()).String()
	if got, there, err := s.Get(digest); !there || err != nil || content(t, got, "f") != "old" || got.Name != "" {
		t.Errorf("the old one: %+v, %t, %v", got, there, err)
	}
	if _, err := s.Prune(ctx, func(i Image) bool { return i.Name != "" || i.Digest == digest }); err != nil {
		t.Fatal(err)
	}
	if _, there, err := s.Get(digest); !there || err != nil {
		t.Errorf("what is kept is gone: %v", err)
	}
	if err := os.WriteFile(s.partialPath("left"), make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	freed, err := s.Prune(ctx, nil)
	if err != nil || freed < 1000+4096 {
		t.Errorf("%d bytes are freed, %v", freed, err)
	}
	if _, there, _ := s.Get(digest); there || len(partials(t, s)) > 0 {
		t.Errorf("there is still the image: %t, or a partial file: %v", there, partials(t, s))
	}
	if got, there, err := s.Get(ref); !there || err != nil || content(t, got, "f") != "new" {
		t.Errorf("the new one: %t, %v", there, err)
	}
	if freed, err := s.Prune(ctx, nil); err != nil || freed != 0 {
		t.Errorf("the second one frees %d bytes, %v", freed, err)
	}
}

// While an image is added, nothing is pruned, and what it needs is not removed with another image.
func TestPruneWhileAdding(t *testing.T) {
	ctx, s := testContext(t), newStore(t)
	users, err := s.lockUsers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer users.Close()
	if _, err := s.writeDocument([]byte("a blob that no image names yet")); err != nil {
		t.Fatal(err)
	}
	_, err = s.Prune(ctx, nil)
	refused(t, err, fault.Configuration, "prune again")
	if n := blobsOf(t, s); n != 1 {
		t.Errorf("there are %d blobs", n)
	}
}

// What was interrupted over a day ago is removed by the next pull; what is younger or is being written is not.
func TestStaleFiles(t *testing.T) {
	ctx, s := testContext(t), newStore(t)
	if err := s.makeFolders(); err != nil {
		t.Fatal(err)
	}
	held, err := lock(ctx, s.partialPath("held"), exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for name, age := range map[string]time.Duration{"old": 25, "young": 23, "held": 48} {
		if err := os.WriteFile(s.partialPath(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age * time.Hour)
		if err := os.Chtimes(s.partialPath(name), then, then); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Clean(); err != nil {
		t.Fatal(err)
	}
	if left := partials(t, s); len(left) != 2 || left[0] != "held" || left[1] != "young" {
		t.Errorf("there are %v", left)
	}
}

// What is too large for the index to be read again is not written.
func TestLargeIndex(t *testing.T) {
	ctx, s, r := testContext(t), newStore(t), newRegistry(t)
	ref := r.push(t, "app:1", imageOf(t, layerOf(t, map[string][]byte{"f": []byte("x")})))
	if _, err := s.Pull(ctx, ref, Options{}); err != nil {
		t.Fatal(err)
	}
	large := v1.Descriptor{Digest: digestOf(nil), MediaType: types.MediaType(strings.Repeat("x", maxIndex))}
	refused(t, s.giveName(ctx, "large", large), fault.ResourceLimit, "image prune")
	if images, err := s.List(); err != nil || len(images) != 1 {
		t.Errorf("afterwards there are %+v, %v", images, err)
	}
}

// A store that was damaged says so, and what to do.
func TestDamagedStore(t *testing.T) {
	ctx, s, r := testContext(t), newStore(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"f": []byte("x")}))
	ref := r.push(t, "app:1", image)
	pull := func() Image {
		t.Helper()
		got, err := s.Pull(ctx, ref, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	got := pull()
	// The root file system is gone: the image counts as not there, and the next pull makes it of the layers.
	if err := os.Remove(got.Rootfs); err != nil {
		t.Fatal(err)
	}
	if _, there, err := s.Get(ref); there || err != nil {
		t.Errorf("%t, %v", there, err)
	}
	r.reset()
	if pull(); len(r.sent) > 0 {
		t.Errorf("blobs were sent: %v", r.sent)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "index.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, use := range []func() error{
		func() error { _, err := s.List(); return err },
		func() error { _, _, err := s.Get(ref); return err },
		func() error { _, err := s.Pull(ctx, ref, Options{}); return err },
	} {
		refused(t, use(), fault.Configuration, "the index of the image store is damaged", "rm "+s.dir+"/index.json")
	}
	if len(r.sent) > 0 {
		t.Errorf("blobs were sent: %v", r.sent)
	}
	if err := os.Remove(filepath.Join(s.dir, "index.json")); err != nil { // as the error says
		t.Fatal(err)
	}
	if pull(); len(r.sent) > 0 {
		t.Errorf("blobs were sent: %v", r.sent)
	}
}

// damages are what a disk may do to a file.
var damages = map[string]func(path string) error{
	"truncated": func(path string) error { return os.Truncate(path, 3) },
	"empty":     func(path string) error { return os.Truncate(path, 0) },
	"gone":      os.Remove,
	"unreadable": func(path string) error {
		return errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700))
	},
	"longer": func(path string) error {
		b, err := os.ReadFile(path)
		return errors.Join(err, os.WriteFile(path, append(b, 'x'), 0o600))
	},
	"another content": func(path string) error {
		b, err := os.ReadFile(path)
		for i := range b {
			b[i] ^= 0x55
		}
		return errors.Join(err, os.WriteFile(path, b, 0o600))
	},
}

// Whatever was damaged counts as not there, and is got again, and nothing else is. Other images are listed, used and
// removed meanwhile.
func TestDamagedImage(t *testing.T) {
	ctx, r := testContext(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"f": noise(5, 100_000)}))
	ref, other := r.push(t, "app:1", image), r.push(t, "other:1", imageOf(t, layerOf(t, map[string][]byte{"o": nil})))
	layer := must[[]v1.Layer](t)(image.Layers())[0]
	manifest, config, digest := must[v1.Hash](t)(image.Digest()), must[v1.Hash](t)(image.ConfigName()),
		must[v1.Hash](t)(layer.Digest())
	for how, damage := range damages {
		for what, path := range map[string]func(*Store) []string{
			"manifest":                   func(s *Store) []string { return []string{s.blobPath(manifest)} },
			"config":                     func(s *Store) []string { return []string{s.blobPath(config)} },
			"root file system":           func(s *Store) []string { return []string{s.rootfsPath(manifest)} },
			"layer and root file system": func(s *Store) []string { return []string{s.blobPath(digest), s.rootfsPath(manifest)} },
			"all": func(s *Store) []string {
				return []string{s.blobPath(digest), s.rootfsPath(manifest), s.blobPath(config), s.blobPath(manifest)}
			},
		} {
			s := newStore(t)
			for _, name := range []string{ref, other} {
				if _, err := s.Pull(ctx, name, Options{}); err != nil {
					t.Fatal(err)
				}
			}
			for _, p := range path(s) {
				if err := damage(p); err != nil {
					t.Fatal(err)
				}
			}
			if _, there, err := s.Get(ref); there || err != nil {
				t.Errorf("the %s is %s: %t, %v", what, how, there, err)
			}
			if all, err := s.List(); err != nil || len(all) != 2 || all[0].Size != 0 || all[1].Size == 0 {
				t.Errorf("the %s is %s: listed %+v, %v", what, how, all, err)
			}
			// No registry has it any more: that is said of the image on the disk.
			r.misbehave(func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter {
				http.Error(w, "no", http.StatusNotFound)
				return nil
			})
			if _, err := s.Pull(ctx, ref, Options{}); err == nil || !strings.Contains(err.Error(), "is damaged on the disk") ||
				!strings.Contains(err.Error(), "sandlot image import") {
				t.Errorf("the %s is %s, and the registry has nothing: %v", what, how, err)
			}
			r.misbehave(nil)
			r.reset()
			got, err := s.Pull(ctx, ref, Options{})
			if err != nil {
				t.Errorf("the %s is %s: %v", what, how, err)
				continue
			}
			if content(t, got, "f") != string(noise(5, 100_000)) {
				t.Errorf("the %s is %s: another file", what, how)
			}
			if sent := r.sentOf(digest) > 0; sent != (what == "all" || strings.HasPrefix(what, "layer")) {
				t.Errorf("the %s is %s: the layer was sent: %t", what, how, sent)
			}
			if _, there, err := s.Get(ref); !there || err != nil {
				t.Errorf("the %s was %s: %t, %v", what, how, there, err)
			}
			if err := damage(path(s)[0]); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Remove(ctx, other, nil); err != nil {
				t.Errorf("the %s is %s: the other image is not removed: %v", what, how, err)
			}
			if _, err := s.Remove(ctx, ref, nil); err != nil || blobsOf(t, s) != 0 {
				t.Errorf("the %s is %s: it is not removed: %v", what, how, err)
			}
		}
	}
}

// A layer that only extending an image needs is got again for that.
func TestDamagedBase(t *testing.T) {
	ctx, r := testContext(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"f": noise(5, 100_000)}))
	ref := r.push(t, "app:1", image)
	digest := must[v1.Hash](t)(must[[]v1.Layer](t)(image.Layers())[0].Digest())
	for how, damage := range damages {
		s := newStore(t)
		base := must[Image](t)(s.Pull(ctx, ref, Options{}))
		if err := damage(s.blobPath(digest)); err != nil {
			t.Fatal(err)
		}
		layer := tarOf(t, map[string][]byte{"added": []byte("a")})
		got, err := s.Extend(ctx, base.Digest, bytes.NewReader(layer), "sandlot/more:1")
		if err != nil {
			t.Errorf("it is %s: %v", how, err)
			continue
		}
		if content(t, got, "f") != string(noise(5, 100_000)) || content(t, got, "added") != "a" {
			t.Errorf("it was %s: another file", how)
		}
		imported := must[Image](t)(s.Import(ctx, layoutOf(t, map[string]v1.Image{"": image}), r.host+"/none:1", Options{}))
		if _, err := s.Remove(ctx, ref, nil); err != nil {
			t.Fatal(err)
		}
		if err := damage(s.blobPath(digest)); err != nil {
			t.Fatal(err)
		}
		r.misbehave(func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter {
			http.Error(w, "no", http.StatusNotFound)
			return nil
		})
		_, err = s.Extend(ctx, imported.Digest, bytes.NewReader(layer), "sandlot/most:1")
		r.misbehave(nil)
		if err == nil || !strings.Contains(err.Error(), "is damaged on the disk") ||
			!strings.Contains(err.Error(), "sandlot image import") {
			t.Errorf("it is %s, and no registry has it: %v", how, err)
		}
	}
}
