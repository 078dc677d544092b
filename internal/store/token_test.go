package store

import (
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/secret"
	"sandlot/internal/store/storetest"
)

// Tokens of before there were roles are whose they were, and may what they might.
func TestRolesComeToAnOlderDatabase(t *testing.T) { storetest.Each(t, testRolesComeToAnOlderDatabase) }

func testRolesComeToAnOlderDatabase(t *testing.T, dir string) {
	old := before(t, dir, 9)
	for _, row := range []string{
		`INSERT INTO tokens (id, hash, "user", service, created, expires, metrics) VALUES ('tok_1', '` +
			secret.Hash("a") + `', 'ann', true, 1, NULL, false)`,
		`INSERT INTO tokens (id, hash, "user", service, created, expires, metrics) VALUES ('tok_2', '` +
			secret.Hash("b") + `', 'local', false, 1, NULL, true)`,
	} {
		if _, err := old.Exec(row); err != nil {
			t.Fatal(err)
		}
	}
	old.Close()
	db := open(t, dir)
	d, err := auth.NewAuthenticator(t.Context(), auth.Auto, "localhost", db, nil)
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]auth.Principal{
		"a": {ID: "user:ann", Name: "ann", Service: true, Authenticated: true, Token: "tok_1"},
		"b": {ID: "user:local", Name: "local", Authenticated: true, Token: "tok_2", Roles: auth.NewRoles(auth.Metrics)},
	} {
		if p, err := d.Authenticate(t.Context(), "Bearer "+token); err != nil || p != want {
			t.Errorf("%+v, %v, want %+v", p, err, want)
		}
	}
	_, value, err := auth.Issue(t.Context(), db, "eve", false, 0, auth.Operator, auth.Metrics)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := d.Authenticate(t.Context(), "Bearer "+value.Reveal()); err != nil ||
		p.Roles != auth.NewRoles(auth.Operator, auth.Metrics) {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := db.db.Exec(`UPDATE tokens SET roles = 'king, logs'`); err != nil {
		t.Fatal(err)
	}
	if all, err := db.Tokens(t.Context()); err != nil || len(all) != 3 || all[0].Roles != auth.NewRoles(auth.Logs) {
		t.Errorf("%+v, %v", all, err)
	}
}

// Scope, the right to act for users, and the time of the last use are stored; a use of a token that was
// revoked is no error.
func TestScopesAndUsesOfTokens(t *testing.T) {
	db := open(t, t.TempDir())
	tok, value, err := auth.IssueToken(t.Context(), db, auth.NewToken{User: "gitu", Service: true, ActsFor: true,
		Scope: "code.execute file.*"})
	if err != nil {
		t.Fatal(err)
	}
	read := func() auth.Token {
		t.Helper()
		got, err := db.TokenByHash(t.Context(), secret.Hash(value.Reveal()))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := read(); got.Scope != tok.Scope || !got.ActsFor || got.Used != nil {
		t.Errorf("stored is %+v", got)
	}
	used := time.Unix(1_800_000_000, 0).UTC()
	if err := db.PutTokenUses(t.Context(), map[string]time.Time{tok.ID: used, "tok_gone": used}); err != nil {
		t.Fatal(err)
	}
	if got := read(); got.Used == nil || !got.Used.Equal(used) {
		t.Errorf("the last use is %v", got.Used)
	}
	if all, err := db.Tokens(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}
