package store

import (
	"context"
	"time"

	"sandlot/internal/port"
)

const portColumns = `session, port, owner, hash, public, created, expires`

// PutPort implements port.Store.
func (s *DB) PutPort(ctx context.Context, r port.Record) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO ports (`+portColumns+`) VALUES (?,?,?,?,?,?,?)
		ON CONFLICT (session, port) DO UPDATE SET owner=excluded.owner, hash=excluded.hash, public=excluded.public,
		created=excluded.created, expires=excluded.expires`,
		r.Session, r.Port, r.Owner, r.Hash, r.Public, r.Created.Unix(), r.Expires.Unix())
	return err
}

// Ports implements port.Store.
func (s *DB) Ports(ctx context.Context) ([]port.Record, error) {
	return queryAll(ctx, s.db, func(row scanner) (r port.Record, err error) {
		var created, expires int64
		err = row.Scan(&r.Session, &r.Port, &r.Owner, &r.Hash, &r.Public, &created, &expires)
		r.Created, r.Expires = time.Unix(created, 0).UTC(), time.Unix(expires, 0).UTC()
		return r, err
	}, `SELECT `+portColumns+` FROM ports WHERE `+s.own("owner")+` ORDER BY session, port`)
}

// RemovePort implements port.Store.
func (s *DB) RemovePort(ctx context.Context, session string, number int) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM ports WHERE session = ? AND port = ?`, session, number)
	return err
}
