package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"modernc.org/sqlite"
)

// sqliteFile returns the path of the database in a folder.
func sqliteFile(dir string) string { return filepath.Join(dir, "sandlot.db") }

// openSQLite opens the database in the folder dir, or creates it.
func openSQLite(ctx context.Context, dir string) (*DB, error) {
	path := sqliteFile(dir)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	f.Close()
	s, err := (&DB{db: sqlitePool(path)}).ready(ctx)
	if err != nil {
		return nil, fmt.Errorf("bringing the database %s up to date: %w", path, err)
	}
	return s, nil
}

// sqlitePool returns connections of an SQLite file.
func sqlitePool(path string) *sql.DB {
	dsn := (&url.URL{Scheme: "file", Path: path}).String() + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)" +
		"&_pragma=synchronous(NORMAL)&_pragma=secure_delete(1)&_pragma=foreign_keys(1)&_txlock=immediate"
	d := &sqlite.Driver{}
	db := sql.OpenDB(connector{func(context.Context) (driver.Conn, error) { return d.Open(dsn) }, d,
		&dialect{translate: sqliteFault}})
	db.SetMaxOpenConns(4)
	return db
}

// Codes of SQLite.
const (
	sqliteFull       = 13
	sqliteTooBig     = 18
	sqliteConstraint = 19
	sqliteMismatch   = 20
)

// sqliteFault translates the errors that the operator has to act on.
func sqliteFault(_ context.Context, err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) && e.Code()&0xff == sqliteFull {
		return diskFull(err)
	}
	return err
}
