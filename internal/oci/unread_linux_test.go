package oci

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// An image that cannot be read now is neither missing nor removed, and stops neither listing nor pruning of others.
func TestUnreadableImage(t *testing.T) {
	ctx, r := testContext(t), newRegistry(t)
	image := imageOf(t, layerOf(t, map[string][]byte{"f": []byte("mine")}))
	ref, other := r.push(t, "app:1", image), r.push(t, "other:1", imageOf(t, layerOf(t, map[string][]byte{"o": nil})))
	manifest, config := must[v1.Hash](t)(image.Digest()), must[v1.Hash](t)(image.ConfigName())
	layer := must[v1.Hash](t)(must[[]v1.Layer](t)(image.Layers())[0].Digest())
	for what, digest := range map[string]v1.Hash{"manifest": manifest, "config": config} {
		s := newStore(t)
		var removed Image
		for _, name := range []string{ref, other} {
			var err error
			if removed, err = s.Pull(ctx, name, Options{}); err != nil {
				t.Fatal(err)
			}
		}
		path := s.blobPath(digest)
		if err := errors.Join(os.Rename(path, path+".aside"), os.Symlink("/proc/self/mem", path)); err != nil {
			t.Fatal(err)
		}
		_, there, err := s.Get(ref)
		if there || !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "Nothing of it is lost") {
			t.Errorf("%s: %t, %v", what, there, err)
		}
		if all, err := s.List(); err != nil || len(all) != 2 || all[1].Size == 0 {
			t.Errorf("%s: listed %+v, %v", what, all, err)
		}
		if _, err := s.Prune(ctx, func(Image) bool { return false }); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(removed.Rootfs); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the other image was not removed: %v", what, err)
		}
		if err := os.Rename(path+".aside", path); err != nil {
			t.Fatal(err)
		}
		got, there, err := s.Get(ref)
		if !there || err != nil || content(t, got, "f") != "mine" {
			t.Errorf("%s: later: %t, %v", what, there, err)
		}
		if _, err := os.Stat(s.blobPath(layer)); err != nil {
			t.Errorf("%s: its layer: %v", what, err)
		}
	}
}
