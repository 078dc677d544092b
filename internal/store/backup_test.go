package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/audit"
	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/mcpsession"
	"sandlot/internal/port"
	"sandlot/internal/question"
	"sandlot/internal/secret"
	"sandlot/internal/servers"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
	"sandlot/internal/session/record"
	"sandlot/internal/session/usage"
	"sandlot/internal/store/storetest"
	"sandlot/internal/vault"
)

// fill stores something of everything.
func fill(t *testing.T, db *DB) {
	t.Helper()
	ctx, second := t.Context(), at.Truncate(time.Second)
	home := sessionOf("home")
	home.Home, home.Lost = true, "it's “gone” 🙂\n"
	put(t, db, home)
	put(t, db, sessionOf("plain"))
	rows := make([]audit.Row, 200)
	for i := range rows {
		e := event.Event{ID: uint64(i + 1), Time: at, Kind: event.Token, Principal: "user:ann", Name: "tok"}
		content, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		rows[i] = audit.Row{ID: e.ID, Chain: audit.Chain(i % 2), Time: at, Kind: e.Kind, Principal: e.Principal,
			Content: content}
	}
	_, _, err := auth.Issue(ctx, db, "ann", true, time.Hour, auth.Operator)
	for _, err := range []error{err,
		db.AddToken(ctx, auth.Token{ID: "tok", Hash: "h", Owner: "user:b", User: "b", Created: second}),
		db.PutPort(ctx, port.Record{Session: "home", Port: 80, Owner: "user:ann", Hash: "h", Public: true,
			Created: second, Expires: second}),
		db.PutConnection(ctx, servers.Record{Owner: "user:ann", ID: "aaaaaa", Spec: spec.Spec{Name: "x"}}),
		db.PutMCPSession(ctx, mcpsession.Record{ID: "S", Principal: "user:ann", Used: at}),
		db.AddUsage(ctx, map[usage.Key]usage.Used{{Day: 1, Owner: "user:ann", Session: "s"}: {Calls: 1}}, nil),
		db.PutSecret(ctx, vault.Record{Owner: "user:ann", Name: "A", Sealed: []byte{0, 1, 255, 0}, Created: at,
			Changed: at}),
		db.PutLogin(ctx, "user:ann", "aaaaaa", []byte("sealed")),
		db.Reseal(ctx, nil, "print"),
		db.AppendEvents(ctx, rows),
		db.PutCounts(ctx, session.Counts{Days: map[string]egress.Day{"user:ann": {Number: 1}}}),
		db.PutAnswer(ctx, question.Answer{ID: "a", By: "user:ann", Allowed: true, Given: at}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// dump returns all rows of a backup as text, but for what is different after each restore.
func dump(t *testing.T, file string) string {
	t.Helper()
	db := sqlitePool(file)
	defer db.Close()
	tables, err := tablesOf(t.Context(), db)
	if err != nil || len(tables) < 9 {
		t.Fatal(tables, err)
	}
	var b strings.Builder
	for _, table := range tables {
		if table.name == "event_stream" || table.name == "snapshots" { // see TestSnapshots
			continue
		}
		rows, err := db.Query(fmt.Sprintf(`SELECT %s FROM %q ORDER BY 1, 2`, strings.Join(table.columns, ","), table.name))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for ; rows.Next(); n++ {
			values, err := table.scan(rows)
			if err != nil {
				t.Fatal(err)
			}
			if i := slices.Index(table.columns, `"used"`); table.name == "sessions" {
				values[i] = nil
			}
			fmt.Fprintf(&b, "%s %#v\n", table.name, values)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil || n == 0 {
			t.Fatalf("%s has %d rows, %v", table.name, n, err)
		}
	}
	return b.String()
}

func backup(t *testing.T, place string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "backup")
	if err := Backup(t.Context(), place, file, false); err != nil {
		t.Fatal(err)
	}
	return file
}

// restoreFrom restores a backup, of which it prepares a copy.
func restoreFrom(t *testing.T, db *DB, file string) error {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	copied, prepared := filepath.Join(dir, "copy"), filepath.Join(dir, "prepared")
	if err := os.WriteFile(copied, text, 0o600); err != nil {
		return err
	}
	if err := Prepare(t.Context(), copied, prepared, func(*DB) error { return nil }); err != nil {
		return err
	}
	return db.Restore(t.Context(), prepared, secret.ID()[:8], new(places))
}

// places are Workspaces.
type places struct {
	gone map[string]bool // those that are not there
	kept []string
	err  error
}

func (p *places) Has(id string) bool { return !p.gone[id] }

func (p *places) Keep(ids []string) error {
	p.kept = ids
	return p.err
}

// withoutUse returns sessions without the times of their last use, which a restore changes.
func withoutUse(all []session.Record) []session.Record {
	for i := range all {
		all[i].Used = time.Time{}
	}
	return all
}

// What was backed up of one kind of database is there after a restore into either.
func TestBackupAndRestore(t *testing.T) {
	storetest.Each(t, func(t *testing.T, from string) {
		db := open(t, from)
		fill(t, db)
		file := backup(t, from)
		want := dump(t, file)
		storetest.Each(t, func(t *testing.T, to string) {
			other := open(t, to)
			put(t, other, sessionOf("later"))
			if err := restoreFrom(t, other, file); err != nil {
				t.Fatal(err)
			}
			if got := dump(t, backup(t, to)); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if got := withoutUse(sessions(t, other)); !reflect.DeepEqual(got, withoutUse(sessions(t, db))) {
				t.Errorf("%+v", got)
			}
			if r, err := other.VerifyEvents(t.Context()); err != nil {
				t.Errorf("%+v, %v", r, err)
			}
			before, err := db.OpenEvents(t.Context())
			after, afterErr := other.OpenEvents(t.Context())
			if err != nil || afterErr != nil || before.Epoch == after.Epoch || after.Crashed || after.LastID != 200 {
				t.Errorf("events: %+v, %v; %+v, %v", before, err, after, afterErr)
			}
			put(t, other, sessionOf("more")) // it goes on
		})
	})
}

func TestBackupFile(t *testing.T) { storetest.Each(t, testBackupFile) }

func testBackupFile(t *testing.T, place string) {
	fill(t, open(t, place))
	dir := t.TempDir()
	file := filepath.Join(dir, "a b?c=d#e")
	for i, force := range []bool{false, true} {
		if err := Backup(t.Context(), place, file, force); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(file)
		if err != nil || st.Mode() != 0o600 {
			t.Errorf("%d: %v, %v", i, st.Mode(), err)
		}
	}
	was, _ := os.ReadFile(file)
	if err := Backup(t.Context(), place, file, false); !hasKind(err, fault.InvalidParameters) ||
		!strings.Contains(err.Error(), "--force") {
		t.Errorf("it was replaced: %v", err)
	}
	if is, err := os.ReadFile(file); err != nil || !bytes.Equal(is, was) {
		t.Error("the file has changed")
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("left: %v, %v", all, err)
	}
	if err := Backup(t.Context(), place, filepath.Join(dir, "none", "file"), false); err == nil {
		t.Error("a folder that is not there")
	}
}

// A backup has what was stored at one moment, while others write.
func TestBackupOfOneMoment(t *testing.T) { storetest.Each(t, testBackupOfOneMoment) }

func testBackupOfOneMoment(t *testing.T, place string) {
	db := open(t, place)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	for n := range 3 {
		work.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("%d-%d", n, i)
				if db.PutSession(ctx, sessionOf(id)) != nil {
					continue
				}
				if db.PutPort(ctx, port.Record{Session: id, Port: 1, Created: at, Expires: at}) == nil {
					db.AddToken(ctx, auth.Token{ID: id, Hash: id, Created: at})
				}
			}
		})
	}
	eventually(t, func() bool { all, err := db.Tokens(t.Context()); return err == nil && len(all) > 30 })
	for range 5 {
		copied := sqlitePool(backup(t, place))
		var sessions, ports, tokens, wrong int
		err := copied.QueryRow(`SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM ports),
			(SELECT count(*) FROM tokens), (SELECT count(*) FROM tokens WHERE id NOT IN (SELECT session FROM ports)) +
			(SELECT count(*) FROM ports WHERE session NOT IN (SELECT id FROM sessions))`).
			Scan(&sessions, &ports, &tokens, &wrong)
		if err != nil || wrong > 0 || tokens < 30 || sessions-tokens > 3 {
			t.Errorf("%d sessions, %d ports, %d tokens, %d wrong, %v", sessions, ports, tokens, wrong, err)
		}
		copied.Close()
	}
}

// A file that is no good backup changes nothing.
func TestRestoreRefuses(t *testing.T) { storetest.Each(t, testRestoreRefuses) }

func testRestoreRefuses(t *testing.T, place string) {
	db := open(t, place)
	fill(t, db)
	good, err := os.ReadFile(backup(t, place))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	change := func(statement string) func(string) {
		return func(file string) {
			os.WriteFile(file, good, 0o600)
			db := sqlitePool(file)
			db.SetMaxOpenConns(1)
			defer db.Close()
			if _, err := db.Exec(`PRAGMA foreign_keys = OFF; ` + statement + `; PRAGMA journal_mode = DELETE`); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		write func(file string)
		want  string
	}{
		"none":   {func(string) {}, "no such file"},
		"folder": {func(file string) { os.Mkdir(file, 0o700) }, "is a directory"},
		"text": {func(file string) { os.WriteFile(file, bytes.Repeat([]byte("text "), 1000), 0o600) },
			"no SQLite file"},
		"empty":       {func(file string) { os.WriteFile(file, nil, 0o600) }, "it is not a backup"},
		"other":       {change(`PRAGMA application_id = 7`), "it is not a backup"},
		"truncated":   {func(file string) { os.WriteFile(file, good[:len(good)/2], 0o600) }, "damaged"},
		"a byte less": {func(file string) { os.WriteFile(file, good[:len(good)-1], 0o600) }, "damaged"},
		"a byte more": {func(file string) { os.WriteFile(file, append(bytes.Clone(good), 0), 0o600) }, "damaged"},
		"newer":       {change(`PRAGMA user_version = 999`), "newer Sandlot"},
		"negative":    {change(`PRAGMA user_version = -1`), "damaged"},
		"trigger": {change(`CREATE TRIGGER x AFTER INSERT ON tokens BEGIN DELETE FROM tokens; END`),
			"triggers or views"},
		"dangling":  {change(`DELETE FROM sessions`), "do not exist"},
		"no table":  {change(`DROP TABLE secrets`), "do not belong to its version"},
		"null hash": {change(`ALTER TABLE tokens RENAME TO t; CREATE TABLE tokens AS SELECT * FROM t; DROP TABLE t; UPDATE tokens SET hash = NULL`), ""},
		"extra": {change(`CREATE TABLE sandlot_state (one, version, server); INSERT INTO sandlot_state VALUES (1, 0, 99)`),
			"do not belong to its version"},
		"path":       {change(`UPDATE sessions SET workspace = '../../../../etc'`), "no session has such a workspace"},
		"shared":     {change(`UPDATE sessions SET workspace = (SELECT min(workspace) FROM sessions)`), "no session has such a workspace"},
		"no time":    {change(`UPDATE sessions SET created = 'yesterday'`), "its sessions"},
		"no JSON":    {change(`UPDATE connections SET record = 'x'`), "connection aaaaaa"},
		"no day":     {change(`UPDATE traffic SET day = 'x'`), "day"},
		"odd column": {change(`ALTER TABLE tokens ADD COLUMN "a"", evil" TEXT`), "do not belong to its version"},
	} {
		file := filepath.Join(dir, name)
		test.write(file)
		before := dump(t, backup(t, place))
		if err := restoreFrom(t, db, file); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if after := dump(t, backup(t, place)); after != before {
			t.Errorf("%s has changed something", name)
		}
	}
}

// A backup of an earlier version is brought up to date.
func TestRestoreOfAnEarlierVersion(t *testing.T) { storetest.Each(t, testRestoreOfAnEarlierVersion) }

func testRestoreOfAnEarlierVersion(t *testing.T, place string) {
	dir := t.TempDir()
	old := before(t, dir, 9)
	for _, statement := range []string{`INSERT INTO tokens (id, hash, user, service, created, expires, metrics)
		VALUES ('tok_1', 'h', 'ann', true, 1, NULL, true)`, fmt.Sprintf(`PRAGMA application_id = %d`, backupID),
		`VACUUM INTO '` + filepath.Join(dir, "backup") + `'`} {
		if _, err := old.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	db := open(t, place)
	if err := restoreFrom(t, db, filepath.Join(dir, "backup")); err != nil {
		t.Fatal(err)
	}
	if all, err := db.Tokens(t.Context()); err != nil || len(all) != 1 || !all[0].Roles.Has(auth.Metrics) {
		t.Errorf("%+v, %v", all, err)
	}
}

// A full disk is said, and what was stored before is there.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	db := open(t, dir)
	db.db.SetMaxOpenConns(1)
	var pages int
	if err := db.db.QueryRow(`PRAGMA page_count`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	if _, err := db.db.Exec(fmt.Sprintf(`PRAGMA max_page_count = %d`, pages+10)); err != nil {
		t.Fatal(err)
	}
	stored := fillDisk(t, db)
	db.Close()
	if got := sessions(t, open(t, dir)); len(got) != stored {
		t.Errorf("%d sessions, want %d", len(got), stored)
	}
}

// fillDisk stores sessions until that fails, and returns how many it has stored.
func fillDisk(t *testing.T, db *DB) (stored int) {
	t.Helper()
	for ; ; stored++ {
		r := sessionOf(fmt.Sprint(stored))
		r.Lost = strings.Repeat("x", 5000)
		err := db.PutSession(t.Context(), r)
		if err == nil {
			continue
		}
		if !hasKind(err, fault.ResourceLimit) ||
			!strings.Contains(err.Error(), "disk with Sandlot's database is full") {
			t.Errorf("after %d: %v", stored, err)
		}
		if stored == 0 {
			t.Error("nothing was stored")
		}
		if got := sessions(t, db); len(got) != stored { // reading goes on
			t.Errorf("%d sessions, want %d", len(got), stored)
		}
		return stored
	}
}

// TestRestoreOfPauses: a session that is there is paused after a restore if it was before, and ends when it would have.
// One that is gone is paused if it was so in the backup, with its files, and an end that is over counts no more.
func TestRestoreOfPauses(t *testing.T) { storetest.Each(t, testRestoreOfPauses) }

func testRestoreOfPauses(t *testing.T, place string) {
	db := open(t, place)
	pause := func(r *session.Record) {
		r.State, r.Sandbox, r.Image, r.Slept, r.PausedBy, r.PausedAt = record.Paused, "", "its image", at, r.Owner, at
	}
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	stored := map[string]session.Record{}
	for id, change := range map[string]func(*session.Record){"paused since": func(*session.Record) {}, "resumed": pause,
		"gone": pause, "ended": func(r *session.Record) { r.EndsAt, r.OnEnd = at, "stop" },
		"extended": func(r *session.Record) { r.EndsAt, r.OnEnd = at, "stop" }} {
		r := sessionOf(id)
		change(&r)
		stored[id] = r
		put(t, db, r)
	}
	file := backup(t, place)
	for id, change := range map[string]func(*session.Record){"paused since": pause,
		"resumed": func(r *session.Record) {
			r.State, r.Sandbox, r.Image, r.PausedBy, r.PausedAt = record.Live, "newer", "", "", time.Time{}
		},
		"extended": func(r *session.Record) { r.EndsAt, r.OnEnd = end, "pause" }} {
		r := stored[id]
		change(&r)
		stored[id] = r
		put(t, db, r)
	}
	for id, change := range map[string]func(*session.Record){
		"gone":  func(r *session.Record) { r.Image, r.Slept, r.Lost = "", time.Time{}, "a backup was restored" },
		"ended": func(r *session.Record) { r.EndsAt, r.OnEnd = time.Time{}, "" }} {
		if err := db.RemoveSession(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		r := stored[id]
		change(&r)
		stored[id] = r
	}
	if err := restoreFrom(t, db, file); err != nil {
		t.Fatal(err)
	}
	for _, r := range sessions(t, db) {
		if want := stored[r.ID]; !reflect.DeepEqual(withoutUse([]session.Record{r}), withoutUse([]session.Record{want})) {
			t.Errorf("%+v\nwant\n%+v", r, want)
		}
	}
}

// Sessions that are in the backup and in the database keep the sandboxes that they have now, if they are the same ones.
// Which workspaces belong to no session any more is known before anything has changed.
func TestRestoreKeepsSandboxes(t *testing.T) { storetest.Each(t, testRestoreKeepsSandboxes) }

func testRestoreKeepsSandboxes(t *testing.T, place string) {
	db := open(t, place)
	stored := map[string]session.Record{}
	for _, id := range []string{"same", "other's", "removed", "gone", "asleep", "back", "put back", "both"} {
		r := sessionOf(id)
		if id == "gone" || id == "same" {
			r.State, r.Sandbox, r.Image, r.Slept = record.Asleep, "", "its image", at
		}
		stored[id] = r
		put(t, db, r)
	}
	file := backup(t, place)
	later := sessionOf("later")
	put(t, db, later)
	for id, change := range map[string]func(*session.Record){
		"same": func(r *session.Record) { r.Sandbox, r.Flavor, r.State, r.Image = "newer", "large", record.Live, "" },
		"asleep": func(r *session.Record) {
			r.Sandbox, r.State, r.Image, r.Slept = "", record.Asleep, "later", at.Add(time.Hour)
		},
		"removed": func(r *session.Record) { r.Sandbox, r.State = "", record.Removed },
		// These have gone back to snapshots.
		"back": func(r *session.Record) {
			r.Sandbox, r.Workspace, r.Secrets = "newer", workspaceOf("of a snapshot"), []string{"KEY"}
		},
		"put back": func(r *session.Record) { r.Sandbox, r.Workspace = "newer", workspaceOf("of another") },
		"both":     func(r *session.Record) { r.Sandbox, r.Workspace = "newer", workspaceOf("of a third") },
	} {
		r := stored[id]
		change(&r)
		put(t, db, r)
	}
	if err := db.RemoveSession(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.db.Exec(`UPDATE sessions SET owner = 'user:mallory', sandbox = 'hers' WHERE id = ?`,
		"other's"); err != nil {
		t.Fatal(err)
	}
	prepared := filepath.Join(t.TempDir(), "prepared")
	if err := Prepare(t.Context(), file, prepared, func(*DB) error { return nil }); err != nil {
		t.Fatal(err)
	}
	before := withoutUse(sessions(t, db))
	there := &places{err: errors.New("no room"), gone: map[string]bool{workspaceOf("back"): true,
		workspaceOf("of another"): true}}
	kept := []string{later.Workspace, workspaceOf("of another"), workspaceOf("both")}
	slices.Sort(kept)
	err := db.Restore(t.Context(), prepared, "1", there)
	if slices.Sort(there.kept); err == nil || !slices.Equal(there.kept, kept) {
		t.Fatalf("%v, %v", there.kept, err)
	}
	if got := withoutUse(sessions(t, db)); !reflect.DeepEqual(got, before) {
		t.Errorf("it has changed:\n%+v", got)
	}
	there.err = nil
	if err := db.Restore(t.Context(), prepared, "epoch", there); err != nil {
		t.Fatal(err)
	}
	if epoch, err := db.Epoch(t.Context()); err != nil || epoch != "epoch" {
		t.Errorf("%q, %v", epoch, err)
	}
	for id, change := range map[string]func(*session.Record){
		"same": func(r *session.Record) { r.Sandbox, r.Flavor, r.State, r.Image = "newer", "large", record.Live, "" },
		"asleep": func(r *session.Record) {
			r.Sandbox, r.State, r.Image, r.Slept = "", record.Asleep, "later", at.Add(time.Hour)
		},
		"gone": func(r *session.Record) {
			r.State, r.Image, r.Slept, r.Lost = record.Stopped, "", time.Time{}, "a backup was restored"
		},
		"back": func(r *session.Record) {
			r.Sandbox, r.Workspace, r.Secrets = "newer", workspaceOf("of a snapshot"), []string{"KEY"}
		},
		"both": func(r *session.Record) { r.Sandbox, r.Workspace = "newer", workspaceOf("of a third") },
	} {
		want := stored[id]
		change(&want)
		stored[id] = want
	}
	all := sessions(t, db)
	if len(all) != len(stored) {
		t.Errorf("%d sessions", len(all))
	}
	for _, r := range all {
		if want := stored[r.ID]; time.Since(r.Used) > time.Hour || !reflect.DeepEqual(withoutUse([]session.Record{r}),
			withoutUse([]session.Record{want})) {
			t.Errorf("%+v\nwant\n%+v", r, want)
		}
	}
}
