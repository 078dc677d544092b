package vault

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"

	"sandlot/internal/secret"
)

// BoundSecret is a bound secret with its value.
type BoundSecret struct {
	Name string
	Binding
	Value secret.Value
}

// Bound returns the bound secrets of a principal that can be read, sorted by name.
func (v *Vault) Bound(ctx context.Context, owner string) ([]BoundSecret, error) {
	all, err := v.Store.Secrets(ctx, owner)
	if err != nil {
		return nil, err
	}
	var list []BoundSecret
	for _, r := range all {
		b := readBinding(r.Binding)
		if b == nil {
			continue
		}
		value, unreadable, err := v.decrypt(r.Sealed, secretAdditionalData(owner, r.Name, r.Binding))
		if err != nil && !unreadable {
			return nil, err
		}
		if err == nil {
			list = append(list, BoundSecret{r.Name, *b, value})
		}
	}
	return list, nil
}

// Derive returns n bytes that the vault's key and a label determine, and that say nothing about the key.
func (v *Vault) Derive(label string, n int) ([]byte, error) {
	k, err := v.rawKey(false)
	if err != nil {
		return nil, err
	}
	return hkdf.Key(sha256.New, k, nil, "sandlot derived\x00"+label, n)
}
