// Package store stores what must outlive the server in an SQLite database: tokens, sessions, exposed
// ports, connections (third-party MCP servers), secrets and log-ins.
package store

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"time"

	_ "modernc.org/sqlite"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/session"
)

//go:embed migrations/*.sql
var migrations embed.FS

// DB is the database. It implements auth.Store, session.Store, port.Store,
// servers.Store, vault.Store and vault.LoginStore.
type DB struct {
	db *sql.DB

	hasTokens, tokenByHash *sql.Stmt
}

// Open opens the database in the folder dir, creates it if it does not exist, and migrates it to the
// current version. Several processes may have it open.
func Open(ctx context.Context, dir string) (*DB, error) {
	path := filepath.Join(dir, "sandlot.db")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	f.Close()
	dsn := (&url.URL{Scheme: "file", Path: path}).String() + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)" +
		"&_pragma=synchronous(NORMAL)&_pragma=secure_delete(1)&_pragma=foreign_keys(1)&_txlock=immediate"
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(4)
	s := &DB{db: db}
	if err := s.migrate(ctx); err != nil {
		db.Close()
		return nil, fmt.Errorf("bringing the database %s up to date: %w", path, err)
	}
	if err := s.prepare(ctx); err != nil {
		db.Close()
		return nil, err
	}
	return s, nil
}

// Close closes the database.
func (s *DB) Close() error { return s.db.Close() }

// prepare prepares the statements that each request executes.
func (s *DB) prepare(ctx context.Context) (err error) {
	if s.hasTokens, err = s.db.PrepareContext(ctx, `SELECT EXISTS (SELECT 1 FROM tokens)`); err != nil {
		return err
	}
	s.tokenByHash, err = s.db.PrepareContext(ctx, `SELECT `+tokenColumns+` FROM tokens WHERE hash = ?`)
	return err
}

// scanner is a row of a result: sql.Row or sql.Rows.
type scanner interface{ Scan(...any) error }

// queryAll returns the results of scan for the rows of a query.
func queryAll[T any](ctx context.Context, db *sql.DB, scan func(scanner) (T, error), query string, args ...any) ([]T,
	error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		item, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, item)
	}
	return all, rows.Err()
}

// deleteRows executes a DELETE statement, and returns the error none if it has deleted no row.
func (s *DB) deleteRows(ctx context.Context, notFound error, statement string, args ...any) error {
	r, err := s.db.ExecContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	if n, _ := r.RowsAffected(); n == 0 {
		return notFound
	}
	return nil
}

// withDurability runs do with synchronous=FULL, so that its changes are on the disk when it returns. Other
// changes survive a crash of the server, but not always one of the machine. That is not enough for a
// token that a remote server has issued in exchange for the stored one: only the new token is valid.
func (s *DB) withDurability(ctx context.Context, change func(*sql.Conn) error) error {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.ExecContext(ctx, `PRAGMA synchronous=FULL`); err != nil {
		return err
	}
	// Other statements do not need the slower mode.
	defer c.ExecContext(context.WithoutCancel(ctx), `PRAGMA synchronous=NORMAL`)
	return change(c)
}

func (s *DB) migrate(ctx context.Context) error {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	sort.Strings(names)
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var version int
	if err := tx.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&version); err != nil {
		return err
	}
	if version > len(names) {
		return fmt.Errorf("it was written by a newer Sandlot (version %d, this one knows %d)", version, len(names))
	}
	for i, name := range names[version:] {
		text, err := migrations.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, string(text)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if _, err := tx.ExecContext(ctx, fmt.Sprintf(`PRAGMA user_version = %d`, version+i+1)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// AddToken implements auth.Store.
func (s *DB) AddToken(ctx context.Context, t auth.Token) error {
	var expires any
	if t.Expires != nil {
		expires = t.Expires.Unix()
	}
	_, err := s.db.ExecContext(ctx, `INSERT INTO tokens (`+tokenColumns+`) VALUES (?,?,?,?,?,?,?,?)`,
		t.ID, t.Hash, t.Owner, t.User, t.Service, t.Roles.String(), t.Created.Unix(), expires)
	return err
}

const tokenColumns = `id, hash, principal, user, service, roles, created, expires`

func scanToken(row scanner) (auth.Token, error) {
	var t auth.Token
	var created int64
	var expires sql.NullInt64
	var roles string
	if err := row.Scan(&t.ID, &t.Hash, &t.Owner, &t.User, &t.Service, &roles, &created, &expires); err != nil {
		return t, err
	}
	t.Roles = auth.ParseRoles(roles)
	t.Created = time.Unix(created, 0).UTC()
	if expires.Valid {
		t.Expires = new(time.Unix(expires.Int64, 0).UTC())
	}
	return t, nil
}

// Tokens implements auth.Store.
func (s *DB) Tokens(ctx context.Context) ([]auth.Token, error) {
	return queryAll(ctx, s.db, scanToken, `SELECT `+tokenColumns+` FROM tokens ORDER BY created, id`)
}

// TokenByHash implements auth.Store. Each request calls it or HasTokens. Both read one or two pages and
// never wait, so their queries cannot be cancelled: the goroutines for that would cost more than the
// query.
func (s *DB) TokenByHash(ctx context.Context, hash string) (auth.Token, error) {
	t, err := scanToken(s.tokenByHash.QueryRowContext(context.WithoutCancel(ctx), hash))
	if errors.Is(err, sql.ErrNoRows) {
		return t, auth.ErrNoToken
	}
	return t, err
}

// RemoveToken implements auth.Store.
func (s *DB) RemoveToken(ctx context.Context, id string) error {
	return s.deleteRows(ctx, auth.ErrNoToken, `DELETE FROM tokens WHERE id = ?`, id)
}

// HasTokens implements auth.Store.
func (s *DB) HasTokens(ctx context.Context) (bool, error) {
	var has bool
	err := s.hasTokens.QueryRowContext(context.WithoutCancel(ctx)).Scan(&has)
	return has, err
}

const sessionColumns = `id, owner, home, template, flavor, sandbox, workspace, state, created, used, lost, network, ` +
	`runtime, sent, received`

func scanSession(row scanner) (session.Record, error) {
	var r session.Record
	var created, used int64
	var network string
	err := row.Scan(&r.ID, &r.Owner, &r.Home, &r.Template, &r.Flavor, &r.Sandbox, &r.Workspace, &r.State, &created,
		&used, &r.Lost, &network, &r.Runtime, &r.Traffic.Up, &r.Traffic.Down)
	if network != "" && json.Unmarshal([]byte(network), &r.Network) != nil {
		r.Network = session.NetworkOverride{Mode: egress.None} // a policy that cannot be parsed allows nothing
	}
	r.Created, r.Used = time.UnixMilli(created).UTC(), time.UnixMilli(used).UTC()
	return r, err
}

// PutSession implements session.Store.
func (s *DB) PutSession(ctx context.Context, r session.Record) error {
	network := ""
	if !r.Network.Empty() {
		b, err := json.Marshal(r.Network)
		if err != nil {
			return err
		}
		network = string(b)
	}
	_, err := s.db.ExecContext(ctx, `INSERT INTO sessions (`+sessionColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,0,0)
		ON CONFLICT (id) DO UPDATE SET template=excluded.template, flavor=excluded.flavor, sandbox=excluded.sandbox,
		workspace=excluded.workspace, state=excluded.state, used=excluded.used, lost=excluded.lost,
		network=excluded.network, runtime=excluded.runtime`,
		r.ID, r.Owner, r.Home, r.Template, r.Flavor, r.Sandbox, r.Workspace, r.State, r.Created.UnixMilli(),
		r.Used.UnixMilli(), r.Lost, network, r.Runtime)
	return err
}

// PutTraffic implements session.Store.
func (s *DB) PutTraffic(ctx context.Context, traffic map[string]egress.Traffic) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for id, t := range traffic {
		if _, err := tx.ExecContext(ctx, `UPDATE sessions SET sent = ?, received = ? WHERE id = ?`, int64(t.Up),
			int64(t.Down), id); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Sessions implements session.Store.
func (s *DB) Sessions(ctx context.Context) ([]session.Record, error) {
	return queryAll(ctx, s.db, scanSession, `SELECT `+sessionColumns+` FROM sessions ORDER BY created, id`)
}

// RemoveSession implements session.Store.
func (s *DB) RemoveSession(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM sessions WHERE id = ?`, id)
	return err
}
