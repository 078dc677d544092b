package store

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"time"

	"sandlot/internal/session/record"
)

// Sandboxes returns the session id and the owner's id of each sandbox in a database, by the sandbox's id. where is an
// argument of Open. It opens the database read-only, without migration, so it works with databases of other versions.
func Sandboxes(ctx context.Context, where string) (sandboxes map[string][2]string, err error) {
	sandboxes = map[string][2]string{}
	db, err := openReadOnly(where)
	if db == nil || err != nil {
		return sandboxes, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	list, err := queryAll(ctx, db, func(row scanner) (columns [3]string, err error) {
		err = row.Scan(&columns[0], &columns[1], &columns[2])
		return columns, err
	}, `SELECT sandbox, id, owner FROM sessions WHERE sandbox <> ''`)
	for _, columns := range list {
		sandboxes[columns[0]] = [2]string(columns[1:])
	}
	return sandboxes, err
}

// Sleeping is a session that sleeps, or is paused.
type Sleeping struct {
	Session  string    `json:"session"`
	Owner    string    `json:"owner"`
	Template string    `json:"template"`
	Since    time.Time `json:"since"`
	Paused   bool      `json:"paused,omitempty"`
}

// Asleep returns the sessions of a database that sleep, or are paused with an image, as Sandboxes does. The one that has slept longest is first.
func Asleep(ctx context.Context, where string) (all []Sleeping, err error) {
	db, err := openReadOnly(where)
	if db == nil || err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return queryAll(ctx, db, func(row scanner) (s Sleeping, err error) {
		var slept int64
		var state record.State
		err = row.Scan(&s.Session, &s.Owner, &s.Template, &slept, &state)
		s.Since, s.Paused = time.UnixMilli(slept).UTC(), state == record.Paused
		return s, err
	}, `SELECT id, owner, template, slept, state FROM sessions WHERE image <> '' AND sandbox = '' ORDER BY slept`)
}

// openReadOnly opens a database for reading, without migration. It returns nil if there is none.
func openReadOnly(where string) (*sql.DB, error) {
	if IsPostgres(where) {
		p, err := newPostgres(where)
		if err != nil {
			return nil, err
		}
		p.config.RuntimeParams["default_transaction_read_only"] = "on"
		return p.pool(nil), nil
	}
	path := sqliteFile(where)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path}).String()+"?mode=ro&_pragma=busy_timeout(2000)")
}
