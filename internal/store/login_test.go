package store

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sandlot/internal/secret"
	"sandlot/internal/store/storetest"
	"sandlot/internal/vault"
)

var _ vault.LoginStore = (*DB)(nil)

func TestLogins(t *testing.T) { storetest.Each(t, testLogins) }

func testLogins(t *testing.T, dir string) {
	db := open(t, dir)
	put := func(owner, connection, value string) {
		t.Helper()
		if err := db.PutLogin(t.Context(), owner, connection, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	has := func(owner, connection, want string) {
		t.Helper()
		got, err := db.Login(t.Context(), owner, connection)
		if want == "" && !errors.Is(err, vault.ErrNoLogin) || want != "" && (err != nil || string(got) != want) {
			t.Errorf("%s of %s is %q, %v; want %q", connection, owner, got, err, want)
		}
	}
	put("user:ann", "a", "1")
	put("user:ann", "b", "2")
	put("user:bob", "a", "3")
	put("user:ann", "a", "4")
	db.Close()
	db = open(t, dir)
	has("user:ann", "a", "4")
	has("user:ann", "b", "2")
	has("user:bob", "a", "3")
	has("user:bob", "b", "")
	has("user:eve", "a", "")
	for range 2 { // one that is not there is no error
		if err := db.RemoveLogin(t.Context(), "user:ann", "a"); err != nil {
			t.Error(err)
		}
	}
	has("user:ann", "a", "")
	has("user:bob", "a", "3")
	if all, err := db.Logins(t.Context()); err != nil ||
		!slices.Equal(all, [][2]string{{"user:ann", "b"}, {"user:bob", "a"}}) {
		t.Errorf("all are %q, %v", all, err)
	}
}

// Who changes the database cannot give one user's log-in to another, and who
// reads it sees no token.
func TestLoginsAreSealed(t *testing.T) {
	dir := t.TempDir()
	db := open(t, dir)
	l := &vault.Logins{Vault: &vault.Vault{KeyFile: filepath.Join(dir, "secrets.key"), CreateKey: true}, Store: db}
	for _, owner := range []string{"user:ann", "user:bob"} {
		if err := l.Save(t.Context(), owner, "c", "https://a.example", secret.Value("hunter2 of "+owner)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.db.ExecContext(t.Context(),
		`UPDATE logins SET value = (SELECT value FROM logins WHERE principal = 'user:ann') WHERE principal = 'user:bob'`); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Load(t.Context(), "user:bob", "c", "https://a.example"); err == nil || got != "" {
		t.Errorf("bob has %q", got.Reveal())
	}
	if got, err := l.Load(t.Context(), "user:ann", "c", "https://a.example"); err != nil ||
		got.Reveal() != "hunter2 of user:ann" {
		t.Errorf("ann has %q, %v", got.Reveal(), err)
	}
	files := 0
	err := filepath.WalkDir(dir, func(f string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(f)
		files++
		if bytes.Contains(b, []byte("hunter2")) || bytes.Contains(b, []byte("a.example")) {
			t.Errorf("%s has a value", e.Name())
		}
		return err
	})
	if err != nil || files < 2 {
		t.Errorf("%d files, %v", files, err)
	}
}

// A change that has to last is on the disk, and leaves the others as they are.
func TestLasting(t *testing.T) {
	db := open(t, t.TempDir())
	db.db.SetMaxOpenConns(1) // the connection that made it
	level := func() (n int) {
		t.Helper()
		if err := db.db.QueryRowContext(t.Context(), `PRAGMA synchronous`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := level(); n != 1 {
		t.Fatalf("synchronous is %d", n)
	}
	if _, err := db.db.ExecContext(t.Context(), `CREATE TABLE seen (level INT)`); err != nil {
		t.Fatal(err)
	}
	if err := db.execDurably(t.Context(), `INSERT INTO seen SELECT synchronous FROM pragma_synchronous`); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := db.db.QueryRowContext(t.Context(), `SELECT level FROM seen`).Scan(&n); err != nil || n != 2 {
		t.Errorf("the change was made with %d, %v", n, err)
	}
	if n := level(); n != 1 {
		t.Errorf("afterwards synchronous is %d", n)
	}
}

// Nothing of a row that was removed or replaced is left in the database's file.
func TestRemovedLoginIsGone(t *testing.T) {
	dir := t.TempDir()
	db, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	mark := func(c string) []byte { return bytes.Repeat([]byte("sealed-"+c+";"), 60) }
	for _, c := range []string{"a", "b", "c", "d"} {
		if err := db.PutLogin(t.Context(), "user:x", c, mark(c)); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.RemoveLogin(t.Context(), "user:x", "b"); err != nil {
		t.Fatal(err)
	}
	if err := db.PutLogin(t.Context(), "user:x", "c", []byte("another")); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	for c, want := range map[string]bool{"a": true, "b": false, "c": false, "d": true} {
		if got := bytes.Contains(all, mark(c)[:20]); got != want {
			t.Errorf("%s is there: %v", c, got)
		}
	}
}
