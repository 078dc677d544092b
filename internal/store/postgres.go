package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"sandlot/internal/fault"
)

// IsPostgres reports whether where, an argument of Open, is the URL of a PostgreSQL database.
func IsPostgres(where string) bool {
	return strings.HasPrefix(where, "postgres://") || strings.HasPrefix(where, "postgresql://")
}

// statementTimeout limits connecting to PostgreSQL, and each statement: a call fails that late when the database's
// machine is gone.
const statementTimeout = 5 * time.Second

// postgresConns is how many connections a process has to PostgreSQL.
const postgresConns = 8

// Keys of advisory locks. PostgreSQL has them for each database. Package replica uses them too.
const (
	LockOfServer = 0x53616e646c6f7401 // held by the server, on a connection of its own; several servers share it
	LockOfUsers  = 0x53616e646c6f7402 // shared by the other connections of the server
	LockOfWrites = 0x53616e646c6f7403 // held by a transaction that may write
)

// postgresState is the table of what SQLite has in the file's header, and of which server was the last.
const postgresState = `CREATE TABLE IF NOT EXISTS sandlot_state (one INT PRIMARY KEY CHECK (one = 1),
	version BIGINT NOT NULL, server BIGINT NOT NULL, id TEXT NOT NULL);
	INSERT INTO sandlot_state VALUES (1, 0, 0, CAST(gen_random_uuid() AS text)) ON CONFLICT DO NOTHING`

// postgresDB is a PostgreSQL database that is not open.
type postgresDB struct {
	config *pgx.ConnConfig
	name   string // for people, without the password
}

// newPostgres reads a URL. Its error does not have the password.
func newPostgres(where string) (*postgresDB, error) {
	u, err := url.Parse(where)
	if err != nil { // whose text has the URL
		return nil, fault.New(fault.Configuration, "store: this is not the URL of a PostgreSQL database, such as "+
			"postgres://USER:PASSWORD@HOST/DATABASE; write special characters of the password as %%40 (@), %%2F (/)")
	}
	c, err := pgx.ParseConfig(where)
	if err != nil {
		return nil, fault.New(fault.Configuration, "store: the URL of the PostgreSQL database cannot be used: %s",
			withoutPassword(err.Error(), u))
	}
	if c.ConnectTimeout == 0 || c.ConnectTimeout > statementTimeout {
		c.ConnectTimeout = statementTimeout
	}
	// The locks of a server whose machine is gone end after a minute.
	for key, value := range map[string]string{"application_name": applicationName(), "tcp_keepalives_idle": "30",
		"tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"} {
		if _, ok := c.RuntimeParams[key]; !ok {
			c.RuntimeParams[key] = value
		}
	}
	return &postgresDB{c, fmt.Sprintf("%s on %s", c.Database, c.Host)}, nil
}

// applicationName tells the database's operator, and the next server, which process this is.
func applicationName() string {
	host, _ := os.Hostname()
	name := fmt.Sprintf("sandlot, process %d on %s", os.Getpid(), host)
	return name[:min(len(name), 63)]
}

// withoutPassword removes the passwords of a URL from a text.
func withoutPassword(text string, u *url.URL) string {
	var passwords []string
	if p, ok := u.User.Password(); ok {
		_, raw, _ := strings.Cut(u.User.String(), ":")
		passwords = append(passwords, p, raw)
	}
	for key, values := range u.Query() {
		if strings.Contains(strings.ToLower(key), "password") {
			passwords = append(passwords, values...)
		}
	}
	passwords = slices.DeleteFunc(passwords, func(p string) bool { return p == "" })
	// The longest first: one may be a part of another.
	slices.SortFunc(passwords, func(a, b string) int { return len(b) - len(a) })
	for _, p := range passwords {
		text = strings.ReplaceAll(text, p, "xxxxx")
		text = strings.ReplaceAll(text, url.QueryEscape(p), "xxxxx")
	}
	return text
}

// Holder is what gives a server the right to use a PostgreSQL database: it is the only one, or one of several.
type Holder interface {
	// Usable returns the fault of each use of the database at this moment; nil: it can be used.
	Usable() error
	// Generation is that of the connections that are opened now. Connections of earlier ones are not used again.
	Generation() uint64
	// Attach is called for each new connection, and returns an error if the server may not use it.
	Attach(ctx context.Context, c *pgx.Conn) error
}

// pool returns connections. h is that of the server, or nil in a command.
func (p *postgresDB) pool(h Holder) *sql.DB {
	d := &dialect{rewrite: postgresStatement, timeout: statementTimeout, translate: postgresFault,
		readOnly:     driver.IsolationLevel(sql.LevelRepeatableRead),
		beforeWrites: fmt.Sprintf(`SELECT pg_advisory_xact_lock(%d)`, LockOfWrites)}
	var options []stdlib.OptionOpenDB
	if h != nil {
		d.check, d.generation = h.Usable, h.Generation
		d.valid = func(generation uint64) bool { return generation == h.Generation() }
		options = append(options, stdlib.OptionAfterConnect(h.Attach))
	}
	inner := stdlib.GetConnector(*p.config, options...)
	db := sql.OpenDB(connector{func(ctx context.Context) (driver.Conn, error) { return inner.Connect(ctx) },
		inner.Driver(), d})
	db.SetMaxOpenConns(postgresConns)
	db.SetMaxIdleConns(postgresConns)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db
}

// open opens the database for a command.
func (p *postgresDB) open(ctx context.Context) (*DB, error) {
	s, err := (&DB{db: p.pool(nil), postgres: true}).ready(ctx)
	if err != nil {
		return nil, p.unusable(err)
	}
	return s, nil
}

// openServer opens the database for a server, and locks it.
func (p *postgresDB) openServer(ctx context.Context, folder string, log *slog.Logger) (*DB, error) {
	l, err := p.lock(ctx, folder, log)
	if err != nil {
		return nil, p.unusable(err)
	}
	s := &DB{db: p.pool(l), postgres: true, lock: l}
	l.start(s.db)
	if s, err = s.ready(ctx); err != nil {
		return nil, p.unusable(err)
	}
	return s, nil
}

// openMember opens the database for one of several servers.
func (p *postgresDB) openMember(ctx context.Context, h Holder) (*DB, error) {
	s, err := (&DB{db: p.pool(h), postgres: true, member: true}).ready(ctx)
	if err != nil {
		return nil, p.unusable(err)
	}
	return s, nil
}

// closeIdle closes the connections of a pool that wait, when none of its generation may be used again.
func closeIdle(pool *sql.DB) {
	pool.SetMaxIdleConns(-1)
	pool.SetMaxIdleConns(postgresConns)
}

// unusable says which database cannot be opened, and why.
func (p *postgresDB) unusable(err error) error {
	var f *fault.Error
	if errors.As(err, &f) && f.Kind == fault.Configuration {
		return err
	}
	cause := err
	if f != nil && f.Cause != nil {
		cause = f.Cause
	}
	return fault.Wrap(fault.Configuration, err, "the PostgreSQL database %s cannot be used: %v", p.name, cause)
}

// postgresFault translates errors of PostgreSQL, and of the connection to it.
func postgresFault(ctx context.Context, err error) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return err
	}
	var e *pgconn.PgError
	if errors.As(err, &e) {
		switch {
		case e.Code == "53100": // disk_full
			return diskFull(err)
		case e.Code == "SL421": // see package replica
			return fault.Wrap(fault.Connection, err, "another server acts for this principal by now, so nothing was changed").
				Advise("Try again: the call then reaches that server")
		case strings.HasPrefix(e.Code, "08"), strings.HasPrefix(e.Code, "57P"), // the connection; shutting down
			e.Code == "53300",                     // too_many_connections
			e.Code == "25006",                     // read_only_sql_transaction: this is a replica now
			e.Code == "57014" && ctx.Err() == nil: // query_canceled, by our timeout
			return lostDatabase(err)
		}
		return err
	}
	if ctx.Err() != nil {
		return err
	}
	var connecting *pgconn.ConnectError
	var network net.Error
	if errors.As(err, &connecting) || errors.As(err, &network) || pgconn.Timeout(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return lostDatabase(err)
	}
	return err
}

// Unusable is the fault of calls that need the database while it does not answer.
func Unusable(cause error) error { return lostDatabase(cause) }

// PostgresConfig returns how to connect to a database with the URL where, and its name for people.
func PostgresConfig(where string) (*pgx.ConnConfig, string, error) {
	p, err := newPostgres(where)
	if err != nil {
		return nil, "", err
	}
	return p.config, p.name, nil
}

// lostDatabase is the fault of calls that need the database while it does not answer.
func lostDatabase(cause error) error {
	return fault.Wrap(fault.Connection, cause, "Sandlot's database does not answer, and this call needs it").
		Advise("Try again in a moment: the server uses the database again as soon as it answers",
			"Ask the operator to start the PostgreSQL database of the setting store, and to look at the server's log")
}

// diskFull is the fault of a change for which the database has no room.
func diskFull(cause error) error {
	return fault.Wrap(fault.ResourceLimit, cause, "the disk with Sandlot's database is full, so nothing was changed").
		With("resource_type", "disk of the database").
		Advise("Ask the operator to free space on the disk with Sandlot's database", "Then call again")
}
