package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"sort"

	"sandlot/internal/fault"
)

// migrations are applied in the order of their names, to both kinds of databases. Each is written in SQLite's words;
// see rewrite.go.
//
//go:embed migrations/*.sql
var migrations embed.FS

func migrationNames() ([]string, error) {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	sort.Strings(names)
	return names, err
}

func (s *DB) migrate(ctx context.Context) error {
	names, err := migrationNames()
	if err != nil {
		return err
	}
	return s.migrateTo(ctx, names)
}

// migrateTo applies the first migrations, as far as they have not been applied.
func (s *DB) migrateTo(ctx context.Context, names []string) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if s.member { // migrations change rows of all principals, in this transaction
		if _, err := tx.ExecContext(ctx, `SELECT set_config('sandlot.replica', '', true)`); err != nil {
			return err
		}
	}
	version, err := s.version(ctx, tx)
	if err != nil {
		return err
	}
	if version < 0 {
		return fault.New(fault.Configuration, "it is damaged: no Sandlot writes the version %d", version)
	}
	if version > len(names) {
		return fault.New(fault.Configuration, "it was written by a newer Sandlot (version %d, this one knows %d)",
			version, len(names))
	}
	if version == len(names) {
		return nil
	}
	for _, name := range names[version:] {
		text, err := migrations.ReadFile(name)
		if err != nil {
			return err
		}
		statements := string(text)
		if s.postgres {
			statements = postgresMigration(statements)
		}
		if _, err := tx.ExecContext(ctx, statements); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := s.setVersion(ctx, tx, len(names)); err != nil {
		return err
	}
	return tx.Commit()
}

// version returns how many migrations were applied.
func (s *DB) version(ctx context.Context, tx *sql.Tx) (version int, err error) {
	statement := `PRAGMA user_version`
	if s.postgres {
		if _, err := tx.ExecContext(ctx, postgresState); err != nil {
			return 0, err
		}
		statement = `SELECT version FROM sandlot_state`
	}
	return version, tx.QueryRowContext(ctx, statement).Scan(&version)
}

func (s *DB) setVersion(ctx context.Context, tx *sql.Tx, version int) error {
	statement := fmt.Sprintf(`PRAGMA user_version = %d`, version)
	if s.postgres {
		statement = fmt.Sprintf(`UPDATE sandlot_state SET version = %d`, version)
	}
	_, err := tx.ExecContext(ctx, statement)
	return err
}
