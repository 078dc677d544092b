package vault

import (
	"bytes"
	"context"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// SealedKind says what is sealed in a row.
type SealedKind int

// The kinds of rows.
const (
	SealedSecret    SealedKind = iota // Name is its name
	SealedLogin                       // Name is the connection
	SealedVariables                   // Name is the session
	SealedImageKey                    // Name is the frozen image, Binding the context
)

// SealedRow is a stored secret, a log-in, the variables of a session, or the key of a frozen image.
type SealedRow struct {
	Kind        SealedKind
	Owner, Name string
	Binding     string // of a bound secret, or of an image
	Sealed      []byte // nil: the row is to be removed, or, of a session, to say that it cannot be read
}

// SealedStore is the store of everything that is sealed with the vault's key.
type SealedStore interface {
	SealedRows(ctx context.Context) ([]SealedRow, error)
	// Reseal stores the sealed values of rows, and the fingerprint of the key that has sealed them, in
	// one transaction, which is on the disk when it returns.
	Reseal(ctx context.Context, rows []SealedRow, fingerprint string) error
	// KeyFingerprint returns the fingerprint of the last Reseal, or "".
	KeyFingerprint(ctx context.Context) (string, error)
}

// fingerprint identifies a key, without any information about its value.
func fingerprint(key []byte) string {
	sum := sha256.Sum256(append([]byte("sandlot fingerprint of a key\x00"), key...))
	return hex.EncodeToString(sum[:16])
}

// keyFilePath returns the path of the key file, with symbolic links resolved so that Rekey keeps them.
func (v *Vault) keyFilePath() string {
	if resolved, err := filepath.EvalSymlinks(v.KeyFile); err == nil {
		return resolved
	}
	return v.KeyFile
}

// newKeyPath returns the path of the new key's file during Rekey. It is in the key file's folder, so that it
// can be renamed.
func (v *Vault) newKeyPath() string { return v.keyFilePath() + ".new" }

// Rekey creates a new key and seals all stored values with it. address returns the address of an owner's
// connection, for which its log-in was sealed. If the old key does not open a value, Rekey removes the
// value if drop is set, and otherwise changes nothing and fails. Nobody else may use the vault
// meanwhile. After a crash, FinishRekey selects the key that matches the stored values.
//
// At no moment does a crash leave rows that no key opens, and no row has to be tried to find the right key. A
// running server would have to hold back every call that stores or reads, and log-ins are renewed at any
// time: to stop it for a second costs less than that code. The address of a log-in is not beside it in the
// database, so one of an unknown address stops the change, as the log-in would be lost silently.
func (v *Vault) Rekey(ctx context.Context, rows SealedStore, address func(owner, connection string) string,
	drop bool) (sealed, dropped int, err error) {
	if err := v.FinishRekey(ctx, rows); err != nil {
		return 0, 0, err
	}
	oldKey, err := v.oldKey(drop)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, fault.Wrap(fault.Configuration, err,
			"there is no key yet, because no secret is stored: there is nothing to change")
	}
	if err != nil {
		return 0, 0, err
	}
	old, err := secret.NewCipher(oldKey)
	if err != nil {
		return 0, 0, err
	}
	key, err := v.nextKey()
	if err != nil {
		return 0, 0, err
	}
	all, err := rows.SealedRows(ctx)
	if err == nil {
		sealed, dropped, err = reseal(all, old, key, address)
	}
	if err == nil && dropped > 0 && !drop {
		err = fault.New(fault.Configuration,
			"%d of %d secrets, log-ins, variables of sessions and sleeping sessions cannot be read with the key that is there, or a "+
				"log-in's server is not in the settings as this command reads them (give it the variables "+
				"of the server); nothing has changed. With --drop they are removed", dropped, len(all))
	}
	if err == nil {
		err = rows.Reseal(ctx, all, fingerprint(key))
	}
	if err != nil {
		// Reseal may have succeeded in spite of the error: FinishRekey asks the store.
		return 0, 0, errors.Join(err, v.FinishRekey(context.WithoutCancel(ctx), rows))
	}
	return sealed, dropped, v.FinishRekey(context.WithoutCancel(ctx), rows)
}

// nextKey returns the key to which Rekey changes. It is safe from a crash: in a file, in the keyring, or
// with the operator.
func (v *Vault) nextKey() ([]byte, error) {
	if v.Keyring != nil {
		key := secret.Bytes(keySize)
		return key, v.putInKeyring(v.newName(), key)
	}
	if v.Key == nil {
		key := secret.Bytes(keySize)
		if err := v.writeKey(v.newKeyPath(), key); err != nil {
			return nil, fault.Wrap(fault.Configuration, err,
				"the new key cannot be written beside the old one: %v; nothing has changed", err)
		}
		return key, nil
	}
	if v.NewKey == nil || bytes.Equal(v.Key, v.NewKey) {
		return nil, fault.New(fault.Configuration, "the key is in the settings (secrets.key), which are not "+
			"Sandlot's to change: make another one (openssl rand -hex 32), keep it, and give it to this command as "+
			"SANDLOT_SECRETS_NEW_KEY (secrets.new_key); nothing has changed")
	}
	return v.NewKey, nil
}

// reseal seals rows with the new key. It sets Sealed to nil in rows that the old key does not open.
func reseal(all []SealedRow, old cipher.AEAD, key []byte,
	addressOf func(owner, connection string) string) (sealed, dropped int, err error) {
	newCipher, err := secret.NewCipher(key)
	if err != nil {
		return 0, 0, err
	}
	for i := range all {
		r := &all[i]
		var additionalData []byte
		switch r.Kind {
		case SealedSecret:
			additionalData = secretAdditionalData(r.Owner, r.Name, r.Binding)
		case SealedLogin:
			additionalData = loginAdditionalData(r.Owner, r.Name, addressOf(r.Owner, r.Name))
		case SealedVariables:
			additionalData = variablesAdditionalData(r.Owner, r.Name)
		case SealedImageKey:
			additionalData = imageAdditionalData(r.Name, r.Binding)
		}
		var text []byte
		if r.Kind == SealedImageKey {
			text, err = openImageKey(old, r.Sealed, additionalData)
		} else {
			text, err = old.Open(nil, nil, r.Sealed, additionalData)
		}
		if err != nil {
			r.Sealed = nil
			dropped++
			continue
		}
		r.Sealed = newCipher.Seal(nil, nil, text, additionalData)
		sealed++
	}
	return sealed, dropped, nil
}

// FinishRekey completes a Rekey that was interrupted: it keeps the key with which the stored values are
// sealed, and removes the other one. It must be called before the vault is used.
func (v *Vault) FinishRekey(ctx context.Context, rows SealedStore) error {
	switch {
	case v.Keyring != nil:
		return v.finishInKeyring(ctx, rows)
	case v.Key != nil:
		return v.SelectKey(ctx, rows)
	}
	key, err := os.ReadFile(v.newKeyPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	sealed, err := rows.KeyFingerprint(ctx)
	if err != nil {
		return err
	}
	if sealed != fingerprint(key) {
		err = os.Remove(v.newKeyPath())
	} else {
		err = os.Rename(v.newKeyPath(), v.keyFilePath())
	}
	if err != nil {
		return fmt.Errorf("the change of the key of secrets cannot be completed: %w", err)
	}
	syncFolder(filepath.Dir(v.keyFilePath()))
	return nil
}

// SelectKey makes the new key of the settings the vault's if values are sealed with it. It changes nothing else.
func (v *Vault) SelectKey(ctx context.Context, rows SealedStore) error {
	if v.NewKey == nil {
		return nil
	}
	sealed, err := rows.KeyFingerprint(ctx)
	if err == nil && sealed == fingerprint(v.NewKey) {
		v.Key = v.NewKey
	}
	return err
}
