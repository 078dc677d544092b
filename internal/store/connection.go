package store

import (
	"context"
	"database/sql"
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
	type row struct {
		key  [2]string
		used bool
	}
	all, err := queryAll(ctx, s.db, func(columns scanner) (r row, err error) {
		var record sql.RawBytes
		if err := columns.Scan(&r.key[0], &r.key[1], &record); err != nil {
			return r, err
		}
		var state struct{ Configured, Off bool }
		r.used = json.Unmarshal(record, &state) != nil || !state.Configured && !state.Off
		return r, nil
	}, `SELECT owner, id, record FROM connections WHERE `+s.own("owner")+` ORDER BY owner, id`)
	var keys [][2]string
	for _, r := range all {
		if r.used {
			keys = append(keys, r.key)
		}
	}
	return keys, err
}

// RemoveConnection implements servers.Store.
func (s *DB) RemoveConnection(ctx context.Context, owner, id string) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM connections WHERE owner = ? AND id = ?`, owner, id)
	return err
}
