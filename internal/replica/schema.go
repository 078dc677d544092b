package replica

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"sandlot/internal/store"
)

// The tables are PostgreSQL's alone, and no part of a backup: they say which processes run, not what users have.
const tables = `CREATE SEQUENCE IF NOT EXISTS sandlot_epochs;
CREATE TABLE IF NOT EXISTS sandlot_replicas (
	slot        INT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	id          TEXT NOT NULL UNIQUE,         -- of the state folder
	number      BIGINT NOT NULL,              -- of the process; each start has a greater one
	address     TEXT NOT NULL,                -- at which the other servers reach it
	fingerprint TEXT NOT NULL,                -- SHA-256 of its certificate, in hexadecimal digits
	version     TEXT NOT NULL,
	started     TIMESTAMPTZ NOT NULL
);
CREATE TABLE IF NOT EXISTS sandlot_owners (
	principal TEXT COLLATE "C" PRIMARY KEY,   -- the unit's id: see auth.UnitOf
	slot      INT NOT NULL REFERENCES sandlot_replicas,
	number    BIGINT NOT NULL,                -- of the process that has claimed it
	epoch     BIGINT NOT NULL                 -- each claim has a greater one
);
CREATE INDEX IF NOT EXISTS sandlot_owners_slot ON sandlot_owners (slot);
CREATE OR REPLACE FUNCTION sandlot_unit(id TEXT) RETURNS TEXT LANGUAGE sql IMMUTABLE AS
	$$ SELECT CASE WHEN starts_with(id, 'user:') THEN split_part(id, '/', 1) ELSE id END $$;`

// guardVersion is a comment on the functions of the guard. Another text makes the next start write them anew.
const guardVersion = "sandlot: guard 1"

// guardFunction refuses a change of a row whose owner is not owned by the process of the connection. Its row in
// sandlot_owners stays locked until the end of the transaction, so that a claim waits for the change, or the change
// for the claim. The connections of commands, and of a server that is alone, have no number.
const guardFunction = `CREATE OR REPLACE FUNCTION sandlot_guard_%[1]s() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	process TEXT := coalesce(current_setting('sandlot.replica', true), '');
	who TEXT;
BEGIN
	IF process <> '' THEN
		IF TG_OP = 'DELETE' THEN who := OLD.%[1]s; ELSE who := NEW.%[1]s; END IF;
		PERFORM 1 FROM sandlot_owners WHERE principal = sandlot_unit(who) AND number = process::bigint FOR SHARE;
		IF NOT FOUND THEN
			RAISE EXCEPTION 'another server acts for %%', who USING ERRCODE = 'SL421';
		END IF;
	END IF;
	IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
	RETURN NEW;
END $$;
COMMENT ON FUNCTION sandlot_guard_%[1]s() IS '%[2]s';`

// guarded are the tables whose rows belong to principals, and the column that says to which. What is old is removed by
// any server, from the tables that are not guarded against DELETE.
var guarded = []struct{ table, column, changes string }{
	{"sessions", "owner", "INSERT OR UPDATE OR DELETE"},
	{"snapshots", "owner", "INSERT OR UPDATE OR DELETE"},
	{"ports", "owner", "INSERT OR UPDATE OR DELETE"},
	{"connections", "owner", "INSERT OR UPDATE OR DELETE"},
	{"secrets", "principal", "INSERT OR UPDATE OR DELETE"},
	{"logins", "principal", "INSERT OR UPDATE OR DELETE"},
	{"answers", "principal", "INSERT OR UPDATE OR DELETE"},
	{"mcp_sessions", "principal", "INSERT OR UPDATE"},
	{"traffic", "owner", "INSERT OR UPDATE"},
	{"usage_days", "owner", "INSERT OR UPDATE"},
}

// makeTables makes the tables of this package. Several servers may do so at the same moment.
func makeTables(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, fmt.Sprintf(`BEGIN; SELECT pg_advisory_xact_lock(%d); %s COMMIT`, store.LockOfWrites, tables))
	return err
}

// guard makes the triggers that refuse the changes of others, if they are not there.
func guard(ctx context.Context, c *pgx.Conn) error {
	var made int
	if err := c.QueryRow(ctx, `SELECT count(*) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE t.tgname = 'sandlot_guard' AND obj_description(p.oid, 'pg_proc') = $1`, guardVersion).
		Scan(&made); err != nil || made == len(guarded) {
		return err
	}
	text := fmt.Sprintf(`BEGIN; SELECT pg_advisory_xact_lock(%d); `, store.LockOfWrites)
	for _, column := range []string{"owner", "principal"} {
		text += fmt.Sprintf(guardFunction, column, guardVersion)
	}
	for _, g := range guarded {
		text += fmt.Sprintf(`DROP TRIGGER IF EXISTS sandlot_guard ON %[1]s; CREATE TRIGGER sandlot_guard BEFORE %[3]s
			ON %[1]s FOR EACH ROW EXECUTE FUNCTION sandlot_guard_%[2]s();`, g.table, g.column, g.changes)
	}
	_, err := c.Exec(ctx, text+` COMMIT`)
	return err
}
