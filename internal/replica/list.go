package replica

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"sandlot/internal/fault"
)

// Server is a server as people see it.
type Server struct {
	ID         string    `json:"id"`
	Address    string    `json:"address"`
	Version    string    `json:"version"`
	Started    time.Time `json:"started"`
	Alive      bool      `json:"alive"`      // it holds its lock
	Principals int       `json:"principals"` // that it acts for, or would if it were there
}

// List returns the servers, the earliest first.
func List(ctx context.Context, postgres *pgx.ConnConfig) ([]Server, error) {
	c, err := pgx.ConnectConfig(ctx, postgres.Copy())
	if err != nil {
		return nil, err
	}
	defer c.Close(ctx)
	rows, err := c.Query(ctx, `SELECT r.id, r.address, r.version, r.started,
		NOT pg_try_advisory_xact_lock_shared($1, r.slot), (SELECT count(*) FROM sandlot_owners o WHERE o.slot = r.slot)
		FROM sandlot_replicas r ORDER BY r.started, r.id`, lockClass)
	if err != nil {
		return nil, missing(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Server, err error) {
		return s, row.Scan(&s.ID, &s.Address, &s.Version, &s.Started, &s.Alive, &s.Principals)
	})
	return all, missing(err)
}

// missing returns nil for the error that there are no tables: no server with replicas has used the database.
func missing(err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "42P01" { // undefined_table
		return nil
	}
	return err
}

// Alone is called by a server that is to be the only one of its database, and has locked it. It fails if other state
// folders have sessions: the server would make empty workspaces for them. id is that of the server's state folder, empty
// if it has none.
func Alone(ctx context.Context, postgres *pgx.ConnConfig, id string) error {
	c, err := pgx.ConnectConfig(ctx, postgres.Copy())
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		var exists bool
		if err := tx.QueryRow(ctx, `SELECT to_regclass('sandlot_owners') IS NOT NULL`).Scan(&exists); err != nil || !exists {
			return err
		}
		var address string
		err := tx.QueryRow(ctx, `SELECT r.address FROM sandlot_replicas r WHERE r.id <> $1 AND EXISTS (SELECT 1
			FROM sandlot_owners o WHERE o.slot = r.slot AND (EXISTS (SELECT 1 FROM sessions
			WHERE sandlot_unit(owner) = o.principal) OR EXISTS (SELECT 1 FROM snapshots
			WHERE sandlot_unit(owner) = o.principal))) LIMIT 1`, id).Scan(&address)
		if err == nil {
			return fault.New(fault.Configuration, "sessions in the PostgreSQL database have their files on the machine of "+
				"another server (%s), so a server without replicas cannot use it; set replicas.address, or remove those "+
				"sessions on that server first", address)
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM sandlot_owners; DELETE FROM sandlot_replicas`)
		return err
	})
}
