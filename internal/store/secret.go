package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"sandlot/internal/vault"
)

// PutSecret implements vault.Store.
func (s *DB) PutSecret(ctx context.Context, r vault.Record) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO secrets (principal, name, value, created, changed) VALUES (?,?,?,?,?)
		ON CONFLICT (principal, name) DO UPDATE SET value=excluded.value, changed=excluded.changed`,
		r.Owner, r.Name, r.Sealed, r.Created.UnixMilli(), r.Changed.UnixMilli())
	return err
}

// Secret implements vault.Store.
func (s *DB) Secret(ctx context.Context, owner, name string) (vault.Record, error) {
	r, err := scanSecret(s.db.QueryRowContext(ctx,
		`SELECT principal, name, value, created, changed FROM secrets WHERE principal = ? AND name = ?`, owner, name))
	if errors.Is(err, sql.ErrNoRows) {
		err = vault.ErrNone
	}
	return r, err
}

// Secrets implements vault.Store.
func (s *DB) Secrets(ctx context.Context, owner string) ([]vault.Record, error) {
	rows, err := s.db.QueryContext(ctx,
		`SELECT principal, name, value, created, changed FROM secrets WHERE principal = ? ORDER BY name`, owner)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []vault.Record
	for rows.Next() {
		r, err := scanSecret(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// RemoveSecret implements vault.Store.
func (s *DB) RemoveSecret(ctx context.Context, owner, name string) error {
	r, err := s.db.ExecContext(ctx, `DELETE FROM secrets WHERE principal = ? AND name = ?`, owner, name)
	if err != nil {
		return err
	}
	if n, _ := r.RowsAffected(); n == 0 {
		return vault.ErrNone
	}
	return nil
}

func scanSecret(row interface{ Scan(...any) error }) (vault.Record, error) {
	var r vault.Record
	var created, changed int64
	err := row.Scan(&r.Owner, &r.Name, &r.Sealed, &created, &changed)
	r.Created, r.Changed = time.UnixMilli(created).UTC(), time.UnixMilli(changed).UTC()
	return r, err
}
