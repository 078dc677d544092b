package store

import (
	"context"
	"database/sql"
	"errors"

	"sandlot/internal/vault"
)

// PutLogin implements vault.LoginStore.
func (s *DB) PutLogin(ctx context.Context, owner, connection string, sealed []byte) error {
	return s.lasting(ctx, `INSERT INTO logins (principal, connection, value) VALUES (?,?,?)
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
	return s.lasting(ctx, `DELETE FROM logins WHERE principal = ? AND connection = ?`, owner, connection)
}

// Logins implements vault.LoginStore.
func (s *DB) Logins(ctx context.Context) ([][2]string, error) {
	return s.pairs(ctx, `SELECT principal, connection FROM logins ORDER BY principal, connection`)
}

// pairs returns the rows of a query for two texts.
func (s *DB) pairs(ctx context.Context, query string) ([][2]string, error) {
	rows, err := s.db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all [][2]string
	for rows.Next() {
		var one [2]string
		if err := rows.Scan(&one[0], &one[1]); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// lasting changes something, and is back when that is on the disk. What the
// database does otherwise outlives a crash of the server, but not of the machine:
// a token that was given for another is then the only one that is good.
func (s *DB) lasting(ctx context.Context, statement string, values ...any) error {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.ExecContext(ctx, `PRAGMA synchronous=FULL`); err != nil {
		return err
	}
	defer c.ExecContext(context.WithoutCancel(ctx), `PRAGMA synchronous=NORMAL`) // else it is slower than it need be
	_, err = c.ExecContext(ctx, statement, values...)
	return err
}
