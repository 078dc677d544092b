package vault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// Keyring has keys by name, outside of the file system.
type Keyring interface {
	// Get returns a key, or fs.ErrNotExist.
	Get(name string) ([]byte, error)
	// Set stores a key, and replaces an earlier one.
	Set(name string, key []byte) error
	// Remove removes a key, if it is there.
	Remove(name string) error
}

// newName is the name of the new key during Rekey.
func (v *Vault) newName() string { return v.KeyName + ".new" }

// OpenKeyring reads the key from the keyring, and makes one if there is none and nothing is stored that needs it. It
// must be called after FinishRekey, before the vault is used. Without a keyring it does nothing.
func (v *Vault) OpenKeyring(ctx context.Context, rows SealedStore) error {
	if v.Keyring == nil {
		return nil
	}
	key, err := v.Keyring.Get(v.KeyName)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = v.makeInKeyring(ctx, rows)
	}
	if err == nil {
		v.Key = key
	}
	return err
}

func (v *Vault) makeInKeyring(ctx context.Context, rows SealedStore) ([]byte, error) {
	if _, err := os.Lstat(v.KeyFile); !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, fault.New(fault.Configuration, "the keyring has no key %s (secrets.keyring), "+
			"and the key of secrets is in the file %s: while no server runs, `sandlot secret rekey` makes a new "+
			"one in the keyring, encrypts everything with it, and removes the file", v.KeyName, v.KeyFile))
	}
	all, err := rows.SealedRows(ctx)
	if err != nil {
		return nil, err
	}
	if len(all) > 0 {
		return nil, fault.New(fault.Configuration, "the keyring has no key %s (secrets.keyring), and %d secrets and "+
			"log-ins are stored with one: this is another user's keyring, or the key was removed; store the key again "+
			"(service sandlot, username %s). If it is lost, `sandlot secret rekey --drop` makes a new one, and "+
			"removes what the old one has encrypted", v.KeyName, len(all), v.KeyName)
	}
	key := secret.Bytes(keySize)
	return key, v.putInKeyring(v.KeyName, key)
}

// putInKeyring stores a key, and reads it again: what is sealed with a key that is not there is lost.
func (v *Vault) putInKeyring(name string, key []byte) error {
	err := v.Keyring.Set(name, key)
	if err != nil {
		return err
	}
	stored, err := v.Keyring.Get(name)
	if err == nil && !bytes.Equal(stored, key) {
		err = errors.New("it has another key")
	}
	if err != nil {
		return fault.Wrap(fault.Configuration, err, "the keyring did not store the key %s: %v", name, err)
	}
	return nil
}

// finishInKeyring is FinishRekey for keys in the keyring. A key in a file is that of before, from which Rekey moves to
// the keyring.
func (v *Vault) finishInKeyring(ctx context.Context, rows SealedStore) error {
	key, err := v.Keyring.Get(v.newName())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	sealed, err := rows.KeyFingerprint(ctx)
	if err == nil && sealed == fingerprint(key) {
		err = v.putInKeyring(v.KeyName, key)
		if removeErr := os.Remove(v.KeyFile); !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
			syncFolder(filepath.Dir(v.KeyFile))
		}
	}
	if err == nil {
		err = v.Keyring.Remove(v.newName())
	}
	if err != nil {
		return fmt.Errorf("the change of the key of secrets cannot be completed: %w", err)
	}
	return nil
}

// oldKey returns the key that Rekey replaces. With drop, a key that is gone from the keyring is replaced too.
func (v *Vault) oldKey(drop bool) ([]byte, error) {
	if v.Keyring == nil {
		return v.rawKey(false)
	}
	key, err := v.Keyring.Get(v.KeyName)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if key, err = (&Vault{KeyFile: v.KeyFile, CreateKey: true}).rawKey(false); errors.Is(err, fs.ErrNotExist) && drop {
		return secret.Bytes(keySize), nil
	}
	return key, err
}
