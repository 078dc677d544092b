package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"sandlot/internal/egress"
	"sandlot/internal/session"
	"sandlot/internal/snapshot"
)

const snapshotColumns = `id, owner, name, session, image, workspace, runtime, template, flavor, network, bytes, created, ` +
	`secrets, scope`

// PutSnapshot implements snapshot.Store.
func (s *DB) PutSnapshot(ctx context.Context, r snapshot.Record) error {
	return putSnapshot(ctx, s.db, r)
}

// executor is a database or a transaction.
type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func putSnapshot(ctx context.Context, db executor, r snapshot.Record) error {
	network, err := networkText(r.Network)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, `INSERT INTO snapshots (`+snapshotColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)`, r.ID,
		r.Owner, r.Name, r.Session, r.Image, r.Workspace, r.Runtime, r.Template, r.Flavor, network, r.Bytes,
		r.Created.UnixMilli(), strings.Join(r.Secrets, " "), r.Scope)
	return err
}

// Snapshots implements snapshot.Store.
func (s *DB) Snapshots(ctx context.Context) ([]snapshot.Record, error) {
	return queryAll(ctx, s.db, func(row scanner) (r snapshot.Record, err error) {
		var network, secrets string
		var created int64
		err = row.Scan(&r.ID, &r.Owner, &r.Name, &r.Session, &r.Image, &r.Workspace, &r.Runtime, &r.Template, &r.Flavor,
			&network, &r.Bytes, &created, &secrets, &r.Scope)
		r.Secrets = namesOf(secrets)
		r.Network, r.Created = networkOf(network), time.UnixMilli(created).UTC()
		return r, err
	}, `SELECT `+snapshotColumns+` FROM snapshots WHERE `+s.own("owner")+` ORDER BY created, id`)
}

// RemoveSnapshot implements snapshot.Store.
func (s *DB) RemoveSnapshot(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM snapshots WHERE id = ?`, id)
	return err
}

// keepSnapshots makes the snapshots that were there before a restore stay, and no others: what belongs to those of the
// backup is gone.
func keepSnapshots(ctx context.Context, tx *sql.Tx, before []snapshot.Record) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM snapshots`)
	for _, r := range before {
		err = errors.Join(err, putSnapshot(ctx, tx, r))
	}
	return err
}

// networkText returns what is stored of a network override; empty: there is none.
func networkText(o session.NetworkOverride) (string, error) {
	if o.Empty() {
		return "", nil
	}
	b, err := json.Marshal(o)
	return string(b), err
}

func networkOf(text string) (o session.NetworkOverride) {
	if text != "" && json.Unmarshal([]byte(text), &o) != nil {
		return session.NetworkOverride{Mode: egress.None} // a policy that cannot be parsed allows nothing
	}
	return o
}

// namesOf returns the names that are stored with spaces between them; nil: there are none.
func namesOf(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Fields(text)
}
