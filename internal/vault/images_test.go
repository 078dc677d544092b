package vault

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"
)

// TestImageKeys: the key of an image opens for the image and its context alone. While the key of secrets is changed, it
// opens with the old one and the new one.
func TestImageKeys(t *testing.T) {
	v := &Vault{KeyFile: filepath.Join(t.TempDir(), "secrets.key"), CreateKey: true}
	if _, lost, err := v.OpenImageKey("image", "context", make([]byte, ImageKeyBytes)); err == nil || !lost {
		t.Errorf("without a key of secrets: %v, %v", lost, err)
	}
	key := bytes.Repeat([]byte{7}, keySize)
	sealed, err := v.SealImageKey("image", "context", key)
	if err != nil || len(sealed) != ImageKeyBytes || bytes.Contains(sealed, key[:8]) {
		t.Fatalf("%x, %v", sealed, err)
	}
	if _, err := v.SealImageKey("image", "context", key[1:]); err == nil {
		t.Error("a short key was sealed")
	}
	old, err := v.rawKey(false)
	if err != nil {
		t.Fatal(err)
	}
	next := bytes.Repeat([]byte{9}, keySize)
	rows := []SealedRow{{Kind: SealedImageKey, Name: "image", Binding: "context", Sealed: sealed},
		{Kind: SealedImageKey, Name: "other", Binding: "context", Sealed: sealed}}
	k, err := v.key(false)
	if err != nil {
		t.Fatal(err)
	}
	if n, dropped, err := reseal(rows, k, next, nil); n != 1 || dropped != 1 || err != nil || rows[1].Sealed != nil {
		t.Errorf("%d, %d, %v", n, dropped, err)
	}
	both := slices.Concat(rows[0].Sealed, sealed)
	for _, c := range []struct {
		image, context string
		key, sealed    []byte
		opens          bool
	}{
		{"image", "context", old, sealed, true}, {"image", "context", next, rows[0].Sealed, true},
		{"image", "context", old, both, true}, {"image", "context", next, both, true},
		{"image", "context", next, sealed, false}, {"image", "context", old, rows[0].Sealed, false},
		{"other", "context", old, both, false}, {"image", "other", old, both, false},
		{"image", "context", old, both[:len(both)-1], false}, {"image", "context", old, nil, false},
	} {
		given := &Vault{Key: c.key}
		got, lost, err := given.OpenImageKey(c.image, c.context, c.sealed)
		if c.opens != (err == nil) || lost != (err != nil) || c.opens && !bytes.Equal(got, key) {
			t.Errorf("%s, %s, %d bytes: %v, %v", c.image, c.context, len(c.sealed), lost, err)
		}
	}
}
