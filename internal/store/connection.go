package store

import (
	"context"
	"encoding/json"
	"fmt"

	"sandlot/internal/servers"
	"sandlot/internal/servers/catalog"
)

// PutConnection implements servers.Store.
func (s *DB) PutConnection(ctx context.Context, r servers.Record) error {
	catalogJSON, err := json.Marshal(r.Catalog)
	if err != nil {
		return err
	}
	r.Catalog = catalog.Catalog{}
	record, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, `INSERT INTO connections (owner, id, record, catalog) VALUES (?,?,?,?)
		ON CONFLICT (owner, id) DO UPDATE SET record=excluded.record, catalog=excluded.catalog`,
		r.Owner, r.ID, string(record), string(catalogJSON))
	return err
}

// Connections implements servers.Store.
func (s *DB) Connections(ctx context.Context, owner string) ([]servers.Record, error) {
	return queryAll(ctx, s.db, func(row scanner) (r servers.Record, err error) {
		var id, record, catalogJSON string
		if err := row.Scan(&id, &record, &catalogJSON); err != nil {
			return r, err
		}
		if err := json.Unmarshal([]byte(record), &r); err != nil {
			return r, fmt.Errorf("connection %s of %s: %w", id, owner, err)
		}
		if err := json.Unmarshal([]byte(catalogJSON), &r.Catalog); err != nil {
			// All tools are held back until they are approved.
			r.Catalog = catalog.Catalog{Pins: map[string]string{}, Loaded: true}
		}
		r.Owner, r.ID = owner, id
		return r, nil
	}, `SELECT id, record, catalog FROM connections WHERE owner = ? ORDER BY id`, owner)
}

// Connected implements servers.Store. It includes records that cannot be parsed.
func (s *DB) Connected(ctx context.Context) ([][2]string, error) {
	return s.queryPairs(ctx, `SELECT owner, id FROM connections WHERE NOT json_valid(record)
		OR (NOT coalesce(json_extract(CASE WHEN json_valid(record) THEN record END, '$.Configured'), 0)
			AND NOT coalesce(json_extract(CASE WHEN json_valid(record) THEN record END, '$.Off'), 0)) ORDER BY owner, id`)
}

// RemoveConnection implements servers.Store.
func (s *DB) RemoveConnection(ctx context.Context, owner, id string) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM connections WHERE owner = ? AND id = ?`, owner, id)
	return err
}
