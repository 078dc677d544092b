package store

import (
	"reflect"
	"testing"
	"time"

	"sandlot/internal/port"
	"sandlot/internal/store/storetest"
)

var _ port.Store = (*DB)(nil)

func TestPorts(t *testing.T) { storetest.Each(t, testPorts) }

func testPorts(t *testing.T, dir string) {
	db := open(t, dir)
	put(t, db, sessionOf("a"))
	put(t, db, sessionOf("b"))
	second := at.Truncate(time.Second)
	first := port.Record{Session: "a", Port: 80, Owner: "user:ann", Hash: "h1", Created: second,
		Expires: second.Add(time.Hour)}
	other := port.Record{Session: "b", Port: 80, Owner: "user:ann", Hash: "h2", Public: true, Created: second,
		Expires: second.Add(time.Hour)}
	keep := func(r port.Record) {
		t.Helper()
		if err := db.PutPort(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	has := func(db *DB, want ...port.Record) {
		t.Helper()
		if got, err := db.Ports(t.Context()); err != nil || len(got) != len(want) ||
			len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
		}
	}
	keep(other)
	keep(first)
	has(db, first, other)
	first.Hash, first.Public, first.Expires = "h3", true, second.Add(2*time.Hour)
	keep(first)
	put(t, db, sessionOf("a")) // which touches no port
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(t, dir)
	has(db, first, other)
	if err := db.RemovePort(t.Context(), "b", 80); err != nil {
		t.Fatal(err)
	}
	has(db, first)
	if err := db.RemoveSession(t.Context(), "a"); err != nil { // and its ports
		t.Fatal(err)
	}
	has(db)
	if err := db.PutPort(t.Context(), first); err == nil {
		t.Error("a port of a session that is not there was stored")
	}
}
