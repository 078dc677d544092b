package store

import (
	"path/filepath"
	"reflect"
	"testing"

	"sandlot/internal/egress"
	"sandlot/internal/session"
	"sandlot/internal/snapshot"
	"sandlot/internal/store/storetest"
)

// TestSnapshots: snapshots are stored whole; a restored backup has those that were there before it.
func TestSnapshots(t *testing.T) { storetest.Each(t, testSnapshots) }

func testSnapshots(t *testing.T, place string) {
	db := open(t, place)
	old := snapshot.Record{ID: "a", Owner: "user:ann", Name: "first", Session: "s", Bytes: 5 << 30, Created: at,
		Content: session.Content{Image: "image", Workspace: "workspace", Runtime: "gvisor", Template: "host",
			Flavor: "small", Secrets: []string{"A", "B"}, Network: session.NetworkOverride{Mode: egress.None}}}
	if err := db.PutSnapshot(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	same := old
	same.ID = "b"
	if err := db.PutSnapshot(t.Context(), same); err == nil {
		t.Error("a user has two snapshots of one name")
	}
	same.Owner = "user:bob"
	if err := db.PutSnapshot(t.Context(), same); err != nil {
		t.Error(err)
	}
	want := func(records ...snapshot.Record) {
		t.Helper()
		if all, err := db.Snapshots(t.Context()); err != nil || !reflect.DeepEqual(all, records) {
			t.Errorf("there are %+v: %v", all, err)
		}
	}
	want(old, same)
	file := backup(t, place)
	if err := db.RemoveSnapshot(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	prepared := filepath.Join(t.TempDir(), "prepared")
	if err := Prepare(t.Context(), file, prepared, func(*DB) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := db.Restore(t.Context(), prepared, "epoch", new(places)); err != nil {
		t.Fatal(err)
	}
	want(same)
}
