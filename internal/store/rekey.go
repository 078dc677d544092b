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
		err = row.Scan(&r.Login, &r.Owner, &r.Name, &r.Binding, &r.Sealed)
		return r, err
	}, `SELECT 0, principal, name, binding, value FROM secrets
		UNION ALL SELECT 1, principal, connection, '', value FROM logins`)
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
			statement = `VACUUM FULL secrets, logins`
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
		table, name := "secrets", "name"
		if r.Login {
			table, name = "logins", "connection"
		}
		statement := `UPDATE ` + table + ` SET value = ? WHERE principal = ? AND ` + name + ` = ?`
		args := []any{r.Sealed, r.Owner, r.Name}
		if r.Sealed == nil {
			statement, args = `DELETE FROM `+table+` WHERE principal = ? AND `+name+` = ?`, args[1:]
		}
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

// KeyFingerprint implements vault.SealedStore.
func (s *DB) KeyFingerprint(ctx context.Context) (string, error) {
	var f string
	err := s.db.QueryRowContext(ctx, `SELECT fingerprint FROM vault_key`).Scan(&f)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return f, err
}
