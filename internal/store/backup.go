package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
)

// A backup is an SQLite file with the tables of the migrations, whatever kind of database it was made of. It can be
// restored into both kinds.

// backupID is the application id in the header of a backup.
const backupID = 0x53616e64

// Backup writes the database at where to a new file, as it is at one moment. A server may use the database meanwhile.
// With replace an existing file is replaced.
func Backup(ctx context.Context, where, file string, replace bool) (err error) {
	if _, err := os.Lstat(file); err == nil && !replace {
		return fault.New(fault.InvalidParameters, "%s exists; choose another name, or give --force", file)
	}
	s, err := Open(ctx, where)
	if err != nil {
		return err
	}
	return errors.Join(s.Backup(ctx, file, replace), s.Close())
}

// Backup is the function Backup for an open database.
func (s *DB) Backup(ctx context.Context, file string, replace bool) (err error) {
	ctx = withoutTimeout(ctx)
	temporary, remove, err := temporaryFile(file)
	if err != nil {
		return err
	}
	defer remove()
	if s.postgres {
		err = s.copyTo(ctx, temporary)
	} else {
		_, err = s.db.ExecContext(ctx, `VACUUM INTO ?`, temporary)
	}
	if err == nil {
		err = finishBackup(ctx, temporary)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	err = fs.ErrInvalid
	if !replace { // a link fails if the file exists by now; some file systems have none
		err = os.Link(temporary, file)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		err = os.Rename(temporary, file)
	}
	return errors.Join(err, atomicfile.Sync(filepath.Dir(file)))
}

// temporaryFile creates an empty file beside another one. remove removes it, and what SQLite makes beside it.
func temporaryFile(file string) (path string, remove func(), err error) {
	dir, err := os.MkdirTemp(filepath.Dir(file), ".sandlot-")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, "database")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		os.RemoveAll(dir)
		return "", nil, err
	}
	return path, func() { os.RemoveAll(dir) }, f.Close()
}

// copyTo copies what the database has at one moment to an SQLite file.
func (s *DB) copyTo(ctx context.Context, path string) (err error) {
	to := &DB{db: sqlitePool(path)}
	defer func() { err = errors.Join(err, to.Close()) }()
	if err := to.migrate(ctx); err != nil {
		return err
	}
	tables, err := tablesOf(ctx, to.db)
	if err != nil {
		return err
	}
	reading, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer reading.Rollback()
	writing, err := to.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer writing.Rollback()
	if err := replaceAll(ctx, reading, writing, tables); err != nil {
		return err
	}
	return writing.Commit()
}

// finishBackup marks a file as a backup, and leaves nothing of it in further files.
func finishBackup(ctx context.Context, path string) error {
	db := sqlitePool(path)
	db.SetMaxOpenConns(1)
	for _, statement := range []string{fmt.Sprintf(`PRAGMA application_id = %d`, backupID), `PRAGMA journal_mode = DELETE`} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return errors.Join(err, db.Close())
		}
	}
	return errors.Join(db.Close(), atomicfile.Sync(path))
}

// Exists reports whether there is a database at where. A PostgreSQL database is not asked.
func Exists(where string) bool {
	if IsPostgres(where) {
		return true
	}
	_, err := os.Stat(sqliteFile(where))
	return !errors.Is(err, fs.ErrNotExist)
}
