// Package replica owns which of several servers on one PostgreSQL database acts for a principal.
//
// A server is a row of sandlot_replicas, and lives as long as its connection that holds the advisory lock of the row: no
// clock and no renewal says so. It claims principals in transactions on that connection, so that whoever does not hold
// its lock claims nothing. Each claim has a greater epoch. The other connections of the server carry the number of its
// process, and triggers refuse what a process writes to the rows of principals that it does not own (any longer).
package replica

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/singleflight"

	"sandlot/internal/fault"
	"sandlot/internal/store"
)

const (
	statementTimeout = 5 * time.Second
	enterPatience    = 15 * time.Second // how long a start waits for the starts of others
	startTimeout     = time.Minute      // of Start, which may have to claim many units
	joinPatience     = 5 * time.Second  // how long a start waits for the locks of a process that was killed just now
	pingInterval     = 2 * time.Second  // how often the lock's connection is checked, when nothing else is done with it
	retryInterval    = 250 * time.Millisecond
	// deathPatience is how long an owner must be without its lock before it is replaced. A server whose connection
	// breaks takes its lock again within that time, and loses nothing. Two owners are impossible without it, too.
	deathPatience = time.Second
	reloadPause   = time.Second // between two readings of the servers for a certificate that is not known
	maxCached     = 100_000     // owners that are remembered, of 200 bytes each
)

// lockClass is the first key of the lock of a server; the second is its slot. Slots begin with 1: 0 is the lock of a
// server that starts.
const lockClass = 0x53616e64

// channel gets the id of each unit that was claimed, and an empty text when servers have come or gone.
const channel = "sandlot_owners"

// Config configures a Member.
type Config struct {
	Postgres *pgx.ConnConfig
	// ID identifies the state folder. A server that starts again in it owns what it owned.
	ID          string
	Address     string // at which the other servers reach it
	Fingerprint string // of its certificate, in hexadecimal digits
	Version     string
	// Claimed loads what is stored of a unit that was claimed just now; nil: nothing. Before it returns, nothing is
	// done for the unit.
	Claimed func(ctx context.Context, unit string) error
	// Kept returns the units that have something that only this server has, so that no other server can claim them: what
	// runs for them goes on while the lock is lost. nil: there are none.
	Kept func() map[string]bool
	Log  *slog.Logger

	rowMade func() // tests: is called when the row is there and its lock is held
}

// Peer is a server.
type Peer struct {
	Slot        int32
	Number      int64 // of the process
	Address     string
	Fingerprint string
}

// Place is where what is asked for a unit is done.
type Place struct {
	Unit  string
	Epoch int64
	// Here ends when this server is not the owner any longer; nil: the owner is the peer.
	Here context.Context
	Peer Peer
}

// errTaken is the error of a server whose principals another one has claimed, or that lost the database to a server
// without replicas.
var errTaken = fault.New(fault.Configuration, "another server has claimed principals of this one while it had lost the "+
	"PostgreSQL database, so this one ends; its next start goes on with what it still owns")

// Member is this server among the others.
type Member struct {
	Config
	slot     int32
	number   int64
	patience time.Duration // deathPatience, but in tests

	requests  chan *request
	finding   singleflight.Group
	reloading singleflight.Group
	lost      chan error
	cancel    context.CancelFunc
	done      chan struct{}
	conn      *pgx.Conn // with the lock; only the goroutine of run uses it, after Join

	mu         sync.Mutex // guards what follows
	down       error      // of each use of the database; nil while the lock is held
	generation uint64     // of the other connections: earlier generations' are not used again
	onDown     []func()
	owned      map[string]*lease
	cache      map[string]Place // owned by others
	peers      map[string]Peer  // by their fingerprints
	reloaded   time.Time        // zero: servers have come or gone since, or may have
}

// lease is the ownership of a unit.
type lease struct {
	epoch  int64
	loaded bool // see Config.Claimed
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func newLease(epoch int64) *lease {
	l := &lease{epoch: epoch}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// ErrLost is the cause of the end of a Place's context.
var ErrLost = errors.New("this server is not the owner any longer")

// Join makes this process a member. The caller closes it.
func Join(ctx context.Context, c Config) (_ *Member, err error) {
	m := &Member{Config: c, patience: deathPatience, requests: make(chan *request), lost: make(chan error, 1), done: make(chan struct{}),
		owned: map[string]*lease{}, cache: map[string]Place{}, peers: map[string]Peer{}}
	connecting, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if m.conn, err = pgx.ConnectConfig(connecting, c.Postgres.Copy()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			m.closeConn()
		}
	}()
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	m.cancel = stop
	go m.run(running)
	return m, nil
}

// enter takes the locks, and writes the row of this process. One server enters at a time.
func (m *Member) enter(ctx context.Context) error {
	ok, err := m.try(ctx, enterPatience, `SELECT pg_try_advisory_lock($1, 0)`, lockClass)
	if err != nil {
		return err
	}
	if !ok {
		return fault.New(fault.Configuration, "another server has been starting for %v, and does not get on; end it, or "+
			"try again", enterPatience)
	}
	if ok, err = m.try(ctx, joinPatience, `SELECT pg_try_advisory_lock_shared($1)`, int64(store.LockOfServer)); err != nil {
		return err
	}
	if !ok {
		return fault.New(fault.Configuration, "a Sandlot server without replicas uses the PostgreSQL database; stop it, "+
			"or give it the setting replicas.address too")
	}
	if err := makeTables(ctx, m.conn); err != nil {
		return err
	}
	if err := m.replaceAlone(ctx); err != nil {
		return err
	}
	if err := m.takeRow(ctx); err != nil {
		return err
	}
	if _, err := m.conn.Exec(ctx, `LISTEN `+channel); err != nil {
		return err
	}
	if err := m.reload(ctx, m.conn); err != nil {
		return err
	}
	_, err = m.conn.Exec(ctx, `SELECT pg_advisory_unlock($1, 0)`, lockClass)
	return err
}

// replaceAlone makes sure that a server without replicas, which may have lost its lock and not noticed, does not go on
// beside the servers with replicas, of which this is the first one. If there is another one, or the row of one that was
// killed, then that was done: a server without replicas removes the rows when it starts.
func (m *Member) replaceAlone(ctx context.Context) error {
	var others, first bool
	if err := m.conn.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM sandlot_replicas WHERE number > 0)`).
		Scan(&others); err != nil || others {
		return err
	}
	if err := m.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(store.LockOfServer)).
		Scan(&first); err != nil || !first {
		return err
	}
	ok, err := m.try(ctx, joinPatience, `SELECT pg_try_advisory_lock($1)`, int64(store.LockOfUsers))
	if err != nil {
		return err
	}
	if !ok {
		return fault.New(fault.Configuration, "an earlier Sandlot server still has connections to the PostgreSQL "+
			"database, though it has lost its lock; stop that server, or end its connections (pg_terminate_backend), and "+
			"start again")
	}
	if err := store.ReplaceServer(ctx, m.conn); err != nil {
		return err
	}
	for _, lock := range []int64{store.LockOfUsers, store.LockOfServer} { // the latter stays shared
		if _, err := m.conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, lock); err != nil {
			return err
		}
	}
	return nil
}

// takeRow makes the row of this state folder, if there is none, and takes it over.
func (m *Member) takeRow(ctx context.Context) error {
	for {
		if err := m.conn.QueryRow(ctx, `INSERT INTO sandlot_replicas (id, number, address, fingerprint, version, started)
			VALUES ($1, 0, '', '', '', now()) ON CONFLICT (id) DO UPDATE SET id = excluded.id RETURNING slot`, m.ID).
			Scan(&m.slot); err != nil {
			return err
		}
		ok, err := m.try(ctx, joinPatience, `SELECT pg_try_advisory_lock($1, $2)`, lockClass, m.slot)
		if err != nil {
			return err
		}
		if !ok {
			return fault.New(fault.Configuration, "a server with a copy of this state folder runs already; each server "+
				"needs a state folder of its own")
		}
		if m.rowMade != nil {
			m.rowMade()
		}
		if err = m.checkVersions(ctx); err == nil {
			err = m.register(ctx)
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		// Until the lock was taken, the row was that of a server that is gone, for one that has removed it.
		if _, err := m.conn.Exec(ctx, `SELECT pg_advisory_unlock($1, $2)`, lockClass, m.slot); err != nil {
			return err
		}
	}
}

// checkVersions returns an error if a server of another version lives.
func (m *Member) checkVersions(ctx context.Context) error {
	var address, version string
	err := m.conn.QueryRow(ctx, `SELECT address, version FROM sandlot_replicas WHERE slot <> $1 AND number > 0
		AND version <> $2 AND NOT pg_try_advisory_xact_lock_shared($3, slot) ORDER BY slot LIMIT 1`, m.slot, m.Version,
		lockClass).Scan(&address, &version)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return fault.New(fault.Configuration, "the server at %s has the version %s, and this one %s; servers that share a "+
		"database have one version: stop all before an upgrade", address, version, m.Version)
}

// register gives this process its number, and claims anew what an earlier process with this state folder owned.
func (m *Member) register(ctx context.Context) error {
	return pgx.BeginFunc(ctx, m.conn, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `UPDATE sandlot_replicas SET number = nextval('sandlot_epochs'), address = $2,
			fingerprint = $3, version = $4, started = now() WHERE slot = $1 RETURNING number`, m.slot, m.Address,
			m.Fingerprint, m.Version).Scan(&m.number); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `UPDATE sandlot_owners SET number = $2, epoch = nextval('sandlot_epochs')
			WHERE slot = $1 RETURNING principal, epoch`, m.slot, m.number)
		if err != nil {
			return err
		}
		var unit string
		var epoch int64
		if _, err := pgx.ForEachRow(rows, []any{&unit, &epoch}, func() error {
			m.owned[unit] = newLease(epoch)
			m.owned[unit].loaded = true // by the start
			return nil
		}); err != nil {
			return err
		}
		// Servers that are gone, and have left nothing that only they have.
		_, err = tx.Exec(ctx, `DELETE FROM sandlot_replicas r WHERE slot <> $1
			AND NOT EXISTS (SELECT 1 FROM sandlot_owners o WHERE o.slot = r.slot)
			AND pg_try_advisory_xact_lock($2, slot)`, m.slot, lockClass)
		if err == nil {
			_, err = tx.Exec(ctx, `SELECT pg_notify($1, '')`, channel)
		}
		return err
	})
}

// try executes a query for a lock until it returns true, or for the time given.
func (m *Member) try(ctx context.Context, patience time.Duration, query string, keys ...any) (ok bool, err error) {
	for end := time.Now().Add(patience); ; {
		if err = m.conn.QueryRow(ctx, query, keys...).Scan(&ok); err != nil || ok || time.Now().After(end) {
			return ok, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// unowned are the workspaces of sessions and snapshots of units that nobody owns.
const unowned = `SELECT owner, workspace FROM (SELECT owner, workspace FROM sessions
	UNION ALL SELECT owner, workspace FROM snapshots) AS content
	WHERE NOT EXISTS (SELECT 1 FROM sandlot_owners WHERE principal = sandlot_unit(owner))`

// Start makes the triggers, when the store has its tables, and claims the units that nobody owns and that have sessions
// or snapshots with workspaces of this state folder: a server without replicas had them. That server had all that nobody
// owns, so a server that is the only one, and has a part of it, claims it whole, should folders be missing.
func (m *Member) Start(ctx context.Context, unitOf func(id string) string, hasWorkspace func(id string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return m.onConnFor(ctx, startTimeout, func(ctx context.Context, c *pgx.Conn) error {
		if err := guard(ctx, c); err != nil {
			return err
		}
		var others bool
		if err := c.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM sandlot_replicas WHERE slot <> $1)`, m.slot).
			Scan(&others); err != nil {
			return err
		}
		rows, err := c.Query(ctx, unowned)
		if err != nil {
			return err
		}
		var owner, workspace string
		all, here := map[string]bool{}, map[string]bool{}
		if _, err := pgx.ForEachRow(rows, []any{&owner, &workspace}, func() error {
			unit := unitOf(owner)
			all[unit] = true
			if hasWorkspace(workspace) {
				here[unit] = true
			}
			return nil
		}); err != nil {
			return err
		}
		if !others && len(here) > 0 {
			here = all
		}
		return m.claimAll(ctx, c, slices.Collect(maps.Keys(here)))
	})
}

// claimAll claims units that nobody owns, before the start loads what is stored of them.
func (m *Member) claimAll(ctx context.Context, c *pgx.Conn, units []string) error {
	rows, err := c.Query(ctx, `INSERT INTO sandlot_owners (principal, slot, number, epoch)
		SELECT unit, $2, $3, nextval('sandlot_epochs') FROM unnest($1::text[]) AS unit
		ON CONFLICT (principal) DO NOTHING RETURNING principal, epoch`, units, m.slot, m.number)
	if err != nil {
		return err
	}
	var unit string
	var epoch int64
	claimed := map[string]*lease{}
	if _, err := pgx.ForEachRow(rows, []any{&unit, &epoch}, func() error {
		claimed[unit] = newLease(epoch)
		claimed[unit].loaded = true
		return nil
	}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.Copy(m.owned, claimed)
	return nil
}

// Lost gets an error when the server must end: what it has in memory is not what is stored any longer.
func (m *Member) Lost() <-chan error { return m.lost }

// Leave gives up the units that other servers can take, and closes the member. It is called when nothing is done for
// them any longer.
func (m *Member) Leave(ctx context.Context) error {
	err := m.onConn(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `DELETE FROM sandlot_owners WHERE number = $1
				AND NOT EXISTS (SELECT 1 FROM sessions WHERE sandlot_unit(owner) = principal)
				AND NOT EXISTS (SELECT 1 FROM snapshots WHERE sandlot_unit(owner) = principal)`, m.number); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `DELETE FROM sandlot_replicas r WHERE slot = $1
				AND NOT EXISTS (SELECT 1 FROM sandlot_owners o WHERE o.slot = r.slot)`, m.slot); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `SELECT pg_notify($1, '')`, channel)
			return err
		})
	})
	m.Close()
	return err
}

// Close ends the membership without giving up anything, as a crash does. It can be called twice.
func (m *Member) Close() {
	m.cancel()
	<-m.done
}

func (m *Member) closeConn() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	m.conn.Close(ctx)
}
