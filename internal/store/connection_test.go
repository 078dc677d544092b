package store

import (
	"encoding/json"
	"reflect"
	"testing"

	"sandlot/internal/servers"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/store/storetest"
)

// Connections are read for one owner, and all that is connected can be listed
// without what it offers; what cannot be read is there all the same.
func TestConnections(t *testing.T) { storetest.Each(t, testConnections) }

func testConnections(t *testing.T, dir string) {
	db := open(t, dir)
	catalog := catalog.Catalog{Loaded: true,
		Tools: []catalog.Definition{{Remote: "t", Exposed: "ext_aaaaaa_t", Raw: json.RawMessage(`{}`)}}}
	for _, r := range []servers.Record{{Owner: "user:ann", ID: "aaaaaa", Spec: spec.Spec{Name: "x"}, Catalog: catalog},
		{Owner: "user:ann", ID: "bbbbbb", Spec: spec.Spec{Name: "y"}, Off: true},
		{Owner: "user:bob", ID: "aaaaaa", Spec: spec.Spec{Name: "z"}},
		{Owner: "user:bob", ID: "stock", Spec: spec.Spec{Name: "stock"}, Configured: true}} {
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
	if want := [][2]string{{"user:ann", "aaaaaa"}, {"user:bob", "aaaaaa"}, {"user:eve", "cccccc"}}; err != nil ||
		!reflect.DeepEqual(all, want) {
		t.Errorf("%v, %v", all, err)
	}
}

// A record is read as earlier versions stored it, and stored so that they can read it.
func TestStoredRecordsStay(t *testing.T) { storetest.Each(t, testStoredRecordsStay) }

func testStoredRecordsStay(t *testing.T, dir string) {
	const earlier = `{"ID":"aaaaaa","Owner":"user:ann","Name":"x","Configured":false,"Kind":"stdio","Command":"npx","Args":["-y","it"],"Cwd":"","Path":["/p"],"URL":"",
		"EnvKeys":["K"],"HeaderKeys":null,"Env":{"K":"${secret:K}"},"Headers":null,"Install":{"type":"npm","spec":"it","folder":"/workspace/it"},
		"Off":true,"Older":true,"Asks":true,"Created":"2026-01-02T03:04:05Z","Updated":"2026-01-02T03:04:06Z","Catalog":{}}`
	db := open(t, dir)
	if _, err := db.db.Exec(`INSERT INTO connections VALUES ('user:ann', 'aaaaaa', ?, '{}')`, earlier); err != nil {
		t.Fatal(err)
	}
	all, err := db.Connections(t.Context(), "user:ann")
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	want := spec.Spec{Name: "x", Kind: spec.Stdio, Command: "npx", Args: []string{"-y", "it"}, Path: []string{"/p"},
		EnvKeys: []string{"K"},
		Env:     map[string]string{"K": "${secret:K}"}, Install: &spec.Install{Type: "npm", Spec: "it",
			Folder: "/workspace/it"}}
	r := all[0]
	if !reflect.DeepEqual(r.Spec, want) || !r.Off || !r.Stateful || !r.Elicits || r.Created.Year() != 2026 {
		t.Errorf("%+v", r)
	}
	if err := db.PutConnection(t.Context(), all[0]); err != nil {
		t.Fatal(err)
	}
	var stored string
	if err := db.db.QueryRow(`SELECT record FROM connections`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	var was, is map[string]any
	if json.Unmarshal([]byte(earlier), &was) != nil || json.Unmarshal([]byte(stored), &is) != nil {
		t.Fatal(stored)
	}
	delete(was, "Catalog")
	delete(is, "Catalog")
	if !reflect.DeepEqual(was, is) {
		t.Errorf("stored %v, was %v", is, was)
	}
}
