package store

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
)

// Sandboxes returns the session id and the owner's id of each sandbox in the database in the folder dir,
// by the sandbox's id. It opens the database read-only, without migration, so it works with databases of
// other versions.
func Sandboxes(ctx context.Context, dir string) (sandboxes map[string][2]string, err error) {
	sandboxes = map[string][2]string{}
	path := filepath.Join(dir, "sandlot.db")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return sandboxes, nil
	}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path}).String()+"?mode=ro&_pragma=busy_timeout(2000)")
	if err != nil {
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
