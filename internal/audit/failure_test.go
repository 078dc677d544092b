package audit_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"sandlot/internal/audit"
	"sandlot/internal/store"
)

// ambiguous is a store whose first answer is lost.
type ambiguous struct {
	*store.DB
	calls int
}

func (f *ambiguous) AppendEvents(ctx context.Context, rows []audit.Row) error {
	err := f.DB.AppendEvents(ctx, rows)
	if f.calls++; f.calls == 1 && err == nil {
		return errors.New("the answer to COMMIT was lost")
	}
	return err
}

// Events that were stored although the store said nothing are stored once, in the exported file too.
func TestLostAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	file := audit.NewFile(path, 1<<20, 2, slog.New(slog.DiscardHandler))
	r := open(t, t.TempDir(), audit.Config{File: file}, func(db *store.DB) audit.Store { return &ambiguous{DB: db} })
	r.put(10, annCalls)
	r.Flush(t.Context())
	r.put(10, annConnects)
	r.Flush(t.Context())
	r.Flush(t.Context())
	if s := r.Stats(); s.Waiting != 0 || s.Lost != 0 || s.Stored != 21 {
		t.Errorf("%+v", s)
	}
	if rows := r.rows(); len(rows) != 21 {
		t.Errorf("%d rows", len(rows))
	}
	r.verify()
	r.stop()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if report, err := audit.VerifyLines(bytes.NewReader(b)); err != nil || report.Events != 22 {
		t.Errorf("%+v, %v", report, err)
	}
}

// One event that the store refuses costs no other: it is counted as lost, and its loss is an event.
func TestRefusedEvent(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	file := audit.NewFile(path, 1<<20, 2, slog.New(slog.DiscardHandler))
	r := open(t, dir, audit.Config{File: file}, nil)
	r.Flush(t.Context())
	db, err := sql.Open("sqlite", filepath.Join(dir, "sandlot.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON events WHEN NEW.session = 'bad'
		BEGIN SELECT RAISE(ABORT, 'refused'); END`); err != nil {
		t.Fatal(err)
	}
	bad := annCalls
	bad.Session = "bad"
	r.put(50, annCalls)
	r.put(1, bad)
	r.put(50, annConnects)
	r.Flush(t.Context())
	r.Flush(t.Context())
	if s := r.Stats(); s.Waiting != 0 || s.Lost != 1 || s.Stored != 102 { // with the start, and the event of the loss
		t.Errorf("%+v", s)
	}
	r.verify()
	r.stop()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if report, err := audit.VerifyLines(bytes.NewReader(b)); err != nil || report.Events != 103 ||
		!bytes.Contains(b, []byte(`"count":1`)) {
		t.Errorf("%+v, %v", report, err)
	}
}

// A crash or a full disk after the file was renamed leaves an empty one, or none: no event is written twice.
func TestFileAfterACrashAtRotation(t *testing.T) {
	for name, leave := range map[string]func(path string) error{
		"none":        func(string) error { return nil },
		"empty":       func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"half a line": func(path string) error { return os.WriteFile(path, []byte(`{"id":`), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, path := t.TempDir(), filepath.Join(t.TempDir(), "events.jsonl")
			file := func() *audit.File { return audit.NewFile(path, 1<<20, 2, slog.New(slog.DiscardHandler)) }
			r := open(t, dir, audit.Config{File: file()}, nil)
			r.put(100, annCalls)
			r.stop()
			if err := errors.Join(os.Rename(path, path+".1"), leave(path)); err != nil {
				t.Fatal(err)
			}
			r = open(t, dir, audit.Config{File: file()}, nil)
			r.put(1, annCalls)
			r.stop()
			before, err := os.ReadFile(path + ".1")
			if err != nil {
				t.Fatal(err)
			}
			after, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			report, err := audit.VerifyLines(bytes.NewReader(append(before, after...)))
			if err != nil || report.Events != 105 {
				t.Errorf("%+v, %v", report, err)
			}
		})
	}
}
