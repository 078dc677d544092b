package store

import (
	"context"
	"database/sql"
	"errors"

	"sandlot/internal/vault"
)

// SealedRows implements vault.SealedStore.
func (s *DB) SealedRows(ctx context.Context) ([]vault.SealedRow, error) {
	return queryAll(ctx, s.db, func(row scanner) (r vault.SealedRow, err error) {
		err = row.Scan(&r.Kind, &r.Owner, &r.Name, &r.Binding, &r.Sealed)
		return r, err
	}, `SELECT 0, principal, name, binding, value FROM secrets
		UNION ALL SELECT 1, principal, connection, '', value FROM logins
		UNION ALL SELECT 2, owner, id, '', variables FROM sessions WHERE length(variables) > 1`)
}

// Reseal implements vault.SealedStore.
func (s *DB) Reseal(ctx context.Context, rows []vault.SealedRow, fingerprint string) error {
	return s.withDurability(ctx, func(c *sql.Conn) error {
		if err := reseal(ctx, c, rows, fingerprint); err != nil {
			return err
		}
		// Values sealed with the old key must not remain in the write-ahead log. Those that PostgreSQL has are its
		// operator's; here the tables are written anew.
		statement := `PRAGMA wal_checkpoint(TRUNCATE)`
		if s.postgres {
			statement = `VACUUM FULL secrets, logins, sessions`
		}
		_, err := c.ExecContext(withoutTimeout(ctx), statement)
		return err
	})
}

func reseal(ctx context.Context, c *sql.Conn, rows []vault.SealedRow, fingerprint string) error {
	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, r := range rows {
		statement, args := resealStatement(r)
		if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO vault_key (one, fingerprint) VALUES (1, ?)
		ON CONFLICT (one) DO UPDATE SET fingerprint=excluded.fingerprint`, fingerprint); err != nil {
		return err
	}
	return tx.Commit()
}

// unreadable is stored for variables of a session that no key opens. The session has them still, so nothing starts in
// it without them.
var unreadable = []byte{0}

// resealStatement returns the statement that stores the new value of a row, or removes it, with its arguments.
func resealStatement(r vault.SealedRow) (statement string, args []any) {
	table, name := "secrets", "name"
	switch r.Kind {
	case vault.SealedLogin:
		table, name = "logins", "connection"
	case vault.SealedVariables:
		sealed := r.Sealed
		if sealed == nil {
			sealed = unreadable
		}
		return `UPDATE sessions SET variables = ? WHERE owner = ? AND id = ?`, []any{sealed, r.Owner, r.Name}
	}
	if r.Sealed == nil {
		return `DELETE FROM ` + table + ` WHERE principal = ? AND ` + name + ` = ?`, []any{r.Owner, r.Name}
	}
	return `UPDATE ` + table + ` SET value = ? WHERE principal = ? AND ` + name + ` = ?`,
		[]any{r.Sealed, r.Owner, r.Name}
}

// KeyFingerprint implements vault.SealedStore.
func (s *DB) KeyFingerprint(ctx context.Context) (string, error) {
	var f string
	err := s.db.QueryRowContext(ctx, `SELECT fingerprint FROM vault_key`).Scan(&f)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return f, err
}
