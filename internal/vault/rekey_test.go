package vault

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// sealedRows are secrets and log-ins in memory, all changed at once.
type sealedRows struct {
	secrets *records
	logins  rows
	vars    rows // variables of sessions
	mark    string
	broken  error
	after   bool // it breaks when everything is stored
}

func (s *sealedRows) SealedRows(context.Context) (all []SealedRow, err error) {
	for k, r := range s.secrets.all {
		all = append(all, SealedRow{Owner: k[0], Name: k[1], Sealed: r.Sealed})
	}
	for k, b := range s.logins {
		all = append(all, SealedRow{Kind: SealedLogin, Owner: k[0], Name: k[1], Sealed: b})
	}
	for k, b := range s.vars {
		all = append(all, SealedRow{Kind: SealedVariables, Owner: k[0], Name: k[1], Sealed: b})
	}
	return all, nil
}

func (s *sealedRows) Reseal(_ context.Context, all []SealedRow, mark string) error {
	if s.broken != nil && !s.after {
		return s.broken
	}
	for _, r := range all {
		k := [2]string{r.Owner, r.Name}
		switch {
		case r.Kind == SealedVariables:
			s.vars[k] = r.Sealed
		case r.Kind == SealedLogin && r.Sealed == nil:
			delete(s.logins, k)
		case r.Kind == SealedLogin:
			s.logins[k] = r.Sealed
		case r.Sealed == nil:
			delete(s.secrets.all, k)
		default:
			o := s.secrets.all[k]
			o.Sealed = r.Sealed
			s.secrets.all[k] = o
		}
	}
	s.mark = mark
	return s.broken
}

func (s *sealedRows) KeyFingerprint(context.Context) (string, error) { return s.mark, nil }

// After a change of the key all is there as it was, the old key opens nothing, and
// whatever goes wrong leaves one key that opens everything.
func TestRekey(t *testing.T) {
	v, m := fresh(t)
	l := &Logins{Vault: v, Store: rows{}}
	all := &sealedRows{secrets: m, logins: l.Store.(rows), vars: rows{}}
	const there = "https://bank.example/mcp"
	address := func(owner, connection string) string {
		if connection == "lost" {
			return ""
		}
		return there
	}
	if _, _, err := v.Rekey(t.Context(), all, address, false); !fault.Is(err, fault.Configuration) {
		t.Errorf("without a key: %v", err)
	}
	set(t, v, ann, "A", "of ann")
	set(t, v, bob, "A", "of bob")
	if err := l.Save(t.Context(), ann, "x", there, "log-in of ann"); err != nil {
		t.Fatal(err)
	}
	sealedVars, err := v.SealVariables(ann, "s1", map[string]string{"A": "hunter2"})
	if err != nil {
		t.Fatal(err)
	}
	all.vars[[2]string{ann, "s1"}] = sealedVars
	whole := func(what string) {
		t.Helper()
		if got, err := v.OpenVariables(ann, "s1", all.vars[[2]string{ann, "s1"}]); err != nil || got["A"] != "hunter2" {
			t.Errorf("%s: variables %v, %v", what, got, err)
		}
		is(t, v, ann, "A", "of ann")
		is(t, v, bob, "A", "of bob")
		if got, err := l.Load(t.Context(), ann, "x", there); err != nil || got.Reveal() != "log-in of ann" {
			t.Errorf("%s: %q, %v", what, got.Reveal(), err)
		}
		if left, _ := filepath.Glob(v.KeyFile + ".*"); len(left) > 0 {
			t.Errorf("%s: %v is left", what, left)
		}
		if st, err := os.Stat(v.KeyFile); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", what, st, err)
		}
	}
	key := func() []byte { b, _ := os.ReadFile(v.KeyFile); return b }
	first, sealed := key(), bytes.Clone(m.row(ann, "A").Sealed)
	if n, dropped, err := v.Rekey(t.Context(), all, address, false); n != 4 || dropped != 0 || err != nil ||
		bytes.Equal(first, key()) {
		t.Errorf("%d, %d, %v", n, dropped, err)
	}
	whole("a change")
	if bytes.Equal(sealed, m.row(ann, "A").Sealed) {
		t.Error("it is stored as it was")
	}

	// It does not reach the store; it does, and the answer is an error.
	for _, after := range []bool{false, true} {
		before := key()
		all.broken, all.after = errors.New("no disk"), after
		if _, _, err := v.Rekey(t.Context(), all, address, false); !errors.Is(err, all.broken) ||
			bytes.Equal(before, key()) == after {
			t.Errorf("the store fails: %v", err)
		}
		all.broken = nil
		whole("the store fails")
	}
	// A crash before and after it is stored.
	now := key()
	if err := os.WriteFile(v.newKeyPath(), secret.Bytes(keySize), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := v.FinishRekey(t.Context(), all); err != nil || !bytes.Equal(now, key()) {
		t.Error(err)
	}
	whole("a crash before")
	if err := errors.Join(os.Rename(v.KeyFile, v.newKeyPath()), os.WriteFile(v.KeyFile, first, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := v.FinishRekey(t.Context(), all); err != nil || !bytes.Equal(now, key()) {
		t.Error(err)
	}
	whole("a crash after")

	// What does not open holds the change, until it may go.
	if err := l.Save(t.Context(), bob, "lost", there, "log-in of bob"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := v.Rekey(t.Context(), all, address, false); !fault.Is(err, fault.Configuration) ||
		!strings.Contains(err.Error(), "--drop") || !bytes.Equal(now, key()) {
		t.Errorf("one does not open: %v", err)
	}
	if n, dropped, err := v.Rekey(t.Context(), all, address, true); n != 4 || dropped != 1 || err != nil ||
		len(all.logins) != 1 {
		t.Errorf("%d, %d, %v", n, dropped, err)
	}
	whole("one is dropped")
}

// A key that others can read is refused, with what to do.
func TestKeyOfOthers(t *testing.T) {
	v, _ := fresh(t)
	set(t, v, ann, "A", "a")
	for mode, want := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o604: false, 0o644: false, 0o666: false,
		0o602: false, 0o660: false} {
		if err := os.Chmod(v.KeyFile, mode); err != nil {
			t.Fatal(err)
		}
		err := v.Check()
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "chmod 600 "+v.KeyFile) {
			t.Errorf("%04o: %v", mode, err)
		}
		if _, err := v.Reveal(t.Context(), ann, "A"); (err == nil) != want {
			t.Errorf("%04o: %v", mode, err)
		}
	}
}

// A key of the settings is used in place of a file, is changed to the one that the settings give, and a wrong one is
// found at the start.
func TestGivenKey(t *testing.T) {
	v, m := fresh(t)
	v.Key = secret.Bytes(32)
	all := &sealedRows{secrets: m, logins: rows{}}
	none := func(string, string) string { return "" }
	if err := errors.Join(v.Check(), v.CheckStored(t.Context(), all)); err != nil {
		t.Fatal(err)
	}
	set(t, v, ann, "A", "a")
	is(t, v, ann, "A", "a")
	if left, _ := os.ReadDir(filepath.Dir(v.KeyFile)); len(left) > 0 {
		t.Errorf("it made %v", left)
	}
	wrong := &Vault{Store: m, KeyFile: v.KeyFile, Key: secret.Bytes(32)}
	if err := wrong.CheckStored(t.Context(), all); !fault.Is(err, fault.Configuration) ||
		!strings.Contains(err.Error(), "SANDLOT_SECRETS_KEY") {
		t.Errorf("a wrong key: %v", err)
	}
	for what, key := range map[string][]byte{"none": nil, "the same": v.Key} {
		v.NewKey = key
		if _, _, err := v.Rekey(t.Context(), all, none, false); !fault.Is(err, fault.Configuration) ||
			!strings.Contains(err.Error(), "secrets.new_key") {
			t.Errorf("a new key, %s: %v", what, err)
		}
	}
	is(t, v, ann, "A", "a")
	v.NewKey = secret.Bytes(32)
	old, next := v.Key, v.NewKey
	if sealed, dropped, err := v.Rekey(t.Context(), all, none, false); err != nil || sealed != 1 || dropped != 0 {
		t.Fatalf("%d, %d, %v", sealed, dropped, err)
	}
	is(t, v, ann, "A", "a")
	for what, at := range map[string]*Vault{"the new one": {Store: m, Key: next},
		"both, as during the change": {Store: m, Key: old, NewKey: next}} {
		if err := errors.Join(at.FinishRekey(t.Context(), all), at.CheckStored(t.Context(), all)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		is(t, at, ann, "A", "a")
	}
	if err := (&Vault{Store: m, Key: old}).CheckStored(t.Context(), all); err == nil {
		t.Error("the old key opens something")
	}
}
