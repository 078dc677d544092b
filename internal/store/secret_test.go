package store

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"sandlot/internal/secret"
	"sandlot/internal/servers"
	"sandlot/internal/store/storetest"
	"sandlot/internal/vault"
)

var (
	_ vault.Store   = (*DB)(nil)
	_ servers.Store = (*DB)(nil)
)

func TestSecrets(t *testing.T) { storetest.Each(t, testSecrets) }

func testSecrets(t *testing.T, dir string) {
	db := open(t, dir)
	exact := at.Truncate(time.Millisecond)
	one := vault.Record{Owner: "user:ann", Name: "B", Sealed: []byte{0, 1, 255}, Created: exact, Changed: exact}
	two := vault.Record{Owner: "user:ann", Name: "A", Sealed: []byte("x"), Created: exact, Changed: exact}
	bobs := vault.Record{Owner: "user:bob", Name: "B", Sealed: []byte("y"), Created: exact, Changed: exact}
	keep := func(r vault.Record) {
		t.Helper()
		if err := db.PutSecret(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []vault.Record{one, two, bobs} {
		keep(r)
	}
	has := func(owner string, want ...vault.Record) {
		t.Helper()
		if got, err := db.Secrets(t.Context(), owner); err != nil || len(got) != len(want) ||
			len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
		}
	}
	has("user:ann", two, one)
	has("user:bob", bobs)
	has("user:eve")
	one.Sealed, one.Changed = []byte("new"), exact.Add(time.Hour)
	keep(vault.Record{Owner: one.Owner, Name: one.Name, Sealed: one.Sealed, Created: exact.Add(time.Minute),
		Changed: one.Changed})
	db.Close()
	db = open(t, dir)
	has("user:ann", two, one) // since when it is there never changes
	if got, err := db.Secret(t.Context(), "user:ann", "B"); err != nil || !reflect.DeepEqual(got, one) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, no := range [][2]string{{"user:eve", "B"}, {"user:bob", "A"}, {"user:ann", "b"}, {"user:ann", "%"},
		{"", ""}} {
		if _, err := db.Secret(t.Context(), no[0], no[1]); !errors.Is(err, vault.ErrNotFound) {
			t.Errorf("%q: %v", no, err)
		}
		if err := db.RemoveSecret(t.Context(), no[0], no[1]); !errors.Is(err, vault.ErrNotFound) {
			t.Errorf("removing %q: %v", no, err)
		}
	}
	if err := db.RemoveSecret(t.Context(), "user:ann", "B"); err != nil {
		t.Error(err)
	}
	has("user:ann", two)
	has("user:bob", bobs)
}

// Who changes the database cannot give one user's secret to another, and who
// reads it sees no value.
func TestSecretsAreSealed(t *testing.T) {
	dir := t.TempDir()
	db := open(t, dir)
	v := &vault.Vault{Store: db, KeyFile: filepath.Join(dir, "secrets.key"), CreateKey: true}
	for _, owner := range []string{"user:ann", "user:bob"} {
		if _, err := v.Set(t.Context(), owner, "KEY", secret.Value("hunter2 of "+owner), nil); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := v.Reveal(t.Context(), "user:ann", "KEY"); err != nil || got.Reveal() != "hunter2 of user:ann" {
		t.Fatalf("%q, %v", got.Reveal(), err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "sandlot.db*"))
	for _, f := range files {
		if b, err := os.ReadFile(f); err != nil || bytes.Contains(b, []byte("hunter2")) {
			t.Errorf("%s has the value: %v", f, err)
		}
	}
	for _, change := range []string{`UPDATE secrets SET value = (SELECT value FROM secrets WHERE principal = 'user:ann') WHERE principal = 'user:bob'`,
		`UPDATE secrets SET principal = 'user:eve' WHERE principal = 'user:ann'`} {
		if _, err := db.db.Exec(change); err != nil {
			t.Fatal(err)
		}
	}
	for _, owner := range []string{"user:bob", "user:eve"} {
		if got, err := v.Reveal(t.Context(), owner, "KEY"); err == nil {
			t.Errorf("%s has %q", owner, got.Reveal())
		}
		if list, err := v.List(t.Context(), owner); err != nil || len(list) != 1 || list[0].Readable {
			t.Errorf("%s lists %+v, %v", owner, list, err)
		}
	}
}

// before makes a database as it was with so many migrations.
func before(t *testing.T, place string, version int) *sql.DB {
	t.Helper()
	names, err := migrationNames()
	if err != nil || len(names) < version {
		t.Fatal(names, err)
	}
	old := &DB{}
	if IsPostgres(place) {
		p, err := newPostgres(place)
		if err != nil {
			t.Fatal(err)
		}
		old.db, old.postgres = p.pool(nil), true
	} else {
		old.db = sqlitePool(sqliteFile(place))
	}
	t.Cleanup(func() { old.Close() })
	if err := old.migrateTo(t.Context(), names[:version]); err != nil {
		t.Fatal(err)
	}
	return old.db
}

// A database of before there were secrets is taken over, with what is in it.
func TestSecretsComeToAnOlderDatabase(t *testing.T) {
	storetest.Each(t, testSecretsComeToAnOlderDatabase)
}

func testSecretsComeToAnOlderDatabase(t *testing.T, dir string) {
	old := before(t, dir, 4)
	if _, err := old.Exec(`SELECT * FROM secrets`); err == nil {
		t.Fatal("the older database has secrets")
	}
	for _, row := range []string{`INSERT INTO tokens VALUES ('tok_1', 'h', 'ann', false, 1, NULL)`,
		`INSERT INTO connections VALUES ('user:ann', 'aaaaaa', '{"Name":"x","EnvKeys":["KEY"],"HeaderKeys":null}', '{}')`} {
		if _, err := old.Exec(row); err != nil {
			t.Fatal(err)
		}
	}
	old.Close()
	db := open(t, dir)
	r := vault.Record{Owner: "user:ann", Name: "A", Sealed: []byte("x"), Created: at, Changed: at}
	if err := db.PutSecret(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if all, err := db.Tokens(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("tokens %v, %v", all, err)
	}
	all, err := db.Connections(t.Context(), "user:ann")
	if err != nil || len(all) != 1 || all[0].Name != "x" || len(all[0].EnvKeys) != 1 || all[0].Env != nil {
		t.Fatalf("connections %+v, %v", all, err)
	}
	all[0].Env = map[string]string{"KEY": "${secret:A}"}
	if err := db.PutConnection(t.Context(), all[0]); err != nil {
		t.Fatal(err)
	}
	db.Close()
	again, err := open(t, dir).Connections(t.Context(), "user:ann")
	if err != nil || !reflect.DeepEqual(again, all) {
		t.Errorf("stored %+v, %v\nwant %+v", again, err, all)
	}
}
