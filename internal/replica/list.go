package replica

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
