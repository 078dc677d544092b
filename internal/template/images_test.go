package template

import (
	"archive/tar"
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/oci"
)

// newStore returns an empty store, and an archive with a root file system.
func newStore(t *testing.T) (s Store, root string) {
	t.Helper()
	dir := t.TempDir()
	root = filepath.Join(dir, "root.tar")
	writeRoot(t, root, "f")
	return Store{Images: oci.Open(filepath.Join(dir, "images"), slog.New(slog.DiscardHandler))}, root
}

// writeRoot writes an archive of a root file system with one file of that name.
func writeRoot(t *testing.T, path, name string) {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := os.WriteFile(path, archive.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Earlier builds of one template are removed, and no other images.
func TestRemoveSaved(t *testing.T) {
	s, root := newStore(t)
	keys := []string{strings.Repeat("a", 32), strings.Repeat("b", 32)}
	names := []string{"sandlot/one:" + keys[0], "sandlot/one:" + keys[1], "sandlot/one:1",
		"sandlot/one-more:" + keys[0],
		"one:" + keys[0]}
	kept := ""
	for i, name := range names {
		writeRoot(t, root, strconv.Itoa(i))
		added, err := s.Images.Import(t.Context(), root, name, oci.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			kept = added.Digest
		}
	}
	look := func(keep string, want ...string) {
		t.Helper()
		if err := s.RemoveSaved(t.Context(), func(name, id string) bool {
			return id == keep || !strings.HasPrefix(name, "sandlot/one:")
		}); err != nil {
			t.Fatal(err)
		}
		list, err := s.Images.List()
		left := []string{}
		for _, i := range list {
			left = append(left, i.Name)
		}
		want = slices.Sorted(slices.Values(want))
		if err != nil || !slices.Equal(left, want) {
			t.Errorf("left are %q, %v, want %q", left, err, want)
		}
	}
	look(kept, names[1:]...)
	look("", names[2:]...)
}

// An image for another architecture is refused, by its name and its digest.
func TestOtherArchitecture(t *testing.T) {
	s, root := newStore(t)
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	for platform, right := range map[string]bool{"": true, "linux/" + runtime.GOARCH + "/v8": true,
		"linux/" + other: false} {
		added, err := s.Images.Import(t.Context(), root, "mine:1", oci.Options{Platform: platform})
		if err != nil {
			t.Fatal(err)
		}
		for _, ref := range []string{"mine:1", added.Digest} {
			got, err := s.Image(t.Context(), ref, nil)
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
