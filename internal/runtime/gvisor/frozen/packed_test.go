package frozen

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestPack: what was packed comes back; what is broken, too large, or interrupted leaves no file.
func TestPack(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	content := append(bytes.Repeat([]byte("the same "), 1<<18), make([]byte, 1<<20)...)
	noise := make([]byte, 1<<20)
	rand.Read(noise)
	content = append(content, noise...)
	if err := os.WriteFile(path("a"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := pack(t.Context(), path("a"), path("a.zst"), nil); err != nil {
		t.Fatal(err)
	}
	size := int64(len(content))
	if err := unpack(t.Context(), path("a.zst"), path("b"), size, nil); err != nil {
		t.Fatal(err)
	}
	small, err := os.ReadFile(path("a.zst"))
	if got, rerr := os.ReadFile(path("b")); rerr != nil || !bytes.Equal(got, content) || err != nil ||
		len(small) > len(content)/2 {
		t.Errorf("%d bytes, packed %d: %v, %v", len(got), len(small), rerr, err)
	}
	wrong := bytes.Clone(small)
	wrong[len(wrong)/2] ^= 1
	for what, c := range map[string]struct {
		packed []byte
		max    int64
	}{"half": {small[:len(small)/2], size}, "all but a byte": {small[:len(small)-1], size},
		"another bit": {wrong, size}, "no packed file": {content, size}, "more than allowed": {small, size - 1}} {
		os.WriteFile(path("x.zst"), c.packed, 0o600)
		if err := unpack(t.Context(), path("x.zst"), path("x"), c.max, nil); err == nil {
			t.Errorf("%s was unpacked", what)
		}
		if _, err := os.Stat(path("x")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pack(over, path("a"), path("c"), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := pack(t.Context(), path("a"), path("a.zst"), nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("over another file: %v", err)
	}
	if all, _ := os.ReadDir(dir); len(all) != 4 {
		t.Errorf("these files are left: %v", all)
	}
}
