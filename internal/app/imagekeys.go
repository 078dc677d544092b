package app

import (
	"context"
	"errors"

	"sandlot/internal/atomicfile"
	"sandlot/internal/store"
	"sandlot/internal/vault"
)

// imageKey is the key of a sealed frozen image, which is stored beside the image.
type imageKey struct {
	image, context string
	sealed         []byte
}

// sealedStore is everything that is sealed with the key of secrets: the database's rows, and the keys of frozen images.
type sealedStore struct {
	vault.SealedStore
	stateDir string
}

// SealedRows implements vault.SealedStore.
func (s sealedStore) SealedRows(ctx context.Context) ([]vault.SealedRow, error) {
	rows, err := s.SealedStore.SealedRows(ctx)
	if err != nil {
		return nil, err
	}
	keys, err := imageKeys(s.stateDir)
	for _, k := range keys {
		rows = append(rows, vault.SealedRow{Kind: vault.SealedImageKey, Name: k.image, Binding: k.context,
			Sealed: k.sealed})
	}
	return rows, err
}

// Reseal implements vault.SealedStore. Until the database's transaction, and after a crash, the images have their keys
// for the old key and the new one; settleImageKeys removes what is left.
func (s sealedStore) Reseal(ctx context.Context, rows []vault.SealedRow, fingerprint string) error {
	keys, err := imageKeys(s.stateDir)
	if err != nil {
		return err
	}
	before := map[string][]byte{}
	for _, k := range keys {
		before[k.image] = k.sealed
	}
	var own []vault.SealedRow // the database's
	var dropped []imageKey
	for _, r := range rows {
		switch {
		case r.Kind != vault.SealedImageKey:
			own = append(own, r)
		case r.Sealed == nil:
			dropped = append(dropped, imageKey{image: r.Name})
		default:
			both := append(append([]byte(nil), r.Sealed...), before[r.Name]...)
			if err := writeImageKey(s.stateDir, imageKey{r.Name, r.Binding, both}); err != nil {
				return err
			}
		}
	}
	if err := s.SealedStore.Reseal(ctx, own, fingerprint); err != nil {
		return err
	}
	for _, k := range dropped {
		err = errors.Join(err, writeImageKey(s.stateDir, k))
	}
	return err
}

// settleImageKeys removes of the keys of images what a change of the key of secrets has left, unless the vault has the
// key from before that change: then its operator still has to give it the other one. It returns how many images there
// are, and how many of them the key of secrets does not open.
func settleImageKeys(ctx context.Context, v *vault.Vault, rows vault.SealedStore, stateDir string) (all, lost int,
	err error) {
	current, err := v.SealsStored(ctx, rows)
	if err != nil {
		return 0, 0, err
	}
	keys, err := imageKeys(stateDir)
	for _, k := range keys {
		key, _, openErr := v.OpenImageKey(k.image, k.context, k.sealed)
		if openErr != nil {
			lost++
			continue
		}
		if !current || len(k.sealed) == vault.ImageKeyBytes {
			continue
		}
		sealed, sealErr := v.SealImageKey(k.image, k.context, key)
		if sealErr == nil {
			sealErr = writeImageKey(stateDir, imageKey{k.image, k.context, sealed})
		}
		err = errors.Join(err, sealErr)
	}
	return len(keys), lost, err
}

// sealImages makes the runtimes seal what sessions that sleep have in memory, and says what the key of secrets does not
// open.
func (m maker) sealImages(ctx context.Context, v *vault.Vault, db *store.DB, runtimes runtimeList) error {
	for _, rt := range runtimes {
		if f := rt.Capabilities().Freezer; f != nil {
			f.SealImages(v, m.c.Sessions.Hibernate.Seal)
		}
	}
	all, lost, err := settleImageKeys(ctx, v, db, m.c.Server.StateDir)
	if lost > 0 {
		m.log.Warn("the memory of sleeping sessions and snapshots was sealed with a key of secrets that is gone: at their "+
			"next use they have their files alone. If the key still exists, stop the server and restore it first",
			"images", all, "lost", lost)
	}
	if atomicfile.IsPassing(err) { // it concerns single images, and the next start tries again
		m.log.Error("the keys of some sealed images cannot be read or written now", "error", err)
		return nil
	}
	return err
}
