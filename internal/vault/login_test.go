package vault

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// rows is a LoginStore in memory.
type rows map[[2]string][]byte

func (m rows) PutLogin(_ context.Context, owner, connection string, sealed []byte) error {
	m[[2]string{owner, connection}] = sealed
	return nil
}

func (m rows) Login(_ context.Context, owner, connection string) ([]byte, error) {
	if b, ok := m[[2]string{owner, connection}]; ok {
		return b, nil
	}
	return nil, ErrNoLogin
}

func (m rows) RemoveLogin(_ context.Context, owner, connection string) error {
	delete(m, [2]string{owner, connection})
	return nil
}

func (m rows) Logins(context.Context) (all [][2]string, err error) {
	for k := range m {
		all = append(all, k)
	}
	return all, nil
}

// What is sealed of a log-in opens for its principal, connection and address,
// with its key, and whole, alone; and is no secret.
func TestLogins(t *testing.T) {
	const there, elsewhere = "https://bank.example/mcp", "https://evil.example/mcp"
	v, secrets := fresh(t)
	m := rows{}
	l := &Logins{Vault: v, Store: m}
	keep := func(owner, connection, address, login string) {
		t.Helper()
		if err := l.Save(t.Context(), owner, connection, address, secret.Value(login)); err != nil {
			t.Fatal(err)
		}
	}
	opens := func(what, owner, connection, address, want string) {
		t.Helper()
		got, err := l.Load(t.Context(), owner, connection, address)
		if want != "" && (err != nil || got.Reveal() != want) ||
			want == "" && (got != "" || !fault.Is(err, fault.Configuration)) {
			t.Errorf("%s: %q, %v", what, got.Reveal(), err)
		}
	}
	none := func(what, owner string) {
		t.Helper()
		if got, err := l.Load(t.Context(), owner, "x", there); got != "" || err != nil {
			t.Errorf("%s: %q, %v", what, got.Reveal(), err)
		}
	}
	none("of none", ann)
	keep(ann, "x", there, "first of ann")
	keep(ann, "x", there, "of ann")
	keep(ann, "y", there, "other of ann")
	keep(bob, "x", there, "of bob")
	opens("as it was kept", ann, "x", there, "of ann")
	opens("another's", bob, "x", there, "of bob")
	opens("another address", ann, "x", elsewhere, "")
	own := m[[2]string{ann, "x"}]
	if bytes.Contains(own, []byte("of ann")) {
		t.Error("it is stored as it is")
	}
	turned := bytes.Clone(own)
	turned[len(turned)/2] ^= 1
	set(t, v, ann, "x", "a secret")
	for what, sealed := range map[string][]byte{"another connection's": m[[2]string{ann, "y"}],
		"another's": m[[2]string{bob, "x"}],
		"a cut one": own[:len(own)-1], "a changed one": turned, "an empty one": nil,
		"a secret's": secrets.row(ann, "x").Sealed} {
		m[[2]string{ann, "x"}] = sealed
		opens(what, ann, "x", there, "")
	}
	m[[2]string{ann, "x"}] = own
	opens("its own", ann, "x", there, "of ann")
	if err := l.Save(t.Context(), ann, "x", there, secret.Value(strings.Repeat("x", MaxLoginBytes+1))); err == nil {
		t.Error("one that is too large is kept")
	}
	if err := l.Forget(t.Context(), ann, "x"); err != nil {
		t.Error(err)
	}
	none("of one that was forgotten", ann)
	opens("another's", bob, "x", there, "of bob")

	if err := os.WriteFile(v.KeyFile, secret.Bytes(32), 0o600); err != nil {
		t.Fatal(err)
	}
	opens("with another key", bob, "x", there, "")
	if err := os.Remove(v.KeyFile); err != nil {
		t.Fatal(err)
	}
	opens("without its key", bob, "x", there, "")
	v.KeyFile, v.CreateKey = filepath.Join(t.TempDir(), "none"), false
	opens("with a key that is not there", bob, "x", there, "")
	if err := l.Save(t.Context(), bob, "x", there, "anew"); !fault.Is(err, fault.Configuration) {
		t.Errorf("kept with a key that is not there: %v", err)
	}
}
