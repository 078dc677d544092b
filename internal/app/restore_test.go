package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/secret"
	"sandlot/internal/session"
	"sandlot/internal/snapshot"
	"sandlot/internal/store"
)

// backupWith returns a backup of what fill stores.
func backupWith(t *testing.T, fill func(context.Context, *store.DB) error) []byte {
	t.Helper()
	dir := t.TempDir()
	db, err := store.Open(t.Context(), dir)
	if err == nil {
		err = errors.Join(fill(t.Context(), db), db.Backup(t.Context(), filepath.Join(dir, "backup"), false),
			db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "backup"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A backup with which the server would not start is refused.
func TestRestoreRefusesWhatDoesNotStart(t *testing.T) {
	c := config.Default()
	c.Server.StateDir = t.TempDir()
	log := slog.New(slog.DiscardHandler)
	empty := backupWith(t, func(context.Context, *store.DB) error { return nil })
	other := backupWith(t, func(ctx context.Context, db *store.DB) error {
		v := openVault(c, db)
		v.Key = bytes.Repeat([]byte{1}, 32)
		_, err := v.Set(ctx, "user:ann", "A", "hunter2", nil)
		return errors.Join(err, db.AddToken(ctx, auth.Token{ID: "new", Hash: "new", Owner: "user:new", User: "new",
			Created: time.Now()}))
	})
	for what, test := range map[string]struct {
		file []byte
		set  func(s *config.Server)
		want string
	}{
		"no tokens":    {empty, func(s *config.Server) { s.Host = "192.0.2.1" }, "there is no token yet"},
		"any web page": {empty, func(s *config.Server) { s.CORS, s.CORSOrigins = true, []string{"*"} }, "this server asks for no token"},
		"another key": {other, func(s *config.Server) { s.SecretsKey = secret.Value(strings.Repeat("1f", 32)) },
			"opens none"},
		"a part":  {empty[:len(empty)-1], func(*config.Server) {}, "damaged"},
		"nothing": {nil, func(*config.Server) {}, "not a backup"},
	} {
		was := c.Server
		test.set(&c.Server)
		_, err := restoresOf(c, log).Prepare(t.Context(), bytes.NewReader(test.file), int64(len(test.file)))
		if err == nil || !strings.Contains(err.Error(), test.want) ||
			!strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("%s: %v", what, err)
		}
		c.Server = was
		if last, err := restoresOf(c, log).Last(); last != nil || err != nil {
			t.Errorf("%s: %+v, %v", what, last, err)
		}
	}
	if _, err := restoresOf(c, log).Prepare(t.Context(), bytes.NewReader(empty[:100]), int64(len(empty))); err == nil ||
		!strings.Contains(err.Error(), "did not come whole") {
		t.Errorf("a broken transfer: %v", err)
	}
}

// One of several servers does not start with a restore that is pending, which it would confirm without having done it.
func TestRestoreIsNotShared(t *testing.T) {
	c := config.Default()
	c.Server.StateDir = t.TempDir()
	log := slog.New(slog.DiscardHandler)
	file := backupWith(t, func(context.Context, *store.DB) error { return nil })
	if _, err := restoresOf(c, log).Prepare(t.Context(), bytes.NewReader(file), int64(len(file))); err != nil {
		t.Fatal(err)
	}
	m := maker{c: c, log: log, closing: &closers{}, replicas: &replicas{}}
	if _, err := m.openStore(t.Context()); err == nil || !strings.Contains(err.Error(), "a restore is pending") {
		t.Error(err)
	}
}

// What belongs to snapshots of principals for whom a server does not act stays, too.
func TestKeptOfAll(t *testing.T) {
	db, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.PutSnapshot(t.Context(), snapshot.Record{ID: "1", Owner: "user:ann", Created: time.Now(),
		Content: session.Content{Image: "i", Workspace: "w"}}); err != nil {
		t.Fatal(err)
	}
	k := keptOfAll{snapshot.New(snapshot.Config{Store: db}), db} // which have read none
	workspaces, images, err := k.Kept(t.Context())
	if err != nil || len(workspaces) != 1 || workspaces[0] != "w" || len(images) != 1 || images[0] != "i" {
		t.Errorf("%q %q %v", workspaces, images, err)
	}
}
