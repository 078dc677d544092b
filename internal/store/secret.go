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
	_, err := s.db.ExecContext(ctx, `INSERT INTO secrets (principal, name, value, binding, created, changed)
		VALUES (?,?,?,?,?,?)
		ON CONFLICT (principal, name) DO UPDATE SET value=excluded.value, binding=excluded.binding,
		changed=excluded.changed`,
		r.Owner, r.Name, r.Sealed, r.Binding, r.Created.UnixMilli(), r.Changed.UnixMilli())
	return err
}

// Secret implements vault.Store.
func (s *DB) Secret(ctx context.Context, owner, name string) (vault.Record, error) {
	r, err := scanSecret(s.db.QueryRowContext(ctx,
		`SELECT `+secretColumns+` FROM secrets WHERE principal = ? AND name = ?`, owner, name))
	if errors.Is(err, sql.ErrNoRows) {
		err = vault.ErrNotFound
	}
	return r, err
}

// Secrets implements vault.Store.
func (s *DB) Secrets(ctx context.Context, owner string) ([]vault.Record, error) {
	return queryAll(ctx, s.db, scanSecret,
		`SELECT `+secretColumns+` FROM secrets WHERE principal = ? ORDER BY name`, owner)
}

// RemoveSecret implements vault.Store.
func (s *DB) RemoveSecret(ctx context.Context, owner, name string) error {
	return s.deleteRows(ctx, vault.ErrNotFound, `DELETE FROM secrets WHERE principal = ? AND name = ?`, owner, name)
}

const secretColumns = `principal, name, value, binding, created, changed`

func scanSecret(row scanner) (r vault.Record, err error) {
	var created, changed int64
	err = row.Scan(&r.Owner, &r.Name, &r.Sealed, &r.Binding, &created, &changed)
	r.Created, r.Changed = time.UnixMilli(created).UTC(), time.UnixMilli(changed).UTC()
	return r, err
}
