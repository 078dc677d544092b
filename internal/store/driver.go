package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"time"
)

// dialect is what a kind of database has of its own. The rest of the package writes SQL that both kinds know.
type dialect struct {
	// rewrite returns a statement as this kind of database writes it; nil: unchanged.
	rewrite func(statement string) string
	// translate returns the fault of an error, or the error itself. ctx is the caller's.
	translate func(ctx context.Context, err error) error
	// check returns the fault of each use of the database at this moment; nil: there is none.
	check func() error
	// valid reports whether a connection that was made in a generation may be used again; nil: it may.
	valid func(generation uint64) bool
	// generation returns the generation of new connections.
	generation func() uint64
	// beforeWrites is executed at the start of each transaction that may write, so that these follow one another,
	// as in SQLite. Statements outside of transactions do not wait for it, unlike in SQLite: such a statement may
	// write between the reading and the writing of a transaction.
	beforeWrites string
	// readOnly is the isolation of transactions that only read, if they name none: they see the database of one moment.
	readOnly driver.IsolationLevel
	// timeout limits each statement, and the wait for each row; 0: not limited.
	timeout time.Duration
}

// patientKey marks a context whose statements have no timeout.
type patientKey struct{}

// withoutTimeout returns a context for statements that may take long, such as migrations.
func withoutTimeout(ctx context.Context) context.Context {
	return context.WithValue(ctx, patientKey{}, true)
}

func (d *dialect) isBounded(ctx context.Context) bool {
	return d.timeout > 0 && ctx.Value(patientKey{}) == nil
}

// bounded returns a context for one statement.
func (d *dialect) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if !d.isBounded(ctx) {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d.timeout)
}

// query is the context of a query, which lives until its rows are closed. What is waited for takes the timeout each.
type query struct {
	ctx    context.Context // the caller's
	cancel context.CancelFunc
	timer  *time.Timer // nil: not limited
}

// query returns a context that the caller cancels.
func (d *dialect) query(ctx context.Context) (context.Context, query) {
	if !d.isBounded(ctx) {
		return ctx, query{ctx: ctx, cancel: func() {}}
	}
	bounded, cancel := context.WithCancel(ctx)
	return bounded, query{ctx, cancel, time.AfterFunc(d.timeout, cancel)}
}

func (q query) end() {
	if q.timer != nil {
		q.timer.Stop()
	}
	q.cancel()
}

func (d *dialect) fault(ctx context.Context, err error) error {
	if err == nil || err == io.EOF || errors.Is(err, driver.ErrBadConn) || errors.Is(err, driver.ErrSkip) {
		return err // database/sql compares them
	}
	return d.translate(ctx, err)
}

func (d *dialect) usable() error {
	if d.check == nil {
		return nil
	}
	return d.check()
}

func (d *dialect) text(statement string) string {
	if d.rewrite == nil {
		return statement
	}
	return d.rewrite(statement)
}

// connector wraps the connections of a driver: it rewrites statements, limits how long they take, and makes
// faults of the driver's errors.
type connector struct {
	connect func(context.Context) (driver.Conn, error)
	driver  driver.Driver
	dialect *dialect
}

// Driver implements driver.Connector.
func (c connector) Driver() driver.Driver { return c.driver }

// Connect implements driver.Connector.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	d := c.dialect
	if err := d.usable(); err != nil {
		return nil, err
	}
	var generation uint64
	if d.generation != nil {
		generation = d.generation()
	}
	bounded, cancel := d.bounded(ctx)
	defer cancel()
	inner, err := c.connect(bounded)
	if err != nil {
		return nil, d.fault(ctx, err)
	}
	return &conn{Conn: inner, dialect: d, generation: generation}, nil
}

// innerConn is what the drivers of both databases implement.
type innerConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
}

type conn struct {
	driver.Conn
	dialect    *dialect
	generation uint64
	inTx       bool
}

func (c *conn) inner() innerConn { return c.Conn.(innerConn) }

// fault is dialect.fault for a statement. database/sql repeats a statement on another connection when it gets
// ErrBadConn, but not within a transaction.
func (c *conn) fault(ctx context.Context, err error) error {
	if c.inTx && errors.Is(err, driver.ErrBadConn) {
		return c.dialect.translate(ctx, io.ErrUnexpectedEOF)
	}
	return c.dialect.fault(ctx, err)
}

// IsValid implements driver.Validator.
func (c *conn) IsValid() bool {
	if c.dialect.valid != nil && !c.dialect.valid(c.generation) {
		return false
	}
	v, ok := c.Conn.(driver.Validator)
	return !ok || v.IsValid()
}

// ResetSession implements driver.SessionResetter.
func (c *conn) ResetSession(ctx context.Context) error {
	c.inTx = false
	if c.dialect.valid != nil && !c.dialect.valid(c.generation) {
		return driver.ErrBadConn
	}
	if r, ok := c.Conn.(driver.SessionResetter); ok {
		bounded, cancel := c.dialect.bounded(ctx)
		defer cancel()
		return r.ResetSession(bounded)
	}
	return nil
}

// Ping implements driver.Pinger.
func (c *conn) Ping(ctx context.Context) error {
	bounded, cancel := c.dialect.bounded(ctx)
	defer cancel()
	return c.fault(ctx, c.inner().Ping(bounded))
}

// ExecContext implements driver.ExecerContext.
func (c *conn) ExecContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.dialect.usable(); err != nil {
		return nil, err
	}
	bounded, cancel := c.dialect.bounded(ctx)
	defer cancel()
	r, err := c.inner().ExecContext(bounded, c.dialect.text(statement), args)
	return r, c.fault(ctx, err)
}

// QueryContext implements driver.QueryerContext.
func (c *conn) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.dialect.usable(); err != nil {
		return nil, err
	}
	bounded, q := c.dialect.query(ctx)
	r, err := c.inner().QueryContext(bounded, c.dialect.text(statement), args)
	return c.rows(q, r, err)
}

// rows returns the rows of a query.
func (c *conn) rows(q query, r driver.Rows, err error) (driver.Rows, error) {
	if err != nil {
		q.end()
		return nil, c.fault(q.ctx, err)
	}
	return &rows{r, c, q}, nil
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.dialect.usable(); err != nil {
		return nil, err
	}
	bounded, cancel := c.dialect.bounded(ctx)
	defer cancel()
	s, err := c.inner().PrepareContext(bounded, c.dialect.text(query))
	if err != nil {
		return nil, c.fault(ctx, err)
	}
	return &stmt{Stmt: s, conn: c}, nil
}

// BeginTx implements driver.ConnBeginTx.
func (c *conn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if err := c.dialect.usable(); err != nil {
		return nil, err
	}
	// The drivers commit with the context of BeginTx, so it lives until the end of the transaction.
	begun, cancel := context.WithCancel(ctx)
	t := &tx{ctx: ctx, conn: c, cancel: cancel}
	defer t.limit()()
	if o.ReadOnly && o.Isolation == 0 {
		o.Isolation = c.dialect.readOnly
	}
	inner, err := c.inner().BeginTx(begun, o)
	if err != nil {
		cancel()
		return nil, c.fault(ctx, err)
	}
	t.Tx, c.inTx = inner, true
	if c.dialect.beforeWrites != "" && !o.ReadOnly {
		if _, err := c.ExecContext(ctx, c.dialect.beforeWrites, nil); err != nil {
			t.Rollback()
			return nil, err
		}
	}
	return t, nil
}

type stmt struct {
	driver.Stmt
	conn *conn
}

// ExecContext implements driver.StmtExecContext.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.conn.dialect.usable(); err != nil {
		return nil, err
	}
	bounded, cancel := s.conn.dialect.bounded(ctx)
	defer cancel()
	r, err := s.Stmt.(driver.StmtExecContext).ExecContext(bounded, args)
	return r, s.conn.fault(ctx, err)
}

// QueryContext implements driver.StmtQueryContext.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.conn.dialect.usable(); err != nil {
		return nil, err
	}
	bounded, q := s.conn.dialect.query(ctx)
	r, err := s.Stmt.(driver.StmtQueryContext).QueryContext(bounded, args)
	return s.conn.rows(q, r, err)
}

type rows struct {
	driver.Rows
	conn  *conn
	query query
}

// Next implements driver.Rows.
func (r *rows) Next(values []driver.Value) error {
	if r.query.timer != nil {
		r.query.timer.Reset(r.conn.dialect.timeout)
	}
	return r.conn.fault(r.query.ctx, r.Rows.Next(values))
}

// Close implements driver.Rows.
func (r *rows) Close() error {
	defer r.query.end()
	return r.conn.fault(r.query.ctx, r.Rows.Close())
}

type tx struct {
	driver.Tx
	ctx    context.Context // the caller's
	conn   *conn
	cancel context.CancelFunc
}

// limit cancels the transaction unless stop is called in time.
func (t *tx) limit() (stop func() bool) {
	d := t.conn.dialect
	if !d.isBounded(t.ctx) {
		return func() bool { return true }
	}
	return time.AfterFunc(d.timeout, t.cancel).Stop
}

// Commit implements driver.Tx.
func (t *tx) Commit() error {
	defer t.end()
	if err := t.conn.dialect.usable(); err != nil {
		return errors.Join(err, t.Tx.Rollback())
	}
	defer t.limit()()
	return t.conn.fault(t.ctx, t.Tx.Commit())
}

// Rollback implements driver.Tx.
func (t *tx) Rollback() error {
	defer t.end()
	defer t.limit()()
	return t.conn.fault(t.ctx, t.Tx.Rollback())
}

func (t *tx) end() {
	t.conn.inTx = false
	t.cancel()
}
