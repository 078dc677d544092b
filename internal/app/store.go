package app

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"sandlot/internal/atomicfile"
	"sandlot/internal/audit"
	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/store"
	"sandlot/internal/telemetry"
)

// records are what the server stores, and the events.
type records struct {
	store     *store.DB
	events    *event.Stream
	telemetry *telemetry.Exporter // nil: there is no collector
	recorder  *audit.Recorder     // nil: events are only in memory
}

func (m maker) openRecords(ctx context.Context) (r records, err error) {
	r.events = event.New()
	if r.store, err = m.openStore(ctx); err != nil {
		return r, err
	}
	if r.telemetry, err = m.openTelemetry(ctx, r.events); err != nil {
		return r, err
	}
	r.recorder, err = m.recordEvents(ctx, r.store, r.events)
	return r, err
}

// openStore opens the database of the settings, and completes a restore that is pending.
func (m maker) openStore(ctx context.Context) (*store.DB, error) {
	if m.replicas != nil {
		return m.openShared(ctx)
	}
	folder, err := readReplicaID(m.c.Server.StateDir)
	if err != nil {
		return nil, err
	}
	db, err := store.OpenServerOf(ctx, m.c.Server.Database(), folder, m.log)
	if err != nil {
		if m.c.Server.Store != "" {
			return nil, err // which names the database
		}
		return nil, fault.Wrap(fault.Configuration, err, "the database in %s cannot be used: %v",
			m.c.Server.StateDir, err)
	}
	m.closing.add(db.Close)
	if err := checkDatabase(ctx, m.c, db, false); err != nil {
		return nil, err
	}
	return db, restoresOf(m.c, m.log).Apply(ctx, db)
}

// A Database is what commands use of the database of a server that need not run.
type Database interface {
	auth.Store
	VerifyEvents(ctx context.Context) (audit.Report, error)
}

// UseDatabase calls use with the database of the settings, which it makes if there is none.
func UseDatabase(ctx context.Context, c *config.Config, use func(Database) error) error {
	if err := os.MkdirAll(c.Server.StateDir, 0o700); err != nil {
		return err
	}
	db, err := store.Open(ctx, c.Server.Database())
	if err != nil {
		return err
	}
	return errors.Join(use(db), db.Close())
}

// databaseFile is the file of the state folder with the id of the PostgreSQL database that the folder belongs to.
const databaseFile = "database"

// checkDatabase checks that the database is the one whose sessions have the workspaces of the state folder: the
// server removes all others. With adopt, the state folder belongs to the database from now on.
func checkDatabase(ctx context.Context, c *config.Config, db *store.DB, adopt bool) error {
	id, err := db.ID(ctx)
	if err != nil {
		return err
	}
	path := filepath.Join(c.Server.StateDir, databaseFile)
	was, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if string(was) == id {
		return nil
	}
	workspaces, err := filepath.Glob(filepath.Join(c.Server.StateDir, "workspaces", "[^.]*"))
	if err != nil {
		return err
	}
	if len(workspaces) > 0 && !adopt {
		return fault.New(fault.Configuration,
			"the state folder %s has workspaces of sessions in another database than "+
				"the one of the setting store, and the server would remove them; put the sessions into this database "+
				"(sandlot backup FILE with the earlier value of store, then sandlot restore FILE with the new one), "+
				"name another folder with --state-dir, or move %s away", c.Server.StateDir,
			filepath.Join(c.Server.StateDir, "workspaces"))
	}
	if id == "" {
		return os.Remove(path)
	}
	return atomicfile.WriteThrough(path, []byte(id))
}
