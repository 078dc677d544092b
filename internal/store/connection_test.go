package store

import (
	"encoding/json"
	"reflect"
	"testing"

	"sandlot/internal/servers"
)

// Connections are read for one owner, and all that is connected can be listed
// without what it offers; what cannot be read is there all the same.
func TestConnections(t *testing.T) {
	db := open(t, t.TempDir())
	catalog := servers.Catalog{Read: true, Tools: []servers.Definition{{Remote: "t", Key: "ext_aaaaaa_t", Raw: json.RawMessage(`{}`)}}}
	for _, r := range []servers.Record{{Owner: "user:ann", ID: "aaaaaa", Name: "x", Catalog: catalog}, {Owner: "user:ann", ID: "bbbbbb", Name: "y", Off: true},
		{Owner: "user:bob", ID: "aaaaaa", Name: "z"}, {Owner: "user:bob", ID: "stock", Name: "stock", Configured: true}} {
		if err := db.PutConnection(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.db.Exec(`INSERT INTO connections VALUES ('user:eve', 'cccccc', 'no JSON', '{}')`); err != nil {
		t.Fatal(err)
	}
	ann, err := db.Connections(t.Context(), "user:ann")
	if err != nil || len(ann) != 2 || !reflect.DeepEqual(ann[0].Catalog, catalog) || !ann[1].Off {
		t.Errorf("%+v, %v", ann, err)
	}
	if none, err := db.Connections(t.Context(), "user:an"); err != nil || len(none) != 0 {
		t.Errorf("%+v, %v", none, err)
	}
	if _, err := db.Connections(t.Context(), "user:eve"); err == nil {
		t.Error("what is no record was read")
	}
	all, err := db.Connected(t.Context())
	if want := [][2]string{{"user:ann", "aaaaaa"}, {"user:bob", "aaaaaa"}, {"user:eve", "cccccc"}}; err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("%v, %v", all, err)
	}
}
