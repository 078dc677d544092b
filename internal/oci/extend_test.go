package oci

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandlot/internal/fault"
)

// An image and one more layer are a new image, with the settings of the old one, which stays as it is.
func TestExtend(t *testing.T) {
	s, ctx := newStore(t), testContext(t)
	base := imageOf(t, layerOf(t, map[string][]byte{"kept": []byte("base"), "changed": []byte("old"),
		"gone": []byte("x")}))
	old := must[Image](t)(s.Import(ctx, layoutOf(t, map[string]v1.Image{"": base}), "base:1", Options{}))
	layer := tarOf(t, map[string][]byte{"changed": []byte("new"), "added": []byte("layer"), ".wh.gone": nil})
	got := must[Image](t)(s.Extend(ctx, old.Digest, bytes.NewReader(layer), "sandlot/more:1"))
	if got.Digest == old.Digest || got.Name != "sandlot/more:1" || got.Platform != old.Platform ||
		got.Config.User != "app:staff" || got.Config.Workdir != "/srv" {
		t.Errorf("image %+v", got)
	}
	for path, want := range map[string]string{"kept": "base", "changed": "new", "added": "layer"} {
		if text := content(t, got, path); text != want {
			t.Errorf("%s is %q, want %q", path, text, want)
		}
	}
	if text := content(t, old, "changed") + content(t, old, "gone"); text != "oldx" {
		t.Errorf("the old image has %q", text)
	}
	again := must[Image](t)(s.Extend(ctx, "sandlot/more:1", bytes.NewReader(layer), "sandlot/most:1"))
	if text := content(t, again, "added"); text != "layer" {
		t.Errorf("with two more layers: %q", text)
	}

	broken := io.MultiReader(bytes.NewReader(layer[:600]), failing{})
	if _, err := s.Extend(ctx, old.Digest, broken, "bad:1"); err == nil || !strings.Contains(err.Error(), "it broke") {
		t.Errorf("%v", err)
	}
	_, err := s.Extend(ctx, old.Digest, strings.NewReader(strings.Repeat("no archive", 200)), "bad:1")
	refused(t, err, fault.InvalidParameters)
	_, err = s.Extend(ctx, "no-such:1", bytes.NewReader(layer), "bad:1")
	refused(t, err, fault.NotFound, "no-such:1")
	if _, there, err := s.Get("bad:1"); there || err != nil {
		t.Errorf("%v, %v", there, err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("it broke") }
