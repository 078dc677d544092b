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
func Sandboxes(ctx context.Context, dir string) (all map[string][2]string, err error) {
	all = map[string][2]string{}
	path := filepath.Join(dir, "sandlot.db")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path}).String()+"?mode=ro&_pragma=busy_timeout(2000)")
	if err != nil {
		return all, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	list, err := collect(ctx, db, func(row row) (one [3]string, err error) {
		err = row.Scan(&one[0], &one[1], &one[2])
		return one, err
	}, `SELECT sandbox, id, owner FROM sessions WHERE sandbox <> ''`)
	for _, one := range list {
		all[one[0]] = [2]string(one[1:])
	}
	return all, err
}
