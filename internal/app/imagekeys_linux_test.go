//go:build !mac

package app

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"sandlot/internal/store"
	"sandlot/internal/vault"
)

// dyingStore is a store whose change of the key fails before the database's transaction.
type dyingStore struct{ vault.SealedStore }

var errDied = errors.New("the server died")

func (dyingStore) Reseal(context.Context, []vault.SealedRow, string) error { return errDied }

// TestRekeyImages: the keys of frozen images open before, in the middle of and after a change of the key of secrets; what
// a crash has left is removed by the next start. An image that no key opens stops the change, or is removed.
func TestRekeyImages(t *testing.T) {
	dir := t.TempDir()
	db, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	v := &vault.Vault{Store: db, KeyFile: filepath.Join(dir, "secrets.key"), CreateKey: true}
	key := bytes.Repeat([]byte{5}, 32)
	image := func(name, sealedFor string) {
		t.Helper()
		path := filepath.Join(dir, "frozen", name)
		if err := errors.Join(os.MkdirAll(path, 0o700), os.WriteFile(filepath.Join(path, "config.json"), nil, 0o600),
			os.WriteFile(filepath.Join(path, "sealed.key"), []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
		all, err := imageKeys(dir)
		for _, k := range all {
			if k.image == name && err == nil {
				k.sealed, err = v.SealImageKey(sealedFor, k.context, key)
				err = errors.Join(err, writeImageKey(dir, k))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, forms int) {
		t.Helper()
		all, err := imageKeys(dir)
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %d images, %v", what, len(all), err)
		}
		got, _, err := v.OpenImageKey(all[0].image, all[0].context, all[0].sealed)
		if err != nil || !bytes.Equal(got, key) || len(all[0].sealed) != forms*vault.ImageKeyBytes {
			t.Errorf("%s: %d bytes, %v", what, len(all[0].sealed), err)
		}
	}
	rekey := func(rows vault.SealedStore, drop bool) (sealed, dropped int, err error) {
		return v.Rekey(t.Context(), sealedStore{rows, dir}, func(string, string) string { return "" }, drop)
	}
	image("one", "one")
	before, err := os.ReadFile(v.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	want("before", 1)
	if _, _, err := rekey(dyingStore{db}, false); !errors.Is(err, errDied) {
		t.Errorf("a change that fails: %v", err)
	}
	want("after a crash in the middle", 2)
	if n, dropped, err := rekey(db, false); n != 1 || dropped != 0 || err != nil {
		t.Errorf("%d, %d, %v", n, dropped, err)
	}
	want("after the change", 3)
	current, err := os.ReadFile(v.KeyFile)
	if err == nil {
		err = os.WriteFile(v.KeyFile, before, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if all, lost, err := settleImageKeys(t.Context(), v, db, dir); all != 1 || lost != 0 || err != nil {
		t.Errorf("a start with the old key: %d, %d, %v", all, lost, err)
	}
	want("after a start with the old key", 3)
	if err := os.WriteFile(v.KeyFile, current, 0o600); err != nil {
		t.Fatal(err)
	}
	if all, lost, err := settleImageKeys(t.Context(), v, db, dir); all != 1 || lost != 0 || err != nil {
		t.Errorf("%d, %d, %v", all, lost, err)
	}
	want("after the next start", 1)
	image("two", "another")
	if all, lost, err := settleImageKeys(t.Context(), v, db, dir); all != 2 || lost != 1 || err != nil {
		t.Errorf("%d, %d, %v", all, lost, err)
	}
	if _, dropped, err := rekey(db, false); err == nil || dropped != 0 {
		t.Errorf("with one that is lost: %d, %v", dropped, err)
	}
	if n, dropped, err := rekey(db, true); n != 1 || dropped != 1 || err != nil {
		t.Errorf("%d, %d, %v", n, dropped, err)
	}
	want("after one was dropped", 2)
}
