package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"sandlot/internal/fault"
)

// A server on PostgreSQL holds the lock LockOfServer on a connection of its own, so a database has one server. When
// that connection is lost, the server takes the lock again. It ends if another server has had it in between: what it
// has in memory is no longer what is stored.
//
// A server may notice late that it has lost the lock. Therefore its other connections share the lock LockOfUsers. The
// next server waits until none of them is left, and then gives itself a new number (sandlot_state.server). A connection
// that the earlier server opens after that sees the number, and is of no use. So two servers never write at once.

const (
	lockPatience  = 3 * time.Second  // how long a start waits for the lock of a server that was killed just now
	usersPatience = 10 * time.Second // how long a start waits for the last connections of the server before
	lockPing      = 2 * time.Second  // how often the lock's connection is checked
	lockRetry     = 250 * time.Millisecond
)

// serverLock is the lock of a server on its PostgreSQL database.
type serverLock struct {
	config *pgx.ConnConfig
	log    *slog.Logger
	folder string // the id of the server's state folder among servers with replicas; empty: it has none
	number int64  // of this server
	pool   *sql.DB

	generation atomic.Uint64         // of connections: earlier generations' are not used again
	down       atomic.Pointer[error] // the fault of all calls; nil while the lock is held
	lost       chan error

	conn   *pgx.Conn // only the watching goroutine uses it, after start
	cancel context.CancelFunc
	done   chan struct{}
}

// errTaken is the error of a server whose database another server has used.
var errTaken = fault.New(fault.Configuration, "another Sandlot server has taken over the PostgreSQL database of the "+
	"setting store, so this one ends; run one server for each database")

// lock takes the lock of the server. The caller calls start or close.
func (p *postgresDB) lock(ctx context.Context, folder string, log *slog.Logger) (_ *serverLock, err error) {
	l := &serverLock{config: p.config, folder: folder, log: log, lost: make(chan error, 1), done: make(chan struct{})}
	connecting, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if l.conn, err = pgx.ConnectConfig(connecting, p.config.Copy()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.closeConn()
		}
	}()
	ok, err := l.try(ctx, lockPatience, `SELECT pg_try_advisory_lock($1)`, LockOfServer)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fault.New(fault.Configuration, "another Sandlot server uses the PostgreSQL database %s (%s); stop "+
			"that server, or give this one its own database: one database has one server", p.name, l.holder(ctx))
	}
	if ok, err = l.try(ctx, usersPatience, `SELECT pg_try_advisory_lock($1)`, LockOfUsers); err != nil {
		return nil, err
	}
	if !ok {
		return nil, fault.New(fault.Configuration, "an earlier Sandlot server still has connections to the PostgreSQL "+
			"database %s, though it has lost its lock; stop that server, or end its connections "+
			"(pg_terminate_backend), and start again", p.name)
	}
	if err := l.checkAlone(ctx, p.name); err != nil {
		return nil, err
	}
	return l, l.begin(ctx)
}

// checkAlone returns an error if servers with replicas and other state folders own principals with sessions or snapshots:
// their files are in those folders, and this one would make empty workspaces for their sessions. What the server with
// this state folder owned is its own, whether it shares the database or not.
func (l *serverLock) checkAlone(ctx context.Context, name string) error {
	var exists bool
	err := l.conn.QueryRow(ctx, `SELECT to_regclass('sandlot_owners') IS NOT NULL AND to_regclass('sessions') IS NOT NULL
		AND to_regclass('snapshots') IS NOT NULL`).Scan(&exists)
	if err != nil || !exists {
		return err
	}
	var addresses string
	if err := l.conn.QueryRow(ctx, `SELECT coalesce(string_agg(address, ', ' ORDER BY slot), '') FROM sandlot_replicas r
		WHERE id <> $1 AND EXISTS (SELECT 1 FROM sandlot_owners o WHERE o.slot = r.slot AND (
			EXISTS (SELECT 1 FROM sessions WHERE sandlot_unit(owner) = o.principal) OR
			EXISTS (SELECT 1 FROM snapshots WHERE sandlot_unit(owner) = o.principal)))`, l.folder).
		Scan(&addresses); err != nil {
		return err
	}
	if addresses != "" {
		return fault.New(fault.Configuration, "servers with replicas.address share the PostgreSQL database %s, and "+
			"sessions or snapshots in it have their files in the state folders of the servers at %s; start this server "+
			"with replicas.address too, or remove those sessions and snapshots there (if such a server is gone for good: "+
			"`sandlot replicas remove ADDRESS`), and stop those servers", name, addresses)
	}
	// A process that still runs sees that it must end.
	_, err = l.conn.Exec(ctx, `BEGIN; DELETE FROM sandlot_owners; DELETE FROM sandlot_replicas; COMMIT`)
	return err
}

// try executes a query for a lock until it returns true, or for the time given.
func (l *serverLock) try(ctx context.Context, patience time.Duration, query string, key int64) (ok bool, err error) {
	for end := time.Now().Add(patience); ; {
		if err = l.conn.QueryRow(ctx, query, key).Scan(&ok); err != nil || ok || time.Now().After(end) {
			return ok, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// holder says which process holds the lock.
func (l *serverLock) holder(ctx context.Context) string {
	name := "its process is not known"
	_ = l.conn.QueryRow(ctx, `SELECT a.application_name || coalesce(', from ' || host(a.client_addr), '')
		FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND l.classid = $1 AND l.objid = $2`, uint32(LockOfServer>>32), uint32(LockOfServer&0xffffffff)).Scan(&name)
	return name
}

// begin gives the server its number, and lets its connections share the lock.
func (l *serverLock) begin(ctx context.Context) error {
	number, err := nextServer(ctx, l.conn)
	if err != nil {
		return err
	}
	l.number = number
	_, err = l.conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, LockOfUsers)
	return err
}

// nextServer returns the number of a server that has the locks.
func nextServer(ctx context.Context, c *pgx.Conn) (number int64, err error) {
	// Commands may create the table at the same moment.
	if _, err := c.Exec(ctx, fmt.Sprintf(`BEGIN; SELECT pg_advisory_xact_lock(%d); %s; COMMIT`, LockOfWrites,
		postgresState)); err != nil {
		return 0, err
	}
	err = c.QueryRow(ctx, `UPDATE sandlot_state SET server = server + 1 RETURNING server`).Scan(&number)
	return number, err
}

// ReplaceServer makes a server that was alone end as soon as it uses the database again. The caller's connection has its
// locks.
func ReplaceServer(ctx context.Context, c *pgx.Conn) error {
	_, err := nextServer(ctx, c)
	return err
}

// Attach implements Holder.
func (l *serverLock) Attach(ctx context.Context, c *pgx.Conn) error {
	var shared bool
	if err := c.QueryRow(ctx, `SELECT pg_try_advisory_lock_shared($1)`, LockOfUsers).Scan(&shared); err != nil {
		return err
	}
	if !shared { // the next server starts
		return lostDatabase(errTaken)
	}
	// In a statement of its own, which sees what was committed before the lock was free.
	if err := l.isOwn(ctx, c); err != nil {
		return lostDatabase(err)
	}
	return nil
}

// isOwn returns errTaken if another server has used the database.
func (l *serverLock) isOwn(ctx context.Context, c *pgx.Conn) error {
	var number int64
	err := c.QueryRow(ctx, `SELECT server FROM sandlot_state`).Scan(&number)
	var e *pgconn.PgError
	if err == nil && number != l.number || errors.Is(err, pgx.ErrNoRows) ||
		errors.As(err, &e) && e.Code == "42P01" { // undefined_table: it is another database
		return errTaken
	}
	return err
}

// Usable implements Holder: it returns a fault while the lock is lost.
func (l *serverLock) Usable() error {
	if err := l.down.Load(); err != nil {
		return *err
	}
	return nil
}

// Generation implements Holder.
func (l *serverLock) Generation() uint64 { return l.generation.Load() }

// start watches the lock until close.
func (l *serverLock) start(pool *sql.DB) {
	ctx, cancel := context.WithCancel(context.Background())
	l.pool, l.cancel = pool, cancel
	go l.watch(ctx)
}

// close releases the lock.
func (l *serverLock) close() {
	l.cancel()
	<-l.done
}

func (l *serverLock) closeConn() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	l.conn.Close(ctx)
}

func (l *serverLock) watch(ctx context.Context) {
	defer close(l.done)
	for {
		err := l.hold(ctx)
		l.closeConn()
		if ctx.Err() != nil {
			return
		}
		l.setDown(lostDatabase(err))
		l.log.Error("the connection to the PostgreSQL database is lost; calls that need the database fail until it "+
			"answers again", "error", err)
		since := time.Now()
		if err := l.again(ctx); err != nil {
			if ctx.Err() == nil {
				l.setDown(lostDatabase(err))
				l.lost <- err
			}
			return
		}
		l.down.Store(nil)
		l.log.Info("the PostgreSQL database answers again", "after", time.Since(since).Round(time.Millisecond))
	}
}

// setDown makes each use of the database fail, and closes its connections.
func (l *serverLock) setDown(err error) {
	l.down.Store(&err)
	l.generation.Add(1)
	closeIdle(l.pool)
}

// hold returns when the connection is lost or ctx has ended.
func (l *serverLock) hold(ctx context.Context) error {
	for {
		waiting, cancel := context.WithTimeout(ctx, lockPing)
		_, err := l.conn.WaitForNotification(waiting) // returns at once when the connection is closed
		cancel()
		if ctx.Err() != nil || err != nil && !pgconn.Timeout(err) {
			return err
		}
		pinging, cancel := context.WithTimeout(ctx, statementTimeout)
		err = l.conn.Ping(pinging)
		cancel()
		if err != nil {
			return err
		}
	}
}

// again takes the lock again. It returns errTaken if another server has used the database.
func (l *serverLock) again(ctx context.Context) error {
	for {
		held, err := l.retake(ctx)
		if held || errors.Is(err, errTaken) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(lockRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// retake tries once. The lock may still be held by the connection that was lost, or by a server that starts and
// has no number yet.
func (l *serverLock) retake(ctx context.Context) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if l.conn, err = pgx.ConnectConfig(ctx, l.config.Copy()); err != nil {
		return false, err
	}
	if err = l.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, LockOfServer).Scan(&held); err == nil {
		err = l.isOwn(ctx, l.conn)
	}
	if err != nil || !held {
		l.closeConn()
		return false, err
	}
	return true, nil
}
