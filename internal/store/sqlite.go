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
	"time"

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
	connect := func(ctx context.Context) (driver.Conn, error) {
		return whenFree(ctx, func() (driver.Conn, error) { return d.Open(dsn) })
	}
	db := sql.OpenDB(connector{connect, d, &dialect{translate: sqliteFault}})
	db.SetMaxOpenConns(4)
	return db
}

const (
	openTimeout = 10 * time.Second
	openPause   = 10 * time.Millisecond
)

// whenFree opens a connection, again while the file is busy. The first connection of a new file makes it one with a
// write-ahead log: for that it reads the file, and then wants to write. Who has read and wants to write is not made
// to wait by busy_timeout, since two of them would wait for each other: the second one of two servers that open a new
// file at once gets SQLITE_BUSY at once.
func whenFree(ctx context.Context, open func() (driver.Conn, error)) (driver.Conn, error) {
	began := time.Now()
	for {
		c, err := open()
		var e *sqlite.Error
		if !errors.As(err, &e) || e.Code()&0xff != sqliteBusy || time.Since(began) > openTimeout {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(openPause):
		}
	}
}

// Codes of SQLite.
const (
	sqliteBusy       = 5
	sqliteFull       = 13
	sqliteNoIndex    = 19<<8 | 10 // SQLITE_IOERR_SHMSIZE: the index of the write-ahead log cannot grow
	sqliteTooBig     = 18
	sqliteConstraint = 19
	sqliteMismatch   = 20
)

// sqliteFault translates the errors that the operator has to act on.
func sqliteFault(_ context.Context, err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) && (e.Code()&0xff == sqliteFull || e.Code() == sqliteNoIndex) {
		return diskFull(err)
	}
	return err
}
