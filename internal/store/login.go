package store

import (
	"context"
	"database/sql"
	"errors"

	"sandlot/internal/vault"
)

// PutLogin implements vault.LoginStore.
func (s *DB) PutLogin(ctx context.Context, owner, connection string, sealed []byte) error {
	return s.execDurably(ctx, `INSERT INTO logins (principal, connection, value) VALUES (?,?,?)
		ON CONFLICT (principal, connection) DO UPDATE SET value=excluded.value`, owner, connection, sealed)
}

// Login implements vault.LoginStore.
func (s *DB) Login(ctx context.Context, owner, connection string) ([]byte, error) {
	var sealed []byte
	err := s.db.QueryRowContext(ctx, `SELECT value FROM logins WHERE principal = ? AND connection = ?`, owner,
		connection).Scan(&sealed)
	if errors.Is(err, sql.ErrNoRows) {
		err = vault.ErrNoLogin
	}
	return sealed, err
}

// RemoveLogin implements vault.LoginStore.
func (s *DB) RemoveLogin(ctx context.Context, owner, connection string) error {
	return s.execDurably(ctx, `DELETE FROM logins WHERE principal = ? AND connection = ?`, owner, connection)
}

// Logins implements vault.LoginStore.
func (s *DB) Logins(ctx context.Context) ([][2]string, error) {
	return s.queryPairs(ctx, `SELECT principal, connection FROM logins WHERE `+s.own("principal")+
		` ORDER BY principal, connection`)
}

// queryPairs returns the rows of a query with two text columns.
func (s *DB) queryPairs(ctx context.Context, query string) ([][2]string, error) {
	return queryAll(ctx, s.db, func(row scanner) (one [2]string, err error) {
		err = row.Scan(&one[0], &one[1])
		return one, err
	}, query)
}

// execDurably executes a statement durably.
func (s *DB) execDurably(ctx context.Context, statement string, values ...any) error {
	return s.withDurability(ctx, func(c *sql.Conn) error {
		_, err := c.ExecContext(ctx, statement, values...)
		return err
	})
}
