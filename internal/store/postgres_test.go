package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/session"
	"sandlot/internal/store/storetest"
)

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// openServer opens a database for a server. At the end of the test no log line has the password.
func openServer(t *testing.T, place string) *DB {
	t.Helper()
	var log lockedBuffer
	options := &slog.HandlerOptions{Level: slog.LevelDebug}
	db, err := OpenServer(t.Context(), place, slog.New(slog.NewTextHandler(&log, options)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		db.Close()
		if strings.Contains(log.String(), storetest.Password) {
			t.Errorf("the log has the password:\n%s", log.String())
		}
	})
	return db
}

func hasKind(err error, kind fault.Kind) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Kind == kind
}

// eventually waits until a condition is true. The test's timeout bounds it.
func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	for !condition() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("it never became true")
		}
	}
}

// connectTo opens a connection beside the store's.
func connectTo(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// endLock ends the connection that holds the lock of the server.
func endLock(t *testing.T, c *pgx.Conn) {
	t.Helper()
	var ended bool
	if err := c.QueryRow(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'
		AND granted AND objid = $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`,
		uint32(LockOfServer&0xffffffff)).Scan(&ended); err != nil || !ended {
		t.Fatal(ended, err)
	}
}

func TestOneServerForEachDatabase(t *testing.T) {
	place := storetest.Database(t)
	first := openServer(t, place)
	put(t, first, sessionOf("a"))
	_, err := OpenServer(t.Context(), place, slog.New(slog.DiscardHandler))
	if !hasKind(err, fault.Configuration) || !strings.Contains(err.Error(), "another Sandlot server uses") ||
		!strings.Contains(err.Error(), "stop that server") || !strings.Contains(err.Error(), "sandlot, process ") {
		t.Errorf("a second server: %v", err)
	}
	command := open(t, place) // is no server
	if _, _, err := auth.Issue(t.Context(), command, "ann", false, 0); err != nil {
		t.Error(err)
	}
	openServer(t, storetest.Database(t)) // another database
	first.Close()
	if got := sessions(t, openServer(t, place)); len(got) != 1 {
		t.Errorf("%d sessions", len(got))
	}
}

// A server that has lost its lock, and does not know it, never writes beside the next one.
func TestNextServerWaitsForConnections(t *testing.T) {
	place := storetest.Database(t)
	earlier := openServer(t, place)
	put(t, earlier, sessionOf("a"))
	earlier.lock.cancel() // as if it hung: nobody notices that the lock is gone
	<-earlier.lock.done
	next := make(chan *DB)
	go func() {
		db, err := OpenServer(context.Background(), place, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Error(err)
		}
		next <- db
	}()
	c := connectTo(t, place)
	eventually(t, func() bool { // the next server has the first lock
		var n int
		err := c.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`,
			uint32(LockOfServer&0xffffffff)).Scan(&n)
		return err == nil && n == 1
	})
	put(t, earlier, sessionOf("b")) // still its own
	select {
	case <-next:
		t.Fatal("the next server has started beside a connection of the earlier one")
	default:
	}
	earlier.db.SetMaxIdleConns(-1) // its connections end
	db := <-next
	if db == nil {
		t.FailNow()
	}
	t.Cleanup(func() { db.Close() })
	if err := earlier.PutSession(t.Context(), sessionOf("c")); !hasKind(err, fault.Connection) {
		t.Errorf("the earlier server writes: %v", err)
	}
	put(t, db, sessionOf("d"))
	if got := sessions(t, db); len(got) != 3 {
		t.Errorf("%d sessions", len(got))
	}
}

func TestLockIsTakenAgain(t *testing.T) {
	place := storetest.Database(t)
	db, c := openServer(t, place), connectTo(t, place)
	put(t, db, sessionOf("a"))
	for n := range uint64(3) {
		endLock(t, c)
		eventually(t, func() bool {
			return db.lock.generation.Load() > n && db.PutSession(t.Context(), sessionOf("b")) == nil
		})
	}
	select {
	case err := <-db.Lost():
		t.Error(err)
	default:
	}
	if _, err := OpenServer(t.Context(), place, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a second server has started")
	}
}

func TestServerEndsWhenTakenOver(t *testing.T) {
	place := storetest.Database(t)
	db, c, other := openServer(t, place), connectTo(t, place), connectTo(t, place)
	put(t, db, sessionOf("a"))
	taken := make(chan error, 1)
	go func() { // waits in PostgreSQL, so it is the next to have the lock
		_, err := other.Exec(context.Background(), `SELECT pg_advisory_lock($1)`, int64(LockOfServer))
		taken <- err
	}()
	eventually(t, func() bool {
		var waits int
		err := c.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&waits)
		return err == nil && waits == 1
	})
	endLock(t, c)
	if err := <-taken; err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(t.Context(), `UPDATE sandlot_state SET server = server + 1`); err != nil {
		t.Fatal(err)
	}
	if err := <-db.Lost(); !errors.Is(err, errTaken) {
		t.Error(err)
	}
	if err := db.PutSession(t.Context(), sessionOf("b")); !hasKind(err, fault.Connection) {
		t.Errorf("it writes: %v", err)
	}
	if _, err := other.Exec(t.Context(), `SELECT pg_advisory_unlock($1)`, int64(LockOfServer)); err != nil {
		t.Fatal(err)
	}
	if err := db.PutSession(t.Context(), sessionOf("b")); !hasKind(err, fault.Connection) { // for ever
		t.Errorf("it writes: %v", err)
	}
}

// While the database is gone or hangs, calls end with a clear fault, and afterwards all is as before.
func TestLostDatabase(t *testing.T) {
	server := storetest.Start(t)
	db := openServer(t, server.Database(t))
	put(t, db, sessionOf("a"))
	fails := func() {
		t.Helper()
		_, err := db.HasTokens(t.Context()) // nobody can cancel it
		for _, err := range []error{err, db.PutSession(t.Context(), sessionOf("b")),
			db.PutCounts(t.Context(), session.Counts{}), db.PutLogin(t.Context(), "user:ann", "c", []byte("x"))} {
			if !hasKind(err, fault.Connection) ||
				!strings.Contains(fmt.Sprint(fault.From(err).Data()), "setting store") {
				t.Errorf("%v", err)
			}
			for e := err; e != nil; e = errors.Unwrap(e) {
				if strings.Contains(e.Error(), storetest.Password) {
					t.Errorf("the password is in %v", e)
				}
			}
		}
	}
	recovers := func() {
		t.Helper()
		eventually(t, func() bool { return db.PutSession(t.Context(), sessionOf("a")) == nil })
		if _, err := db.HasTokens(t.Context()); err != nil {
			t.Error(err)
		}
		if got := sessions(t, db); len(got) != 1 {
			t.Errorf("%d sessions", len(got))
		}
	}
	server.Stop()
	fails()
	if err := server.Run(); err != nil {
		t.Fatal(err)
	}
	recovers()
	if err := server.SignalAll(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	fails()
	if err := server.SignalAll(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	recovers()
	select {
	case err := <-db.Lost():
		t.Error(err)
	default:
	}
}

// A statement that is cut off inside a transaction is a fault too, and leaves nothing.
func TestConnectionLostInTransaction(t *testing.T) {
	place := storetest.Database(t)
	db, c := openServer(t, place), connectTo(t, place)
	tx, err := db.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := c.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND state = 'idle in transaction'`); err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(`UPDATE sessions SET lost = ?`, "x")
	if !hasKind(err, fault.Connection) {
		t.Errorf("%T %v", err, err)
	}
	put(t, db, sessionOf("a"))
}

// No error of opening a database has the password.
func TestPasswordStaysSecret(t *testing.T) {
	server := storetest.Start(t)
	server.Query(t, "postgres", `CREATE ROLE checked LOGIN PASSWORD 'another'`)
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	word := storetest.Password
	for _, place := range []string{
		server.URL("checked", "postgres"), // the wrong password
		server.URL("sandlot", "none"),
		"postgres://u:" + word + "@" + l.Addr().String() + "/d?connect_timeout=1&sslmode=disable",
		"postgres://u:" + word + "@127.0.0.1:1/d",
		"postgres://u:" + word + "%zz@127.0.0.1/d",
		"postgres://u:" + word + "@127.0.0.1:port/d",
		"postgres://u:" + word + "@127.0.0.1/d?sslmode=unknown",
		"postgres://u@127.0.0.1/d?sslmode=unknown&password=" + word,
		"postgres://u:" + word + "@127.0.0.1/d?sslmode=verify-full&sslrootcert=/none/" + word,
		"postgres://u:" + word + "/with@slash@127.0.0.1/d",
	} {
		for _, open := range []func() error{
			func() error { _, err := Open(t.Context(), place); return err },
			func() error { _, err := OpenServer(t.Context(), place, slog.New(slog.DiscardHandler)); return err },
			func() error { _, err := Sandboxes(t.Context(), place); return err },
		} {
			err := open()
			if err == nil {
				t.Errorf("%s was opened", place)
			}
			for e := err; e != nil; e = errors.Unwrap(e) {
				if text := fmt.Sprintf("%v %+v %q", e, e, e); strings.Contains(text, word) {
					t.Errorf("%s\nhas the password", text)
				}
			}
		}
	}
}

func TestRewrite(t *testing.T) {
	for in, want := range map[string]string{
		`SELECT a FROM t WHERE b = ? AND c = ?`: `SELECT a FROM t WHERE b = $1 AND c = $2`,
		`SELECT '?', "?", 'it''s ?', ? -- ?
			/* ? */, ?`: `SELECT '?', "?", 'it''s ?', $1 -- ?
			/* ? */, $2`,
		`SELECT user, t.USER, users, user_id, 'user', "user" FROM t`: `SELECT "user", t."user", users, user_id, 'user', "user" FROM t`,
		`SELECT text, blob, integer`:                                 `SELECT text, blob, integer`,
		`'open ?`:                                                    `'open ?`,
	} {
		if got := postgresStatement(in); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	in := `CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT, b BLOB, n INTEGER DEFAULT 0, r REAL) WITHOUT ROWID; -- TEXT`
	want := `CREATE TABLE t (id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, "user" TEXT COLLATE "C", b BYTEA, n BIGINT DEFAULT 0, r DOUBLE PRECISION) ; -- TEXT`
	if got := postgresMigration(in); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// process is a Holder whose connections have the number of a process.
type process struct{}

func (process) Usable() error      { return nil }
func (process) Generation() uint64 { return 0 }

func (process) Attach(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, `SELECT set_config('sandlot.replica', '7', false)`)
	return err
}

// One of several servers migrates the rows of all principals: package replica's triggers let a migration pass. Afterwards
// its connections have their number.
func TestMigrationOfMember(t *testing.T) {
	p, err := newPostgres(storetest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	s := &DB{db: p.pool(process{}), postgres: true, member: true}
	defer s.db.Close()
	names, err := migrationNames()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.migrateTo(t.Context(), names[:1]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.ExecContext(t.Context(), `CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS
		$$ BEGIN
			IF current_setting('sandlot.replica') <> '' THEN RAISE EXCEPTION 'this is process 7'; END IF;
		END $$;
		CREATE EVENT TRIGGER refuse ON ddl_command_end EXECUTE FUNCTION refuse()`); err != nil {
		t.Fatal(err)
	}
	if err := s.migrateTo(t.Context(), names); err != nil {
		t.Error(err)
	}
	var number string
	if err := s.db.QueryRowContext(t.Context(), `SELECT current_setting('sandlot.replica')`).Scan(&number); err != nil ||
		number != "7" {
		t.Errorf("%q %v", number, err)
	}
}
