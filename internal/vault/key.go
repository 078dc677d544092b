package vault

import (
	"context"
	"crypto/cipher"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// keySize is the size of the key, for AES-256.
const keySize = 32

// secretAdditionalData returns the additional data of a sealed secret: it does not open for another principal,
// another name or, when it is bound, for other hosts. The id of a principal cannot contain a NUL.
func secretAdditionalData(owner, name, binding string) []byte {
	if binding != "" {
		return []byte("sandlot bound secret\x00" + owner + "\x00" + name + "\x00" + binding)
	}
	return []byte("sandlot secret\x00" + owner + "\x00" + name)
}

// key returns the cipher with the key in the key file. It generates nonces itself. If there is no key
// file, key creates it if create is set, and otherwise returns fs.ErrNotExist.
func (v *Vault) key(create bool) (cipher.AEAD, error) {
	b, err := v.rawKey(create)
	if err != nil {
		return nil, err
	}
	return secret.NewCipher(b)
}

// rawKey returns the key itself.
func (v *Vault) rawKey(create bool) ([]byte, error) {
	if v.Key != nil {
		return v.Key, nil
	}
	err := CheckPrivate(v.KeyFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w (sandlot secret rekey)", err)
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(v.KeyFile)
	}
	if errors.Is(err, fs.ErrNotExist) && create {
		b, err = v.createKey()
	}
	if err == nil && len(b) != keySize {
		err = fmt.Errorf("it has %d bytes, and not %d", len(b), keySize)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && v.CreateKey:
		return nil, err
	case err != nil:
		return nil, fault.Wrap(fault.Configuration, fmt.Errorf("%s: %w", v.KeyFile, err),
			"the server's file with the key of secrets cannot be used").
			Advise("The operator of this server restores the file. If it is lost: remove it, or write a "+
				"new key of 32 random bytes; then each secret has to be stored again",
				"The server's log says what is wrong with the file")
	}
	return b, nil
}

// Check returns an error if the key file cannot be used, or if it was named in the settings and does not
// exist.
func (v *Vault) Check() error {
	_, err := v.key(false)
	var f *fault.Error
	switch {
	case err == nil, v.CreateKey && errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.As(err, &f):
		return fault.Wrap(fault.Configuration, err,
			"the file with the key of secrets (secrets.key_file) cannot be used: %v", f.Unwrap())
	}
	return err
}

// CheckStored returns an error if the key is given by the settings and opens none of the stored secrets: it is a wrong
// one, and what would be stored with it could not be read with the right one.
func (v *Vault) CheckStored(ctx context.Context, rows SealedStore) error {
	if v.Key == nil {
		return nil
	}
	k, err := secret.NewCipher(v.Key)
	if err != nil {
		return err
	}
	all, err := rows.SealedRows(ctx)
	if err != nil {
		return err
	}
	secrets := 0
	for _, r := range all {
		if r.Kind != SealedSecret {
			continue
		}
		if _, err := k.Open(nil, nil, r.Sealed, secretAdditionalData(r.Owner, r.Name, r.Binding)); err == nil {
			return nil
		}
		secrets++
	}
	if secrets == 0 {
		return nil
	}
	where := "secrets.key, SANDLOT_SECRETS_KEY"
	if v.Keyring != nil {
		where = "in the keyring, as " + v.KeyName
	}
	return fault.New(fault.Configuration, "the key of secrets (%s) opens none of the %d stored secrets: it is another "+
		"one than they were stored with", where, secrets).
		Advise("Set the key that stored them; after `sandlot secret rekey` that is the new one",
			"If it is lost: `sandlot secret rekey --drop` removes what it cannot open")
}

// createKey creates the key file, synced to the disk, and returns the key. If another process has created
// it meanwhile, createKey returns that key.
func (v *Vault) createKey() ([]byte, error) {
	if err := v.writeKey(v.KeyFile, secret.Bytes(keySize)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.ReadFile(v.KeyFile)
}

// syncFolder makes the names of new files in a folder survive a crash, if its file system can do that.
func syncFolder(dir string) { _ = atomicfile.Sync(dir) }
