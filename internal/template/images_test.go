package template

import (
	"archive/tar"
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/oci"
)

// An image for another architecture is refused, by its name and its digest.
func TestOtherArchitecture(t *testing.T) {
	dir := t.TempDir()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: "f", Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	root := filepath.Join(dir, "root.tar")
	if err := os.WriteFile(root, archive.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	s := Store{Images: oci.Open(filepath.Join(dir, "images"), slog.New(slog.DiscardHandler))}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	for platform, right := range map[string]bool{"": true, "linux/" + runtime.GOARCH + "/v8": true,
		"linux/" + other: false} {
		added, err := s.Images.Import(t.Context(), root, "mine:1", oci.Options{Platform: platform})
		if err != nil {
			t.Fatal(err)
		}
		for _, ref := range []string{"mine:1", added.Digest} {
			got, err := s.Image(t.Context(), ref, func(string) {})
			switch {
			case right && (err != nil || got.ID != added.Digest):
				t.Errorf("%s for %q: %+v, %v", ref, platform, got, err)
			case !right && (!fault.Is(err, fault.InvalidParameters) || !strings.Contains(err.Error(),
				"sandlot image pull --platform linux/"+runtime.GOARCH+" "+ref)):
				t.Errorf("%s for %q: %v", ref, platform, err)
			}
		}
	}
}
