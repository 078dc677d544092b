package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"sandlot/internal/mcpsession"
	"sandlot/internal/secret"
)

// PutMCPSession implements mcpsession.Store.
func (s *DB) PutMCPSession(ctx context.Context, r mcpsession.Record) error {
	said, err := json.Marshal(r.Initialize)
	if err != nil {
		return err
	}
	group, limit := r.Group()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, `INSERT INTO mcp_sessions (hash, principal, token, view, counted, said, used)
		VALUES (?,?,?,?,?,?,?) ON CONFLICT (hash) DO UPDATE SET said=excluded.said, used=excluded.used`,
		secret.Hash(r.ID), r.Principal, r.Token, r.View, group, string(said), r.Used.UnixMilli()); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM mcp_sessions WHERE hash IN (SELECT hash FROM mcp_sessions
		WHERE counted = ? ORDER BY used DESC, hash LIMIT 1000000 OFFSET ?)`, group, limit); err != nil {
		return err
	}
	return tx.Commit()
}

// MCPSession implements mcpsession.Store.
func (s *DB) MCPSession(ctx context.Context, id string) (r mcpsession.Record, found bool, err error) {
	var said string
	var used int64
	err = s.db.QueryRowContext(ctx, `SELECT principal, token, view, said, used FROM mcp_sessions WHERE hash = ?`,
		secret.Hash(id)).Scan(&r.Principal, &r.Token, &r.View, &said, &used)
	if errors.Is(err, sql.ErrNoRows) {
		return r, false, nil
	}
	if err != nil {
		return r, false, err
	}
	r.ID, r.Used = id, time.UnixMilli(used).UTC()
	return r, json.Unmarshal([]byte(said), &r.Initialize) == nil, nil
}

// RemoveMCPSession implements mcpsession.Store.
func (s *DB) RemoveMCPSession(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM mcp_sessions WHERE hash = ?`, secret.Hash(id))
	return err
}

// RemoveMCPSessions implements mcpsession.Store.
func (s *DB) RemoveMCPSessions(ctx context.Context, before time.Time) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM mcp_sessions WHERE used < ?`, before.UnixMilli())
	return err
}
