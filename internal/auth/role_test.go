package auth

import (
	"encoding/json"
	"strings"
	"testing"

	"sandlot/internal/fault"
)

// A set of roles survives being stored and shown. What is not known gives nothing,
// and an operator has all.
func TestRoles(t *testing.T) {
	for _, tt := range []struct {
		set    Roles
		stored string
		shown  string
		has    []Role
	}{
		{NewRoles(), "", "[]", nil},
		{NewRoles(Metrics), "metrics", `["metrics"]`, []Role{Metrics}},
		{NewRoles(Logs, Metrics, Logs), "metrics, logs", `["metrics","logs"]`, []Role{Metrics, Logs}},
		{NewRoles(Operator), "operator", `["operator"]`, []Role{Operator, Metrics, Logs}},
		{NewRoles("root", "OPERATOR", "operator, metrics", ""), "", "[]", nil},
	} {
		if got := tt.set.String(); got != tt.stored || ParseRoles(got) != tt.set {
			t.Errorf("%q, want %q", got, tt.stored)
		}
		var again Roles
		text, err := json.Marshal(tt.set)
		if err != nil || string(text) != tt.shown || json.Unmarshal(text, &again) != nil || again != tt.set {
			t.Errorf("%s, want %s (%v)", text, tt.shown, err)
		}
		for _, r := range []Role{Operator, Metrics, Logs, "", "root"} {
			want := strings.Contains(","+joined(tt.has)+",", ","+string(r)+",") && r != ""
			p := Principal{Roles: tt.set}
			if err := p.Require(r, "do it"); p.HasRole(r) != want || (err == nil) != want ||
				err != nil && !fault.Is(err, fault.Forbidden) {
				t.Errorf("%q has %q: %v, %v", tt.set, r, p.HasRole(r), err)
			}
		}
	}
	if got := ParseRoles("metrics, of a later version, logs"); got != NewRoles(Metrics, Logs) {
		t.Errorf("%q", got)
	}
	if _, err := ParseRole("Operator"); !fault.Is(err, fault.InvalidParameters) ||
		!strings.Contains(err.Error(), "operator, metrics, logs") {
		t.Error(err)
	}
}

func joined(list []Role) string {
	var names []string
	for _, r := range list {
		names = append(names, string(r))
	}
	return strings.Join(names, ",")
}

// The local user is an operator by the owner's socket alone; a user by a token alone
// that was made so, not by a name; and what outlives the token has none of it.
func TestRolesAreTheTokens(t *testing.T) {
	s := &shelf{}
	d := door(t, Auto, "localhost", s)
	if p, err := d.Authenticate(t.Context(), ""); err != nil || p.HasRole(Operator) || !p.HasRole(Metrics) ||
		!p.HasRole(Logs) {
		t.Errorf("nobody, on loopback: %+v, %v", p, err)
	}
	if p := SocketOwner(); !p.HasRole(Operator) || p.ID != Local.ID || p.WithoutToken || Local.HasRole(Operator) {
		t.Errorf("the owner: %+v", p)
	}
	for _, name := range []string{"operator", "ann", "metrics", "root"} {
		_, plain := issue(t, s, name, false, 0)
		tok, value, err := Issue(t.Context(), s, name, true, 0, Operator)
		if err != nil || tok.Roles != NewRoles(Operator) {
			t.Fatal(tok, err)
		}
		p, err := d.Authenticate(t.Context(), plain)
		if err != nil || p.Roles != 0 {
			t.Errorf("%s, by a plain token: %+v, %v", name, p, err)
		}
		p, err = d.Authenticate(t.Context(), "Bearer "+value.Reveal())
		if err != nil || !p.HasRole(Operator) || p.ID != "user:"+name || !p.Service {
			t.Errorf("%s, by an operator's token: %+v, %v", name, p, err)
		}
		if i := p.Identity(); i != User(name, false) {
			t.Errorf("%s, without the token: %+v", name, i)
		}
	}
	for id, want := range map[string]Principal{"local": {ID: "local", Name: "local"}, "user:ann": User("ann", false),
		"team:ann": {}, "": {}} {
		if p := OnBehalfOf(id); p != want {
			t.Errorf("in the name of %q: %+v", id, p)
		}
	}
	if SocketOwner().Identity() != Local {
		t.Error("the owner's things are not the local user's")
	}
	if _, _, err := Issue(t.Context(), s, "ann", false, 0, "root"); !fault.Is(err, fault.InvalidParameters) {
		t.Errorf("an unknown role: %v", err)
	}
}

// A stored token is its owner's, whole; one of the local user's, or of somebody that
// this version does not know, lets nobody in.
func TestTokensOfUnknownOwners(t *testing.T) {
	for owner, good := range map[string]bool{"user:ann": true, "local": false, "": false, "team:ann": false,
		"user:": false, "ann": false} {
		s := &shelf{}
		_, header := issue(t, s, "ann", false, 0)
		s.tokens[0].Owner, s.tokens[0].User, s.tokens[0].Roles = owner, "Ann", NewRoles(Operator)
		p, err := door(t, Auto, "localhost", s).Authenticate(t.Context(), header)
		if good && (err != nil || p.ID != owner || p.Name != "Ann" || !p.HasRole(Operator)) {
			t.Errorf("%q: %+v, %v", owner, p, err)
		}
		if !good && (!fault.Is(err, fault.Unauthorized) || p != Principal{}) {
			t.Errorf("%q: %+v, %v", owner, p, err)
		}
	}
}
