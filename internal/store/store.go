// Package store stores what must outlive the server in a database, SQLite or PostgreSQL: tokens, sessions, exposed
// ports, connections (third-party MCP servers), MCP sessions, secrets, log-ins and events.
package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/session"
)

// DB is the database. It implements auth.Store, session.Store, port.Store,
// mcpsession.Store, servers.Store, vault.Store, vault.LoginStore and audit.Store.
type DB struct {
	db       *sql.DB
	postgres bool
	lock     *serverLock // of a server that is the only one on PostgreSQL
	member   bool        // several servers use the database: it reads what belongs to principals of this one alone

	hasTokens, tokenByHash *sql.Stmt
}

// Open opens a database, creates it if it does not exist, and migrates it to the current version. where is a
// folder, in which the database is an SQLite file, or the URL of a PostgreSQL database (postgres://…). Several
// processes may have it open.
func Open(ctx context.Context, where string) (*DB, error) {
	if IsPostgres(where) {
		p, err := newPostgres(where)
		if err != nil {
			return nil, err
		}
		return p.open(ctx)
	}
	return openSQLite(ctx, where)
}

// OpenServer is Open for a server. A PostgreSQL database has one server: while another one uses it, OpenServer returns
// an error. The state folder's lock does the same for SQLite.
func OpenServer(ctx context.Context, where string, log *slog.Logger) (*DB, error) {
	return OpenServerOf(ctx, where, "", log)
}

// OpenServerOf is OpenServer for a state folder that may have been that of one of several servers, among which it has
// the id folder.
func OpenServerOf(ctx context.Context, where, folder string, log *slog.Logger) (*DB, error) {
	if !IsPostgres(where) {
		return Open(ctx, where)
	}
	p, err := newPostgres(where)
	if err != nil {
		return nil, err
	}
	return p.openServer(ctx, folder, log)
}

// OpenMember opens a PostgreSQL database for one of several servers.
func OpenMember(ctx context.Context, where string, h Holder) (*DB, error) {
	p, err := newPostgres(where)
	if err != nil {
		return nil, err
	}
	return p.openMember(ctx, h)
}

// own is a condition that is true for rows of principals whose id is in a column, if this server acts for them. A server
// that is alone acts for all.
func (s *DB) own(column string) string {
	if !s.member {
		return "1 = 1"
	}
	return `sandlot_unit(` + column + `) IN (SELECT principal FROM sandlot_owners
		WHERE number = CAST(current_setting('sandlot.replica') AS bigint))`
}

// CloseIdle closes the connections that wait. A Holder calls it when they may not be used again.
func (s *DB) CloseIdle() { closeIdle(s.db) }

// ready migrates the database and prepares statements, or closes it.
func (s *DB) ready(ctx context.Context) (*DB, error) {
	err := s.migrate(withoutTimeout(ctx))
	if err == nil {
		err = s.prepare(ctx)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Lost gets an error when the server must end, since another one has used its database.
func (s *DB) Lost() <-chan error {
	if s.lock == nil {
		return nil
	}
	return s.lock.lost
}

// ID returns an id by which a PostgreSQL database differs from others. That of SQLite is empty.
func (s *DB) ID(ctx context.Context) (id string, err error) {
	if s.postgres {
		err = s.db.QueryRowContext(ctx, `SELECT id FROM sandlot_state`).Scan(&id)
	}
	return id, err
}

// Close closes the database.
func (s *DB) Close() error {
	err := s.db.Close()
	if s.lock != nil {
		s.lock.close()
	}
	return err
}

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

// querier is the database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// queryAll returns the results of scan for the rows of a query.
func queryAll[T any](ctx context.Context, db querier, scan func(scanner) (T, error), query string, args ...any) ([]T,
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
// In PostgreSQL all changes are on the disk.
func (s *DB) withDurability(ctx context.Context, change func(*sql.Conn) error) error {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if s.postgres {
		return change(c)
	}
	if _, err := c.ExecContext(ctx, `PRAGMA synchronous=FULL`); err != nil {
		return err
	}
	// Other statements do not need the slower mode.
	defer c.ExecContext(context.WithoutCancel(ctx), `PRAGMA synchronous=NORMAL`)
	return change(c)
}

// AddToken implements auth.Store.
func (s *DB) AddToken(ctx context.Context, t auth.Token) error {
	var expires any
	if t.Expires != nil {
		expires = t.Expires.Unix()
	}
	_, err := s.db.ExecContext(ctx, `INSERT INTO tokens (`+tokenColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?,NULL)`,
		t.ID, t.Hash, t.Owner, t.User, t.Service, t.Roles.String(), string(t.Scope), t.ActsFor, t.MadeBy,
		t.Created.Unix(), expires)
	return err
}

const tokenColumns = `id, hash, principal, "user", service, roles, scope, acts_for, made_by, created, expires, used`

func scanToken(row scanner) (auth.Token, error) {
	var t auth.Token
	var created int64
	var expires, used sql.NullInt64
	var roles string
	if err := row.Scan(&t.ID, &t.Hash, &t.Owner, &t.User, &t.Service, &roles, &t.Scope, &t.ActsFor, &t.MadeBy, &created,
		&expires, &used); err != nil {
		return t, err
	}
	t.Roles = auth.ParseRoles(roles)
	t.Created = time.Unix(created, 0).UTC()
	if expires.Valid {
		t.Expires = new(time.Unix(expires.Int64, 0).UTC())
	}
	if used.Valid {
		t.Used = new(time.Unix(used.Int64, 0).UTC())
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

// PutTokenUses implements auth.Store.
func (s *DB) PutTokenUses(ctx context.Context, uses map[string]time.Time) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for id, used := range uses {
		if _, err := tx.ExecContext(ctx, `UPDATE tokens SET used = ? WHERE id = ?`, used.Unix(), id); err != nil {
			return err
		}
	}
	return tx.Commit()
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
	`runtime, image, slept, sent, received, disk, variables, secrets, scope, paused_by, paused_at, ends_at, on_end, ` +
	`name, labels, parent`

// milli returns milliseconds of the Unix epoch; 0 for the zero time. timeOf is its inverse.
func milli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func timeOf(milli int64) time.Time {
	if milli == 0 {
		return time.Time{}
	}
	return time.UnixMilli(milli).UTC()
}

func scanSession(row scanner) (session.Record, error) {
	var r session.Record
	var created, used, slept, paused, ends int64
	var network, secrets, labels, parent string
	err := row.Scan(&r.ID, &r.Owner, &r.Home, &r.Template, &r.Flavor, &r.Sandbox, &r.Workspace, &r.State, &created,
		&used, &r.Lost, &network, &r.Runtime, &r.Image, &slept, &r.Traffic.Up, &r.Traffic.Down,
		&r.DiskBytes, &r.Variables, &secrets, &r.Scope, &r.PausedBy, &paused, &ends, &r.OnEnd, &r.Name, &labels, &parent)
	r.Secrets = namesOf(secrets)
	r.Network = networkOf(network)
	r.Created, r.Used = time.UnixMilli(created).UTC(), time.UnixMilli(used).UTC()
	r.Slept, r.PausedAt, r.EndsAt = timeOf(slept), timeOf(paused), timeOf(ends)
	if labels != "" {
		err = errors.Join(err, json.Unmarshal([]byte(labels), &r.Labels))
	}
	if parent != "" {
		err = errors.Join(err, json.Unmarshal([]byte(parent), &r.Parent))
	}
	return r, err
}

// PutSession implements session.Store.
func (s *DB) PutSession(ctx context.Context, r session.Record) error {
	network, err := networkText(r.Network)
	if err != nil {
		return err
	}
	labels, err := textOf(len(r.Labels) == 0, r.Labels)
	if err != nil {
		return err
	}
	parent, err := textOf(r.Parent == session.Parent{}, r.Parent)
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, `INSERT INTO sessions (`+sessionColumns+`)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,0,0,0,?,?,?,?,?,?,?,?,?,?)
		ON CONFLICT (id) DO UPDATE SET template=excluded.template, flavor=excluded.flavor, sandbox=excluded.sandbox,
		workspace=excluded.workspace, state=excluded.state, used=excluded.used, lost=excluded.lost,
		network=excluded.network, runtime=excluded.runtime, image=excluded.image, slept=excluded.slept,
		secrets=excluded.secrets, scope=excluded.scope, paused_by=excluded.paused_by, paused_at=excluded.paused_at,
		ends_at=excluded.ends_at, on_end=excluded.on_end, name=excluded.name, labels=excluded.labels`,
		r.ID, r.Owner, r.Home, r.Template, r.Flavor, r.Sandbox, r.Workspace, r.State, r.Created.UnixMilli(),
		r.Used.UnixMilli(), r.Lost, network, r.Runtime, r.Image, milli(r.Slept), r.Variables,
		strings.Join(r.Secrets, " "), r.Scope, r.PausedBy, milli(r.PausedAt), milli(r.EndsAt), r.OnEnd, r.Name, labels,
		parent)
	return err
}

// textOf returns what is stored of a value, in JSON; empty: there is none.
func textOf(empty bool, value any) (string, error) {
	if empty {
		return "", nil
	}
	b, err := json.Marshal(value)
	return string(b), err
}

// PutCounts implements session.Store.
func (s *DB) PutCounts(ctx context.Context, c session.Counts) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for id, t := range c.Traffic {
		if _, err := tx.ExecContext(ctx, `UPDATE sessions SET sent = ?, received = ? WHERE id = ?`, int64(t.Up),
			int64(t.Down), id); err != nil {
			return err
		}
	}
	for id, size := range c.DiskBytes {
		if _, err := tx.ExecContext(ctx, `UPDATE sessions SET disk = ? WHERE id = ?`, size, id); err != nil {
			return err
		}
	}
	for owner, d := range c.Days {
		if _, err := tx.ExecContext(ctx, `INSERT INTO traffic (owner, day, sent, received) VALUES (?,?,?,?)
			ON CONFLICT (owner) DO UPDATE SET day=excluded.day, sent=excluded.sent, received=excluded.received`,
			owner, d.Number, int64(d.Up), int64(d.Down)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// ownedDay is the traffic of a principal on one day.
type ownedDay struct {
	owner string
	egress.Day
}

// Days implements session.Store.
func (s *DB) Days(ctx context.Context, since int64) (map[string]egress.Day, error) {
	all, err := queryAll(ctx, s.db, func(row scanner) (d ownedDay, err error) {
		return d, row.Scan(&d.owner, &d.Number, &d.Up, &d.Down)
	}, `SELECT owner, day, sent, received FROM traffic WHERE day >= ? AND `+s.own("owner"), since)
	days := map[string]egress.Day{}
	for _, d := range all {
		days[d.owner] = d.Day
	}
	return days, err
}

// RemoveDays implements session.Store.
func (s *DB) RemoveDays(ctx context.Context, before int64) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM traffic WHERE day < ?`, before)
	return err
}

// Sessions implements session.Store.
func (s *DB) Sessions(ctx context.Context) ([]session.Record, error) {
	return queryAll(ctx, s.db, scanSession, `SELECT `+sessionColumns+` FROM sessions WHERE `+s.own("owner")+
		` ORDER BY created, id`)
}

// Files returns the workspaces and the images that sessions and snapshots of all principals have, whoever acts for them.
func (s *DB) Files(ctx context.Context) (workspaces, images []string, err error) {
	_, err = queryAll(ctx, s.db, func(row scanner) (struct{}, error) {
		var workspace, image string
		err := row.Scan(&workspace, &image)
		workspaces = append(workspaces, workspace)
		if image != "" {
			images = append(images, image)
		}
		return struct{}{}, err
	}, `SELECT workspace, image FROM sessions UNION ALL SELECT workspace, image FROM snapshots`)
	return workspaces, images, err
}

// RemoveSession implements session.Store.
func (s *DB) RemoveSession(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM sessions WHERE id = ?`, id)
	return err
}
