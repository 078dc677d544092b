package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base32"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/session"
	"sandlot/internal/session/record"
	"sandlot/internal/store/storetest"
)

var (
	_ auth.Store    = (*DB)(nil)
	_ session.Store = (*DB)(nil)
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

func open(t *testing.T, dir string) *DB {
	t.Helper()
	db, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

var at = time.Date(2026, 3, 4, 5, 6, 7, 890_000_000, time.UTC)

func sessionOf(id string) session.Record {
	return session.Record{ID: id, Owner: "user:ann", Template: "host", Flavor: "small", Sandbox: "box-" + id,
		Workspace: workspaceOf(id), State: record.Live, Created: at, Used: at.Add(time.Minute)}
}

// workspaceOf returns the id of a session's workspace.
func workspaceOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:26]
}

func put(t *testing.T, db *DB, r session.Record) {
	t.Helper()
	if err := db.PutSession(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func sessions(t *testing.T, db *DB) []session.Record {
	t.Helper()
	all, err := db.Sessions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestSessionsSurviveReopening(t *testing.T) { storetest.Each(t, testSessionsSurviveReopening) }

func testSessionsSurviveReopening(t *testing.T, dir string) {
	db := open(t, dir)
	a, b := sessionOf("a"), sessionOf("b")
	b.Home, b.Created, b.Lost, b.State, b.Sandbox = true, at.Add(-time.Hour), "it slept", record.Stopped, ""
	put(t, db, a)
	put(t, db, b)
	want := []session.Record{b, a} // the oldest first
	if got := sessions(t, db); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if got := sessions(t, open(t, dir)); !reflect.DeepEqual(got, want) {
		t.Errorf("after reopening\ngot  %+v\nwant %+v", got, want)
	}
}

func TestPutSessionAgain(t *testing.T) { storetest.Each(t, testPutSessionAgain) }

func testPutSessionAgain(t *testing.T, dir string) {
	db := open(t, dir)
	r := sessionOf("a")
	put(t, db, r)
	r.Template, r.Flavor, r.Sandbox, r.Workspace, r.State = "node", "large", "box2", "ws2", record.Stopped
	r.Runtime = "docker"
	r.Used, r.Lost = at.Add(time.Hour), "gone"
	put(t, db, r)
	if got := sessions(t, db); len(got) != 1 || !reflect.DeepEqual(got[0], r) {
		t.Errorf("got  %+v\nwant %+v", got, r)
	}
	// Whose it is, and since when, never changes.
	thief := r
	thief.Owner, thief.Created = "user:bob", at.Add(time.Hour)
	put(t, db, thief)
	if got := sessions(t, db)[0]; got.Owner != "user:ann" || !got.Created.Equal(at) {
		t.Errorf("the owner became %s, the beginning %s", got.Owner, got.Created)
	}
}

func TestTraffic(t *testing.T) { storetest.Each(t, testTraffic) }

func testTraffic(t *testing.T, dir string) {
	db := open(t, dir)
	a, b := sessionOf("a"), sessionOf("b")
	a.Traffic = egress.Traffic{Up: 5, Down: 5} // is nothing that PutSession stores
	put(t, db, a)
	put(t, db, b)
	moved := map[string]egress.Traffic{"a": {Up: 1 << 40, Down: 2}, "b": {Down: 3}, "gone": {Up: 9}}
	day := map[string]egress.Day{"user:ann": {Number: 7, Traffic: moved["a"]}}
	for _, c := range []session.Counts{{Traffic: moved}, {DiskBytes: map[string]int64{"a": 1 << 41, "gone": 1}},
		{Days: map[string]egress.Day{"user:ann": {Number: 6}, "user:bob": {Number: 6}}}, {Days: day}} {
		if err := db.PutCounts(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	a.DiskBytes = 5 // is nothing that PutSession stores either
	if err := db.PutSession(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if days, err := db.Days(t.Context(), 7); err != nil || !maps.Equal(days, day) {
		t.Errorf("the days are %v, %v", days, err)
	}
	if err := db.RemoveDays(t.Context(), 7); err != nil {
		t.Error(err)
	}
	if days, err := db.Days(t.Context(), 0); err != nil || !maps.Equal(days, day) {
		t.Errorf("after the removal the days are %v, %v", days, err)
	}
	if got := sessions(t, db); got[0].DiskBytes != 1<<41 || got[1].DiskBytes != 0 {
		t.Errorf("the sizes are %d and %d", got[0].DiskBytes, got[1].DiskBytes)
	}
	if err := db.PutCounts(t.Context(), session.Counts{}); err != nil {
		t.Fatal(err)
	}
	put(t, db, a)
	db.Close()
	db = open(t, dir)
	got := sessions(t, db)
	if len(got) != 2 || got[0].Traffic != moved["a"] || got[1].Traffic != moved["b"] {
		t.Errorf("%+v", got)
	}
	if err := db.PutCounts(t.Context(), session.Counts{Traffic: map[string]egress.Traffic{"a": {}}}); err != nil {
		t.Fatal(err)
	}
	if got := sessions(t, db); got[0].Traffic != (egress.Traffic{}) || got[1].Traffic != moved["b"] {
		t.Errorf("counted anew: %+v", got)
	}
}

// A database of before traffic was counted is taken over: its sessions have
// moved nothing.
func TestTrafficComesToAnOlderDatabase(t *testing.T) {
	storetest.Each(t, testTrafficComesToAnOlderDatabase)
}

func testTrafficComesToAnOlderDatabase(t *testing.T, dir string) {
	old := before(t, dir, 6)
	if _, err := old.Exec(`INSERT INTO sessions (id, owner, home, template, flavor, sandbox, workspace, state, created, used, lost, network)
		VALUES ('a', 'user:ann', true, 'host', 'small', '', 'ws', 'stopped', 1, 2, '', '')`); err != nil {
		t.Fatal(err)
	}
	old.Close()
	if got := sessions(t, open(t, dir)); len(got) != 1 || !got[0].Home || got[0].Traffic != (egress.Traffic{}) ||
		got[0].Runtime != "gvisor" { // there was no other
		t.Errorf("%+v", got)
	}
}

func TestOneHomeForEachOwner(t *testing.T) { storetest.Each(t, testOneHomeForEachOwner) }

func testOneHomeForEachOwner(t *testing.T, dir string) {
	db := open(t, dir)
	home := func(id, owner string) session.Record {
		r := sessionOf(id)
		r.Home, r.Owner = true, owner
		return r
	}
	put(t, db, home("a", "user:ann"))
	put(t, db, home("b", "user:bob"))
	if err := db.PutSession(t.Context(), home("c", "user:ann")); err == nil {
		t.Error("a second home was stored")
	}
	put(t, db, home("a", "user:ann")) // the same again is no second one
	if got := sessions(t, db); len(got) != 2 {
		t.Errorf("%d sessions, want 2", len(got))
	}
}

// TestLifeIsStored: who has paused a session, its end, name, labels and parent are stored, and gone when they are. A name
// is that of one session of its owner.
func TestLifeIsStored(t *testing.T) { storetest.Each(t, testLifeIsStored) }

func testLifeIsStored(t *testing.T, dir string) {
	db := open(t, dir)
	r := sessionOf("a")
	r.State, r.Sandbox, r.PausedBy, r.PausedAt = record.Paused, "", "user:root", at
	r.EndsAt, r.OnEnd, r.Name, r.Labels = at.Add(time.Hour), "pause", "build", map[string]string{"a/b": "c \"d\" ?"}
	r.Parent = session.Parent{Session: "b", Snapshot: "good"}
	put(t, db, r)
	db.Close()
	db = open(t, dir)
	if got := sessions(t, db); len(got) != 1 || !reflect.DeepEqual(got[0], r) {
		t.Errorf("got  %+v\nwant %+v", got, r)
	}
	taken, other := sessionOf("b"), sessionOf("c")
	taken.Name, other.Name, other.Owner = "build", "build", "user:bob"
	if err := db.PutSession(t.Context(), taken); err == nil {
		t.Error("two sessions have one name")
	}
	put(t, db, other)
	r.PausedBy, r.PausedAt, r.EndsAt, r.OnEnd, r.Name, r.Labels = "", time.Time{}, time.Time{}, "", "", nil
	put(t, db, r)
	put(t, db, taken)
	if got := sessions(t, db); len(got) != 3 || !reflect.DeepEqual(got[0], r) {
		t.Errorf("got  %+v\nwant %+v", got, r)
	}
}

func TestRemoveSession(t *testing.T) { storetest.Each(t, testRemoveSession) }

func testRemoveSession(t *testing.T, dir string) {
	db := open(t, dir)
	put(t, db, sessionOf("a"))
	put(t, db, sessionOf("b"))
	for range 2 { // one that is gone is fine
		if err := db.RemoveSession(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	if got := sessions(t, db); len(got) != 1 || got[0].ID != "b" {
		t.Errorf("left %+v", got)
	}
}

func TestTokens(t *testing.T) { storetest.Each(t, testTokens) }

func testTokens(t *testing.T, dir string) {
	ctx := t.Context()
	db := open(t, dir)
	if has, err := db.HasTokens(ctx); err != nil || has {
		t.Errorf("HasTokens = %v, %v on a new database", has, err)
	}
	end := at.Add(time.Hour).Truncate(time.Second)
	one := auth.Token{ID: "tok_1", User: "ann", Service: true, Created: at.Truncate(time.Second), Expires: &end,
		Hash: "h1"}
	two := auth.Token{ID: "tok_2", User: "bob", Created: at.Add(time.Second).Truncate(time.Second), Hash: "h2"}
	for _, tok := range []auth.Token{two, one} {
		if err := db.AddToken(ctx, tok); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.AddToken(ctx, auth.Token{ID: "tok_3", Hash: "h1", Created: at}); err == nil {
		t.Error("two tokens with one hash were stored")
	}
	db.Close()
	db = open(t, dir)
	all, err := db.Tokens(ctx)
	if err != nil || !reflect.DeepEqual(all, []auth.Token{one, two}) {
		t.Errorf("Tokens = %+v, %v", all, err)
	}
	if got, err := db.TokenByHash(ctx, "h1"); err != nil || !reflect.DeepEqual(got, one) {
		t.Errorf("TokenByHash = %+v, %v", got, err)
	}
	for _, hash := range []string{"", "h3", "H1", "h%", "' OR '1'='1"} {
		if _, err := db.TokenByHash(ctx, hash); !errors.Is(err, auth.ErrNoToken) {
			t.Errorf("TokenByHash(%q): %v, want ErrNoToken", hash, err)
		}
	}
	if err := db.RemoveToken(ctx, "tok_9"); !errors.Is(err, auth.ErrNoToken) {
		t.Errorf("removing one that is not there: %v", err)
	}
	if err := db.RemoveToken(ctx, "tok_1"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.TokenByHash(ctx, "h1"); !errors.Is(err, auth.ErrNoToken) {
		t.Errorf("a removed token is found: %v", err)
	}
	if has, err := db.HasTokens(ctx); err != nil || !has {
		t.Errorf("HasTokens = %v, %v with one left", has, err)
	}
}

// The command line works on the state folder while a server runs.
func TestASecondProcessIsSeenAtOnce(t *testing.T) { storetest.Each(t, testASecondProcessIsSeenAtOnce) }

func testASecondProcessIsSeenAtOnce(t *testing.T, dir string) {
	server, command := open(t, dir), open(t, dir)
	d, err := auth.NewAuthenticator(t.Context(), auth.Required, "localhost", server, nil)
	if err != nil {
		t.Fatal(err)
	}
	tok, value, err := auth.Issue(t.Context(), command, "ann", false, 0, auth.Metrics)
	if err != nil {
		t.Fatal(err)
	}
	header := "Bearer " + value.Reveal()
	if p, err := d.Authenticate(t.Context(), header); err != nil || p.Name != "ann" || p.Token != tok.ID ||
		!p.HasRole(auth.Metrics) {
		t.Errorf("a new token: %+v, %v", p, err)
	}
	if err := command.RemoveToken(t.Context(), tok.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Authenticate(t.Context(), header); err == nil {
		t.Error("a revoked token is good")
	}
}

func TestManyAtOnce(t *testing.T) { storetest.Each(t, testManyAtOnce) }

func testManyAtOnce(t *testing.T, dir string) {
	dbs := []*DB{open(t, dir), open(t, dir)}
	var work sync.WaitGroup
	const each = 15
	for n := range 8 {
		work.Go(func() {
			db := dbs[n%len(dbs)]
			for i := range each {
				id := fmt.Sprintf("%d-%d", n, i)
				err := db.PutSession(context.Background(), sessionOf(id))
				_, rerr := db.Sessions(context.Background())
				terr := db.AddToken(context.Background(), auth.Token{ID: id, Hash: id, Created: at})
				if err := errors.Join(err, rerr, terr); err != nil {
					t.Errorf("%s: %v", id, err)
				}
			}
		})
	}
	work.Wait()
	if got := sessions(t, dbs[0]); len(got) != 8*each {
		t.Errorf("%d sessions, want %d", len(got), 8*each)
	}
	if got, err := dbs[1].Tokens(t.Context()); err != nil || len(got) != 8*each {
		t.Errorf("%d tokens, %v, want %d", len(got), err, 8*each)
	}
}

func TestOpenedTwiceAtOnce(t *testing.T) { storetest.Each(t, testOpenedTwiceAtOnce) }

func testOpenedTwiceAtOnce(t *testing.T, dir string) {
	var work sync.WaitGroup
	for range 6 {
		work.Go(func() {
			db, err := Open(context.Background(), dir)
			if err != nil {
				t.Error(err)
				return
			}
			db.Close()
		})
	}
	work.Wait()
}

func TestTheFilesAreTheOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	db := open(t, dir)
	put(t, db, sessionOf("a"))
	found, err := filepath.Glob(filepath.Join(dir, "sandlot.db*"))
	if err != nil || len(found) < 2 {
		t.Fatalf("files %v, %v", found, err)
	}
	for _, f := range found {
		st, err := os.Stat(f)
		if err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, %v", f, st.Mode(), err)
		}
	}
}

// A folder may have any name.
func TestFolderWithOddCharacters(t *testing.T) {
	for _, name := range []string{"with space", "a%41b", "a?mode=memory", "a#b", "ä", "a&b=c"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			db := open(t, dir)
			put(t, db, sessionOf("a"))
			db.Close()
			if st, err := os.Stat(filepath.Join(dir, "sandlot.db")); err != nil || st.Size() == 0 {
				t.Errorf("the database is not in its folder: %v, %v", st, err)
			}
			if got := sessions(t, open(t, dir)); len(got) != 1 {
				t.Errorf("%d sessions after reopening", len(got))
			}
		})
	}
}

func TestANewerDatabaseIsRefused(t *testing.T) { storetest.Each(t, testANewerDatabaseIsRefused) }

func testANewerDatabaseIsRefused(t *testing.T, dir string) {
	db := open(t, dir)
	tx, err := db.db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.setVersion(t.Context(), tx, 999), tx.Commit()); err != nil {
		t.Fatal(err)
	}
	db.Close()
	if _, err := Open(t.Context(), dir); err == nil {
		t.Error("a database of a newer version was opened")
	}
}

func TestOpenFails(t *testing.T) {
	if _, err := Open(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a folder that is not there was opened")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sandlot.db"), []byte("this is no database, but long enough to be one"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir); err == nil {
		t.Error("a file that is no database was opened")
	}
}

// A new database is opened while another process writes to it, as one does that creates it too.
func TestOpenedWhileWritten(t *testing.T) {
	dir := t.TempDir()
	other, err := sql.Open("sqlite", sqliteFile(dir)+"?_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Exec(`CREATE TABLE other (a)`); err != nil {
		t.Fatal(err)
	}
	writing, err := other.Begin()
	if err != nil {
		t.Fatal(err)
	}
	end := time.AfterFunc(200*time.Millisecond, func() { _ = writing.Rollback() })
	defer end.Stop()
	db, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
}
