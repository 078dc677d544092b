package replica

import (
	"context"

	"github.com/jackc/pgx/v5"

	"sandlot/internal/fault"
	"sandlot/internal/store"
)

// Unknown stands, in place of an address, for a server that no row says anything of: what nobody owns has its files there.
const Unknown = "unknown"

// Removed is what Remove gives up, or has given up.
type Removed struct{ Sessions, Snapshots int }

// Remove removes the server at an address, which does not live: its principals, and what is stored of their sessions and
// snapshots, whose files only its machine has. Other servers can claim the principals then. Those do not load sessions of
// a unit that they claim, so no session stays. With dry, nothing is changed.
func Remove(ctx context.Context, postgres *pgx.ConnConfig, address string, dry bool) (r Removed, err error) {
	c, err := pgx.ConnectConfig(ctx, postgres.Copy())
	if err != nil {
		return r, err
	}
	defer c.Close(ctx)
	tx, err := c.Begin(ctx)
	if err != nil {
		return r, err
	}
	defer tx.Rollback(ctx)
	var shared bool
	if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock_shared($1)`, int64(store.LockOfServer)).
		Scan(&shared); err != nil {
		return r, err
	}
	if !shared {
		return r, fault.New(fault.Configuration, "a server without replicas.address uses the database; it acts for all")
	}
	slots, err := deadSlots(ctx, tx, address)
	if missing(err) == nil && err != nil || err == nil && len(slots) == 0 && address != Unknown {
		return r, fault.New(fault.InvalidParameters, "no server at %q is away; `sandlot replicas` lists the servers", address)
	}
	if err != nil {
		return r, err
	}
	// Nobody claims meanwhile.
	if _, err := tx.Exec(ctx, `LOCK TABLE sandlot_owners IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return r, err
	}
	units := `sandlot_unit(owner) IN (SELECT principal FROM sandlot_owners WHERE slot = ANY($1::int[]))`
	if address == Unknown {
		units = `cardinality($1::int[]) = 0 AND sandlot_unit(owner) NOT IN (SELECT principal FROM sandlot_owners)`
	}
	for _, table := range []struct {
		name string
		rows *int
	}{{"snapshots", &r.Snapshots}, {"sessions", &r.Sessions}} {
		tag, err := tx.Exec(ctx, `DELETE FROM `+table.name+` WHERE `+units, slots)
		if err != nil {
			return r, err
		}
		*table.rows = int(tag.RowsAffected())
	}
	if dry {
		return r, nil
	}
	for _, statement := range []string{`DELETE FROM sandlot_owners WHERE slot = ANY($1::int[])`,
		`DELETE FROM sandlot_replicas WHERE slot = ANY($1::int[])`} {
		if _, err := tx.Exec(ctx, statement, slots); err != nil {
			return r, err
		}
	}
	if _, err := tx.Exec(ctx, `SELECT pg_notify($1, '')`, channel); err != nil {
		return r, err
	}
	return r, tx.Commit(ctx)
}

// deadSlots returns the rows of servers at an address that do not live, with their locks, until the transaction ends: none
// of them comes back meanwhile.
func deadSlots(ctx context.Context, tx pgx.Tx, address string) ([]int32, error) {
	rows, err := tx.Query(ctx, `SELECT slot FROM (SELECT slot FROM sandlot_replicas WHERE address = $1 ORDER BY slot
		OFFSET 0) AS r WHERE pg_try_advisory_xact_lock($2, slot)`, address, lockClass)
	if err != nil {
		return []int32{}, err
	}
	slots, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if slots == nil {
		slots = []int32{}
	}
	return slots, err
}
