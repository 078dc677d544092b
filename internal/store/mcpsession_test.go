package store

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/mcpsession"
	"sandlot/internal/store/storetest"
)

var _ mcpsession.Store = (*DB)(nil)

func TestMCPSessions(t *testing.T) { storetest.Each(t, testMCPSessions) }

// testMCPSessions: records are as they were after the database was closed, and are bounded in number and age.
func testMCPSessions(t *testing.T, dir string) {
	db := open(t, dir)
	ann, bob := auth.User("ann", false), auth.User("bob", false)
	ann.Token = "tok_1"
	now := at.Truncate(time.Millisecond)
	keep := func(r mcpsession.Record) {
		t.Helper()
		if err := db.PutMCPSession(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	has := func(db *DB, id string) (mcpsession.Record, bool) {
		t.Helper()
		r, found, err := db.MCPSession(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return r, found
	}
	first, _ := mcpsession.New("first", ann, "code", json.RawMessage(`{"a":"é"}`), now)
	keep(first)
	first = first.Subscribe("a://b", false)
	first.Level, first.Initialized, first.Used = "debug", true, now.Add(time.Hour)
	keep(first)
	other, _ := mcpsession.New("other", bob, "", json.RawMessage(`{}`), now)
	keep(other)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(t, dir)
	for _, want := range []mcpsession.Record{first, other} {
		if got, found := has(db, want.ID); !found || !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v, %v\nwant %+v", got, found, want)
		}
	}
	if _, found := has(db, "none"); found {
		t.Error("a session that was never stored is there")
	}

	_, limit := first.Group()
	for i := range limit {
		r, _ := mcpsession.New(fmt.Sprint("more", i), ann, "", json.RawMessage(`{}`),
			now.Add(2*time.Hour+time.Duration(i)*time.Second))
		keep(r)
	}
	if _, found := has(db, "first"); found {
		t.Error("more sessions of a principal are stored than the limit")
	}
	for _, id := range []string{"other", "more0", fmt.Sprint("more", limit-1)} {
		if _, found := has(db, id); !found {
			t.Errorf("%s is gone", id)
		}
	}
	if err := db.RemoveMCPSession(t.Context(), "more1"); err != nil {
		t.Fatal(err)
	}
	if err := db.RemoveMCPSessions(t.Context(), now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{"more0": true, "more1": false, "other": false} {
		if _, found := has(db, id); found != want {
			t.Errorf("%s is there: %v", id, found)
		}
	}
}
