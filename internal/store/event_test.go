package store

import (
	"errors"
	"testing"
	"time"

	"sandlot/internal/audit"
	"sandlot/internal/event"
	"sandlot/internal/store/storetest"
)

// eventRows returns rows of both chains with the ids from first to last.
func eventRows(t *testing.T, first, last uint64) (rows []audit.Row) {
	t.Helper()
	for id := first; id <= last; id++ {
		e := event.Event{ID: id, Time: time.Unix(int64(id), 0), Kind: event.Call, Principal: "user:ann", Operation: "x",
			Outcome: event.OK, ByOthers: id%3 == 0}
		r, err := audit.NewRow(e)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	return rows
}

// Rows that are stored already are skipped: their server did not hear that they are. The chains stay whole.
func TestEventsAreAppendedOnce(t *testing.T) { storetest.Each(t, testEventsAreAppendedOnce) }

func testEventsAreAppendedOnce(t *testing.T, place string) {
	db := open(t, place)
	for _, last := range []uint64{10, 10, 200, 200} {
		if err := db.AppendEvents(t.Context(), eventRows(t, 1, last)); err != nil {
			t.Fatal(err)
		}
		if report, err := db.VerifyEvents(t.Context()); err != nil || report.Events != last {
			t.Errorf("%+v, %v", report, err)
		}
	}
	var count int
	if err := db.db.QueryRow(`SELECT sum(count) FROM event_chains`).Scan(&count); err != nil || count != 200 {
		t.Errorf("%d rows are counted, %v", count, err)
	}
}

// A row that the database does not store is told from a database that does not work, and nothing is stored.
func TestARowIsRefused(t *testing.T) { storetest.Each(t, testARowIsRefused) }

func testARowIsRefused(t *testing.T, place string) {
	db := open(t, place)
	if _, err := db.db.Exec(`CREATE UNIQUE INDEX one ON events (session)`); err != nil {
		t.Fatal(err)
	}
	if err := db.AppendEvents(t.Context(), eventRows(t, 1, 2)); !errors.Is(err, audit.ErrRefused) {
		t.Errorf("a constraint: %v", err)
	}
	if db.postgres {
		rows := eventRows(t, 1, 1)
		rows[0].Session = "a\x00b"
		if err := db.AppendEvents(t.Context(), rows); !errors.Is(err, audit.ErrRefused) {
			t.Errorf("a NUL: %v", err)
		}
	}
	if report, err := db.VerifyEvents(t.Context()); err != nil || report.Events != 0 {
		t.Errorf("%+v, %v", report, err)
	}
	db.Close()
	if err := db.AppendEvents(t.Context(), eventRows(t, 1, 1)); err == nil || errors.Is(err, audit.ErrRefused) {
		t.Errorf("a closed database: %v", err)
	}
}
