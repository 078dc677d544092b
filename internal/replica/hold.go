package replica

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"sandlot/internal/store"
)

// request is something to do on the connection with the lock.
type request struct {
	do      func(ctx context.Context, c *pgx.Conn) error
	timeout time.Duration
	done    chan error
}

// onConn does something on the connection with the lock. It goes on when ctx ends, so that a client that leaves does not
// break the connection: do must not touch the caller's variables then.
func (m *Member) onConn(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	return m.onConnFor(ctx, statementTimeout, do)
}

// onConnFor is onConn with another timeout.
func (m *Member) onConnFor(ctx context.Context, timeout time.Duration, do func(context.Context, *pgx.Conn) error) error {
	r := &request{do, timeout, make(chan error, 1)}
	select {
	case m.requests <- r:
	case <-m.done:
		return store.Unusable(ErrLost)
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run holds the lock, and takes it again when its connection is lost.
func (m *Member) run(ctx context.Context) {
	defer close(m.done)
	for {
		err := m.hold(ctx)
		m.closeConn()
		m.lose(err)
		if ctx.Err() != nil {
			return
		}
		m.Log.Error("the connection to the PostgreSQL database is lost, and with it the right to act for principals",
			"error", err)
		since := time.Now()
		if err := m.again(ctx); err != nil {
			if ctx.Err() == nil {
				m.lose(err)
				m.lost <- err
			}
			return
		}
		m.Log.Info("this server acts for its principals again", "after", time.Since(since).Round(time.Millisecond))
	}
}

// hold returns when the connection is lost or ctx has ended.
func (m *Member) hold(ctx context.Context) error {
	for {
		waiting, cancel := context.WithTimeout(ctx, pingInterval)
		var next *request
		received := make(chan struct{})
		go func() {
			defer close(received)
			select {
			case next = <-m.requests:
				cancel()
			case <-waiting.Done():
			}
		}()
		n, err := m.conn.WaitForNotification(waiting) // returns at once when the connection is closed
		cancel()
		<-received
		ended := err == nil || pgconn.Timeout(err) || errors.Is(err, context.Canceled) // the waiting alone
		if !ended || ctx.Err() != nil || m.conn.IsClosed() {
			err = errors.Join(err, ctx.Err())
			if next != nil {
				next.done <- store.Unusable(err)
			}
			return err
		}
		if n != nil {
			m.changed(n.Payload)
		}
		if err := m.serve(next, n != nil); err != nil {
			return err
		}
	}
}

// serve does what was requested, if anything was. Without a sign of life, it asks the database for one.
func (m *Member) serve(next *request, lives bool) error {
	timeout := statementTimeout
	if next != nil {
		timeout = next.timeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	switch {
	case next != nil:
		err := next.do(ctx, m.conn)
		closed := m.conn.IsClosed()
		if closed {
			m.lose(err) // before the caller learns of it
			err = store.Unusable(err)
		}
		next.done <- err
		if closed {
			return errors.Join(errors.New("the connection was closed"), err)
		}
		return nil
	case lives:
		return nil
	}
	return m.conn.Ping(ctx)
}

// changed notes what a notification says: a unit has another owner, or servers have come or gone.
func (m *Member) changed(unit string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if unit == "" {
		clear(m.cache)
		m.reloaded = time.Time{}
		return
	}
	delete(m.cache, unit)
}

// lose notes that the lock is lost. What this server does for units that another one could claim ends now.
func (m *Member) lose(err error) {
	m.mu.Lock()
	first := m.down == nil
	m.down = store.Unusable(err)
	m.generation++
	clear(m.cache)
	m.reloaded = time.Time{}
	held := map[string]*lease{}
	for unit, l := range m.owned {
		held[unit] = l
	}
	hooks := m.onDown
	m.mu.Unlock()
	if !first {
		return
	}
	var kept map[string]bool
	if m.Kept != nil {
		kept = m.Kept()
	}
	for unit, l := range held {
		if !kept[unit] {
			l.cancel(ErrLost)
		}
	}
	for _, hook := range hooks {
		hook()
	}
}

// again takes the lock again. It returns errTaken if something was claimed by another server meanwhile.
func (m *Member) again(ctx context.Context) error {
	for {
		err := m.retake(ctx)
		if err == nil || errors.Is(err, errTaken) || ctx.Err() != nil {
			return err
		}
		for wait := time.After(retryInterval); wait != nil; {
			select {
			case r := <-m.requests:
				r.done <- store.Unusable(err)
			case <-wait:
				wait = nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

var errHeld = errors.New("the lock is still held by the connection that was lost, or another server is about to use it")

// retake tries once.
func (m *Member) retake(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if m.conn, err = pgx.ConnectConfig(ctx, m.Postgres.Copy()); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			m.closeConn()
		}
	}()
	// Listening begins before what is stored is read: no change falls between both.
	if _, err := m.conn.Exec(ctx, `LISTEN `+channel); err != nil {
		return err
	}
	// Another process may hold the lock for ever, when it has taken the row over.
	if err := m.isOwn(ctx, m.conn); err != nil {
		return err
	}
	var alone, own bool
	if err := m.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock_shared($1)`, int64(store.LockOfServer)).
		Scan(&alone); err != nil {
		return err
	}
	if !alone {
		return errHeld
	}
	if err := m.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, lockClass, m.slot).Scan(&own); err != nil {
		return err
	}
	if !own {
		return errHeld
	}
	if err := m.isOwn(ctx, m.conn); err != nil {
		return err
	}
	return m.confirm(ctx)
}

// isOwn returns errTaken if the row of this process is another one's by now, or gone.
func (m *Member) isOwn(ctx context.Context, c *pgx.Conn) error {
	var number int64
	err := c.QueryRow(ctx, `SELECT number FROM sandlot_replicas WHERE slot = $1`, m.slot).Scan(&number)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && number != m.number {
		return errTaken
	}
	return err
}

// confirm compares what this server owns with what is stored, and goes on with it.
func (m *Member) confirm(ctx context.Context) error {
	rows, err := m.conn.Query(ctx, `SELECT principal, epoch FROM sandlot_owners WHERE slot = $1`, m.slot)
	if err != nil {
		return err
	}
	stored := map[string]int64{}
	var unit string
	var epoch int64
	if _, err := pgx.ForEachRow(rows, []any{&unit, &epoch}, func() error { stored[unit] = epoch; return nil }); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for unit, l := range m.owned {
		if stored[unit] != l.epoch {
			return errTaken
		}
	}
	for unit, epoch := range stored {
		l := m.owned[unit]
		if l == nil { // the answer to the claim was lost
			m.owned[unit] = newLease(epoch)
		} else if l.ctx.Err() != nil {
			fresh := newLease(epoch)
			fresh.loaded = l.loaded
			m.owned[unit] = fresh
		}
	}
	m.down = nil
	return nil
}

// Usable returns the fault of each use of the database while the lock is lost.
func (m *Member) Usable() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.down
}

// Generation is that of the connections that are opened now.
func (m *Member) Generation() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.generation
}

// OnDown makes a function be called when the lock is lost.
func (m *Member) OnDown(hook func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onDown = append(m.onDown, hook)
}

// Attach makes a connection one of this process: what it writes is compared with what this process owns.
func (m *Member) Attach(ctx context.Context, c *pgx.Conn) error {
	var shared bool
	if err := c.QueryRow(ctx, `SELECT pg_try_advisory_lock_shared($1)`, int64(store.LockOfUsers)).
		Scan(&shared); err != nil {
		return err
	}
	if !shared { // a server without replicas starts
		return store.Unusable(errTaken)
	}
	if err := m.isOwn(ctx, c); err != nil {
		return store.Unusable(err)
	}
	_, err := c.Exec(ctx, `SELECT set_config('sandlot.replica', $1, false)`, strconv.FormatInt(m.number, 10))
	return err
}
