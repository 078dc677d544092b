package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// A backup is an SQLite file with the tables of the migrations, whatever kind of database it was made of. It can be
// restored into both kinds.

// backupID is the application id in the header of a backup.
const backupID = 0x53616e64

// Backup writes the database to a new file, as it is at one moment. A server may use the database meanwhile. With
// replace an existing file is replaced.
func Backup(ctx context.Context, where, file string, replace bool) (err error) {
	ctx = withoutTimeout(ctx)
	if _, err := os.Lstat(file); err == nil && !replace {
		return fault.New(fault.InvalidParameters, "%s exists; choose another name, or give --force", file)
	}
	s, err := Open(ctx, where)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
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
	tables, err := tablesOf(ctx, to.db)
	if err != nil {
		return err
	}
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

// Restore replaces all that the database has by a backup's content, in one transaction. No server may use the database:
// for SQLite the caller has locked the state folder.
func (s *DB) Restore(ctx context.Context, file string) (err error) {
	ctx = withoutTimeout(ctx)
	dir, err := os.MkdirTemp("", "sandlot-restore-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "database")
	if err := copyFile(file, path); err != nil {
		return fault.Wrap(fault.InvalidParameters, err, "the backup %s cannot be read: %v", file, err)
	}
	from := &DB{db: sqlitePool(path)}
	defer func() { err = errors.Join(err, from.Close()) }()
	if err := from.checkBackup(ctx, filepath.Join(dir, "fresh")); err != nil {
		return fault.Wrap(fault.InvalidParameters, err, "%s cannot be restored: %v; nothing was changed", file, err)
	}
	return s.withDurability(ctx, func(c *sql.Conn) error { return s.replaceBy(ctx, from, c) })
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	if st, err := source.Stat(); err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, errors.New("it is no file"))
	}
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// checkBackup checks a copy of a backup, and brings it up to date. It makes a database in freshFile, to compare with.
func (s *DB) checkBackup(ctx context.Context, freshFile string) error {
	var id, others int
	if err := s.db.QueryRowContext(ctx, `PRAGMA application_id`).Scan(&id); err != nil {
		return fmt.Errorf("it is damaged, or no SQLite file: %w", err)
	}
	if id != backupID {
		return errors.New("it is no backup that sandlot backup has written")
	}
	var text string
	if err := s.db.QueryRowContext(ctx, `PRAGMA integrity_check`).Scan(&text); err != nil || text != "ok" {
		return errors.Join(fmt.Errorf("it is damaged: %s", text), err)
	}
	if err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index')`).
		Scan(&others); err != nil || others > 0 {
		return errors.Join(errors.New("it has triggers or views, which no backup has"), err)
	}
	if err := s.migrate(ctx); err != nil {
		return err
	}
	if err := s.checkTables(ctx, freshFile); err != nil {
		return err
	}
	var violations int
	err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM pragma_foreign_key_check`).Scan(&violations)
	if err == nil && violations > 0 {
		err = errors.New("it is damaged: rows refer to others that are not there")
	}
	return err
}

// checkTables checks that the database has the tables of the migrations, and no others. It makes a database in
// freshFile.
func (s *DB) checkTables(ctx context.Context, freshFile string) error {
	fresh := &DB{db: sqlitePool(freshFile)}
	defer fresh.Close()
	if err := fresh.migrate(ctx); err != nil {
		return err
	}
	want, err := tablesOf(ctx, fresh.db)
	if err != nil {
		return err
	}
	got, err := tablesOf(ctx, s.db)
	if err == nil && !reflect.DeepEqual(got, want) {
		err = errors.New("its tables are not those of its version")
	}
	return err
}

// replaceBy replaces the content of the database by that of another one of the same version.
func (s *DB) replaceBy(ctx context.Context, from *DB, c *sql.Conn) error {
	tables, err := tablesOf(ctx, from.db)
	if err != nil {
		return err
	}
	reading, err := from.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer reading.Rollback()
	writing, err := c.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer writing.Rollback()
	if err := replaceAll(ctx, reading, writing, tables); err != nil {
		return err
	}
	// The ids of events begin again at an earlier one, which clients must not take for those that they have seen.
	if _, err := writing.ExecContext(ctx, `UPDATE event_stream SET epoch = ?, open = 0`, secret.ID()[:8]); err != nil {
		return err
	}
	if s.postgres {
		if err := setIdentities(ctx, writing); err != nil {
			return err
		}
	}
	return writing.Commit()
}

// setIdentities makes the next ids of rows follow those that are there.
func setIdentities(ctx context.Context, tx *sql.Tx) error {
	type column struct{ table, name string }
	rows, err := tx.QueryContext(ctx, `SELECT table_name, column_name FROM information_schema.columns
		WHERE is_identity = 'YES' AND table_schema = current_schema()`)
	if err != nil {
		return err
	}
	defer rows.Close()
	var all []column
	for rows.Next() {
		var c column
		if err := rows.Scan(&c.table, &c.name); err != nil {
			return err
		}
		all = append(all, c)
	}
	if err := errors.Join(rows.Close(), rows.Err()); err != nil {
		return err
	}
	for _, c := range all {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf(`SELECT setval(pg_get_serial_sequence('%q', '%s'),
			coalesce(max(%q), 0) + 1, false) FROM %q`, c.table, c.name, c.name, c.table)); err != nil {
			return err
		}
	}
	return nil
}

// Exists reports whether there is a database at where. A PostgreSQL database is not asked.
func Exists(where string) bool {
	if IsPostgres(where) {
		return true
	}
	_, err := os.Stat(sqliteFile(where))
	return !errors.Is(err, fs.ErrNotExist)
}
