package audit_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"sandlot/internal/audit"
	"sandlot/internal/event"
	"sandlot/internal/store"
)

// rig is a recorder on a real store.
type rig struct {
	t      testing.TB
	dir    string
	db     *store.DB
	stream *event.Stream
	*audit.Recorder
	stop func()
}

// faulty is a store that can be made to fail or hang.
type faulty struct {
	*store.DB
	mu   sync.Mutex
	err  error
	hang chan struct{}
}

func (f *faulty) AppendEvents(ctx context.Context, rows []audit.Row) error {
	f.mu.Lock()
	err, hang := f.err, f.hang
	f.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err != nil {
		return err
	}
	return f.DB.AppendEvents(ctx, rows)
}

func (f *faulty) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// open opens the store of a folder, and records.
func open(t testing.TB, dir string, c audit.Config, wrap func(*store.DB) audit.Store) *rig {
	t.Helper()
	db, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	c.Store, c.Log = db, slog.New(slog.DiscardHandler)
	if wrap != nil {
		c.Store = wrap(db)
	}
	r := &rig{t: t, dir: dir, db: db, stream: event.New()}
	if r.Recorder, err = audit.New(t.Context(), c, r.stream); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		db.Close()
	})
	t.Cleanup(r.stop)
	return r
}

func (r *rig) put(n int, e event.Event) {
	for i := range n {
		e.Name = fmt.Sprint(i)
		r.stream.Publish(e)
	}
}

var (
	annCalls = event.Event{Kind: event.Call, Principal: "user:ann", Operation: "shell.execute", Outcome: event.OK,
		Duration: 1500 * time.Microsecond, Origin: event.Origin{Token: "tok_1", Address: "127.0.0.1"},
		RequestBytes: 12, AnswerBytes: 34}
	annConnects = event.Event{Kind: event.Egress, Principal: "user:ann", Operation: event.NetworkConnect, Outcome: "ok"}
)

// stored waits until all events are stored. Flush alone does not wait for a store that is slow, as it may hang.
func (r *rig) stored() {
	r.t.Helper()
	for until := time.Now().Add(time.Minute); ; {
		r.Flush(r.t.Context())
		if r.Stats().Waiting == 0 {
			return
		}
		if time.Now().After(until) {
			r.t.Fatalf("events are not stored: %+v", r.Stats())
		}
	}
}

func (r *rig) rows() []audit.Row {
	r.t.Helper()
	r.stored()
	rows, err := r.db.Events(r.t.Context(), audit.Query{Limit: 1 << 20})
	if err != nil {
		r.t.Fatal(err)
	}
	return rows
}

func (r *rig) verify() audit.Report {
	r.t.Helper()
	report, err := r.db.VerifyEvents(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return report
}

// What was published before a clean stop is there after a restart, whole and in order, and ids
// continue.
func TestEventsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, audit.Config{}, nil)
	var publishers sync.WaitGroup
	for range 8 {
		publishers.Go(func() { r.put(500, annCalls); r.put(100, annConnects) })
	}
	publishers.Wait()
	epoch := r.stream.Epoch
	r.stop()

	r = open(t, dir, audit.Config{}, nil)
	if r.stream.Epoch != epoch {
		t.Error("cursors of the first server are unknown to the second one")
	}
	rows := r.rows()
	if len(rows) != 8*600+3 { // and the starts, and one end
		t.Fatalf("%d events are stored", len(rows))
	}
	for i := range rows {
		if rows[i].ID != uint64(i+1) {
			t.Fatalf("event %d has the id %d", i+1, rows[i].ID)
		}
	}
	for i, want := range map[int]string{0: "server.started\",\"outcome\":\"ok", len(rows) - 2: event.ServerStopped,
		len(rows) - 1: "server.started\",\"outcome\":\"ok"} {
		if !strings.Contains(string(rows[i].Content), want) {
			t.Errorf("event %d is %s", i, rows[i].Content)
		}
	}
	if report := r.verify(); report.Events != uint64(len(rows)) || report.Chains[1].Events != 800 {
		t.Errorf("%+v", report)
	}
}

// After a crash the chains are whole, ids are not given twice, and the start says that events may be
// missing.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, audit.Config{}, nil)
	r.put(10, annCalls)
	r.Flush(t.Context())
	crashed := t.TempDir() // the files as a killed server leaves them
	for _, name := range []string{"sandlot.db", "sandlot.db-wal"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(crashed, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.put(10, annCalls)
	shown := r.stream.Newest()
	second := open(t, crashed, audit.Config{}, nil)
	second.put(1, annCalls)
	rows := second.rows()
	if len(rows) != 13 || !strings.Contains(string(rows[11].Content), event.AfterCrash) || rows[11].ID <= shown {
		t.Errorf("%d events; the start is %s", len(rows), rows[11].Content)
	}
	second.verify()
}

// Each way to change the stored events shows, at the first event that it touches.
func TestTampering(t *testing.T) {
	for name, c := range map[string]struct {
		change string
		at     string // what the break says
	}{
		"a removed event":    {`DELETE FROM events WHERE id = 5`, "main is broken at event 6: an event before it"},
		"a changed outcome":  {`UPDATE events SET content = replace(content, '"ok"', '"no"') WHERE id = 5`, "event 5: its con"},
		"a changed column":   {`UPDATE events SET principal = 'user:bob' WHERE id = 5`, "event 5: its content is that of"},
		"a changed time":     {`UPDATE events SET time = time + 1 WHERE id = 5`, "event 5: its content is that of"},
		"a changed id":       {`UPDATE events SET id = 500 WHERE id = 5`, "event 6: an event before it"},
		"another chain":      {`UPDATE events SET chain = 1 WHERE id = 5`, "noisy is broken at event 5: an event before it"},
		"the last one":       {`DELETE FROM events WHERE id = (SELECT max(id) FROM events WHERE chain = 0)`, "stored head"},
		"the first one":      {`DELETE FROM events WHERE id = 1`, "event 2: an event before it"},
		"all of a chain":     {`DELETE FROM events WHERE chain = 1`, "noisy is broken at event 15"},
		"no hash":            {`UPDATE events SET hash = x'00' WHERE id = 5`, "event 5: its hashes are none"},
		"a new hash":         {`UPDATE events SET hash = prev WHERE id = 5`, "event 5: its content was changed"},
		"an invented event":  {`INSERT INTO events SELECT 99, chain, time, kind, principal, session, content, prev, hash FROM events WHERE id = 5`, "event 99: its content"},
		"a chain of nobody":  {`UPDATE events SET chain = 7 WHERE id = 5`, "does not exist"},
		"a moved anchor":     {`UPDATE event_chains SET anchor_hash = (SELECT hash FROM events WHERE id = 5) WHERE chain = 0`, "event 1"},
		"a head of nothing":  {`UPDATE event_chains SET head_hash = zeroblob(32) WHERE chain = 0`, "stored head"},
		"content of nothing": {`UPDATE events SET content = x'' WHERE id = 5`, "event 5: its content is not an event"},
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t, t.TempDir(), audit.Config{}, nil)
			r.put(10, annCalls)
			r.put(4, annConnects)
			r.Flush(t.Context())
			r.verify()
			db, err := sql.Open("sqlite", filepath.Join(r.dir, "sandlot.db")+"?_pragma=busy_timeout(10000)")
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec(c.change); err != nil {
				t.Fatal(err)
			}
			if _, err := r.db.VerifyEvents(t.Context()); err == nil || !strings.Contains(err.Error(), c.at) {
				t.Errorf("verification says %v, want %q", err, c.at)
			}
		})
	}
}

// Old events are removed, by number for each chain and by age, and the rest is whole. What
// programs in sandboxes do pushes out nothing of what their user did.
func TestPruning(t *testing.T) {
	r := open(t, t.TempDir(), audit.Config{}, nil)
	r.put(20, annCalls)
	r.put(1200, annConnects)
	r.stored()
	r.prune(time.Time{}, 100)
	if c := r.verify().Chains; c[0].Events != 21 || c[1].Events != 100 {
		t.Errorf("%+v", c)
	}
	r.prune(time.Now().Add(2*time.Hour), 100)
	r.put(5, annCalls)
	if rows := r.rows(); len(rows) != 5 {
		t.Errorf("%d events are left", len(rows))
	}
	if c := r.verify().Chains; c[0].Events != 5 || c[1].Events != 0 {
		t.Errorf("%+v", c)
	}
}

// prune removes old events, and verifies what is left after each step.
func (r *rig) prune(before time.Time, keep int) {
	r.t.Helper()
	old, err := r.db.OldEvents(r.t.Context(), before, keep)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, p := range old {
		for more := true; more; {
			if more, err = r.db.PruneEvents(r.t.Context(), p); err != nil {
				r.t.Fatal(err)
			}
			r.verify()
		}
	}
}

// TestPruningIsRecorded: the server's own pruning is an event in the chain that it is about, of each chain; a beginning
// that was cut off otherwise has none, also after the next pruning.
func TestPruningIsRecorded(t *testing.T) {
	const cut = `UPDATE event_chains SET anchor_id = %[1]d, anchor_hash = (SELECT hash FROM events WHERE id = %[1]d),
		count = count - %[1]d WHERE chain = 0; DELETE FROM events WHERE chain = 0 AND id <= %[1]d`
	filled := func(c audit.Config, n int) *rig {
		r := open(t, t.TempDir(), c, nil)
		r.put(n, annCalls)
		r.put(n, annConnects)
		r.stored()
		return r
	}
	until := func(r *rig, what string, done func(c []audit.Verified) bool) []audit.Verified {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for {
			if c := r.verify().Chains; done(c) {
				return c
			} else if time.Now().After(deadline) {
				t.Fatalf("%s: %+v", what, c)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	r := filled(audit.Config{}, 20)
	if c := r.verify().Chains[0]; c.PrunedUntil != 0 || c.Unrecorded != 0 {
		t.Errorf("nothing was pruned: %+v", c)
	}
	r = filled(audit.Config{Keep: 10, PruneInterval: 10 * time.Millisecond}, 20)
	chains := until(r, "pruned", func(c []audit.Verified) bool { return c[0].Events < 13 && c[1].Events < 13 })
	for _, c := range chains {
		if c.PrunedUntil == 0 || c.PrunedUntil >= c.First || c.PrunedAt == nil || c.Unrecorded != 0 {
			t.Errorf("pruned: %+v", c)
		}
	}
	first := chains[0].First
	r.change(strings.ReplaceAll(fmt.Sprintf(cut, first), fmt.Sprintf("count - %d", first), "count - 1"))
	if c := r.verify().Chains[0]; c.PrunedUntil != 0 || c.Unrecorded != first {
		t.Errorf("cut after a pruning: %+v", c)
	}

	r = filled(audit.Config{}, 20)
	r.change(fmt.Sprintf(cut, 5))
	if c := r.verify().Chains[0]; c.Unrecorded != 5 || c.PrunedUntil != 0 {
		t.Errorf("cut: %+v", c)
	}
	// One that records itself with another hash is none.
	r = filled(audit.Config{}, 20)
	r.stream.Publish(event.Event{Kind: event.Server, Principal: event.ServerPrincipal, Operation: event.EventsPruned,
		Name: "0-5 " + strings.Repeat("0", 64)})
	r.stored()
	r.change(fmt.Sprintf(cut, 5))
	if c := r.verify().Chains[0]; c.Unrecorded != 5 || c.PrunedUntil != 0 {
		t.Errorf("cut, with another record: %+v", c)
	}
}

// TestGapBetweenPrunings: what was cut off between two recorded prunings shows.
func TestGapBetweenPrunings(t *testing.T) {
	hash := strings.Repeat("0", 64)
	for second, gap := range map[string]uint64{"5-9 ": 0, "3-9 ": 0, "7-9 ": 7} {
		var prev audit.Hash
		var rows []audit.Row
		for i, name := range []string{"0-5 " + hash, second + hash} {
			row, err := audit.NewRow(event.Event{ID: uint64(20 + i), Time: time.Now(), Kind: event.Server,
				Principal: event.ServerPrincipal, Operation: event.EventsPruned, Name: name})
			if err != nil {
				t.Fatal(err)
			}
			row.Link(prev)
			prev = row.Hash
			rows = append(rows, row)
		}
		ends := map[audit.Chain]audit.Ends{audit.Main: {Head: audit.Link{ID: 21, Hash: prev}}}
		report, err := audit.Verify(ends, func(add func(*audit.Row) error) error {
			return errors.Join(add(&rows[0]), add(&rows[1]))
		})
		if err != nil || report.Chains[0].Unrecorded != gap {
			t.Errorf("%s: %+v, %v", second, report, err)
		}
	}
}

// change changes the database behind the server's back.
func (r *rig) change(statement string) {
	r.t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(r.dir, "sandlot.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		r.t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		r.t.Fatal(err)
	}
}

// A store that fails costs no event while the queue has room, and then as few as possible; their
// number is an event, and publishing never waits.
func TestStoreFails(t *testing.T) {
	f := &faulty{err: errors.New("disk full")}
	r := open(t, t.TempDir(), audit.Config{}, func(db *store.DB) audit.Store { f.DB = db; return f })
	const many = 20000
	r.put(many, annCalls)
	r.Flush(t.Context()) // returns, though nothing can be stored
	if n := r.Stats(); n.Stored != 0 || n.Lost == 0 || n.Waiting > many {
		t.Errorf("%+v", n)
	}
	f.set(nil)
	rows := r.rows()
	counts := 0
	for _, row := range rows {
		if strings.Contains(string(row.Content), event.EventsLost) {
			var n int
			if _, err := fmt.Sscanf(string(row.Content[bytes.Index(row.Content, []byte(`"count":`)):]), `"count":%d`,
				&n); err != nil {
				t.Fatal(err)
			}
			counts += n
		}
	}
	if s := r.Stats(); s.Lost != uint64(counts) || len(rows) < 16000 || counts < many-17000 || s.Waiting != 0 {
		t.Errorf("%d events are stored, %d reported as lost: %+v", len(rows), counts, s)
	}
	r.verify()
}

// Publishing does not wait for a store that hangs, and nothing is lost.
func TestStoreHangs(t *testing.T) {
	f := &faulty{hang: make(chan struct{})}
	r := open(t, t.TempDir(), audit.Config{}, func(db *store.DB) audit.Store { f.DB = db; return f })
	r.put(1000, annCalls)
	close(f.hang)
	if rows := r.rows(); len(rows) != 1001 {
		t.Errorf("%d events are stored", len(rows))
	}
}

// The exported file has all events, also those of before it was there, and those that were stored while
// it could not be written; it is verified line by line.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	log := slog.New(slog.DiscardHandler)
	r := open(t, dir, audit.Config{}, nil)
	r.put(300, annCalls)
	r.stop()
	r = open(t, dir, audit.Config{File: audit.NewFile(path, 1<<30, 2, log)}, nil)
	r.put(10, annConnects)
	r.stop()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v", st.Mode())
	}
	if err := os.WriteFile(path, whole[:len(whole)-300], 0o644); err != nil { // a crash in the middle of a line
		t.Fatal(err)
	}
	r = open(t, dir, audit.Config{File: audit.NewFile(path, 1<<30, 2, log)}, nil)
	r.stop()
	b, _ := os.ReadFile(path)
	if report, err := audit.VerifyLines(bytes.NewReader(b)); err != nil || report.Events != 316 ||
		!bytes.HasPrefix(b, whole) {
		t.Errorf("%+v, %v", report, err)
	}
	lines := bytes.SplitAfter(b, []byte("\n"))
	for name, c := range map[string][]byte{
		"a removed line": bytes.Join(append(append([][]byte{}, lines[:5]...), lines[6:]...), nil),
		"a changed line": bytes.Replace(b, []byte(`"name":"7"`), []byte(`"name":"8"`), 1),
		"exchanged":      bytes.Join([][]byte{lines[1], lines[0]}, nil),
		"the first one":  bytes.Replace(b, []byte(`"outcome":"ok"`), []byte(`"outcome":"no"`), 1),
		"no hash":        []byte(`{"id":1}`),
		"nothing":        nil,
	} {
		if _, err := audit.VerifyLines(bytes.NewReader(c)); err == nil {
			t.Errorf("%s does not show", name)
		}
	}
}

// A full file is renamed, and so are the earlier ones; the oldest goes.
func TestFileRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	r := open(t, t.TempDir(), audit.Config{File: audit.NewFile(path, 20<<10, 2, slog.New(slog.DiscardHandler))}, nil)
	for range 6 {
		r.put(100, annCalls)
		r.Flush(t.Context())
	}
	r.stop()
	var all []byte
	for _, name := range []string{path + ".2", path + ".1", path} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	if report, err := audit.VerifyLines(bytes.NewReader(all)); err != nil || report.Chains[0].Last != 602 ||
		report.Chains[0].First == 1 {
		t.Errorf("%+v, %v", report, err)
	}
	if _, err := os.Stat(path + ".3"); err == nil {
		t.Error("a third file is there")
	}
}

// What a call pays for stored events, with the store at work beside it.
func BenchmarkPublishStored(b *testing.B) {
	for name, recorded := range map[string]bool{"memory": false, "stored": true} {
		b.Run(name, func(b *testing.B) {
			s := event.New()
			if recorded {
				s = open(b, b.TempDir(), audit.Config{}, nil).stream
			}
			b.ReportAllocs()
			for b.Loop() {
				s.Publish(annCalls)
			}
		})
	}
}

// How many events the store takes: time for each event from its publication until it is on the disk.
func BenchmarkStore(b *testing.B) {
	r := open(b, b.TempDir(), audit.Config{}, nil)
	n := 0
	for b.Loop() {
		r.stream.Publish(annCalls)
		if n++; n%4096 == 0 {
			r.Flush(b.Context())
		}
	}
	r.Flush(b.Context())
	if s := r.Stats(); s.Lost > 0 {
		b.Errorf("%+v", s)
	}
}
