package vault

import (
	"context"
	"crypto/cipher"
	"errors"
	"fmt"
	"io/fs"
)

// ImageKeyBytes is the size of the sealed key of a frozen image. While the key of secrets is changed, what is stored has
// the key once for the old one and once for the new one: what is on the disk beside the database opens with both.
const ImageKeyBytes = 12 + keySize + 16

// imageAdditionalData returns the additional data of the sealed key of a frozen image. Neither part can contain a NUL.
func imageAdditionalData(image, context string) []byte {
	return []byte("sandlot frozen image\x00" + image + "\x00" + context)
}

// SealImageKey implements sandbox.ImageKeys.
func (v *Vault) SealImageKey(image, context string, key []byte) ([]byte, error) {
	if len(key) != keySize {
		return nil, fmt.Errorf("the key of an image has %d bytes, and not %d", len(key), keySize)
	}
	k, err := v.key(v.CreateKey)
	if err != nil {
		return nil, err
	}
	return k.Seal(nil, nil, key, imageAdditionalData(image, context)), nil
}

// OpenImageKey implements sandbox.ImageKeys. What cannot be opened as there is no key of secrets, or another one, is
// lost; a key file that cannot be used may be mended.
func (v *Vault) OpenImageKey(image, context string, sealed []byte) (key []byte, lost bool, err error) {
	k, err := v.key(false)
	if err != nil {
		return nil, errors.Is(err, fs.ErrNotExist), fmt.Errorf("the key of secrets: %w", err)
	}
	key, err = openImageKey(k, sealed, imageAdditionalData(image, context))
	return key, err != nil, err
}

// SealsStored reports whether the vault's key is the one of the last change of the key, so that what was sealed with
// another one is not needed any more. Before the first change it is.
func (v *Vault) SealsStored(ctx context.Context, rows SealedStore) (bool, error) {
	last, err := rows.KeyFingerprint(ctx)
	if err != nil || last == "" {
		return err == nil, err
	}
	key, err := v.rawKey(false)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && fingerprint(key) == last, err
}

// openImageKey opens the part of sealed that the cipher has sealed.
func openImageKey(k cipher.AEAD, sealed, additionalData []byte) ([]byte, error) {
	for ; len(sealed) >= ImageKeyBytes; sealed = sealed[ImageKeyBytes:] {
		if key, err := k.Open(nil, nil, sealed[:ImageKeyBytes], additionalData); err == nil {
			return key, nil
		}
	}
	return nil, errors.New("the key of secrets does not open the key of the image")
}
