package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/config"
	"sandlot/internal/secret"
	"sandlot/internal/store"
	"sandlot/internal/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// A server never sees the workspaces of sessions that are in another database: it would remove them.
func TestStateFolderBelongsToOneDatabase(t *testing.T) {
	c := config.Default()
	c.Server.StateDir = t.TempDir()
	log := slog.New(slog.DiscardHandler)
	starts := func(where string) error {
		c.Server.Store = secret.Value(where)
		m := maker{c: c, log: log, closing: &closers{}}
		_, err := m.openStore(t.Context())
		if closeErr := m.closing.run(); closeErr != nil {
			t.Error(closeErr)
		}
		return err
	}
	first, second := storetest.Database(t), storetest.Database(t)
	for _, where := range []string{"", first, second, "", first} { // nothing is lost yet
		if err := starts(where); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(c.Server.StateDir, "workspaces", "w"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, where := range []string{"", second} {
			if err := starts(where); err == nil || !strings.Contains(err.Error(), "sandlot restore") {
				t.Errorf("%q: %v", where, err)
			}
		}
		if err := starts(first); err != nil {
			t.Error(err)
		}
	}
	// A restore moves the folder to another database.
	for _, move := range [][2]string{{first, second}, {second, ""}, {"", first}} {
		file := filepath.Join(t.TempDir(), "backup")
		c.Server.Store = secret.Value(move[0])
		if err := Backup(t.Context(), c, file, false); err != nil {
			t.Fatal(err)
		}
		c.Server.Store = secret.Value(move[1])
		if _, err := Restore(t.Context(), c, log, file); err != nil {
			t.Fatal(err)
		}
		if err := starts(move[1]); err != nil {
			t.Error(err)
		}
		if err := starts(move[0]); err == nil {
			t.Errorf("%q is used again", move[0])
		}
	}
	// A restore waits for no server: it refuses.
	c.Server.Store = secret.Value(first)
	db, err := store.OpenServer(t.Context(), first, log)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := Restore(t.Context(), c, log, filepath.Join(t.TempDir(), "none")); err == nil ||
		!strings.Contains(err.Error(), "another Sandlot server uses") {
		t.Error(err)
	}
}
