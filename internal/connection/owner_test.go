package connection

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"sandlot/internal/auth"
)

// storedRecords is a store with connections of an earlier server.
type storedRecords struct {
	memStore
	was []Record
}

func (s *storedRecords) Connections(context.Context) ([]Record, error) { return s.was, nil }

// What is stored for an owner who is not known is nobody's, and above all not the
// local user's.
func TestUnknownOwnersAreNobody(t *testing.T) {
	now := time.Now().UTC()
	record := func(owner, id string) Record {
		return Record{ID: id, Owner: owner, Name: id, Kind: Stdio, Command: "true", Created: now, Updated: now}
	}
	owners := map[string]string{"aaaaaa": "local", "bbbbbb": "user:ann", "cccccc": "team:ann", "dddddd": "", "eeeeee": "user:a b", "ffffff": "oidc:x#local"}
	st := &storedRecords{}
	for id, owner := range owners {
		st.was = append(st.was, record(owner, id))
	}
	b := New(Config{Store: st, Version: "1", Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(b.Close)
	if err := b.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, owner := range owners {
		for _, p := range []auth.Principal{auth.Local, auth.User("ann", false)} {
			known := get(b, p, id) != nil
			if want := p.ID == owner; known != want {
				t.Errorf("%q has that of %q: %v", p.ID, owner, known)
			}
		}
	}
	if n := len(b.owners); n != 2 {
		t.Errorf("there are %d owners", n)
	}
}

// Who may use a configured server is told by ids: a name that somebody is shown
// under decides nothing.
func TestPrincipalsAreIDs(t *testing.T) {
	c := Configured{Name: "x", Principals: []string{"local", "user:ann"}}
	for _, tt := range []struct {
		p    auth.Principal
		want bool
	}{
		{auth.Local, true}, {auth.User("ann", false), true}, {auth.User("ann", true), true}, {auth.User("bob", false), false},
		{auth.User("local", false), false}, {auth.Principal{ID: "user:eve", Name: "ann"}, false}, {auth.Principal{ID: "user:eve", Name: "local"}, false},
		{auth.Principal{ID: "user:eve", Name: "user:ann"}, false}, {auth.Principal{}, false},
	} {
		if got := c.admits(tt.p); got != tt.want {
			t.Errorf("%+v: %v", tt.p, got)
		}
	}
	if (Configured{}).admits(auth.Principal{}) || !(Configured{}).admits(auth.Local) {
		t.Error("one for everybody")
	}
}
