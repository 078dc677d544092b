package vault

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// keys is a keyring in memory, which breaks at the act with the number breakAt, before or after that is done.
type keys struct {
	all     map[string]string
	acts    int
	breakAt int
	after   bool
}

var errKeyring = errors.New("it is locked")

func (k *keys) act(do func()) error {
	k.acts++
	if k.acts == k.breakAt && !k.after {
		return errKeyring
	}
	do()
	if k.acts == k.breakAt {
		return errKeyring
	}
	return nil
}

func (k *keys) Get(name string) (key []byte, err error) {
	if err := k.act(func() {}); err != nil {
		return nil, err
	}
	if text, there := k.all[name]; there {
		return []byte(text), nil
	}
	return nil, fs.ErrNotExist
}

func (k *keys) Set(name string, key []byte) error { return k.act(func() { k.all[name] = string(key) }) }
func (k *keys) Remove(name string) error          { return k.act(func() { delete(k.all, name) }) }

// inKeyring returns a vault whose key is in a keyring, and what it stores.
func inKeyring(t *testing.T) (*Vault, *keys, *sealedRows) {
	t.Helper()
	v, m := fresh(t)
	k := &keys{all: map[string]string{}}
	v.Keyring, v.KeyName, v.CreateKey = k, "sandlot", false
	return v, k, &sealedRows{secrets: m, logins: rows{}}
}

// start does what a server does at its start.
func start(t *testing.T, v *Vault, all *sealedRows) error {
	t.Helper()
	v.Key = nil
	err := v.FinishRekey(t.Context(), all)
	if err == nil {
		err = v.OpenKeyring(t.Context(), all)
	}
	if err == nil {
		err = errors.Join(v.Check(), v.CheckStored(t.Context(), all))
	}
	return err
}

func anyAddress(string, string) string { return "" }

// The key is made in the keyring, once, and is never in a file. Without it nothing starts that would need it.
func TestKeyInKeyring(t *testing.T) {
	v, k, all := inKeyring(t)
	if _, _, err := v.Rekey(t.Context(), all, anyAddress, false); !fault.Is(err, fault.Configuration) {
		t.Errorf("without a key: %v", err)
	}
	for range 2 {
		if err := start(t, v, all); err != nil || len(k.all) != 1 || len(k.all["sandlot"]) != keySize {
			t.Fatalf("%v, %q", err, k.all)
		}
	}
	set(t, v, ann, "A", "of ann")
	if err := start(t, v, all); err != nil {
		t.Fatal(err)
	}
	is(t, v, ann, "A", "of ann")
	if n, _, err := v.Rekey(t.Context(), all, anyAddress, false); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := start(t, v, all); err != nil || len(k.all) != 1 {
		t.Errorf("%v, %d keys", err, len(k.all))
	}
	is(t, v, ann, "A", "of ann")
	if _, err := os.Stat(v.KeyFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file: %v", err)
	}
	good := maps.Clone(k.all)
	k.all["sandlot"] = string(secret.Bytes(keySize))
	if err := start(t, v, all); err == nil || !strings.Contains(err.Error(), "in the keyring, as sandlot") {
		t.Errorf("another key: %v", err)
	}
	delete(k.all, "sandlot")
	if err := start(t, v, all); err == nil || !strings.Contains(err.Error(), "store the key again") || len(k.all) > 0 {
		t.Errorf("without the key: %v", err)
	}
	k.all = good
	if err := start(t, v, all); err != nil {
		t.Error(err)
	}
	is(t, v, ann, "A", "of ann")
	delete(k.all, "sandlot")
	if _, dropped, err := v.Rekey(t.Context(), all, anyAddress, true); dropped != 1 || err != nil {
		t.Errorf("%d, %v", dropped, err)
	}
	if err := start(t, v, all); err != nil {
		t.Error(err)
	}
}

// A key of a file is replaced by one in the keyring, and the file is removed.
func TestMoveToKeyring(t *testing.T) {
	v, k, all := inKeyring(t)
	if err := (&Vault{KeyFile: v.KeyFile}).writeKey(v.KeyFile, secret.Bytes(keySize)); err != nil {
		t.Fatal(err)
	}
	set(t, &Vault{Store: v.Store, KeyFile: v.KeyFile, CreateKey: true}, ann, "A", "of ann")
	if err := start(t, v, all); err == nil || !strings.Contains(err.Error(), "secret rekey") || len(k.all) > 0 {
		t.Errorf("%v, %d keys", err, len(k.all))
	}
	if n, _, err := v.Rekey(t.Context(), all, anyAddress, false); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if _, err := os.Stat(v.KeyFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file: %v", err)
	}
	if err := start(t, v, all); err != nil {
		t.Fatal(err)
	}
	is(t, v, ann, "A", "of ann")
}

// Whatever the keyring fails to do, before or after it is done, the next start has a key that opens everything.
func TestKeyringFails(t *testing.T) {
	for _, fromFile := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			for at := 1; ; at++ {
				v, k, all := inKeyring(t)
				if fromFile {
					set(t, &Vault{Store: v.Store, KeyFile: v.KeyFile, CreateKey: true}, ann, "A", "of ann")
				} else {
					if err := start(t, v, all); err != nil {
						t.Fatal(err)
					}
					set(t, v, ann, "A", "of ann")
				}
				what := fmt.Sprintf("from a file %t, act %d, done %t", fromFile, at, after)
				k.acts, k.breakAt, k.after = 0, at, after
				_, _, err := v.Rekey(t.Context(), all, anyAddress, false)
				reached := k.acts >= at
				if reached && !errors.Is(err, errKeyring) {
					t.Errorf("%s: %v", what, err)
				}
				k.breakAt = 0
				if err := start(t, v, all); err != nil && (!fromFile ||
					!strings.Contains(err.Error(), "secret rekey")) {
					t.Fatalf("%s: %v", what, err)
				} else if err != nil { // nothing had changed: the key is still in the file
					v.Key = nil
					if _, _, err := v.Rekey(t.Context(), all, anyAddress, false); err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					if err := start(t, v, all); err != nil {
						t.Fatalf("%s: %v", what, err)
					}
				}
				is(t, v, ann, "A", "of ann")
				if names := slices.Collect(maps.Keys(k.all)); len(names) != 1 {
					t.Errorf("%s: the keyring has %q", what, names)
				}
				if !reached {
					break
				}
			}
		}
	}
}
