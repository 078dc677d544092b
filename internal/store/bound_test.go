package store

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/secret"
	"sandlot/internal/vault"
)

// Bound secrets survive a restart and a change of the key, with their hosts and placeholders. Who changes the hosts in
// the database gets nothing.
func TestBoundSecrets(t *testing.T) {
	dir := t.TempDir()
	db := open(t, dir)
	v := &vault.Vault{Store: db, KeyFile: filepath.Join(dir, "secrets.key"), CreateKey: true}
	to := vault.Binding{Hosts: []string{"api.test"}, Header: "X-Key"}
	if _, err := v.Set(t.Context(), "user:ann", "KEY", secret.Value("hunter2-bound"), &to); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Set(t.Context(), "user:ann", "PLAIN", secret.Value("hunter2-plain"), nil); err != nil {
		t.Fatal(err)
	}
	bound := func() []vault.BoundSecret {
		t.Helper()
		list, err := v.Bound(t.Context(), "user:ann")
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	first := bound()
	db.Close()
	db = open(t, dir)
	v.Store = db
	if n, dropped, err := v.Rekey(t.Context(), db, func(string, string) string { return "" }, false); n != 2 ||
		dropped != 0 || err != nil {
		t.Fatalf("%d, %d, %v", n, dropped, err)
	}
	again := bound()
	if len(again) != 1 || again[0].Value.Reveal() != "hunter2-bound" || again[0].Header != "X-Key" ||
		again[0].Hosts[0] != "api.test:443" || again[0].Placeholder != first[0].Placeholder {
		t.Errorf("after a change of the key: %+v", again)
	}
	if got, err := v.Reveal(t.Context(), "user:ann", "PLAIN"); err != nil || got.Reveal() != "hunter2-plain" {
		t.Errorf("the plain one: %q, %v", got.Reveal(), err)
	}
	if _, err := db.db.Exec(`UPDATE secrets SET binding = replace(binding, 'api.test', 'evil.test')`); err != nil {
		t.Fatal(err)
	}
	if got := bound(); len(got) > 0 {
		t.Errorf("with another host it opens: %+v", got)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "sandlot.db*"))
	for _, f := range files {
		if b, err := os.ReadFile(f); err != nil || bytes.Contains(b, []byte("hunter2")) {
			t.Errorf("%s has a value: %v", filepath.Base(f), err)
		}
	}
	if len(files) == 0 || !strings.Contains(files[0], "sandlot.db") {
		t.Error("there is no database")
	}
}
